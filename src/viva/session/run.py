"""Wires a run together: settings and inputs become suites, agents, sinks and a stage; the scheduler does the rest."""

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import structs

import viva
from viva import catalog
from viva.capture import capturing_prints
from viva.config import Settings
from viva.engine.bars import SuiteTally
from viva.engine.bus import Bus
from viva.engine.executors.local import Local
from viva.engine.repeating import UntilDecided
from viva.engine.scheduler import FailFast, Scheduler
from viva.engine.summary import Tally, exit_code
from viva.engine.trial import Stage
from viva.errors import BadInput, HelperFailed, RunStopped
from viva.history.index import History, HistorySink
from viva.llm.budget import Budget
from viva.model.credentials import masked, masked_reference
from viva.model.duration import show_duration
from viva.model.event import CaseGenerated, Note, RunEnded, RunResumed, RunStarted, RunSummary
from viva.model.record import TrialRecord
from viva.protocols import Planned, Sink
from viva.record.journal import Journal
from viva.record.private import make_private_folder, write_private
from viva.session.evals import SummaryFile
from viva.session.hooks import ProjectHooks
from viva.session.options import kept
from viva.session.prepare import Prepared
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
    prepared: Prepared, sinks: Sequence[Sink] = (), past: Past | None = None, *, hosted_as: str | None = None
) -> RunResult:
    """Runs what was prepared and tells the sinks all about it. `past` has ended already: it is told, not run again.

    A run that is `hosted_as` one of several goes by that name, and leaves signals and the list of runs to its host.
    """
    options = prepared.options
    run = past.run if past else hosted_as or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    journal = _journal(prepared.settings, run, history=options.history)
    if past is not None:
        journal.keep_only({event.index for event in past.ended})
    reports = _reports(options.outputs, journal, options.eval_summary)
    listed = [HistorySink(History(prepared.settings.home))] if options.history and not hosted_as else []
    tally = Tally(prepared.cases, options.rule, _barred(prepared))
    # In this order: what is journaled can be replayed, and what is counted or shown is never lost.
    bus = Bus([*prepared.taping.ledgers, journal, tally], [*listed, *sinks, *reports])
    stage = stage_of(prepared, run, bus)
    stage.hooks = hooks = ProjectHooks(stage, prepared.before, prepared.after)
    known = [event.record for event in past.ended] if past else []
    fail_fast = FailFast(options.rule, known) if options.fail_fast else None
    scheduler = Scheduler(stage, Local(prepared.parallel), tally, fail_fast, options.retry_faults)
    why: str | None = None
    try:
        with capturing_prints(), nullcontext() if hosted_as else stopping(lambda: scheduler.stop("interrupted")):
            _begin(bus, tally, _started(run, prepared, journal), prepared, past)
            _watch(prepared.budget, bus)
            for note in (*prepared.notes, prepared.people.note(prepared.interactive)):
                if note:
                    bus.emit(Note(prepared.redactor.text(note)))
            for warning in prepared.taping.drift():
                bus.emit(Note(prepared.redactor.text(warning), "warning"))
            try:
                await hooks.before_run(prepared.plan)
                await scheduler.run(_due(prepared, scheduler, past))
            except RunStopped as broken:
                scheduler.stopped = "budget" if broken.budget else "broken"
                why = prepared.redactor.text(broken.why)
        if trouble := await hooks.after_run(journal.records):
            bus.emit(Note(prepared.redactor.text(trouble), "warning"))
        for agent, seconds in stage.lag.by_agent.items():
            bus.emit(Note(_blocked(agent, seconds), "warning"))
        summary = _with_all_costs(tally.summary(), prepared.budget)
        code = exit_code(summary, scheduler.stopped)
        texts, said = await _tell_reporter(prepared, bus, journal, summary)
        _say_goodbye(bus, RunEnded(run, _now(), code, summary, scheduler.stopped, why), why)
        if any(report not in bus for report in reports):
            code = code or 1  # a report that is not there is no success
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    finally:
        await prepared.http.close()
        prepared.taping.close()
    return RunResult(run, code, summary, journal, said)


def retell(
    past: Past, end: RunEnded, outputs: Sequence[Path], sinks: Sequence[Sink] = (), eval_summary: Path | None = None
) -> int:
    """Tells of a run that has come to its end, and writes its reports: it may have been killed before it could."""
    journal = Journal(past.journal)
    reports = _reports(outputs, journal, eval_summary)
    bus = Bus((), [HistorySink(History(past.journal.parents[2])), *sinks, *reports])
    for event in (past.started, *past.ended, end):
        bus.emit(event)
    journal.close()
    return end.exit_code if all(report in bus for report in reports) else end.exit_code or 1


def _reports(outputs: Sequence[Path], journal: Journal, eval_summary: Path | None = None) -> list[Sink]:
    """The built-in ones. Where only an agent knows the kind, Markdown stands there until that has written."""
    reporters = [(catalog.find("reporter", path.suffix) or catalog.find("reporter", ".md"), path) for path in outputs]
    reports: list[Sink] = [reporter(path, journal) for reporter, path in reporters if reporter is not None]
    return reports if eval_summary is None else [*reports, SummaryFile(eval_summary, journal)]


def _barred(prepared: Prepared) -> list[SuiteTally]:
    """The suites that have to reach something as a whole; a filter may have left some of them without a case."""
    rule, due = prepared.options.rule, prepared.by_suite
    return [SuiteTally.of(each, due[each.id], rule) for each in prepared.suites if each.bar and due.get(each.id)]


def _begin(bus: Bus, tally: Tally, started: RunStarted, prepared: Prepared, past: Past | None) -> None:
    """The first events. What a resumed run has behind it is told to the listeners, but not journaled again."""
    if past is None:
        bus.emit(started)
    else:
        prepared.taping.go_on(past.outcomes)
        again = bus.without_ledgers()
        again.emit(past.started)
        for event in past.ended:
            again.emit(event)
        again.settle()
        tally.append(*past.ended)
        bus.emit(RunResumed(past.run, _now()))
    for suite, cases in prepared.generated.items():
        if past is None or suite not in past.generated:
            for case in cases:
                bus.emit(prepared.redactor.record(CaseGenerated(suite, case, len(cases))))


def _due(prepared: Prepared, scheduler: Scheduler, past: Past | None) -> AsyncIterator[Planned]:
    """The trials that are left, or as many of them as a sequential test wants."""
    if prepared.options.sequential is None:
        return _still_to_do(prepared.plan(), past)
    known = [event.record for event in past.ended] if past else []
    deciding = UntilDecided(prepared.plan(), prepared.options.rule, known)
    scheduler.ended = deciding.ended
    return deciding.trials()


async def _still_to_do(trials: AsyncIterator[Planned], past: Past | None) -> AsyncIterator[Planned]:
    async for planned in trials:
        if past is None or not past.has_outcome(planned):
            yield planned


def stage_of(prepared: Prepared, run: str, bus: Bus) -> Stage:
    """What the trials of a prepared run share."""
    options, redactor = prepared.options, prepared.redactor
    stage = Stage(
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
        others=prepared.agents.named,
        took_ms=prepared.taping.took_ms,
        may_retry=prepared.taping.may_retry,
        asked_live=prepared.taping.asked_live,
        taped=prepared.taping.in_use,
        workspaces=prepared.places.opened,
        spare_workspaces=prepared.places.spare,
        confirmation_tools=frozenset(prepared.settings.confirmation_tools),
    )
    stage.redact = redactor.record
    stage.redact_turn = redactor.record
    stage.redact_text = redactor.text
    return stage


def _watch(budget: Budget, bus: Bus) -> None:
    """A limit that does not see every call is no limit: that is said, once, as soon as it is known."""

    def warn() -> None:
        what = "calls of unknown price are not in the budget; `price` in the connector sets it"
        bus.emit(Note(f"--max-cost: {what}", "warning"))

    if budget.max_usd is None:
        return
    if budget.unpriced:
        warn()
    else:
        budget.on_unpriced = warn


def _blocked(agent: str, seconds: float) -> str:
    return (
        f"agent {agent} blocked the event loop for {show_duration(seconds)} in all: no other conversation went on "
        "meanwhile; make it a plain function, or await what takes long"
    )


def _with_all_costs(summary: RunSummary, budget: Budget) -> RunSummary:
    """Trials that were cut off or run again have no record, but what they cost was spent."""
    if budget.spent_usd <= (summary.cost_usd or 0.0) + 1e-9:
        return summary
    return structs.replace(summary, cost_usd=budget.spent_usd)


async def _tell_reporter(
    prepared: Prepared, bus: Bus, journal: Journal, summary: RunSummary
) -> tuple[dict[Path, str], str | None]:
    """What an agent as reporter writes for each file or, where there is none, says. Where it breaks, a warning, and the
    built-in report stays.
    """
    options = prepared.options
    texts: dict[Path, str] = {}
    said: str | None = None
    if options.reporter is None:
        return texts, said
    from viva.session.reporting import report_by  # few runs have one

    for path in options.outputs or (None,):
        form = path.suffix.removeprefix(".") if path else ""
        try:
            words = await report_by(prepared.crew, options.reporter, journal, options.rule, summary, form or "text")
        except (HelperFailed, RunStopped) as broken:
            instead = f"{path} is the built-in report" if path else "there is no report of it"
            said = f"reporter {options.reporter}: {broken}; {instead}"
            bus.emit(Note(prepared.redactor.text(masked_reference(said)), "warning"))
            continue
        text = prepared.redactor.text(words)
        if path is None:
            said = text
        else:
            texts[path] = text
    return texts, said


def _say_goodbye(bus: Bus, event: RunEnded, why: str | None) -> None:
    """The last event. When the journal is what broke, the listeners still get it, and so the report is written."""
    try:
        bus.emit(event)
    except RunStopped:
        if why is None:
            raise
        bus.without_ledgers().emit(event)


def _started(run: str, prepared: Prepared, journal: Journal) -> RunStarted:
    options = prepared.options
    return RunStarted(
        run=run,
        at=_now(),
        viva=viva.__version__,
        agent=prepared.agent.name or "as the tests say",
        inputs=tuple(map(masked, options.inputs)),
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
        },
        verified=tuple(suite.verified for suite in prepared.suites if suite.verified),
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
            write_private(ignore, b"*\n")
        return Journal(home / "runs" / run / "journal.jsonl")
    except (OSError, RunStopped) as wrong:
        raise BadInput.saying(f"cannot write to {home}: {wrong}; --no-history keeps nothing there") from wrong


@contextmanager
def stopping(stop: Callable[[], object]) -> Generator[None]:
    """The first Ctrl-C stops what is at work, which may finish its report; the second leaves."""
    loop = asyncio.get_running_loop()
    asked = False

    # A handler of the loop's own would wait for its turn; an agent that blocks the loop must not keep anybody here.
    def interrupt(_number: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            os._exit(2)
        asked = True
        loop.call_soon_threadsafe(stop)

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, interrupt)
    except ValueError:  # not the main thread: signals are not ours to handle
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
