"""Runs trials in a worker: builds the plan of the run again, and runs each trial that the coordinator names.

Only bytes are exchanged. A worker gets a `WorkerSetup` once and a `TrialRequest` for each attempt of a trial; it returns a
`TrialResult`. The coordinator has the journal, the cassette, the budget and the retries.
"""

import asyncio
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec import Raw, Struct

from viva.concurrency.garbage import collect_less_often
from viva.concurrency.prints import capture_prints
from viva.config import find_unset_variables
from viva.engine.event_bus import EventBus
from viva.engine.trial import RunContext, run_trial
from viva.errors import BadInput, Problem, RunStopped
from viva.executors.request_batches import RequestQueue
from viva.llm.budget import ModelCallCollector
from viva.llm.limits import use_limit_share
from viva.model import codec
from viva.model.case import Case, Key
from viva.model.message import ModelCall
from viva.model.record import Cell, TrialRecord
from viva.protocols import PlannedTrial
from viva.record.cassette import CassetteLine
from viva.session.options.saved import restore_worker_options
from viva.session.resume import find_fingerprint_changes
from viva.session.run import create_run_context
from viva.session.run_plan import PlanInputs, RunPlan, build_run_plan
from viva.session.scripts.hooks import add_hooks

_MAX_CASES_IN_MEMORY = 2000


class WorkerSetup(Struct, frozen=True, kw_only=True):
    """Sent once to each worker: what it needs to build the plan of the run."""

    run_id: str
    options: Mapping[str, Any]
    folder: str = ""
    """The project's folder; empty if it comes as an archive."""
    archive_digest: str = ""
    subfolder: str = "."
    """Where in the project the run was started."""
    fingerprint: Mapping[str, Any]
    generated_cases: Mapping[str, Sequence[Any]] = {}
    standard_input: bytes | None = None
    variables: Sequence[str] = ()
    """The names of environment variables that the run needs. Their values are never sent."""
    packages: Mapping[str, str] = {}
    """The versions of Python and of the packages that the coordinator has loaded."""
    is_local: bool = True
    """Is the worker a process of this run, on the same machine?"""
    cores: tuple[int, ...] = ()
    """The core of each local worker, by its number; empty if all use all cores."""


class WorkerReport(Struct, frozen=True, kw_only=True):
    """A worker's answer to its setup: problems, warnings, or that it needs the archive."""

    problems: tuple[tuple[str, int, str, str], ...] = ()
    """The fields of each Problem that prevents trials on the worker."""
    warnings: tuple[str, ...] = ()
    needs_archive: bool = False
    """Must the coordinator send the archive of the project?"""


class TrialRequest(Struct, frozen=True, kw_only=True):
    """Sent to a worker to run one attempt of a trial. `variables` is the encoded result of `--before`."""

    suite: str
    case: str
    agent: str
    index: int
    trial: int
    total: int
    attempt: int
    keep: tuple[str, ...]
    variables: Raw


class TrialResult(Struct, frozen=True, kw_only=True):
    """A worker's answer: the record of an attempt, and its cassette lines, model calls and event loop delays."""

    record: TrialRecord | None = None
    lines: tuple[CassetteLine, ...] = ()
    calls: tuple[ModelCall, ...] = ()
    lag: Mapping[str, float] = {}
    workspace: bytes = b""
    """The kept workspace as an archive, from another machine."""
    stop_reason: str | None = None
    """Why the whole run has to stop, in place of the record."""


class TrialWorker:
    """The trials of one run in a worker. Arguments and results are bytes, because they are exchanged with another process."""

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self._runner: _TrialRunner | None = None
        self._requests = RequestQueue(self._run)

    async def prepare(self, _nothing: bytes) -> bytes:
        """Build the plan. Returns a WorkerReport."""
        try:
            self._runner = await _TrialRunner.open(self._setup)
        except BadInput as error:
            root = Path(self._setup.folder)
            return codec.encode(WorkerReport(problems=tuple(_locate_problem(each, root) for each in error.problems)))
        except OSError as error:
            return codec.encode(report_os_error(error))
        return codec.encode(WorkerReport(warnings=tuple(_list_version_differences(self._setup.packages))))

    async def exchange(self, batch: bytes) -> bytes:
        """Start a batch of TrialRequests, and return a batch of TrialResults as soon as there is one."""
        return await self._requests.exchange(batch)

    async def _run(self, request: bytes) -> bytes:
        if self._runner is None:
            raise RuntimeError("the worker is not prepared")
        return await self._runner.run(request)

    async def set_worker_count(self, count: bytes) -> bytes:
        """Use the share 1/`count` of the connectors' rate limits, because all workers share them."""
        if self._runner is not None:
            self._runner.use_share_of_limits(1 / int(count))
        return b""

    async def close(self, _nothing: bytes) -> bytes:
        """Cancel the trials that are running, and close everything."""
        await self._requests.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.close()
        return b""


def _check_folder(folder: str) -> None:
    if not Path(folder).is_dir():
        raise BadInput.of(
            f"there is no folder {folder}; --cluster-folder is the project's folder as the workers see it"
        )


def _leave_out_others(fingerprint: Mapping[str, Any], plan: RunPlan) -> dict[str, Any]:
    """The fingerprint of the coordinator without the agents that only it uses, such as the reporter of `-r`."""
    used = plan.agents.definitions
    return {**fingerprint, "agents": {name: each for name, each in fingerprint["agents"].items() if name in used}}


def _locate_problem(problem: Problem, root: Path) -> tuple[str, int, str, str]:
    """The fields of a problem that says on which machine it is; its file is named as in the project."""
    file = Path(problem.file)
    name = str(file.relative_to(root)) if file.is_relative_to(root) else problem.file
    return name, problem.line, problem.path, f"worker on {platform.node()}: {problem.message}"


def report_os_error(error: OSError) -> WorkerReport:
    """The report of an error of this machine, such as a full disk, that prevents trials."""
    return WorkerReport(problems=(("", 0, "", f"worker on {platform.node()}: {error}"),))


class _TrialRunner:
    """Runs and cancels trials of the plan that was built in this process."""

    def __init__(self, plan: RunPlan, setup: WorkerSetup, calls: ModelCallCollector, exits: AsyncExitStack) -> None:
        self._plan = plan
        self._is_local = setup.is_local
        self._calls = calls
        self._run_context = create_run_context(plan, setup.run_id, EventBus((), ()))
        self._cases = CaseFinder(plan)
        self._exits = exits

    @classmethod
    async def open(cls, setup: WorkerSetup) -> "_TrialRunner":
        calls = ModelCallCollector()
        inputs = PlanInputs(
            generated_cases=setup.generated_cases,
            standard_input=setup.standard_input,
            budget=calls,
            is_worker=True,
            project_root=Path(setup.folder),
        )
        async with AsyncExitStack() as exits:
            _check_folder(setup.folder)
            options = restore_worker_options(setup.options, Path(setup.folder), setup.subfolder)
            if missing := find_unset_variables(setup.variables, options.env_file):
                raise BadInput.of(f"these environment variables are not set: {', '.join(missing)}")
            plan = await build_run_plan(options, inputs=inputs)
            exits.push_async_callback(plan.aclose)
            if changes := find_fingerprint_changes(_leave_out_others(setup.fingerprint, plan), plan.fingerprint):
                raise BadInput.of(
                    f"{', '.join(changes)}: different from the process that started the run. Start the run in the project's folder, with "
                    "relative paths, and use the same version of Viva everywhere"
                )
            exits.enter_context(capture_prints())
            exits.enter_context(collect_less_often())  # as in the process of a run without workers
            return cls(plan, setup, calls, exits.pop_all())
        raise AssertionError  # no context manager here swallows errors

    async def run(self, raw: bytes) -> bytes:
        try:
            return codec.encode(await self._run_attempt(codec.decode_own(raw, type=TrialRequest)))
        except (RunStopped, OSError) as error:
            reason = error.reason if isinstance(error, RunStopped) else f"worker on {platform.node()}: {error}"
            return codec.encode(TrialResult(stop_reason=reason, calls=self._calls.pop_calls()))
        except asyncio.CancelledError:  # the coordinator stops the trial, but charges its calls
            return codec.encode(TrialResult(stop_reason="cancelled", calls=self._calls.pop_calls()))

    async def _run_attempt(self, request: TrialRequest) -> TrialResult:
        case = await self._cases.find((request.suite, request.case, request.agent))
        planned = PlannedTrial(case, request.index, request.trial, request.total, request.agent)
        record = await run_trial(self._add_hooks(request), planned, request.attempt, request.keep)
        is_elsewhere = record.workspace is not None and not self._is_local
        workspace = await asyncio.to_thread(_pack_workspace, record) if is_elsewhere else b""
        key = Key(case.suite, case.id, request.trial, request.attempt, request.agent)
        lag = self._run_context.loop_lag.blocked_s_by_agent
        result = TrialResult(
            record=record,
            lines=self._plan.cassette_mode.take_trial(key),
            calls=self._calls.pop_calls(),
            lag=dict(lag),
            workspace=workspace,
        )
        lag.clear()
        return result

    def _add_hooks(self, request: TrialRequest) -> RunContext:
        variables = codec.decode_own(bytes(request.variables))
        return add_hooks(self._run_context, data=variables)[0]

    def use_share_of_limits(self, share: float) -> None:
        use_limit_share(self._plan.http, share)

    async def close(self) -> None:
        await self._exits.aclose()


def _add_warning(record: TrialRecord, text: str) -> None:
    record.warnings = [*(record.warnings or ()), text]


def _pack_workspace(record: TrialRecord) -> bytes:
    """Pack the kept workspace of a trial and delete it here. One that is too large stays, and the record names this machine."""
    from viva.workspace.folders import remove_kept_workspace  # few trials have a workspace
    from viva.workspace.transfer import MAX_BYTES, WorkspaceTooLarge, pack_workspace

    path = str(record.workspace)
    try:
        archive, left_out = pack_workspace(path)
    except WorkspaceTooLarge:
        record.workspace = f"{platform.node()}:{path}"
        _add_warning(
            record, f"the workspace has more than {MAX_BYTES >> 20} MB or too many files, and stays on the worker"
        )
        return b""
    if left_out:
        entries = f"{left_out} file{'s' if left_out != 1 else ''}"
        _add_warning(
            record,
            f"{entries} of the workspace could not be sent from the worker: unreadable, or links that lead outside",
        )
    remove_kept_workspace(path)
    return archive


class CaseFinder:
    """Finds cases by suite, id and agent. It reads them in input order, which is mostly the order of the requests."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._trials = plan.iterate_trials()
        self._recent: dict[Cell, Case] = {}
        self._lock = asyncio.Lock()

    async def find(self, cell: Cell) -> Case:
        async with self._lock:
            if cell in self._recent:
                return self._recent[cell]
            for _ in range(2):  # from here to the end, then from the start
                async for planned in self._trials:
                    if planned.cell not in self._recent:
                        self._keep_case(planned)
                    if planned.cell == cell:
                        return planned.case
                self._trials = self._plan.iterate_trials()
        raise RunStopped(f"a worker cannot find the case {cell[1]!r} of {cell[0]}")

    def _keep_case(self, planned: PlannedTrial) -> None:
        self._recent[planned.cell] = planned.case
        if len(self._recent) > _MAX_CASES_IN_MEMORY:
            del self._recent[next(iter(self._recent))]


def list_packages() -> dict[str, str]:
    """The versions of Python and of the packages that this process has loaded."""
    from importlib import metadata

    loaded = {name.partition(".")[0] for name in sys.modules}
    names = {each for package, each in _map_packages_to_distributions().items() if package in loaded}
    return {"Python": platform.python_version()} | {name: metadata.version(name) for name in sorted(names)}


def _map_packages_to_distributions() -> dict[str, str]:
    from importlib import metadata

    return {package: names[0] for package, names in metadata.packages_distributions().items()}


def _list_version_differences(theirs: Mapping[str, str]) -> list[str]:
    from importlib import metadata

    differences: list[str] = []
    for name, version in theirs.items():
        try:
            mine = platform.python_version() if name == "Python" else metadata.version(name)
        except metadata.PackageNotFoundError:
            mine = "none"
        if mine != version:
            differences.append(f"{name} {mine} instead of {version}")
    return differences
