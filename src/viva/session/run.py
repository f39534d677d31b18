"""Wires a run together: settings and inputs become suites, agents, sinks and a stage; the scheduler does the rest."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import regex
from msgspec import Struct, structs

import viva
from viva import catalog, config
from viva.config import Settings
from viva.engine.bus import Bus
from viva.engine.executors.local import Local
from viva.engine.helpers import Crew
from viva.engine.scheduler import Scheduler, plan
from viva.engine.summary import Tally, exit_code
from viva.engine.trial import Stage
from viva.errors import BadInput, HelperFailed, Problem, RunStopped
from viva.formats.native import TIMEOUT_S, Reading
from viva.formats.sources import Files, Format, Made, Words, load_files, understood
from viva.llm.budget import Budget
from viva.llm.transport import HttpTransport
from viva.model.case import Case, OnMissingInput, Suite
from viva.model.event import Note, RunEnded, RunStarted, RunSummary
from viva.model.record import TrialRecord
from viva.protocols import Planned, Sink
from viva.record.journal import Journal
from viva.session.agents import Agents, NamedAgent
from viva.session.generated import generate
from viva.session.redaction import Redactor
from viva.session.reporting import report_by

T = TypeVar("T")


class RunOptions(Struct, frozen=True, kw_only=True):
    """What can be asked of a run: the flags of `viva test` and the arguments of `viva.run`."""

    inputs: tuple[str, ...]
    agent: Any = None
    connector: str | None = None
    outputs: tuple[Path, ...] = ()
    folder: Path = Path()
    config: Path | None = None
    env_file: Path | None = None
    format: Format | None = None
    timeout_s: float | None = None
    turn_timeout_s: float | None = None
    parallel: int | None = None
    runs: int = 1
    fail_fast: bool = False
    only: str | None = None
    tags: tuple[str, ...] = ()
    on_missing_input: OnMissingInput | None = None
    update_snapshots: bool = False
    history: bool = True
    dry_run: bool = False
    simulator: str | None = None
    reporter: str | None = None
    max_cost_usd: float | None = None
    min_pass: float | None = None


class RunResult:
    """How a run ended. Its records are read from the journal, in input order, when they are asked for."""

    def __init__(self, run: str, code: int, summary: RunSummary, journal: Journal) -> None:
        self.run = run
        self.exit_code = code
        self.summary = summary
        self._journal = journal

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def folder(self) -> Path:
        return self._journal.path.parent

    def records(self) -> Iterator[TrialRecord]:
        return self._journal.records()

    def __repr__(self) -> str:
        counts = self.summary
        return f"<RunResult {self.run}: {counts.passed} of {counts.total} passed, exit code {self.exit_code}>"


class Prepared(Struct):
    """A run that is checked and ready: nothing has been sent yet."""

    options: RunOptions
    settings: Settings
    suites: list[Suite]
    agents: Agents
    agent: NamedAgent
    crew: Crew
    http: HttpTransport
    budget: Budget
    redactor: Redactor
    cases: int = 0
    trials: int = 0

    def plan(self) -> AsyncIterator[Planned]:
        return plan(self.suites, _wanted(self.options, self.settings), self.options.runs)

    async def count(self) -> None:
        """How much there is to do. Without a filter the suites know, and nothing is read again."""
        if self.options.only is None and not self.options.tags:
            self.cases = sum(suite.count for suite in self.suites)
            own = [runs for suite in self.suites for runs in suite.own_runs]
            self.trials = (self.cases - len(own)) * self.options.runs + sum(own)
            return
        async for planned in self.plan():
            self.cases += planned.trial == 1
            self.trials += 1

    @property
    def parallel(self) -> int:
        asked = self.options.parallel or self.settings.defaults.parallel or 4
        return max(1, min(asked, self.agent.parallel or asked, self.trials))


async def prepare(options: RunOptions) -> Prepared:
    """Reads and checks everything that can be checked before anything runs. Raises BadInput with all of it."""
    settings = config.load(options.config, options.folder.resolve(), options.env_file)
    catalog.load_plugins(settings.plugins)
    _check_filter(options.only)
    _check_outputs(options.outputs, dry_run=options.dry_run)
    simulator = options.simulator or settings.defaults.simulator
    reading = Reading(
        roots=(str(settings.folder),),
        attachment_roots=settings.attachment_roots,
        update_snapshots=options.update_snapshots,
        simulator=simulator.removeprefix("agents:") if simulator else None,
        timeout_s=settings.defaults.timeout_s or TIMEOUT_S,
    )
    agents = Agents(settings, options.connector)
    budget = Budget(options.max_cost_usd)
    http = HttpTransport()
    crew = Crew(agents.find, http, settings.connectors, budget.spend)
    suites, made = _suites(options, reading)
    target = next((suite.target for suite in suites if suite.target), None)
    agent = agents.under_test(options.agent, target)
    if options.reporter is not None:
        agents.find(options.reporter, "reporter")
    for each in made:
        suites.append(await generate(each, agent, crew, settings, reading))
    for suite in suites:
        agents.check_references(suite.references)
    prepared = Prepared(options, settings, suites, agents, agent, crew, http, budget, Redactor(settings.secrets))
    await prepared.count()
    return prepared


def _suites(options: RunOptions, reading: Reading) -> tuple[list[Suite], list[Made]]:
    """What is in files, and what has still to be made."""
    paths: list[Path] = []
    made: list[Made] = []
    problems: list[Problem] = []
    for text in options.inputs:
        try:
            match understood(text, options.folder):
                case Files(found):
                    paths += found
                case Words(words):
                    what = f"the message {words[:40]!r} cannot be mixed with suites; send it by itself"
                    problems.append(Problem("", 0, "", what))
                case Made() as found:
                    made.append(found)
        except BadInput as wrong:
            problems += wrong.problems
    try:
        suites = load_files(list(dict.fromkeys(paths)), reading, options.folder, options.format)
    except BadInput as wrong:
        raise BadInput(*problems, *wrong.problems) from wrong
    if problems:
        raise BadInput(*problems)
    return suites, made


def _check_filter(pattern: str | None) -> None:
    if pattern is None:
        return
    try:
        regex.compile(pattern)
    except regex.error as wrong:
        raise BadInput.saying(f"-k {pattern!r} is not a regular expression: {wrong}") from wrong


def _check_outputs(outputs: Sequence[Path], *, dry_run: bool) -> None:
    """A report that could not be written is said before the run, not after it."""
    for path in outputs:
        if dry_run and path.suffix != ".jsonl":
            raise BadInput.saying(f"-o {path}: --dry-run writes cases as .jsonl")
        if catalog.find("reporter", path.suffix) is None:
            raise BadInput.saying(
                f"-o {path}: unknown kind of report; known endings: {', '.join(catalog.names('reporter'))}"
            )
        folder = path.parent
        if not folder.is_dir():
            raise BadInput.saying(f"-o {path}: there is no folder {folder}")
        if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK) or not os.access(folder, os.W_OK):
            raise BadInput.saying(f"-o {path}: cannot be written")


def _wanted(options: RunOptions, settings: Settings) -> Callable[[Case], Case | None]:
    """Which cases run, with what the command line says over what they say themselves."""
    only = regex.compile(options.only) if options.only else None
    tags = set(options.tags)
    turn_timeout_s = options.turn_timeout_s

    def wanted(case: Case) -> Case | None:
        if only is not None and not only.search(case.id):
            return None
        if tags and not tags & set(case.tags):
            return None
        limits = case.limits
        if options.timeout_s is not None:
            limits = structs.replace(limits, timeout_s=options.timeout_s)
        if turn_timeout_s is not None or (
            limits.turn_timeout_s is None and settings.defaults.turn_timeout_s is not None
        ):
            limits = structs.replace(limits, turn_timeout_s=turn_timeout_s or settings.defaults.turn_timeout_s)
        missing = options.on_missing_input or case.on_missing_input
        if limits is case.limits and missing == case.on_missing_input:
            return case
        return structs.replace(case, limits=limits, on_missing_input=missing)

    return wanted


async def examine(prepared: Prepared, sinks: Sequence[Sink] = ()) -> RunResult:
    """Runs what was prepared and tells the sinks all about it."""
    options = prepared.options
    run = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    journal = _journal(prepared.settings, run, history=options.history)
    reporters = [(catalog.find("reporter", path.suffix), path) for path in options.outputs]
    reports = [reporter(path, journal) for reporter, path in reporters if reporter is not None]
    bus = Bus(journal, [*sinks, *reports])
    tally = Tally(prepared.cases, options.min_pass)
    scheduler = Scheduler(_stage(prepared, run, bus), Local(prepared.parallel), tally, options.fail_fast)
    why: str | None = None
    try:
        bus.emit(_started(run, prepared, journal))
        with _stopping(scheduler):
            try:
                await scheduler.run(prepared.plan())
            except RunStopped as broken:
                scheduler.stopped, why = "budget" if broken.budget else "broken", broken.why
        summary = tally.summary()
        code = exit_code(summary, scheduler.stopped)
        texts = await _tell_reporter(prepared, bus, journal, summary)
        _say_goodbye(bus, RunEnded(run, _now(), code, summary, scheduler.stopped, why), why)
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    finally:
        await prepared.http.close()
    return RunResult(run, code, summary, journal)


def _stage(prepared: Prepared, run: str, bus: Bus) -> Stage:
    options, redactor = prepared.options, prepared.redactor
    stage = Stage(
        run=run,
        agent=prepared.agent.agent,
        agent_name=prepared.agent.name,
        http=prepared.http,
        helpers=prepared.crew,
        bus=bus,
        agent_options=prepared.agent.options,
        options={"connector": options.connector} if options.connector else {},
        connectors=prepared.settings.connectors,
        meter=prepared.budget.spend,
    )
    if redactor:
        stage.redact = redactor.record
        stage.redact_turn = redactor.record
    return stage


async def _tell_reporter(prepared: Prepared, bus: Bus, journal: Journal, summary: RunSummary) -> dict[Path, str]:
    """What an agent as reporter writes for each file. Where it breaks, a warning, and the built-in report stays."""
    options = prepared.options
    texts: dict[Path, str] = {}
    if options.reporter is None:
        return texts
    for path in options.outputs or (None,):
        form = path.suffix.removeprefix(".") if path else "text"
        try:
            text = prepared.redactor.text(await report_by(prepared.crew, options.reporter, journal, summary, form))
        except HelperFailed as broken:
            instead = f"{path} is the built-in report" if path else "there is no report of it"
            bus.emit(Note(f"reporter {options.reporter}: {broken.said}; {instead}", "warning"))
            continue
        if path is None:
            bus.emit(Note(text))
        else:
            texts[path] = text
    return texts


def _say_goodbye(bus: Bus, event: RunEnded, why: str | None) -> None:
    """The last event. When the journal is what broke, the listeners still get it, and so the report is written."""
    try:
        bus.emit(event)
    except RunStopped:
        if why is None:
            raise
        bus.without_journal().emit(event)


def _started(run: str, prepared: Prepared, journal: Journal) -> RunStarted:
    return RunStarted(
        run=run,
        at=_now(),
        viva=viva.__version__,
        agent=prepared.agent.name,
        inputs=tuple(prepared.options.inputs),
        cases=prepared.cases,
        trials=prepared.trials,
        parallel=prepared.parallel,
        settings={
            "reports": [str(path) for path in prepared.options.outputs],
            "journal": str(journal.path) if prepared.options.history else None,
            "min_pass": prepared.options.min_pass,
        },
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _journal(settings: Settings, run: str, *, history: bool) -> Journal:
    """`.viva/runs/<id>/journal.jsonl` beside the config; somewhere temporary for a run that shall leave nothing."""
    if not history:
        import tempfile

        return Journal(Path(tempfile.mkdtemp(prefix="viva-")) / "journal.jsonl")
    home = settings.folder / ".viva"
    try:
        home.mkdir(exist_ok=True)
        ignore = home / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        return Journal(home / "runs" / run / "journal.jsonl")
    except (OSError, RunStopped) as wrong:
        raise BadInput.saying(f"cannot write to {home}: {wrong}; --no-history keeps nothing there") from wrong


@contextmanager
def _stopping(scheduler: Scheduler) -> Generator[None]:
    """The first Ctrl-C stops the trials and finishes the report; the second leaves."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if scheduler.stopped == "interrupted":
            os._exit(2)
        scheduler.stop("interrupted")

    handled: list[signal.Signals] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, interrupt)
            handled.append(number)
        except (
            NotImplementedError,
            RuntimeError,
            ValueError,
        ):  # Windows, or not the main thread: asyncio's own way remains
            break
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """The one door from sync to async: uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
