"""Runs the trials of a run in worker processes: sends each attempt by name, and charges and records what comes back."""

import multiprocessing
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Raw, Struct, field, structs

from viva.engine.outcome import Outcome
from viva.engine.records import build_trial_record
from viva.engine.trial import RunContext, create_trial_state
from viva.errors import BadInput, Problem, RunStopped, WorkerCrashed
from viva.model import codec
from viva.model.event import Note, TrialStarted
from viva.model.record import TrialRecord
from viva.protocols import PlannedTrial, Workers
from viva.record.player import FILES_KEY
from viva.record.redaction import MIN_SECRET_LENGTH
from viva.session.cassette_mode import CassetteMode
from viva.session.options.run_options import AllRunOptions
from viva.session.options.saved import AGENT_OPTION_FLAGS, dump_worker_options, list_agent_references
from viva.session.run_plan import RunPlan
from viva.session.workers.project_archive import LEAK_MESSAGE, digest_archive, find_secret_line, pack_project
from viva.session.workers.worker import TrialRequest, TrialResult, WorkerReport, WorkerSetup, list_packages
from viva.text.credentials import find_config_credentials, is_secret_name, mask_agent_reference

if TYPE_CHECKING:
    from viva.executors.dask_workers import CallActor

_SCHEDULER_ADDRESS = re.compile(r"(tcp|tls)://[^\s/]+:\d+")
_MIN_LENGTH_OF_WORDS = 12
"""Shorter secrets without letters or without digits are looked for in no file."""
_CRASH_MESSAGE = "the worker process ended while it ran this trial alone, twice: the agent ends or crashes its process"


class WorkerExecutor(Struct, frozen=True):
    """Runs each attempt of a trial in a worker process. Journal, cassette, budget and retries stay in this process."""

    run_context: RunContext
    cassette_mode: CassetteMode
    workers: Workers
    get_data: Callable[[], Any]
    """What `--before` returned."""
    stops: list[RunStopped] = field(default_factory=list[RunStopped])
    """Errors that stop the run: the budget is spent, so no further trial may start."""

    async def run_attempt(self, planned: PlannedTrial, attempt: int, keep: Collection[str]) -> TrialRecord:
        if self.stops:
            raise self.stops[0]
        case, bus = planned.case, self.run_context.bus
        state = create_trial_state(self.run_context, planned, attempt)
        if bus.live and case.skip_reason is None:
            user = case.user
            name = case.name or case.id
            bus.emit(TrialStarted(state.key, planned.index, name, len(user.planned_messages), user.simulator))
        request = TrialRequest(
            suite=case.suite,
            case=case.id,
            agent=planned.agent,
            index=planned.index,
            trial=planned.trial,
            total=planned.total,
            attempt=attempt,
            keep=tuple(keep),
            variables=self._encode_hook_data(),
        )
        try:
            with self.run_context.list_as_running(state):
                raw = await self.workers.run(codec.encode(request))
        except WorkerCrashed:
            return build_trial_record(state, Outcome.failed(_CRASH_MESSAGE), planned.total)
        finally:
            for warning in self.workers.take_warnings():
                bus.emit(Note(self.run_context.redactor.redact_text(warning), "warning"))
        return self._accept_result(codec.decode_own(raw, type=TrialResult))

    async def charge_cancelled(self) -> None:
        for raw in await self.workers.take_cancelled_results():
            self._charge_calls(codec.decode_own(raw, type=TrialResult))

    def _charge_calls(self, result: TrialResult) -> None:
        for call in result.calls:
            try:
                self.run_context.meter(call)
            except RunStopped as stop:  # the trial has ended: its record stands
                self.stops.append(stop)

    def _accept_result(self, result: TrialResult) -> TrialRecord:
        self.cassette_mode.add_trial(result.lines)
        for agent, seconds in result.lag.items():
            lag = self.run_context.loop_lag.blocked_s_by_agent
            lag[agent] = lag.get(agent, 0.0) + seconds
        self._charge_calls(result)
        if result.record is None:
            raise RunStopped(result.stop_reason or "a worker stopped")
        if result.workspace:
            _store_workspace(result.record, result.workspace)
        return result.record

    def _encode_hook_data(self) -> Raw:
        try:
            return codec.to_raw(self.get_data())
        except (TypeError, ValueError, RecursionError) as error:
            raise RunStopped(f"--before returned a value that cannot be sent to workers: {error}") from error


def _store_workspace(record: TrialRecord, archive: bytes) -> None:
    """Store the kept workspace of a worker on another machine here, and put its path into the record."""
    from viva.workspace.transfer import WorkspaceTooLarge, unpack_workspace  # few trials have a workspace

    try:
        record.workspace = unpack_workspace(archive, record.id)
    except (OSError, WorkspaceTooLarge) as error:
        record.workspace = None
        record.warnings = [*(record.warnings or ()), f"the workspace of the worker could not be stored here: {error}"]


def open_workers(plan: RunPlan, run_id: str) -> AbstractAsyncContextManager[Workers]:
    """Start the workers of a run, or connect to them. Raises BadInput if they cannot run its trials."""
    options = plan.options
    flag = "--cluster" if options.workers is None else "--workers"
    if plan.has_person:
        raise BadInput.of(f"{flag}: a person cannot take part in trials on workers; run interactive cases without it")
    if options.interactive:
        raise BadInput.of(
            f"{flag} and --interactive exclude each other: a person cannot take part in trials on workers"
        )
    if plan.workspaces.is_in_place:
        raise BadInput.of(f"{flag}: --workspace cwd lets one trial at a time work in the folder; use another workspace")
    if find_spec("distributed") is None:
        raise BadInput.of(f"{flag} needs Dask; install it with: pip install 'viva-eval[cluster]'")
    if options.cluster and not _SCHEDULER_ADDRESS.fullmatch(options.cluster):
        raise BadInput.of(
            f"--cluster {options.cluster}: is not the address of a scheduler, such as tcp://localhost:8786"
        )
    if options.cluster:
        _check_cluster_options(options)
    if options.dashboard and find_spec("bokeh") is None:
        raise BadInput.of("--dashboard needs bokeh; install it with: pip install bokeh")
    if multiprocessing.parent_process() is not None and options.workers:
        raise BadInput.of(
            '--workers in a process of another pool: put the call of viva.run below `if __name__ == "__main__":`'
        )
    from viva.executors.dask_cluster import Cluster
    from viva.executors.dask_workers import ActorSpec, open_dask_workers
    from viva.session.workers.actors import ProcessActor, ThreadActor

    root = _find_project_root(plan)
    cluster_folder = options.cluster_folder and options.folder / options.cluster_folder
    setup = WorkerSetup(
        run_id=run_id,
        options=dump_worker_options(options, root),
        folder="" if options.cluster and not cluster_folder else str((cluster_folder or root).absolute()),
        subfolder=options.folder.resolve().relative_to(root).as_posix(),
        fingerprint=plan.fingerprint,
        generated_cases=plan.generated_cases,
        standard_input=plan.standard_input,
        variables=_list_used_variables(plan),
        packages=list_packages(),
        is_local=options.cluster is None,
        cores=_assign_cores(plan),
    )
    archive = b""
    secrets = _list_secrets(plan) if options.cluster else ()
    if find_secret_line(codec.encode(setup) + (plan.standard_input or b""), secrets):
        raise BadInput.of(f"--cluster: an option or a case of the run {LEAK_MESSAGE}")
    if not setup.folder:
        archive = pack_project(root, options.env_file, _list_read_files(plan), secrets)
        setup = structs.replace(setup, archive_digest=digest_archive(archive))

    async def prepare(call_actor: "CallActor") -> tuple[str, ...]:
        return await _prepare_worker(call_actor, archive)

    cluster = Cluster(worker_count=options.workers, address=options.cluster, has_dashboard=options.dashboard)
    actor_type = ThreadActor if setup.is_local else ProcessActor
    return open_dask_workers(cluster, ActorSpec(actor_type, (codec.encode(setup),), prepare), plan.worker_load)


def _assign_cores(plan: RunPlan) -> tuple[int, ...]:
    """One core for each local worker, if there are as many cores as workers.

    Frameworks call tools in threads. Linux wakes such a thread on the core of another worker, where it waits, while its own
    core is idle: 8 % of the time. Agents that start commands use all cores.
    """
    if plan.options.workers is None or not hasattr(os, "sched_getaffinity"):
        return ()
    cores = tuple(sorted(os.sched_getaffinity(0)))
    starts_commands = any(agent.needs_workspace for agent in plan.tested_agents)
    return () if starts_commands or len(cores) != plan.options.workers else cores


def describe_workers(plan: RunPlan, workers: Workers) -> list[str]:
    """A note on the number of workers and parallel trials, and on the dashboard."""
    processes = f"{workers.count} worker process{'es' if workers.count != 1 else ''}"
    dashboard = f"; dashboard: {workers.dashboard}" if workers.dashboard else ""
    return [f"{processes}, {plan.parallel} trial{'s' if plan.parallel != 1 else ''} in parallel{dashboard}"]


def list_worker_warnings(plan: RunPlan) -> Iterator[str]:
    options = plan.options
    if options.cluster and options.cluster.startswith("tcp:"):
        yield f"--cluster {options.cluster}: without TLS, everybody who reaches this scheduler can run code on its workers"
    if options.max_cost_usd is not None:
        yield (
            f"--max-cost: a trial on a worker is charged when it ends, so the cost can exceed the budget by that of the trials "
            f"in flight, at most {plan.parallel}"
        )


def _check_cluster_options(options: AllRunOptions) -> None:
    """Raises BadInput for agents with secrets in their reference, which are not sent, and for --update-snapshots without a shared folder."""
    for name, flag in AGENT_OPTION_FLAGS.items():
        for reference in list_agent_references(getattr(options, name)):
            if mask_agent_reference(reference) != reference:
                masked = mask_agent_reference(reference)
                raise BadInput.of(f"{flag} {masked}: secrets are not sent to a cluster; use a variable in viva.toml")
    if options.update_snapshots and options.cluster_folder is None:
        raise BadInput.of("--update-snapshots: the workers write to a copy of the project; pass --cluster-folder")


def _list_used_variables(plan: RunPlan) -> list[str]:
    """The environment variables that the config, agents and playbooks of the run name, if they have a value here."""
    settings = plan.settings
    keys = {each.key_source for each in settings.connectors.values() if each.api_key and not each.is_built_in}
    names = keys.union(plan.redactor.variable_names, settings.used_variables)
    return sorted(name for name in names if settings.environ.get(name))


def _list_secrets(plan: RunPlan) -> list[str]:
    """The known secrets: values of environment variables that are named like a secret, and those that the config holds itself.

    Words and numbers that any file may contain are left out, such as the value of AUTH_MODE=disabled.
    """
    settings = plan.settings
    in_config = find_config_credentials(tomllib.loads(settings.source_text))
    plain = {value for name, value in settings.environ.items() if not _is_named_like_secret(name)}
    return sorted(secret for secret in {*plan.redactor.secrets, *in_config} - plain if _is_distinct(secret))


def _is_named_like_secret(variable: str) -> bool:
    return is_secret_name(variable) or "passw" in variable.lower()


def _is_distinct(secret: str) -> bool:
    has_both = any(map(str.isalpha, secret)) and any(map(str.isdigit, secret))
    return len(secret) >= (MIN_SECRET_LENGTH if has_both else _MIN_LENGTH_OF_WORDS)


def _list_read_files(plan: RunPlan) -> Iterator[Path]:
    """The config, suites and Python files of agents that this process has read."""
    settings = plan.settings
    if settings.file is not None:
        yield settings.file
    yield from plan.loaded.files
    for definition in plan.agents.definitions.values():
        yield from (settings.folder / name for name in definition.get(FILES_KEY, ()))


def _find_project_root(plan: RunPlan) -> Path:
    """The folder of the config if the run was started in it or below; else the folder of the run."""
    folder, project = plan.options.folder.resolve(), plan.settings.folder.resolve()
    return project if folder.is_relative_to(project) else folder


async def _prepare_worker(call_actor: "CallActor", archive: bytes) -> tuple[str, ...]:
    """Prepare one worker and return its warnings. Raises BadInput if it cannot run the trials."""
    report = codec.decode_own(await call_actor("prepare", b""), type=WorkerReport)
    if report.needs_archive:
        report = codec.decode_own(await call_actor("prepare", archive), type=WorkerReport)
    if report.problems:
        raise BadInput(*(Problem(*fields) for fields in report.problems))
    return report.warnings
