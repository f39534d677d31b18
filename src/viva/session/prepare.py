"""Reads and checks all that a run needs, before anything is sent: files, agents, helpers, outputs."""

import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

import viva
from viva import catalog, config
from viva.config import Settings
from viva.engine.helpers import HelperPool
from viva.engine.scheduler import plan_trials
from viva.errors import BadInput, Problem
from viva.formats import native
from viva.formats.documents import documents_of
from viva.formats.reading import TIMEOUT_S, Reading
from viva.formats.sources import Files, Made, Piped, Words, load_files, understood
from viva.history.index import History
from viva.llm.budget import Budget
from viva.llm.transport import HttpTransport
from viva.model.case import Case, Hook, Suite
from viva.model.credentials import MASK, find_in_text
from viva.model.event import CaseGenerated
from viva.protocols import PlannedTrial
from viva.record.cassette import digest_of
from viva.record.redaction import Redactor
from viva.session.agents import Agents, NamedAgent
from viva.session.evaluating import check_audience, check_needs, eval_reading, evaluated, pinned, prompts_of
from viva.session.evaluators import evaluator_check
from viva.session.filters import check_filter, is_wanted
from viva.session.generated import generate
from viva.session.hooks import run_hook
from viva.session.names import connector_check, helper_check, wrong_flags
from viva.session.options import RunOptions
from viva.session.people import Keeper, People
from viva.session.resuming import Past
from viva.session.taping import Taping
from viva.session.workspaces import Places
from viva.stats.sequential import SequentialTest


class Prepared(Struct):
    """A run that is checked and ready: nothing has been sent yet."""

    options: RunOptions
    settings: Settings
    suites: list[Suite]
    agents: Agents
    agent: NamedAgent
    crew: HelperPool
    http: HttpTransport
    budget: Budget
    redactor: Redactor
    people: People
    places: Places
    taping: Taping
    wanted: Callable[[Case], Case | None]
    cases: int = 0
    trials: int = 0
    interactive: int = 0
    """How many cases ask for a person."""
    before: Hook | None = None
    after: Hook | None = None
    generated: Mapping[str, list[Any]] = {}
    """Cases that were made for this run, by the name of their suite."""
    notes: Sequence[str] = ()
    """What a person should know before it starts."""
    by_suite: Mapping[str, int] = {}
    """How many cases of each suite shall run."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What must not change between two parts of one run."""
        return {
            "the version of Viva": viva.__version__,
            "agents": {name: digest_of(made_of) for name, made_of in self.agents.definitions.items()},
            "suites": {suite.id: suite.digest for suite in self.suites},
        }

    def plan(self) -> AsyncIterator[PlannedTrial]:
        return plan_trials(self.suites, self.wanted, self.options.runs)

    async def count(self) -> None:
        """How much there is to do. Without a filter the suites know, and nothing is read again."""
        if not self.options.is_filtered:
            self.by_suite = {suite.id: suite.count for suite in self.suites}
            self.cases = sum(suite.count for suite in self.suites)
            own = [] if self.options.sequential else [runs for suite in self.suites for runs in suite.case_runs]
            self.trials = (self.cases - len(own)) * self.options.runs + sum(own)
            self.interactive = sum(suite.interactive_cases for suite in self.suites)
            return
        by_suite = Counter[str]()
        async for planned in self.plan():
            by_suite[planned.case.suite] += planned.trial == 1
            self.cases += planned.trial == 1
            self.interactive += planned.trial == 1 and planned.case.interactive.enabled
            self.trials += 1
        self.by_suite = by_suite

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


async def prepare(options: RunOptions, past: Past | None = None) -> Prepared:
    """Reads and checks everything that can be checked before anything runs. Raises BadInput with all of it.

    `past` is what an earlier part of the same run has left: the cases made for it are not made again.
    """
    settings = config.load(options.config, options.folder.resolve(), options.env_file)
    catalog.load_plugins(settings.plugins, settings.folder)
    if options.last_failed and options.chosen is None:
        options = structs.replace(options, chosen=_failed_last(settings))
    options = pinned(options, settings)
    check_filter(options.only)
    _check_outputs(options)
    baseline = options.folder / options.baseline if options.baseline else None
    needed_files = (settings.file, options.env_file, options.record, options.replay, baseline)
    _refuse_overwriting(options, [path for path in needed_files if path])
    redactor = settings.redactor
    redactor.learn(found for text in options.inputs for found in find_in_text(text))  # agents:id?api_key=…
    taping = Taping(options, redactor, settings.connectors)
    agents = Agents(settings, options.connector, taping.wrap, replaying=options.replay is not None)
    reading = _reading(options, settings, agents)
    problems = list(wrong_flags(options, agents))
    if options.evaluator:
        problems += reading.wrong_with_evaluator(options.evaluator)
    budget = Budget(options.max_cost_usd, past.spent_usd if past else 0.0)
    http = HttpTransport()
    suites, made, files, file_notes = _suites(options, reading, problems)
    suites = evaluated(suites, options, settings)
    target = _target(options, settings, suites, made)
    needed = bool(made) or not all(suite.is_agent_optional for suite in suites)
    agent = agents.under_test(options.agent, target, needed=needed, folder=options.folder)
    reading.evals.prompts.extend(prompts_of(agents.definitions.get(agent.name, {})))
    notes = check_audience(suites, agent, mismatch_allowed=options.allow_agent_mismatch)
    places = Places(options, settings, agent, files)
    crew = HelperPool(agents.find, http, settings.connectors, budget.spend, places.spare)
    generated: dict[str, list[Any]] = {}
    for each in made:
        kept = past.generated.get(each.name) if past else None
        timeout_s = options.timeout_s or reading.timeout_s
        cases = list(kept) if kept else await _generated(each, agent, crew, settings, reading, timeout_s)
        generated[each.name] = cases
        suites.append(native.load(documents_of(cases, each.name), each.name, settings.folder, reading))
    keeper = Keeper(reading, options.folder, suites, agent.name)
    people = People(options.asking, options.interactive, options.skip_interactive, keeper)
    wanted = _wanted(options, settings, people, places)
    prepared = Prepared(
        options, settings, suites, agents, agent, crew, http, budget, redactor, people, places, taping, wanted
    )
    prepared.generated = generated
    trials = [_most_trials(options.sequential)] if options.sequential else []
    of_suites = (note for suite in suites for note in suite.notes)
    prepared.notes = [*file_notes, *places.notes(), *of_suites, *notes, *trials]
    await check_needs(suites, agent, wanted)
    roots = (*reading.roots, str(options.folder))
    prepared.before, prepared.after = (
        run_hook(options.before, "--before", roots),
        run_hook(options.after, "--after", roots),
    )
    await prepared.count()
    return prepared


async def _generated(
    made: Made, agent: NamedAgent, crew: HelperPool, settings: Settings, reading: Reading, timeout_s: float
) -> list[Any]:
    if MASK in made.query.values():
        raise BadInput.of(f"-i {made.name}: {MASK} stands for a secret; write the secret itself")
    cases = await generate(made, agent, crew, settings, reading, timeout_s)
    if made.by == "scripts":
        return cases
    # What a generator says is kept, and a resumed run has to find the same cases there.
    return [settings.redactor.record(CaseGenerated(made.name, case)).case for case in cases]


def _most_trials(test: SequentialTest) -> str:
    undecided = test.chances(test.min_pass).undecided
    return (
        f"at most {test.max_runs} trials a case (--max-runs); a case that passes exactly {test.min_pass:.4g} of the time "
        f"is then still undecided in {undecided * 100:.2g} %"
    )


def _reading(options: RunOptions, settings: Settings, agents: Agents) -> Reading:
    """How the files of this run are read."""
    simulator = options.simulator or settings.defaults.simulator
    return Reading(
        roots=(str(settings.folder),),
        attachment_roots=settings.attachment_roots,
        wrong_with=helper_check(agents, settings, options.agent),
        wrong_with_connector=connector_check(agents, settings, options),
        update_snapshots=options.update_snapshots,
        before_run=options.before is not None,
        simulator=simulator.removeprefix("agents:") if simulator else None,
        timeout_s=settings.defaults.timeout_s or TIMEOUT_S,
        folder=str(options.folder.resolve()),
        environ=settings.environ,
        evaluator=options.evaluator,
        default_evaluator=settings.defaults.evaluator,
        keep_secret=settings.redactor.learn_variable,
        evals=eval_reading(options, settings),
        wrong_with_evaluator=evaluator_check(agents, settings, options.evaluator),
    )


def _target(options: RunOptions, settings: Settings, suites: Sequence[Suite], made: Sequence[Made]) -> str | None:
    """Whom the suites themselves are for, where nobody says otherwise. A run has one agent: so they have to agree."""
    targets = dict.fromkeys(suite.target for suite in suites if not suite.is_agent_optional)
    if made:
        targets[None] = None
    if len(targets) > 1 and options.agent is None and settings.defaults.agent is None:
        meant = {target: next(suite.id for suite in suites if suite.target == target) for target in targets if target}
        said = ", ".join(f"{suite} is for {target!r}" for target, suite in meant.items())
        raise BadInput.of(f"which agent? {said}, the others are not: give -n NAME, or run them apart")
    return next(iter(targets), None)


def _suites(
    options: RunOptions, reading: Reading, problems: list[Problem]
) -> tuple[list[Suite], list[Made], list[Path], list[str]]:
    """What is in files, what has still to be made, the files, and what a person should know about them.

    Raises BadInput with all problems, those before too.
    """
    notes: list[str] = []
    paths: list[Path | Piped] = []
    made: list[Made] = []
    tests: list[Suite] = []
    for text in options.inputs:
        try:
            match understood(text, options.folder):
                case Files(found) as files_found:
                    paths += found
                    notes += [files_found.note] if files_found.note else []
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
    files: dict[Path | Piped, Path | Piped] = {}
    for path in paths:  # a file runs once, however often and by whatever path it is named
        files.setdefault(path if isinstance(path, Piped) else path.resolve(), path)
    named = [path for path in files if isinstance(path, Path)]
    _refuse_overwriting(options, named)
    try:
        suites = load_files(list(files.values()), reading, options.folder, options.format)
    except BadInput as wrong:
        raise BadInput(*dict.fromkeys((*problems, *wrong.problems))) from wrong
    if options.cases:
        try:
            suites.append(native.load(documents_of(options.cases, "cases"), "cases", options.folder, reading))
        except BadInput as wrong:
            problems += wrong.problems
    if problems:
        raise BadInput(*dict.fromkeys(problems))
    return [*suites, *tests], made, named, notes


def _script_suite(made: Made, folder: Path, reading: Reading) -> Suite | None:
    from viva.session.scripts import script_suite  # few runs have script tests, and they bring much with them

    return script_suite(made, folder, reading)


def _written(options: RunOptions) -> list[tuple[str, Path]]:
    """The files that the run will write, with the flags that name them."""
    outputs = [("-o", path) for path in options.outputs]
    return outputs if options.eval_summary is None else [*outputs, ("--eval-summary", options.eval_summary)]


def _check_outputs(options: RunOptions) -> None:
    """A report that could not be written is said before the run, not after it. An agent as reporter writes any kind."""
    for path in options.outputs:
        if options.dry_run and path.suffix != ".jsonl":
            raise BadInput.of(f"-o {path}: --dry-run writes cases as .jsonl")
        if options.reporter is None and catalog.find("reporter", path.suffix) is None:
            raise BadInput.of(
                f"-o {path}: unknown kind of report; known endings: {', '.join(catalog.names('reporter'))}"
            )
    taken: dict[Path, str] = {}
    for flag, path in _written(options):
        check_writable(flag, path)
        if (other := taken.setdefault(path.resolve(), flag)) != flag:
            raise BadInput.of(f"{flag} {path}: {other} writes that file too")


def check_writable(flag: str, path: Path) -> None:
    if not path.parent.is_dir():
        raise BadInput.of(f"{flag} {path}: there is no folder {path.parent}")
    folder = path.resolve().parent  # where a link leads to
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise BadInput.of(f"{flag} {path}: cannot be written")
    if path.exists() and not path.is_file():
        raise BadInput.of(f"{flag} {path}: is no ordinary file; a report would take its place")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as wrong:
        raise BadInput.of(f"{flag} {path}: cannot be written: {wrong.strerror}") from wrong


def _refuse_overwriting(options: RunOptions, needed: Iterable[Path]) -> None:
    """A report never takes the place of what the run is made of."""
    taken = {path.resolve(): path for path in needed}
    for flag, path in _written(options):
        if (found := taken.get(path.resolve())) is not None:
            raise BadInput.of(f"{flag} {path}: the run itself needs {found}; write the report elsewhere")


def _failed_last(settings: Settings) -> tuple[tuple[str, str], ...]:
    """The cases that did not pass in the latest run, skipped ones not included."""
    history = History(settings.home)
    rows = history.results(history.find("latest").id)
    return tuple(dict.fromkeys((row.suite, row.case) for row in rows if row.status in ("failed", "error")))


def _wanted(options: RunOptions, settings: Settings, people: People, places: Places) -> Callable[[Case], Case | None]:
    """Which cases run, with what the command line says over what they say themselves."""
    is_filtered = options.is_filtered
    turn_timeout_s = options.turn_timeout_s
    chosen = None if options.chosen is None else frozenset(options.chosen)

    def wanted(case: Case) -> Case | None:
        if is_filtered and not is_wanted(case, options, chosen):
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
                turn_timeout_text="",
            )
        if options.sequential is not None and case.runs is not None:
            case = structs.replace(case, runs=None)  # how often it runs is what the test decides
        missing = options.on_missing_input or case.on_missing_input
        if limits is not case.limits or missing != case.on_missing_input:
            case = structs.replace(case, limits=limits, on_missing_input=missing)
        return people.placed(places.placed(case))

    return wanted
