"""Eval runs: what has to hold before one may start, and how it becomes events. The engine does the rest, as always."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, structs

from viva.checks.golden import ReturnSchema
from viva.errors import BadInput
from viva.formats.openwop.modes import LIVE_MODE
from viva.formats.openwop.suite import EvalSuite, ManifestInfo
from viva.formats.openwop.summary import EvalSummary, build_eval_summary, build_task_summary
from viva.host.agent_checks import add_agent_checks
from viva.host.agents import HostedAgent
from viva.host.auth import Principal
from viva.host.discovery import MAX_TASKS
from viva.host.errors import validation_error
from viva.host.events import eval_completed, eval_scored, eval_started, run_completed
from viva.host.host import Host
from viva.host.log import EventDraft, RunLog
from viva.host.results import build_invocation_result, sum_usage
from viva.host.runs import RunError
from viva.host.store import Run
from viva.model import codec
from viva.model.case import Feature
from viva.model.event import Event, RunEnded, TrialEnded
from viva.model.record import TrialRecord
from viva.record.atomic_files import replace_file
from viva.record.private_files import make_private_folder
from viva.session.agents import AgentFactory
from viva.session.options import RunOptions
from viva.session.resume import PreviousRun, check_unchanged, read_previous_run
from viva.session.run import execute
from viva.session.run_plan import RunPlan, build_run_plan


async def validate_eval_run(host: Host, principal: Principal, body: dict[str, Any]) -> Run:
    """A run of a suite, if every condition for it holds; else a Refusal that says which does not."""
    asked = dict(body.get("configurable", {}))
    offer, suite, terms = host.suites.find(body["evalSuiteRef"], body["agentId"], principal.tenant)
    modes = _modes(asked.get("evalModes"), suite, host.eval_modes)
    if len(suite.tasks) > MAX_TASKS:
        raise validation_error(
            f"a suite has at most {MAX_TASKS} tasks here", "evalSuiteRef", maxTasksPerSuite=MAX_TASKS
        )
    agent = host.agents.get(body["agentId"])
    if agent is None:
        raise validation_error("there is no such agent", "agentId")
    if suite.target_agent_id not in (None, agent.agent_id) and asked.get("allowAgentMismatch") is not True:
        raise validation_error(
            "the suite is meant for another agent; configurable.allowAgentMismatch runs it", "agentId"
        )
    if suite.allowed_models and agent.model_class not in suite.allowed_models:
        raise validation_error("the suite is not meant for agents of this model class", "agentId")
    _check_baseline(host, principal, asked.get("baselineRunId"), modes, suite)
    _check_inputs(suite, agent.terms if terms.task_schema is None else terms)
    _check_fixtures(host, suite, agent, live=LIVE_MODE in modes)
    configurable = {key: asked[key] for key in ("baselineRunId", "allowAgentMismatch") if key in asked}
    run = host.build_run(
        principal,
        kind="eval",
        workflow=f"eval:{suite.suite_id}",
        agent=agent.agent_id,
        asked={
            "suite": str(offer.path),
            "suiteId": suite.suite_id,
            "suiteVersion": suite.version,
            "taskCount": len(suite.tasks),
            "modes": list(modes),
            "configurable": {**configurable, **({"evalModes": list(modes)} if "evalModes" in asked else {})},
        },
    )
    try:
        host.run_inputs[run.id] = await _prepared(host, run, agent)
    except BadInput:
        # What is wrong would quote the suite or the config: `viva check` says it to those who own them.
        raise validation_error("this suite cannot be run here with this agent", "evalSuiteRef") from None
    return run


def _modes(asked: Sequence[str] | None, suite: EvalSuite, offered: Sequence[str]) -> tuple[str, ...]:
    """The modes of the run: those that are asked for, else all of the suite."""
    modes = tuple(suite.modes if asked is None else asked)
    field = "configurable.evalModes"
    if undeclared := [mode for mode in modes if mode not in suite.modes]:
        raise validation_error("the suite does not declare every mode that is asked for", field, modes=undeclared)
    if unoffered := [mode for mode in modes if mode not in offered]:
        raise validation_error("this host does not offer every mode that is asked for", field, modes=unoffered)
    if LIVE_MODE in modes and len(modes) > 1:
        raise validation_error(
            "live-shadow is not mixed with other modes: a run is either live or with fixtures", field
        )
    return modes


def _check_baseline(host: Host, principal: Principal, name: str | None, modes: Sequence[str], suite: EvalSuite) -> None:
    field = "configurable.baselineRunId"
    if name is None:
        if "regression" in modes:
            raise validation_error("the mode regression needs a baseline", field)
        return
    if "regression" not in modes:
        raise validation_error("a baseline belongs to the mode regression", field)
    baseline = host.store.find_run(name, principal.tenant)
    summary = baseline.summary if baseline is not None else None
    same = summary is not None and (summary["suiteId"], summary["suiteVersion"]) == (suite.suite_id, suite.version)
    if not same:
        raise validation_error("the baseline is no finished eval of this version of this suite", field)


def _check_inputs(suite: EvalSuite, terms: ManifestInfo) -> None:
    """What the agent's own schema does not take is refused before anything runs."""
    if terms.task_schema is None:
        return
    schema = ReturnSchema(schema=terms.task_schema)
    misfits = [task.task_id for task in suite.tasks if schema.describe_errors(task.input) is not None]
    if misfits:
        raise validation_error("the agent's task schema does not take every input", "evalSuiteRef", tasks=misfits)


def _check_fixtures(host: Host, suite: EvalSuite, agent: HostedAgent, *, live: bool) -> None:
    """An agent that cannot take what stands in for its tools or memory is not asked live instead."""
    if live:
        return
    try:
        provides = AgentFactory(host.settings).find_agent_under_test(agent.instance or agent.name).agent.provides
    except BadInput:  # what is wrong is for the owner of the config: `viva agents` says it
        raise validation_error("this agent cannot be run here", "agentId") from None
    stubs: Feature = "tool_stubs"
    tasks = [
        task.task_id
        for task in suite.tasks
        if task.fixtures is not None
        and (
            (task.fixtures.tool_responses is not None and stubs not in provides)
            or (task.fixtures.memory_seed and "memory" not in provides)
        )
    ]
    if tasks:
        raise validation_error("the agent takes no fixtures, and some tasks have them", "agentId", tasks=tasks)


async def _prepared(host: Host, run: Run, agent: HostedAgent, past: PreviousRun | None = None) -> RunPlan:
    """The run as the engine wants it, held to the tools that the agent may use."""
    asked = run.request
    baseline = asked["configurable"].get("baselineRunId")
    options = RunOptions(
        inputs=(asked["suite"],),
        format="openwop" if Path(asked["suite"]).suffix == ".json" else None,
        agent=agent.instance or agent.name,
        folder=host.folder,
        config=host.settings.file,
        modes=tuple(asked["modes"]),
        live=LIVE_MODE in asked["modes"],
        baseline=str(_summary_file(host, baseline)) if baseline else None,
        allow_agent_mismatch=True,  # whether that is allowed was asked before, by the ids that the host knows
        retry_faults=0,
    )
    prepared = await build_run_plan(options, past)
    prepared.redactor.add_secrets(host.settings.redactor.secrets)  # an agent may know the tokens of tenants
    return structs.replace(prepared, suites=[add_agent_checks(suite, agent) for suite in prepared.suites])


async def run_eval(host: Host, run: Run, log: RunLog) -> None:
    """Runs the suite, or what is left of it, and ends the run with its summary."""
    agent = host.agents.get(run.agent or "")
    if agent is None:
        raise RunError("agent_gone", "the agent is no longer in the config")
    past = _past(host, run)
    prepared: RunPlan | None = host.run_inputs.pop(run.id, None)
    try:
        if prepared is None:
            prepared = await _prepared(host, run, agent, past)
        if past is not None:
            check_unchanged(past.settings["fingerprint"], prepared.fingerprint)
    except BadInput:
        raise RunError("suite_changed", "the suite, the agent or Viva has changed since the run began") from None
    scoring = EvalEventWriter(run, log, agent)
    scoring.write_start()
    if past is not None and past.run_ended is not None:
        scoring.receive((*past.ended_trials, past.run_ended))
        records = [event.record for event in sorted(past.ended_trials, key=lambda event: event.index)]
    else:
        result = await execute(prepared, [scoring], past, hosted_run_id=run.id)
        records = list(result.records())
    _keep_summary(host, run, scoring.build_final_events(records), log)


def _keep_summary(host: Host, run: Run, outcome: list[EventDraft], log: RunLog) -> None:
    """Also as a file by the run's name, so that it can be a baseline."""
    path = _summary_file(host, run.id)
    make_private_folder(path.parent)
    replace_file(path, codec.encode(run.summary), private=True)
    host.runs.end(run, log, "completed", outcome)
    host.index_run(run.id)


def _summary_file(host: Host, run: str) -> Path:
    return host.settings.data_folder / "host" / "summaries" / run


def _past(host: Host, run: Run) -> PreviousRun | None:
    """What an earlier life of this host has done of it. A journal without a beginning has nothing to tell."""
    journal = host.history.journal_path(run.id)
    try:
        return read_previous_run(journal) if journal.exists() else None
    except BadInput:
        return None


class EvalEventWriter:
    """Listens to a run and writes its tasks into the log, each as one block, in the order of the suite.

    What stands there already is not written again: a score is a fact from then on.
    """

    live = False

    def __init__(self, run: Run, log: RunLog, agent: HostedAgent) -> None:
        self._run = run
        self._log = log
        self._agent = agent
        self._next = len(log.events_of_type("eval.scored"))
        self._early: dict[int, TrialRecord] = {}
        self._ended: RunEnded | None = None
        self._broken: Exception | None = None

    def write_start(self) -> None:
        asked = self._run.request
        if not self._log.events_of_type("eval.started"):
            baseline = asked["configurable"].get("baselineRunId")
            count, modes = asked["taskCount"], asked["modes"]
            self._log.append([eval_started(asked["suiteId"], asked["suiteVersion"], count, modes, baseline)])

    def receive(self, events: Sequence[Event]) -> None:
        try:
            for event in events:
                if isinstance(event, TrialEnded) and event.index >= self._next:
                    self._early[event.index] = event.record
                    self._write()
                elif isinstance(event, RunEnded):
                    self._ended = event
        except Exception as broken:  # a bus goes on without a listener that breaks; this run must not
            self._broken = broken
            raise

    def _write(self) -> None:
        while (record := self._early.pop(self._next, None)) is not None:
            self._log.append(self._block(record, self._next))
            self._next += 1

    def _block(self, record: TrialRecord, index: int) -> list[EventDraft]:
        task = build_task_summary([record])
        valid = None if task.schema_valid is UNSET else task.schema_valid
        told = build_invocation_result(record, self._agent, f"inv-{index + 1}-{record.id}", is_valid=valid)
        scored = eval_scored(
            task.task_id,
            task.score,
            passed=task.passed,
            cost_usd=None if task.cost_usd is UNSET else task.cost_usd,
            latency_ms=None if task.latency_ms is UNSET else task.latency_ms,
            schema_valid=valid,
            findings=None if task.safety_findings is UNSET else len(task.safety_findings),
        )
        return [*told.events, scored]

    def build_final_events(self, records: Sequence[TrialRecord]) -> list[EventDraft]:
        """The last events, once all tasks are scored."""
        if self._broken is not None:
            raise self._broken
        ended, asked = self._ended, self._run.request
        if ended is None or ended.stopped is not None or self._next != asked["taskCount"]:
            raise RunError("eval_stopped", "the eval stopped before all tasks were scored")
        standing = next(each for each in ended.summary.suites if each.suite == asked["suiteId"])
        baseline = asked["configurable"].get("baselineRunId")
        reference = f"/v1/runs/{self._run.id}:diff?against={baseline}" if baseline else None
        summary = build_eval_summary(standing, records, model_class=self._agent.model_class, diff_ref=reference)
        self._run.summary = codec.decode_kept(codec.encode(summary))
        self._run.metrics = sum_usage(self._log)
        return [_completed(summary), run_completed(self._run.summary)]


def _completed(summary: EvalSummary) -> EventDraft:
    return eval_completed(
        summary.aggregate_score,
        summary.task_count,
        summary.passed_count,
        passed=summary.passed,
        delta=None if summary.regression is UNSET else summary.regression.score_delta,
    )
