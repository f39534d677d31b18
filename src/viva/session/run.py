"""Wires a run together: settings and inputs become suites, agents, sinks and a stage; the scheduler does the rest."""

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

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
from viva.errors import BadInput, CheckBroken, HelperFailed, Problem, RunStopped
from viva.formats import native
from viva.formats.documents import documents_of
from viva.formats.native import TIMEOUT_S, Reading
from viva.formats.sources import Files, Format, Made, Piped, Words, load_files, understood
from viva.llm.budget import Budget
from viva.llm.transport import HttpTransport
from viva.model.case import Case, Hook, OnMissingInput, Suite
from viva.model.event import Note, RunEnded, RunStarted, RunSummary
from viva.model.pattern import compile_pattern, search
from viva.model.record import TrialRecord
from viva.protocols import Asking, Planned, Sink
from viva.record.journal import Journal
from viva.session.agents import Agents, NamedAgent
from viva.session.generated import generate
from viva.session.hooks import ProjectHooks, run_hook
from viva.session.people import Keeper, People
from viva.session.redaction import Redactor
from viva.session.reporting import report_by

T = TypeVar("T")


class RunOptions(Struct, frozen=True, kw_only=True):
    """What can be asked of a run: the flags of `viva test` and the arguments of `viva.run`."""

    inputs: tuple[str, ...]
    cases: tuple[Any, ...] = ()
    """Cases that no file holds, as Python values."""
    before: str | Callable[..., Any] | None = None
    after: str | Callable[..., Any] | None = None
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
    interactive: bool = False
    skip_interactive: bool = False
    asking: Asking | None = None


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
    people: People
    cases: int = 0
    trials: int = 0
    interactive: int = 0
    """How many cases ask for a person."""
    before: Hook | None = None
    after: Hook | None = None

    def plan(self) -> AsyncIterator[Planned]:
        return plan(self.suites, _wanted(self.options, self.settings, self.people), self.options.runs)

    async def count(self) -> None:
        """How much there is to do. Without a filter the suites know, and nothing is read again."""
        if self.options.only is None and not self.options.tags:
            self.cases = sum(suite.count for suite in self.suites)
            own = [runs for suite in self.suites for runs in suite.own_runs]
            self.trials = (self.cases - len(own)) * self.options.runs + sum(own)
            self.interactive = sum(suite.interactive for suite in self.suites)
            return
        async for planned in self.plan():
            self.cases += planned.trial == 1
            self.interactive += planned.trial == 1 and planned.case.interactive.enabled
            self.trials += 1

    @property
    def with_person(self) -> bool:
        """Does a person take part? Then cases run one at a time, and are shown as they go on."""
        return self.people.take_part(self.interactive)

    @property
    def parallel(self) -> int:
        if self.with_person:
            return 1
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
    needed = bool(made) or not all(suite.names_agents for suite in suites)
    agent = agents.under_test(options.agent, target, needed=needed)
    if options.reporter is not None:
        agents.find(options.reporter, "reporter")
    for each in made:
        suites.append(await generate(each, agent, crew, settings, reading))
    for suite in suites:
        agents.check_references(suite.references)
    keeper = Keeper(reading, options.folder, suites)
    people = People(options.asking, options.interactive, options.skip_interactive, keeper)
    redactor = Redactor(settings.secrets)
    prepared = Prepared(options, settings, suites, agents, agent, crew, http, budget, redactor, people)
    roots = (*reading.roots, str(options.folder))
    prepared.before, prepared.after = (
        run_hook(options.before, "--before", roots),
        run_hook(options.after, "--after", roots),
    )
    await prepared.count()
    return prepared


def _suites(options: RunOptions, reading: Reading) -> tuple[list[Suite], list[Made]]:
    """What is in files, and what has still to be made."""
    paths: list[Path | Piped] = []
    made: list[Made] = []
    tests: list[Suite] = []
    problems: list[Problem] = []
    for text in options.inputs:
        try:
            match understood(text, options.folder):
                case Files(found):
                    paths += found
                case Piped() as piped:
                    paths.append(piped)
                case Words(words):
                    what = f"the message {words[:40]!r} cannot be mixed with suites; send it by itself"
                    problems.append(Problem("", 0, "", what))
                case Made(by) as found:
                    suite = _script_suite(found, options.folder, reading) if by == "scripts" else None
                    if suite is not None:
                        tests.append(suite)
                    else:
                        made.append(found)
        except BadInput as wrong:
            problems += wrong.problems
    try:
        suites = load_files(list(dict.fromkeys(paths)), reading, options.folder, options.format)
    except BadInput as wrong:
        raise BadInput(*problems, *wrong.problems) from wrong
    if problems:
        raise BadInput(*problems)
    if options.cases:
        suites.append(native.load(documents_of(options.cases, "cases"), "cases", options.folder, reading))
    return [*suites, *tests], made


def _script_suite(made: Made, folder: Path, reading: Reading) -> Suite | None:
    from viva.session.scripts import script_suite  # few runs have script tests, and they bring much with them

    return script_suite(made, folder, reading)


def _check_filter(pattern: str | None) -> None:
    if pattern is None:
        return
    try:
        compile_pattern(pattern)
    except ValueError as wrong:
        raise BadInput.saying(f"-k {wrong}") from wrong


def _matches(pattern: str, case_id: str) -> bool:
    try:
        return search(pattern, case_id)
    except CheckBroken as wrong:
        raise BadInput.saying(f"-k {wrong}") from wrong


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
        if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise BadInput.saying(f"-o {path}: cannot be written")
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as wrong:
            raise BadInput.saying(f"-o {path}: cannot be written: {wrong.strerror}") from wrong


def _wanted(options: RunOptions, settings: Settings, people: People) -> Callable[[Case], Case | None]:
    """Which cases run, with what the command line says over what they say themselves."""
    tags = set(options.tags)
    turn_timeout_s = options.turn_timeout_s

    def wanted(case: Case) -> Case | None:
        if options.only is not None and not _matches(options.only, case.id):
            return None
        if tags and not tags & set(case.tags):
            return None
        limits = case.limits
        if options.timeout_s is not None:
            limits = structs.replace(limits, timeout_s=options.timeout_s)
        if turn_timeout_s is not None or (
            limits.turn_timeout_s is None and settings.defaults.turn_timeout_s is not None
        ):
            limits = structs.replace(
                limits,
                turn_timeout_s=turn_timeout_s or settings.defaults.turn_timeout_s,
                overruled=turn_timeout_s is not None,
            )
        missing = options.on_missing_input or case.on_missing_input
        if limits is not case.limits or missing != case.on_missing_input:
            case = structs.replace(case, limits=limits, on_missing_input=missing)
        return people.placed(case)

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
    stage = stage_of(prepared, run, bus)
    stage.hooks = hooks = ProjectHooks(stage, prepared.before, prepared.after)
    scheduler = Scheduler(stage, Local(prepared.parallel), tally, options.fail_fast)
    why: str | None = None
    try:
        bus.emit(_started(run, prepared, journal))
        if note := prepared.people.note(prepared.interactive):
            bus.emit(Note(note))
        with _stopping(scheduler):
            try:
                await hooks.before_run(prepared.plan)
                await scheduler.run(prepared.plan())
            except RunStopped as broken:
                scheduler.stopped, why = "budget" if broken.budget else "broken", broken.why
        if trouble := await hooks.after_run(journal.records):
            bus.emit(Note(prepared.redactor.text(trouble), "warning"))
        summary = tally.summary()
        code = exit_code(summary, scheduler.stopped)
        texts = await _tell_reporter(prepared, bus, journal, summary)
        _say_goodbye(bus, RunEnded(run, _now(), code, summary, scheduler.stopped, why), why)
        if any(report not in bus for report in reports):
            code = code or 1  # a report that is not there is no success
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
    finally:
        await prepared.http.close()
    return RunResult(run, code, summary, journal)


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
        options={"connector": options.connector} if options.connector else {},
        connectors=prepared.settings.connectors,
        meter=prepared.budget.spend,
        others=prepared.agents.named,
    )
    if redactor:
        stage.redact = redactor.record
        stage.redact_turn = redactor.record
        stage.redact_text = redactor.text
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
        agent=prepared.agent.name or "as the tests say",
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
        folder = Path(tempfile.mkdtemp(prefix="viva-"))
        journal = Journal(folder / "journal.jsonl")
        shutil.rmtree(folder)  # the open file lives as long as the run does
        return journal
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
    asked = False

    # A handler of the loop's own would wait for its turn; an agent that blocks the loop must not keep anybody here.
    def interrupt(_number: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            os._exit(2)
        asked = True
        loop.call_soon_threadsafe(scheduler.stop, "interrupted")

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


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """The one door from sync to async: uvloop where there is one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
