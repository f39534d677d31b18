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
from viva.formats.documents import wrap_values
from viva.formats.load_options import TIMEOUT_S, LoadOptions
from viva.formats.sources import GeneratedCases, PlainMessage, StandardInput, SuiteFiles, load_files, parse_input
from viva.history.index import History
from viva.llm.budget import Budget
from viva.llm.transport import HttpTransport
from viva.model.case import Case, Hook, Suite
from viva.model.event import CaseGenerated
from viva.protocols import PlannedTrial
from viva.record.cassette import compute_digest
from viva.record.redaction import Redactor
from viva.session.agents import AgentFactory, ConfiguredAgent
from viva.session.case_generation import generate_cases
from viva.session.case_selection import is_selected, validate_filter
from viva.session.cassette_mode import CassetteMode
from viva.session.eval_suites import (
    add_baselines,
    build_eval_options,
    check_audience,
    check_needs,
    extract_prompts,
    pin_baseline,
)
from viva.session.evaluators import create_evaluator_check
from viva.session.hooks import resolve_run_hook
from viva.session.interactive import ConversationSaver, PersonPolicy
from viva.session.names import create_connector_check, create_helper_check, find_flag_problems
from viva.session.options import RunOptions
from viva.session.resume import PreviousRun
from viva.session.workspaces import WorkspaceProvider
from viva.stats.sequential import SequentialTest
from viva.text.credentials import MASK, find_in_text


class RunPlan(Struct):
    """A run that is checked and ready: nothing has been sent yet."""

    options: RunOptions
    settings: Settings
    suites: list[Suite]
    agents: AgentFactory
    agent: ConfiguredAgent
    helpers: HelperPool
    http: HttpTransport
    budget: Budget
    redactor: Redactor
    person_policy: PersonPolicy
    workspaces: WorkspaceProvider
    cassette_mode: CassetteMode
    select_case: Callable[[Case], Case | None]
    case_count: int = 0
    trial_count: int = 0
    interactive_count: int = 0
    """How many cases ask for a person."""
    before_hook: Hook | None = None
    after_hook: Hook | None = None
    generated_cases: Mapping[str, list[Any]] = {}
    """Cases that were made for this run, by the name of their suite."""
    notes: Sequence[str] = ()
    """What a person should know before it starts."""
    case_counts: Mapping[str, int] = {}
    """How many cases of each suite shall run."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What must not change between two parts of one run."""
        return {
            "the version of Viva": viva.__version__,
            "agents": {name: compute_digest(made_of) for name, made_of in self.agents.definitions.items()},
            "suites": {suite.id: suite.digest for suite in self.suites},
        }

    def iterate_trials(self) -> AsyncIterator[PlannedTrial]:
        return plan_trials(self.suites, self.select_case, self.options.runs)

    async def count_trials(self) -> None:
        """How much there is to do. Without a filter the suites know, and nothing is read again."""
        if not self.options.is_filtered:
            self.case_counts = {suite.id: suite.count for suite in self.suites}
            self.case_count = sum(suite.count for suite in self.suites)
            own = [] if self.options.sequential else [runs for suite in self.suites for runs in suite.case_runs]
            self.trial_count = (self.case_count - len(own)) * self.options.runs + sum(own)
            self.interactive_count = sum(suite.interactive_cases for suite in self.suites)
            return
        by_suite = Counter[str]()
        async for planned in self.iterate_trials():
            by_suite[planned.case.suite] += planned.trial == 1
            self.case_count += planned.trial == 1
            self.interactive_count += planned.trial == 1 and planned.case.interactive.enabled
            self.trial_count += 1
        self.case_counts = by_suite

    @property
    def has_person(self) -> bool:
        """Does a person take part? Then cases run one at a time, and are shown as they go on."""
        return self.person_policy.is_active(self.interactive_count)

    @property
    def parallel(self) -> int:
        if self.has_person:
            return 1
        asked = self.options.parallel or self.settings.defaults.parallel or 4
        return max(1, min(asked, self.agent.parallel or asked, self.trial_count))


async def build_run_plan(options: RunOptions, previous_run: PreviousRun | None = None) -> RunPlan:
    """Reads and checks everything that can be checked before anything runs. Raises BadInput with all of it.

    `past` is what an earlier part of the same run has left: the cases made for it are not made again.
    """
    settings = config.load_settings(options.config, options.folder.resolve(), options.env_file)
    catalog.load_plugins(settings.plugins, settings.folder)
    if options.last_failed and options.selected_cases is None:
        options = structs.replace(options, selected_cases=_failed_last(settings))
    options = pin_baseline(options, settings)
    validate_filter(options.only)
    _check_outputs(options)
    baseline = options.folder / options.baseline if options.baseline else None
    needed_files = (settings.file, options.env_file, options.record, options.replay, baseline)
    _refuse_overwriting(options, [path for path in needed_files if path])
    redactor = settings.redactor
    redactor.add_secrets(found for text in options.inputs for found in find_in_text(text))  # agents:id?api_key=…
    taping = CassetteMode(options, redactor, settings.connectors)
    agents = AgentFactory(settings, options.connector, taping.wrap_agent, is_replaying=options.replay is not None)
    reading = _reading(options, settings, agents)
    problems = list(find_flag_problems(options, agents))
    if options.evaluator:
        problems += reading.find_evaluator_problems(options.evaluator)
    budget = Budget(options.max_cost_usd, previous_run.spent_usd if previous_run else 0.0)
    http = HttpTransport()
    suites, made, files, file_notes = _suites(options, reading, problems)
    suites = add_baselines(suites, options, settings)
    target = _target(options, settings, suites, made)
    needed = bool(made) or not all(suite.is_agent_optional for suite in suites)
    agent = agents.find_agent_under_test(options.agent, target, is_required=needed, folder=options.folder)
    reading.eval_options.prompts.extend(extract_prompts(agents.definitions.get(agent.name, {})))
    notes = check_audience(suites, agent, allow_mismatch=options.allow_agent_mismatch)
    places = WorkspaceProvider(options, settings, agent, files)
    helper_pool = HelperPool(agents.find_helper, http, settings.connectors, budget.spend, places.empty_workspaces)
    generated: dict[str, list[Any]] = {}
    for each in made:
        kept = previous_run.generated_cases.get(each.name) if previous_run else None
        timeout_s = options.timeout_s or reading.timeout_s
        cases = list(kept) if kept else await _generated(each, agent, helper_pool, settings, reading, timeout_s)
        generated[each.name] = cases
        suites.append(native.load(wrap_values(cases, each.name), each.name, settings.folder, reading))
    keeper = ConversationSaver(reading, options.folder, suites, agent.name)
    people = PersonPolicy(options.person_prompt, options.interactive, options.skip_interactive, keeper)
    wanted = _wanted(options, settings, people, places)
    prepared = RunPlan(
        options, settings, suites, agents, agent, helper_pool, http, budget, redactor, people, places, taping, wanted
    )
    prepared.generated_cases = generated
    trials = [_most_trials(options.sequential)] if options.sequential else []
    of_suites = (note for suite in suites for note in suite.notes)
    prepared.notes = [*file_notes, *places.build_notes(), *of_suites, *notes, *trials]
    await check_needs(suites, agent, wanted)
    roots = (*reading.roots, str(options.folder))
    prepared.before_hook, prepared.after_hook = (
        resolve_run_hook(options.before, "--before", roots),
        resolve_run_hook(options.after, "--after", roots),
    )
    await prepared.count_trials()
    return prepared


async def _generated(
    made: GeneratedCases,
    agent: ConfiguredAgent,
    helper_pool: HelperPool,
    settings: Settings,
    reading: LoadOptions,
    timeout_s: float,
) -> list[Any]:
    if MASK in made.query.values():
        raise BadInput.of(f"-i {made.name}: {MASK} stands for a secret; write the secret itself")
    cases = await generate_cases(made, agent, helper_pool, settings, reading, timeout_s)
    if made.source == "scripts":
        return cases
    # What a generator says is kept, and a resumed run has to find the same cases there.
    return [settings.redactor.redact(CaseGenerated(made.name, case)).case for case in cases]


def _most_trials(test: SequentialTest) -> str:
    undecided = test.chances(test.min_pass).undecided
    return (
        f"at most {test.max_runs} trials a case (--max-runs); a case that passes exactly {test.min_pass:.4g} of the time "
        f"is then still undecided in {undecided * 100:.2g} %"
    )


def _reading(options: RunOptions, settings: Settings, agents: AgentFactory) -> LoadOptions:
    """How the files of this run are read."""
    simulator = options.simulator or settings.defaults.simulator
    return LoadOptions(
        roots=(str(settings.folder),),
        attachment_roots=settings.attachment_roots,
        find_helper_problems=create_helper_check(agents, settings, options.agent),
        find_connector_problems=create_connector_check(agents, settings, options),
        update_snapshots=options.update_snapshots,
        has_before_run=options.before is not None,
        simulator=simulator.removeprefix("agents:") if simulator else None,
        timeout_s=settings.defaults.timeout_s or TIMEOUT_S,
        folder=str(options.folder.resolve()),
        environ=settings.environ,
        evaluator=options.evaluator,
        default_evaluator=settings.defaults.evaluator,
        add_secret=settings.redactor.add_variable,
        eval_options=build_eval_options(options, settings),
        find_evaluator_problems=create_evaluator_check(agents, settings, options.evaluator),
    )


def _target(
    options: RunOptions, settings: Settings, suites: Sequence[Suite], made: Sequence[GeneratedCases]
) -> str | None:
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
    options: RunOptions, reading: LoadOptions, problems: list[Problem]
) -> tuple[list[Suite], list[GeneratedCases], list[Path], list[str]]:
    """What is in files, what has still to be made, the files, and what a person should know about them.

    Raises BadInput with all problems, those before too.
    """
    notes: list[str] = []
    paths: list[Path | StandardInput] = []
    made: list[GeneratedCases] = []
    tests: list[Suite] = []
    for text in options.inputs:
        try:
            match parse_input(text, options.folder):
                case SuiteFiles(found) as files_found:
                    paths += found
                    notes += [files_found.note] if files_found.note else []
                case StandardInput() as piped:
                    paths.append(piped)
                case PlainMessage(words):
                    what = f"the message {words[:40]!r} cannot be mixed with suites; send it by itself"
                    problems.append(Problem("", 0, "", what))
                case GeneratedCases(by) as found:
                    suite = _script_suite(found, options.folder, reading) if by == "scripts" else None
                    if suite is not None:
                        tests.append(suite)
                    else:
                        made.append(found)
        except BadInput as wrong:
            problems += wrong.problems
    files: dict[Path | StandardInput, Path | StandardInput] = {}
    for path in paths:  # a file runs once, however often and by whatever path it is named
        files.setdefault(path if isinstance(path, StandardInput) else path.resolve(), path)
    named = [path for path in files if isinstance(path, Path)]
    _refuse_overwriting(options, named)
    try:
        suites = load_files(list(files.values()), reading, options.folder, options.format)
    except BadInput as wrong:
        raise BadInput(*dict.fromkeys((*problems, *wrong.problems))) from wrong
    if options.cases:
        try:
            suites.append(native.load(wrap_values(options.cases, "cases"), "cases", options.folder, reading))
        except BadInput as wrong:
            problems += wrong.problems
    if problems:
        raise BadInput(*dict.fromkeys(problems))
    return [*suites, *tests], made, named, notes


def _script_suite(made: GeneratedCases, folder: Path, reading: LoadOptions) -> Suite | None:
    from viva.session.script_tests import load_script_suite  # few runs have script tests, and they bring much with them

    return load_script_suite(made, folder, reading)


def _written(options: RunOptions) -> list[tuple[str, Path]]:
    """The files that the run will write, with the flags that name them."""
    outputs = [("-o", path) for path in options.outputs]
    return outputs if options.eval_summary is None else [*outputs, ("--eval-summary", options.eval_summary)]


def _check_outputs(options: RunOptions) -> None:
    """A report that could not be written is said before the run, not after it. An agent as reporter writes any kind."""
    for path in options.outputs:
        if options.dry_run and path.suffix != ".jsonl":
            raise BadInput.of(f"-o {path}: --dry-run writes cases as .jsonl")
        if options.reporter is None and catalog.find_component("reporter", path.suffix) is None:
            raise BadInput.of(
                f"-o {path}: unknown kind of report; known endings: {', '.join(catalog.list_components('reporter'))}"
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
    history = History(settings.data_folder)
    rows = history.list_results(history.find_run("latest").id)
    return tuple(dict.fromkeys((row.suite, row.case) for row in rows if row.status in ("failed", "error")))


def _wanted(
    options: RunOptions, settings: Settings, people: PersonPolicy, places: WorkspaceProvider
) -> Callable[[Case], Case | None]:
    """Which cases run, with what the command line says over what they say themselves."""
    is_filtered = options.is_filtered
    turn_timeout_s = options.turn_timeout_s
    chosen = None if options.selected_cases is None else frozenset(options.selected_cases)

    def wanted(case: Case) -> Case | None:
        if is_filtered and not is_selected(case, options, chosen):
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
                is_override=turn_timeout_s is not None,
                turn_timeout_text="",
            )
        if options.sequential is not None and case.runs is not None:
            case = structs.replace(case, runs=None)  # how often it runs is what the test decides
        missing = options.on_missing_input or case.on_missing_input
        if limits is not case.limits or missing != case.on_missing_input:
            case = structs.replace(case, limits=limits, on_missing_input=missing)
        return people.add_person(places.assign_workspace(case))

    return wanted
