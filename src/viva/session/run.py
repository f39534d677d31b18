"""Wires a run together: settings and inputs become suites, agents, sinks and a stage; the scheduler does the rest."""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

import viva
from viva.concurrency.prints import capture_prints
from viva.config import Settings
from viva.engine.event_bus import EventBus
from viva.engine.local_executor import LocalExecutor
from viva.engine.scheduler import FailFast, Scheduler
from viva.engine.summary import RunTally, exit_code
from viva.engine.thresholds import SuiteTally
from viva.engine.trial import RunContext
from viva.engine.until_decided import TrialsUntilDecided
from viva.errors import BadInput, RunStopped, TrialFault
from viva.formats.load_options import TIMEOUT_S
from viva.history.index import HOSTED_KEY, History, HistorySink
from viva.llm.budget import UNPRICED_WARNING, Budget
from viva.model.event import CaseGenerated, Note, RunEnded, RunResumed, RunStarted, RunSummary
from viva.model.record import TrialRecord
from viva.protocols import PlannedTrial, Sink
from viva.record.atomic_files import replace_file
from viva.record.journal import Journal, next_run_number
from viva.record.private_files import make_private_folder
from viva.session.hooks import ProjectHooks
from viva.session.interrupts import InterruptHandler, RunInterrupted, handle_stop_signals
from viva.session.report_files import ReportFiles, ask_reporter
from viva.session.resume import PreviousRun
from viva.session.run_plan import RunPlan
from viva.session.saved_options import save_options
from viva.text.credentials import mask_reference, mask_text
from viva.text.duration import format_duration


class RunResult:
    """How a run ended. Its records are read from the journal, in input order, when they are asked for."""

    def __init__(self, run: str, code: int, summary: RunSummary, journal: Journal, said: str | None = None) -> None:
        self.run_id = run
        self.exit_code = code
        self.summary = summary
        self.report_text = said
        """What an agent as reporter has to say, where it writes no file."""
        self._journal = journal

    @property
    def passed(self) -> bool:
        """Is the exit code 0?"""
        return self.exit_code == 0

    @property
    def folder(self) -> Path:
        """Where the journal is."""
        return self._journal.path.parent

    def records(self) -> Iterator[TrialRecord]:
        """The records of all trials that ended."""
        return self._journal.records()

    def __repr__(self) -> str:
        counts = self.summary
        return f"<RunResult {self.run_id}: {counts.passed} of {counts.total} passed, exit code {self.exit_code}>"


async def execute(
    prepared: RunPlan,
    sinks: Sequence[Sink] = (),
    previous_run: PreviousRun | None = None,
    *,
    journal: Journal | None = None,
    hosted_run_id: str | None = None,
) -> RunResult:
    """Runs what was prepared and tells the sinks all about it. `past` has ended already: it is told, not run again.

    A run that goes on brings its `journal`, which was locked before its past was read. A run that is `hosted_as` one of
    several goes by that name, and leaves signals and the list of runs to its host.
    """
    run = (
        previous_run.run_id
        if previous_run
        else hosted_run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    )
    if journal is None:
        journal = _journal(prepared.settings, run, history=prepared.options.history)
    try:
        result = await _examined(prepared, sinks, previous_run, journal, run, hosted=hosted_run_id is not None)
    except BaseException:
        journal.abandon()  # it has no end: the next command says how to go on with it
        raise
    finally:
        await prepared.http.close()
    journal.release_lock()
    return result


async def _examined(
    prepared: RunPlan, sinks: Sequence[Sink], past: PreviousRun | None, journal: Journal, run: str, *, hosted: bool
) -> RunResult:
    options = prepared.options
    number = 0 if past or not options.history else _numbered(prepared.settings)
    if past is not None:
        journal.keep_only({event.index for event in past.ended_trials})
    reports = ReportFiles(options.outputs, journal, options.eval_summary)
    listed = [HistorySink(History(prepared.settings.data_folder))] if options.history and not hosted else []
    tally = RunTally(prepared.case_count, options.pass_rule, _barred(prepared))
    # In this order: what is journaled can be replayed, and what is counted or shown is never lost.
    executor = LocalExecutor(prepared.parallel)
    stores = [*prepared.cassette_mode.event_stores, journal, tally]
    bus = EventBus(stores, [*listed, *sinks, reports], executor.stop)
    run_context = create_run_context(prepared, run, bus)
    hooks = ProjectHooks(run_context, prepared.before_hook, prepared.after_hook)
    run_context = structs.replace(run_context, hooks=hooks)
    known = [event.record for event in past.ended_trials] if past else []
    fail_fast = FailFast(options.pass_rule, known) if options.fail_fast else None
    trials, on_trial_ended = _due(prepared, past)
    scheduler = Scheduler(run_context, executor, fail_fast, options.retry_faults, on_trial_ended)
    interruption = InterruptHandler(lambda: scheduler.stop("interrupted"), is_hosted=hosted)
    why: str | None = None
    try:
        with capture_prints(), nullcontext() if hosted else handle_stop_signals(interruption.request_stop):
            _begin(bus, tally, _started(run, prepared, journal, number, hosted=hosted), prepared, past)
            _watch(prepared.budget, bus)
            for note in (*prepared.notes, prepared.person_policy.explain_skips(prepared.interactive_count)):
                if note:
                    bus.emit(Note(prepared.redactor.redact_text(note)))
            for warning in prepared.cassette_mode.find_drift():
                bus.emit(Note(prepared.redactor.redact_text(warning), "warning"))
            try:
                await interruption.run_part(hooks.before_run(prepared.iterate_trials))
                await interruption.run_part(scheduler.run(trials))
            except RunInterrupted:
                pass
            except RunStopped as broken:
                scheduler.stop_reason = "budget" if broken.is_budget else "broken"
                why = prepared.redactor.redact_text(broken.reason)
            if trouble := await _after_run(hooks, journal, interruption):
                _warn(bus, prepared.redactor.redact_text(trouble))
            for agent, seconds in run_context.lag.by_agent.items():
                _warn(bus, _blocked(agent, seconds))
            summary = _with_all_costs(tally.summary(), prepared.budget)
            texts, said = await _tell_reporter(prepared, bus, journal, summary, interruption)
            summary = _with_all_costs(summary, prepared.budget)
            try:
                prepared.cassette_mode.flush()
            except RunStopped as broken:
                scheduler.stop_reason, why = scheduler.stop_reason or "broken", why or broken.reason
            code = exit_code(summary, scheduler.stop_reason)
            ended = _end(bus, reports, RunEnded(run, _now(), code, summary, scheduler.stop_reason, why), texts)
    finally:
        prepared.cassette_mode.close()
    if interruption.is_cancelled:
        raise asyncio.CancelledError
    return RunResult(run, ended.exit_code, ended.summary, journal, said)


async def _after_run(hooks: ProjectHooks, journal: Journal, interruption: InterruptHandler) -> str | None:
    """Also after an interruption: the hook may have to put away what `--before` set up."""
    try:
        return await interruption.run_part(hooks.after_run(journal.records))
    except RunInterrupted:
        return "--after was interrupted"


def report_finished_run(
    previous_run: PreviousRun,
    end: RunEnded,
    journal: Journal,
    outputs: Sequence[Path],
    sinks: Sequence[Sink] = (),
    eval_summary: Path | None = None,
) -> int:
    """Tells of a run that has come to its end, and writes its reports: it may have been killed before it could."""
    reports = ReportFiles(outputs, journal, eval_summary)
    bus = EventBus((), [HistorySink(History(previous_run.journal_path.parents[2])), *sinks, reports])
    for event in (previous_run.started, *previous_run.ended_trials):
        bus.emit(event)
    known = end
    if end.summary.lost_reports:
        summary = structs.replace(end.summary, lost_reports=())
        known = structs.replace(end, summary=summary, exit_code=exit_code(summary, end.stopped))
    told = _end(bus, reports, known)
    if told != end:
        journal.append(told)
    journal.close()
    return told.exit_code


def _end(bus: EventBus, reports: ReportFiles, ended: RunEnded, texts: Mapping[Path, str] | None = None) -> RunEnded:
    """Writes the reports, and then the last event: what it says of them is true. Gives the event.

    When the journal is what broke, the listeners still get it.
    """
    ended = reports.write_files(ended, texts)
    notes = [Note(f"report {lost}; it is not written", "warning") for lost in ended.summary.lost_reports]
    try:
        for event in (*notes, ended):
            bus.emit(event)
    except RunStopped as broken:
        if ended.stop_message is None:
            code = ended.exit_code or 1
            ended = reports.write_files(
                structs.replace(ended, exit_code=code, stopped="broken", stop_message=broken.reason), texts
            )
        for event in (*notes, ended):
            bus.without_stores().emit(event)
    return ended


def _barred(prepared: RunPlan) -> list[SuiteTally]:
    """The suites that have to reach something as a whole; a filter may have left some of them without a case."""
    rule, due = prepared.options.pass_rule, prepared.case_counts
    return [SuiteTally(each, due[each.id], rule) for each in prepared.suites if each.threshold and due.get(each.id)]


def _begin(bus: EventBus, tally: RunTally, started: RunStarted, prepared: RunPlan, past: PreviousRun | None) -> None:
    """The first events. What a resumed run has behind it is told to the listeners, but not journaled again."""
    if past is None:
        bus.emit(started)
    else:
        prepared.cassette_mode.resume(past.ended_keys)
        again = bus.without_stores()
        again.emit(past.started)
        for event in past.ended_trials:
            again.emit(event)
        again.flush()
        tally.append(*past.retried_attempts, *past.ended_trials)
        bus.emit(RunResumed(past.run_id, _now()))
    for suite, cases in prepared.generated_cases.items():
        if past is None or suite not in past.generated_cases:
            for case in cases:
                bus.emit(prepared.redactor.redact(CaseGenerated(suite, case, len(cases))))


def _due(
    prepared: RunPlan, past: PreviousRun | None
) -> tuple[AsyncIterator[PlannedTrial], Callable[[TrialRecord], None]]:
    """The trials that are left, or as many as a sequential test needs; and what to call when a trial has ended."""
    if prepared.options.sequential is None:
        return _still_to_do(prepared.iterate_trials(), past), lambda _record: None
    known = [event.record for event in past.ended_trials] if past else []
    deciding = TrialsUntilDecided(prepared.iterate_trials(), prepared.options.pass_rule, known)
    return deciding.trials(), deciding.on_trial_ended


async def _still_to_do(trials: AsyncIterator[PlannedTrial], past: PreviousRun | None) -> AsyncIterator[PlannedTrial]:
    async for planned in trials:
        if past is None or not past.has_ended(planned):
            yield planned


def create_run_context(prepared: RunPlan, run: str, bus: EventBus) -> RunContext:
    """What the trials of a prepared run share."""
    options = prepared.options
    overrides = {"connector": options.connector, "model": options.agent_model}
    return RunContext(
        run=run,
        agent=prepared.agent,
        http=prepared.http,
        helpers=prepared.helpers,
        bus=bus,
        options={name: value for name, value in overrides.items() if value},
        connectors=prepared.settings.connectors,
        meter=prepared.budget.spend,
        find_agent=prepared.agents.find_agent,
        redactor=prepared.redactor,
        cassette=prepared.cassette_mode,
        workspaces=prepared.workspaces,
        confirmation_tools=frozenset(prepared.settings.confirmation_tools),
    )


def _watch(budget: Budget, bus: EventBus) -> None:
    """A limit that does not see every call is no limit: that is said, once, as soon as it is known."""

    def warn() -> None:
        bus.emit(Note(f"--max-cost: {UNPRICED_WARNING}", "warning"))

    if budget.max_usd is None:
        return
    if budget.unpriced_calls:
        warn()
    else:
        budget.on_unpriced = warn


def _blocked(agent: str, seconds: float) -> str:
    return (
        f"agent {agent} blocked the event loop for {format_duration(seconds)} in all: no other conversation went on "
        "meanwhile; make it a plain function, or await what takes long"
    )


def _with_all_costs(summary: RunSummary, budget: Budget) -> RunSummary:
    """Trials that were cut off or run again have no record, but what they cost was spent."""
    if budget.spent_usd <= (summary.cost_usd or 0.0) + 1e-9:
        return summary
    return structs.replace(summary, cost_usd=budget.spent_usd)


async def _tell_reporter(
    prepared: RunPlan, bus: EventBus, journal: Journal, summary: RunSummary, interruption: InterruptHandler
) -> tuple[dict[Path, str], str | None]:
    """What an agent as reporter writes for each file or, where there is none, says. Where it breaks or is interrupted, a
    warning, and the built-in report stays. It has as much time for each as a case has.
    """
    options = prepared.options
    texts: dict[Path, str] = {}
    said: str | None = None
    if options.reporter is None:
        return texts, said
    timeout_s = options.timeout_s or prepared.settings.defaults.timeout_s or TIMEOUT_S
    for path in options.outputs or (None,):
        form = path.suffix.removeprefix(".") if path else "text"
        wrong = "not asked: the run was interrupted"
        if not interruption.is_requested:
            work = ask_reporter(
                prepared.helpers, options.reporter, journal, options.pass_rule, summary, form or "text", timeout_s
            )
            try:
                text = prepared.redactor.redact_text(await interruption.run_part(work))
            except (TrialFault, RunStopped) as broken:
                wrong = str(broken)
            except RunInterrupted:
                wrong = "interrupted"
            else:
                if path is None:
                    said = text
                else:
                    texts[path] = text
                continue
        instead = f"{path} is the built-in report" if path else "there is no report of it"
        _warn(bus, prepared.redactor.redact_text(mask_reference(f"reporter {options.reporter}: {wrong}; {instead}")))
    return texts, said


def _warn(bus: EventBus, text: str) -> None:
    """Near the end of a run. Where the journal is broken, that is said there."""
    with suppress(RunStopped):
        bus.emit(Note(text, "warning"))


def _started(run: str, prepared: RunPlan, journal: Journal, number: int, *, hosted: bool) -> RunStarted:
    options = prepared.options
    return RunStarted(
        run=run,
        at=_now(),
        viva=viva.__version__,
        agent=prepared.agent.name or "as the tests say",
        inputs=tuple(map(mask_text, options.inputs)),
        cases=prepared.case_count,
        trials=prepared.trial_count,
        parallel=prepared.parallel,
        settings={
            "reports": [str(path) for path in (*options.outputs, options.eval_summary) if path],
            "journal": str(journal.path) if options.history else None,
            **options.pass_rule.to_settings(),
            **save_options(options, prepared.redactor),
            "fingerprint": prepared.fingerprint,
            **({"model_class": prepared.agent.model_class} if prepared.agent.model_class else {}),
            **({HOSTED_KEY: True} if hosted else {}),
        },
        verified=tuple(suite.verified for suite in prepared.suites if suite.verified),
        number=number,
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _journal(settings: Settings, run: str, *, history: bool) -> Journal:
    """`.viva/runs/<id>/journal.jsonl` beside the config; somewhere temporary for a run that shall leave nothing."""
    if not history:
        folder = Path(tempfile.mkdtemp(prefix="viva-"))
        journal = Journal(folder / "journal.jsonl")
        shutil.rmtree(folder)  # the open file lives as long as the run does
        return journal
    home = settings.data_folder
    try:
        make_private_folder(home)
        ignore = home / ".gitignore"
        if not ignore.exists():
            replace_file(ignore, b"*\n", private=True)
        return Journal(home / "runs" / run / "journal.jsonl")
    except (OSError, RunStopped) as wrong:
        raise _not_writable(home, wrong) from wrong


def _numbered(settings: Settings) -> int:
    try:
        return next_run_number(settings.data_folder)
    except OSError as wrong:
        raise _not_writable(settings.data_folder, wrong) from wrong


def _not_writable(home: Path, wrong: Exception) -> BadInput:
    return BadInput.of(f"cannot write to {home}: {wrong}; --no-history keeps nothing there")
