"""Wires a run together: settings and inputs become suites, agents, sinks and a stage; the scheduler does the rest."""

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

import viva
from viva.capture import capturing_prints
from viva.config import Settings
from viva.engine.bars import SuiteTally
from viva.engine.bus import EventBus
from viva.engine.executors.local import LocalExecutor
from viva.engine.repeating import TrialsUntilDecided
from viva.engine.scheduler import FailFast, Scheduler
from viva.engine.summary import RunTally, exit_code
from viva.engine.trial import RunContext
from viva.errors import BadInput, RunStopped, TrialFault
from viva.formats.reading import TIMEOUT_S
from viva.history.index import HOSTED, History
from viva.history.sink import HistorySink
from viva.llm.budget import UNPRICED, Budget
from viva.model.credentials import mask_text, mask_reference
from viva.model.duration import format_duration
from viva.model.event import CaseGenerated, Note, RunEnded, RunResumed, RunStarted, RunSummary
from viva.model.record import TrialRecord
from viva.protocols import PlannedTrial, Sink
from viva.record.files import replace_file
from viva.record.journal import Journal, next_number
from viva.record.private import make_private_folder
from viva.session.hooks import ProjectHooks
from viva.session.interrupts import Interrupted, Interruption, stopping
from viva.session.options import kept
from viva.session.prepare import Prepared
from viva.session.reporting import Reports, report_by
from viva.session.resuming import Past


class RunResult:
    """How a run ended. Its records are read from the journal, in input order, when they are asked for."""

    def __init__(self, run: str, code: int, summary: RunSummary, journal: Journal, said: str | None = None) -> None:
        self.run = run
        self.exit_code = code
        self.summary = summary
        self.said = said
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
        return f"<RunResult {self.run}: {counts.passed} of {counts.total} passed, exit code {self.exit_code}>"


async def examine(
    prepared: Prepared,
    sinks: Sequence[Sink] = (),
    past: Past | None = None,
    *,
    journal: Journal | None = None,
    hosted_as: str | None = None,
) -> RunResult:
    """Runs what was prepared and tells the sinks all about it. `past` has ended already: it is told, not run again.

    A run that goes on brings its `journal`, which was locked before its past was read. A run that is `hosted_as` one of
    several goes by that name, and leaves signals and the list of runs to its host.
    """
    run = past.run if past else hosted_as or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    if journal is None:
        journal = _journal(prepared.settings, run, history=prepared.options.history)
    try:
        result = await _examined(prepared, sinks, past, journal, run, hosted=hosted_as is not None)
    except BaseException:
        journal.abandon()  # it has no end: the next command says how to go on with it
        raise
    finally:
        await prepared.http.close()
    journal.end()
    return result


async def _examined(
    prepared: Prepared, sinks: Sequence[Sink], past: Past | None, journal: Journal, run: str, *, hosted: bool
) -> RunResult:
    options = prepared.options
    number = 0 if past or not options.history else _numbered(prepared.settings)
    if past is not None:
        journal.keep_only({event.index for event in past.ended})
    reports = Reports(options.outputs, journal, options.eval_summary)
    listed = [HistorySink(History(prepared.settings.home))] if options.history and not hosted else []
    tally = RunTally(prepared.cases, options.rule, _barred(prepared))
    # In this order: what is journaled can be replayed, and what is counted or shown is never lost.
    bus = EventBus([*prepared.taping.ledgers, journal, tally], [*listed, *sinks, reports])
    stage = stage_of(prepared, run, bus)
    stage.hooks = hooks = ProjectHooks(stage, prepared.before, prepared.after)
    known = [event.record for event in past.ended] if past else []
    fail_fast = FailFast(options.rule, known) if options.fail_fast else None
    scheduler = Scheduler(stage, LocalExecutor(prepared.parallel), tally, fail_fast, options.retry_faults)
    interruption = Interruption(lambda: scheduler.stop("interrupted"), hosted=hosted)
    why: str | None = None
    try:
        with capturing_prints(), nullcontext() if hosted else stopping(interruption.ask):
            _begin(bus, tally, _started(run, prepared, journal, number, hosted=hosted), prepared, past)
            _watch(prepared.budget, bus)
            for note in (*prepared.notes, prepared.people.note(prepared.interactive)):
                if note:
                    bus.emit(Note(prepared.redactor.text(note)))
            for warning in prepared.taping.drift():
                bus.emit(Note(prepared.redactor.text(warning), "warning"))
            try:
                await interruption.run(hooks.before_run(prepared.plan))
                await interruption.run(scheduler.run(_due(prepared, scheduler, past)))
            except Interrupted:
                pass
            except RunStopped as broken:
                scheduler.stop_reason = "budget" if broken.is_budget else "broken"
                why = prepared.redactor.text(broken.reason)
            if trouble := await _after_run(hooks, journal, interruption):
                _warn(bus, prepared.redactor.text(trouble))
            for agent, seconds in stage.lag.by_agent.items():
                _warn(bus, _blocked(agent, seconds))
            summary = _with_all_costs(tally.summary(), prepared.budget)
            texts, said = await _tell_reporter(prepared, bus, journal, summary, interruption)
            summary = _with_all_costs(summary, prepared.budget)
            try:
                prepared.taping.flush()
            except RunStopped as broken:
                scheduler.stop_reason, why = scheduler.stop_reason or "broken", why or broken.reason
            code = exit_code(summary, scheduler.stop_reason)
            ended = _end(bus, reports, RunEnded(run, _now(), code, summary, scheduler.stop_reason, why), texts)
    finally:
        prepared.taping.close()
    if interruption.cancelled:
        raise asyncio.CancelledError
    return RunResult(run, ended.exit_code, ended.summary, journal, said)


async def _after_run(hooks: ProjectHooks, journal: Journal, interruption: Interruption) -> str | None:
    """Also after an interruption: the hook may have to put away what `--before` set up."""
    try:
        return await interruption.run(hooks.after_run(journal.records))
    except Interrupted:
        return "--after was interrupted"


def retell(
    past: Past,
    end: RunEnded,
    journal: Journal,
    outputs: Sequence[Path],
    sinks: Sequence[Sink] = (),
    eval_summary: Path | None = None,
) -> int:
    """Tells of a run that has come to its end, and writes its reports: it may have been killed before it could."""
    reports = Reports(outputs, journal, eval_summary)
    bus = EventBus((), [HistorySink(History(past.journal.parents[2])), *sinks, reports])
    for event in (past.started, *past.ended):
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


def _end(bus: EventBus, reports: Reports, ended: RunEnded, texts: Mapping[Path, str] | None = None) -> RunEnded:
    """Writes the reports, and then the last event: what it says of them is true. Gives the event.

    When the journal is what broke, the listeners still get it.
    """
    ended = reports.write(ended, texts)
    notes = [Note(f"report {lost}; it is not written", "warning") for lost in ended.summary.lost_reports]
    try:
        for event in (*notes, ended):
            bus.emit(event)
    except RunStopped as broken:
        if ended.stop_message is None:
            code = ended.exit_code or 1
            ended = reports.write(structs.replace(ended, exit_code=code, stopped="broken", why=broken.reason), texts)
        for event in (*notes, ended):
            bus.without_stores().emit(event)
    return ended


def _barred(prepared: Prepared) -> list[SuiteTally]:
    """The suites that have to reach something as a whole; a filter may have left some of them without a case."""
    rule, due = prepared.options.rule, prepared.by_suite
    return [SuiteTally.of(each, due[each.id], rule) for each in prepared.suites if each.threshold and due.get(each.id)]


def _begin(bus: EventBus, tally: RunTally, started: RunStarted, prepared: Prepared, past: Past | None) -> None:
    """The first events. What a resumed run has behind it is told to the listeners, but not journaled again."""
    if past is None:
        bus.emit(started)
    else:
        prepared.taping.go_on(past.outcomes)
        again = bus.without_stores()
        again.emit(past.started)
        for event in past.ended:
            again.emit(event)
        again.flush()
        tally.append(*past.retried, *past.ended)
        bus.emit(RunResumed(past.run, _now()))
    for suite, cases in prepared.generated.items():
        if past is None or suite not in past.generated:
            for case in cases:
                bus.emit(prepared.redactor.record(CaseGenerated(suite, case, len(cases))))


def _due(prepared: Prepared, scheduler: Scheduler, past: Past | None) -> AsyncIterator[PlannedTrial]:
    """The trials that are left, or as many of them as a sequential test wants."""
    if prepared.options.sequential is None:
        return _still_to_do(prepared.plan(), past)
    known = [event.record for event in past.ended] if past else []
    deciding = TrialsUntilDecided(prepared.plan(), prepared.options.rule, known)
    scheduler.on_trial_ended = deciding.on_trial_ended
    return deciding.trials()


async def _still_to_do(trials: AsyncIterator[PlannedTrial], past: Past | None) -> AsyncIterator[PlannedTrial]:
    async for planned in trials:
        if past is None or not past.has_outcome(planned):
            yield planned


def stage_of(prepared: Prepared, run: str, bus: EventBus) -> RunContext:
    """What the trials of a prepared run share."""
    options, redactor = prepared.options, prepared.redactor
    stage = RunContext(
        run=run,
        agent=prepared.agent.agent,
        agent_name=prepared.agent.name,
        http=prepared.http,
        helpers=prepared.crew,
        bus=bus,
        agent_options=prepared.agent.options,
        options={
            name: said for name, said in (("connector", options.connector), ("model", options.agent_model)) if said
        },
        connectors=prepared.settings.connectors,
        meter=prepared.budget.spend,
        find_agent=prepared.agents.named,
        recorded_ms=prepared.taping.took_ms,
        may_retry=prepared.taping.may_retry,
        live_warning=prepared.taping.asked_live,
        uses_cassette=prepared.taping.in_use,
        workspaces=prepared.places.opened,
        empty_workspaces=prepared.places.spare,
        confirmation_tools=frozenset(prepared.settings.confirmation_tools),
    )
    stage.redact = redactor.record
    stage.redact_turn = redactor.record
    stage.redact_text = redactor.text
    return stage


def _watch(budget: Budget, bus: EventBus) -> None:
    """A limit that does not see every call is no limit: that is said, once, as soon as it is known."""

    def warn() -> None:
        bus.emit(Note(f"--max-cost: {UNPRICED}", "warning"))

    if budget.max_usd is None:
        return
    if budget.unpriced:
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
    prepared: Prepared, bus: EventBus, journal: Journal, summary: RunSummary, interruption: Interruption
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
        if not interruption.asked:
            work = report_by(prepared.crew, options.reporter, journal, options.rule, summary, form or "text", timeout_s)
            try:
                text = prepared.redactor.text(await interruption.run(work))
            except (TrialFault, RunStopped) as broken:
                wrong = str(broken)
            except Interrupted:
                wrong = "interrupted"
            else:
                if path is None:
                    said = text
                else:
                    texts[path] = text
                continue
        instead = f"{path} is the built-in report" if path else "there is no report of it"
        _warn(bus, prepared.redactor.text(mask_reference(f"reporter {options.reporter}: {wrong}; {instead}")))
    return texts, said


def _warn(bus: EventBus, text: str) -> None:
    """Near the end of a run. Where the journal is broken, that is said there."""
    with suppress(RunStopped):
        bus.emit(Note(text, "warning"))


def _started(run: str, prepared: Prepared, journal: Journal, number: int, *, hosted: bool) -> RunStarted:
    options = prepared.options
    return RunStarted(
        run=run,
        at=_now(),
        viva=viva.__version__,
        agent=prepared.agent.name or "as the tests say",
        inputs=tuple(map(mask_text, options.inputs)),
        cases=prepared.cases,
        trials=prepared.trials,
        parallel=prepared.parallel,
        settings={
            "reports": [str(path) for path in (*options.outputs, options.eval_summary) if path],
            "journal": str(journal.path) if options.history else None,
            **options.rule.kept(),
            "options": kept(options, prepared.redactor),
            "fingerprint": prepared.fingerprint,
            **({"model_class": prepared.agent.model_class} if prepared.agent.model_class else {}),
            **({HOSTED: True} if hosted else {}),
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
    home = settings.home
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
        return next_number(settings.home)
    except OSError as wrong:
        raise _not_writable(settings.home, wrong) from wrong


def _not_writable(home: Path, wrong: Exception) -> BadInput:
    return BadInput.of(f"cannot write to {home}: {wrong}; --no-history keeps nothing there")
