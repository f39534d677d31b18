"""Eval runs: their requests are validated, their suites executed with the engine, and their events written."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from msgspec import UNSET, Struct, structs

from viva.checks.golden import ReturnSchema
from viva.concurrency.threads import run_in_thread
from viva.errors import BadInput
from viva.formats.openwop.modes import LIVE_MODE
from viva.formats.openwop.suite import EvalSuite, ManifestInfo
from viva.formats.openwop.summary import EvalSummary, TaskSummary, build_eval_summary, build_task_summary
from viva.host.discovery import MAX_TASKS
from viva.host.errors import validation_error
from viva.host.events import EventDraft, RunLog, read_summary, run_completed
from viva.host.host import Host
from viva.host.inventory import (
    AGENT_KEYS,
    EVAL_KEYS,
    HostedAgent,
    PlanKey,
    add_agent_checks,
    compute_stamp,
    find_configured_agent,
    parse_agent_overrides,
    reject_unknown_keys,
)
from viva.host.runs import RunEnd, RunError
from viva.host.store import LeaseLost, Run, Store, StoreUnavailable
from viva.host.tokens import Principal
from viva.host.turns import HostWork
from viva.host.workflows import UsageTotal, build_invocation_result
from viva.llm.budget import Budget
from viva.model import codec
from viva.model.event import Event, RunEnded, RunStarted, TrialEnded
from viva.model.record import TrialRecord
from viva.record.atomic_files import replace_file
from viva.record.private_files import make_private_folder
from viva.session.agents import AgentFactory, extract_prompts
from viva.session.options.run_options import AllRunOptions
from viva.session.resume import PreviousRun, check_unchanged, read_previous_run
from viva.session.run import HostedRun, execute
from viva.session.run_plan import PlanInputs, RunPlan, build_run_plan

_LAST_LINE_NUMBER = 2**31 - 1
"""The number of the last line of a journal in a shared store."""


async def prepare_eval_run(host: Host, principal: Principal, body: dict[str, Any]) -> Run:
    """Validates a request for an eval, and builds the run. Raises an ApiError for the first problem."""
    configurable = dict(body.get("configurable", {}))
    reject_unknown_keys(configurable, (*EVAL_KEYS, *AGENT_KEYS))
    hosted, suite, manifest = await host.suites.find(body["evalSuiteRef"], body["agentId"], principal.tenant)
    modes = _select_modes(configurable.get("evalModes"), suite, host.eval_modes)
    if len(suite.tasks) > MAX_TASKS:
        message = f"The suite has more than {MAX_TASKS} tasks"
        raise validation_error(message, "evalSuiteRef", maxTasksPerSuite=MAX_TASKS)
    agent = host.agents.find(body["agentId"], principal.tenant)
    if agent is None:
        raise validation_error("Unknown agent", "agentId")
    if suite.target_agent_id not in (None, agent.agent_id) and configurable.get("allowAgentMismatch") is not True:
        message = "The suite is for another agent. To run it anyway, set configurable.allowAgentMismatch"
        raise validation_error(message, "agentId")
    if suite.allowed_models and agent.model_class not in suite.allowed_models:
        raise validation_error("The suite does not allow agents of this model class", "agentId")
    _check_baseline(host, principal, configurable.get("baselineRunId"), modes, suite)
    fields = parse_agent_overrides(host.settings, agent, configurable)
    settings = {key: value for key, value in configurable.items() if key != "evalModes"}
    run = host.build_run(
        principal,
        kind="eval",
        workflow=f"eval:{suite.suite_id}",
        agent=agent.agent_id,
        request={
            "suite": hosted.relative_path(host.settings.folder),
            "suiteId": suite.suite_id,
            "suiteVersion": suite.version,
            "taskCount": len(suite.tasks),
            "modes": list(modes),
            "configurable": {**settings, **({"evalModes": list(modes)} if "evalModes" in configurable else {})},
            **({"agentFields": fields} if fields else {}),
        },
    )
    try:
        key = _compute_plan_key(host, run, agent)
    except BadInput:  # the problem may quote the config; its owner sees it with `viva agents`
        raise validation_error("This agent cannot be opened", "agentId") from None
    if host.loaded_inputs.get(key) is None:  # else an equal run was checked before
        await run_in_thread(
            lambda: _check_tasks(
                host, suite, agent, agent.manifest if manifest.task_schema is None else manifest, modes
            )
        )
        try:
            await (await _build_plan(host, run, agent)).aclose()
        except BadInput:
            # The problem would quote the suite or the config; their owner sees it with `viva check`.
            raise validation_error("The suite cannot be run with this agent", "evalSuiteRef") from None
    return run


def _check_tasks(
    host: Host, suite: EvalSuite, agent: HostedAgent, manifest: ManifestInfo, modes: Sequence[str]
) -> None:
    _check_inputs(suite, manifest)
    if LIVE_MODE not in modes:
        _check_fixtures(host, suite, agent)


def _select_modes(requested: Sequence[str] | None, suite: EvalSuite, offered: Sequence[str]) -> tuple[str, ...]:
    """Returns the requested modes or, without any, those of the suite. live-shadow calls real tools, so it has to be requested."""
    modes = tuple(suite.modes if requested is None else requested)
    field = "configurable.evalModes"
    if requested is None and LIVE_MODE in modes:
        raise validation_error("live-shadow has to be requested by name", field, declared=list(suite.modes))
    if undeclared := [mode for mode in modes if mode not in suite.modes]:
        raise validation_error("The suite does not declare all requested modes", field, modes=undeclared)
    if unoffered := [mode for mode in modes if mode not in offered]:
        raise validation_error("This host does not offer all requested modes", field, modes=unoffered)
    if LIVE_MODE in modes and len(modes) > 1:
        raise validation_error("live-shadow cannot be combined with other modes", field)
    return modes


def _check_baseline(host: Host, principal: Principal, name: str | None, modes: Sequence[str], suite: EvalSuite) -> None:
    field = "configurable.baselineRunId"
    if name is None:
        if "regression" in modes:
            raise validation_error("The mode regression needs a baseline", field, declared=list(suite.modes))
        return
    if "regression" not in modes:
        raise validation_error("A baseline needs the mode regression", field)
    baseline = host.store.find_run(name, principal.tenant)
    summary = _find_summary(host, baseline) or {}
    if baseline is not None and LIVE_MODE in baseline.request.get("modes", ()):
        raise validation_error(
            "A live-shadow run cannot be a baseline: its scores are not those of the fixtures", field
        )
    if (summary.get("suiteId"), summary.get("suiteVersion")) != (suite.suite_id, suite.version):
        raise validation_error("The baseline is not a completed eval of this suite and version", field)


def _check_inputs(suite: EvalSuite, manifest: ManifestInfo) -> None:
    if manifest.task_schema is None:
        return
    schema = ReturnSchema(schema=manifest.task_schema)
    if tasks := [task.task_id for task in suite.tasks if schema.describe_errors(task.input) is not None]:
        message = "Some inputs do not match the agent's task schema"
        raise validation_error(message, "evalSuiteRef", tasks=tasks)


def _check_fixtures(host: Host, suite: EvalSuite, agent: HostedAgent) -> None:
    """Raises an ApiError if tasks have fixtures that the agent cannot use: it must not act for real instead."""
    provides = find_configured_agent(host.settings, agent).agent.provides
    tasks = [
        task.task_id
        for task in suite.tasks
        if task.fixtures is not None
        and (
            (task.fixtures.tool_responses is not None and "tool_stubs" not in provides)
            or (task.fixtures.memory_seed and "memory" not in provides)
        )
    ]
    if tasks:
        raise validation_error("The agent does not support fixtures, which some tasks have", "agentId", tasks=tasks)


def _compute_plan_key(host: Host, run: Run, agent: HostedAgent) -> PlanKey:
    request, config = run.request, host.settings.file
    path = host.settings.folder / request["suite"]
    stamps = (compute_stamp(path), compute_stamp(config) if config else ())
    factory = AgentFactory(host.settings, agent_fields=request.get("agentFields"))
    factory.find_agent_under_test(agent.instance or agent.name)
    prompts = [text for definition in factory.definitions.values() for text in extract_prompts(definition)]
    return (str(path), agent.agent_id, tuple(prompts), tuple(request["modes"]), stamps)  # prompts must not leak


async def _build_plan(host: Host, run: Run, agent: HostedAgent, previous_run: PreviousRun | None = None) -> RunPlan:
    """Builds the plan of a run, in a thread: a suite may be large. Raises BadInput."""
    request = run.request
    path = host.settings.folder / request["suite"]
    baseline = request["configurable"].get("baselineRunId")
    options = AllRunOptions(
        inputs=(str(path),),
        format="openwop" if path.suffix == ".json" else None,
        agents=(agent.instance or agent.name,),
        agent_fields=request.get("agentFields"),
        folder=host.settings.folder,
        config=host.settings.file,
        modes=tuple(request["modes"]),
        live=LIVE_MODE in request["modes"],
        baseline=str(_write_summary(host, baseline, run.tenant)) if baseline else None,
        allow_agent_mismatch=True,  # prepare_eval_run has checked it by the ids of the host
        retry_faults=0,
    )
    key = _compute_plan_key(host, run, agent)
    async with host.plan_slots:
        inputs = PlanInputs(
            budget=Budget(None, previous_run.spent_usd if previous_run else 0.0), loaded=host.loaded_inputs.get(key)
        )
        plan = await run_in_thread(lambda: _run_without_event_loop(build_run_plan(options, previous_run, inputs)))
    host.loaded_inputs.add(key, plan.loaded)
    plan.redactor.add_secrets(host.settings.redactor.secrets)  # an agent may know the tokens of tenants
    return structs.replace(plan, suites=[add_agent_checks(suite, agent) for suite in plan.suites])


def _run_without_event_loop(coroutine: Coroutine[Any, Any, RunPlan]) -> RunPlan:
    """Runs a coroutine that never suspends, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise AssertionError("the plan of a suite waits for something")


async def run_eval(host: Host, run: Run, log: RunLog, _inputs: bytes | None, work: HostWork) -> RunEnd:
    """Executes the tasks that have no result yet, and returns how the run ends."""
    agent = host.agents.get(run.agent or "")
    if agent is None:
        raise RunError("agent_gone", "The agent is no longer in the config")
    journal = SharedJournal(host.store, run.id) if host.store.is_shared else None
    if journal is not None:
        journal.write_file(host.history.journal_path(run.id))
    previous_run = await run_in_thread(lambda: _read_previous_run(host, run))
    async with AsyncExitStack() as exits:
        try:
            plan = await _build_plan(host, run, agent, previous_run)
            exits.push_async_callback(plan.aclose)
            if previous_run is not None:
                check_unchanged(previous_run.settings["fingerprint"], plan.fingerprint)
        except BadInput:
            raise RunError("suite_changed", "The suite, the agent or Viva changed after the run started") from None
        task = asyncio.current_task()
        assert task is not None
        writer = EvalEventWriter(run, log, await _read_progress(log), agent, journal, task.cancel)
        writer.write_start()
        if previous_run is not None and previous_run.run_ended is not None:
            writer.receive((*previous_run.ended_trials, previous_run.run_ended))
            records = [event.record for event in sorted(previous_run.ended_trials, key=lambda event: event.index)]
        else:
            records = await _execute_plan(run, plan, writer, previous_run, work)
    if writer.is_broken and not host.readiness().is_ready:
        raise StoreUnavailable("disk_full")
    summary = await run_in_thread(lambda: writer.build_summary(records))
    run.metrics = writer.usage.to_metrics()
    run.tasks_in_error = tuple(record.id for record in records if record.status == "error")
    host.index_run(run.id)
    outputs = codec.decode_own(codec.encode(summary))
    return RunEnd("completed", (_build_completed_event(summary), run_completed(outputs)))


async def _execute_plan(
    run: Run, plan: RunPlan, writer: "EvalEventWriter", previous_run: PreviousRun | None, work: HostWork
) -> list[TrialRecord]:
    try:
        result = await execute(plan, [writer], previous_run, hosted=HostedRun(run.id, work.take_turn))
    except BadInput as error:  # a process that was given up for dead still has the journal
        raise LeaseLost(run.id) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if writer.error is None or (task is not None and task.uncancel()):
            raise
        raise writer.error from None
    if writer.error is not None:
        raise writer.error
    return await run_in_thread(lambda: list(result.records()))


def _write_summary(host: Host, name: str, tenant: str) -> Path:
    """Writes the summary of a run to a file, so that it can be a baseline: without tasks that ended in an error: their score of 0 is not the agent's."""
    path = host.settings.data_folder / "host" / "summaries" / name
    run = host.store.find_run(name, tenant)
    summary = _find_summary(host, run)
    if run is None or summary is None:
        raise BadInput.of("the baseline is gone", name)
    summary = {**summary, "tasks": [task for task in summary["tasks"] if task["taskId"] not in run.tasks_in_error]}
    make_private_folder(path.parent)
    replace_file(path, codec.encode(summary), private=True)
    return path


def _find_summary(host: Host, run: Run | None) -> dict[str, Any] | None:
    return read_summary(host.logs.open_log(run.id)) if run is not None and run.kind == "eval" else None


def _read_previous_run(host: Host, run: Run) -> PreviousRun | None:
    """Reads what the run did before a restart. None without a journal, or if it lacks its first event."""
    journal = host.history.journal_path(run.id)
    try:
        return read_previous_run(journal) if journal.exists() else None
    except BadInput:
        return None


class SharedJournal:
    """The journal of an eval in a shared store. A host that takes over the run continues from there.

    The journal file of a host may lack trials of other hosts, or have a trial whose score was never sent, so it is written
    again from the store. Line 0 is the start of the run; the trials follow in the order of the suite; the end is last.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._numbers = set(store.load_journal(run))

    def write_file(self, path: Path) -> None:
        make_private_folder(path.parent)
        replace_file(path, b"".join(self._store.load_journal(self._run).values()), private=True)

    def append(self, events: Sequence[Event]) -> None:
        """Adds events to the store, except those that it has already."""
        numbered = {number: event for event in events if (number := _get_journal_number(event)) is not None}
        lines = {
            number: codec.encode(event) + b"\n" for number, event in numbered.items() if number not in self._numbers
        }
        if lines:
            self._store.append_journal(self._run, lines)
            self._numbers |= lines.keys()


def _get_journal_number(event: Event) -> int | None:
    match event:
        case RunStarted():
            return 0
        case TrialEnded():
            return event.index + 1
        case RunEnded(stopped=None):
            return _LAST_LINE_NUMBER
        case _:
            return None


class EvalProgress(Struct, kw_only=True):
    """What the log of an eval says so far. That of a run that continues after a restart has scores already."""

    scored: int = 0
    is_started: bool = False
    usage: UsageTotal


async def _read_progress(log: RunLog) -> EvalProgress:
    progress = EvalProgress(usage=UsageTotal())
    async for page in log.iterate_pages():
        events = [logged.event for logged in page]
        progress.scored += sum(event.type == "eval.scored" for event in events)
        progress.is_started = progress.is_started or any(event.type == "eval.started" for event in events)
        progress.usage.add(events)
    return progress


class EvalEventWriter:
    """Writes the events of each task that ends to the log of the run, in the order of the suite. It is a sink of the event bus.

    Tasks whose events are in the log already are left out. `stop` is called if the log cannot be written.
    """

    live = False

    def __init__(
        self,
        run: Run,
        log: RunLog,
        progress: EvalProgress,
        agent: HostedAgent,
        journal: SharedJournal | None,
        stop: Callable[[], object],
    ) -> None:
        self._run = run
        self._log = log
        self._agent = agent
        self._journal = journal
        self._stop = stop
        self._next_index = progress.scored
        self._is_started = progress.is_started
        self.usage = progress.usage
        self._ended_early: dict[int, TrialRecord] = {}
        self._run_ended: RunEnded | None = None
        self.error: Exception | None = None

    @property
    def is_broken(self) -> bool:
        """Did the run stop because its journal could not be written?"""
        return self._run_ended is not None and self._run_ended.stopped == "broken"

    def write_start(self) -> None:
        if not self._is_started:
            request = self._run.request
            payload = {key: request[key] for key in ("suiteId", "suiteVersion", "taskCount", "modes")}
            if baseline := request["configurable"].get("baselineRunId"):
                payload["baselineRunId"] = baseline
            self._log.append([EventDraft("eval.started", payload)])

    def receive(self, events: Sequence[Event]) -> None:
        try:
            if self._journal is not None:
                self._journal.append(events)
            for event in events:
                if isinstance(event, TrialEnded) and event.index >= self._next_index:
                    self._ended_early[event.index] = event.record
                elif isinstance(event, RunEnded):
                    self._run_ended = event
            self._write_records_in_order()
        except Exception as error:  # the event bus continues without a broken reporter; this run must not
            self.error = error
            self._stop()
            raise

    def _write_records_in_order(self) -> None:
        """Writes the records that are next in the order, in one transaction."""
        drafts: list[EventDraft] = []
        while (record := self._ended_early.pop(self._next_index, None)) is not None:
            task = build_task_summary([record])
            is_valid = None if task.schema_valid is UNSET else task.schema_valid
            invocation = f"inv-{self._next_index + 1}-{record.id}"
            result = build_invocation_result(record, self._agent, invocation, is_valid=is_valid)
            drafts += [*result.events, _build_scored_event(task)]
            self._next_index += 1
        if drafts:
            self._log.append(drafts)
            self.usage.add(drafts)

    def build_summary(self, records: Sequence[TrialRecord]) -> EvalSummary:
        ended, request = self._run_ended, self._run.request
        if ended is None or ended.stopped is not None or self._next_index != request["taskCount"]:
            raise RunError("eval_stopped", "The eval stopped before all tasks were scored")
        suite = next(suite for suite in ended.summary.suites if suite.suite == request["suiteId"])
        baseline = request["configurable"].get("baselineRunId")
        diff_ref = f"/v1/runs/{self._run.id}:diff?against={baseline}" if baseline else None
        return build_eval_summary(suite, records, model_class=self._agent.model_class, diff_ref=diff_ref)


def _build_scored_event(task: TaskSummary) -> EventDraft:
    payload = {
        "taskId": task.task_id,
        "score": task.score,
        "passed": task.passed,
        "costUsd": task.cost_usd,
        "latencyMs": task.latency_ms,
        "schemaValid": task.schema_valid,
        "safetyFindingCount": UNSET if task.safety_findings is UNSET else len(task.safety_findings),
    }
    return EventDraft("eval.scored", {key: value for key, value in payload.items() if value is not UNSET})


def _build_completed_event(summary: EvalSummary) -> EventDraft:
    payload: dict[str, Any] = {
        "aggregateScore": summary.aggregate_score,
        "passed": summary.passed,
        "taskCount": summary.task_count,
        "passedCount": summary.passed_count,
    }
    if summary.regression is not UNSET:
        payload["regressionVsBaseline"] = summary.regression.score_delta
    return EventDraft("eval.completed", payload)
