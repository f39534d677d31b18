"""Builds the plan of a run: loads and checks files, agents, helpers and outputs before anything is sent."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

import viva
from viva import config
from viva.config import Settings
from viva.engine.helpers import HelperPool
from viva.errors import BadInput, Problem
from viva.executors.worker_load import WorkerLoad
from viva.formats import native
from viva.formats.documents import wrap_values
from viva.formats.load_options import DEFAULT_TIMEOUT_S, LoadOptions
from viva.formats.sources import (
    STDIN,
    GeneratedCases,
    PlainMessage,
    StandardInput,
    SuiteFiles,
    load_files,
    parse_input,
)
from viva.history.index import History
from viva.llm.budget import Budget
from viva.llm.pacing import MAX_CONVERSATIONS, ConversationLimit, get_pacing
from viva.llm.transport import HttpTransport
from viva.model.case import Case, Suite
from viva.model.ellipsis import cut_end
from viva.model.event import PlannedSuite
from viva.protocols import PlannedTrial
from viva.record.cassette import compute_digest
from viva.record.redaction import Redactor
from viva.session.agents import AgentFactory, ConfiguredAgent
from viva.session.case_generation import CaseGenerator
from viva.session.case_selection import (
    CaseSelection,
    create_case_selector,
    iterate_selected_trials,
    select_cases,
)
from viva.session.cassette_mode import CassetteMode
from viva.session.eval_suites import (
    add_baselines,
    build_eval_options,
    check_intended_agents,
    check_needed_features,
)
from viva.session.interactive import ConversationSaver, PersonPolicy
from viva.session.name_checks import (
    create_connector_check,
    create_evaluator_check,
    create_helper_check,
    find_helper_flag_problems,
)
from viva.session.options.checks import check_options, refuse_overwriting_inputs
from viva.session.options.run_options import AllRunOptions, Parallel
from viva.session.resume import PreviousRun
from viva.session.scripts.hooks import RunHooks, resolve_run_hooks
from viva.session.workspaces import WorkspaceProvider
from viva.text.credentials import find_url_credentials

IN_PROCESS_PARALLEL = 4
"""Default number of parallel conversations for agents that run in this process, and for script tests."""
PARALLEL_PER_WORKER = 8
"""Default number of parallel conversations for each worker: while results and new requests travel, the others keep it busy."""
_MIN_CLUSTER_SIZE = 4


class RunPlan(Struct, frozen=True, kw_only=True, dict=True):
    """A run that is checked and ready to start. Nothing has been sent yet."""

    options: AllRunOptions
    settings: Settings
    suites: Sequence[Suite]
    agents: AgentFactory
    tested_agents: Sequence[ConfiguredAgent]
    """The agents under test: at least one, and each case runs on all of them."""
    helpers: HelperPool
    http: HttpTransport
    budget: Budget
    person_policy: PersonPolicy
    workspaces: WorkspaceProvider
    cassette_mode: CassetteMode
    select_case: Callable[[Case], Case | None]
    run_hooks: RunHooks
    case_count: int
    """How many cases run; a case counts once for each agent."""
    trial_count: int
    interactive_count: int
    """How many cases ask for a person."""
    case_counts: Mapping[str, int]
    """How many cases of each suite run, on each agent."""
    planned_suites: Sequence[PlannedSuite]
    """The suites with their counts over all shards."""
    all_trial_count: int
    """How many trials all shards have."""
    generated_cases: Mapping[str, Sequence[Any]]
    """Cases that were generated for this run, by suite."""
    loaded: "LoadedInputs"
    notes: Sequence[str]
    """Shown before the run starts."""
    standard_input: bytes | None
    """The content of standard input (`-i -`), if workers need it."""
    worker_load: WorkerLoad

    async def aclose(self) -> None:
        """Close the connections to agents and models."""
        await self.http.close()

    @property
    def redactor(self) -> Redactor:
        return self.settings.redactor

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The version of Viva and the digests of agents and suites. They must not change when a run is resumed."""
        definitions = self.agents.definitions.items()
        return {
            "the version of Viva": viva.__version__,
            "agents": {name: compute_digest(definition) for name, definition in definitions},
            "suites": {suite.id: suite.digest for suite in self.suites},
        }

    def iterate_trials(self) -> AsyncIterator[PlannedTrial]:
        return self._iterate_trials(self.tested_agents)

    async def iterate_cases(self) -> AsyncIterator[PlannedTrial]:
        """One trial of each case: the first trial on the first agent."""
        async for planned in self._iterate_trials(self.tested_agents[:1]):
            if planned.trial == 1:
                yield planned

    async def _iterate_trials(self, agents: Sequence[ConfiguredAgent]) -> AsyncIterator[PlannedTrial]:
        names = [agent.name for agent in agents]
        async for planned in iterate_selected_trials(self.options, self.suites, self.select_case, names):
            case = self.workspaces.assign_workspace(planned.case, planned.agent)
            yield planned if case is planned.case else structs.replace(planned, case=case)

    @property
    def selected_count(self) -> int:
        """How many cases the filters select, in all shards, on each agent."""
        return sum(suite.cases for suite in self.planned_suites)

    @property
    def is_empty_shard(self) -> bool:
        """Does this shard have no case, while other shards have some? Then the run does not fail because nothing ran."""
        return not self.case_count and bool(self.selected_count)

    @property
    def has_person(self) -> bool:
        """Does a person take part? Then cases run one at a time and are shown live."""
        return self.person_policy.is_active(self.interactive_count)

    @property
    def parallel(self) -> int:
        """The maximum number of parallel conversations."""
        if self.has_person:
            return 1
        limit = self._requested_parallel
        if limit == "auto":
            limit = MAX_CONVERSATIONS if self.is_adaptive else self._fixed_parallel
        return max(1, min(limit, sum(agent.parallel or limit for agent in self.tested_agents), self.trial_count))

    def describe_pace(self) -> str:
        """How many conversations run now, as text for the progress line."""
        return self.worker_load.describe() if self.options.has_workers else get_pacing(self.http).describe_pacing()

    @property
    def _fixed_parallel(self) -> int:
        return PARALLEL_PER_WORKER * self._worker_count if self.options.has_workers else IN_PROCESS_PARALLEL

    @property
    def is_adaptive(self) -> bool:
        """Is the number of parallel conversations adapted to the limits of the providers? With workers it is fixed."""
        agents = all(agent.is_adaptive for agent in self.tested_agents)
        is_possible = agents and not self.has_person and not self.options.has_workers
        return self._requested_parallel == "auto" and is_possible

    @property
    def _worker_count(self) -> int:
        """How many workers share the trials. A cluster may get more than it has at the start."""
        return self.options.workers or max(_MIN_CLUSTER_SIZE, self.worker_load.workers)

    @property
    def _requested_parallel(self) -> Parallel:
        return self.options.parallel or self.settings.defaults.parallel or "auto"

    @cached_property
    def conversations(self) -> ConversationLimit:
        """How many conversations may run in parallel. The connectors of the run change it."""
        return get_pacing(self.http).limit_conversations(self.parallel, is_fixed=not self.is_adaptive)


class PlanInputs(Struct, frozen=True, kw_only=True):
    """Parts that a plan takes over instead of creating them: from the interrupted run, the coordinator, or another plan."""

    generated_cases: Mapping[str, Sequence[Any]] = {}
    standard_input: bytes | None = None
    budget: Budget
    is_worker: bool = False
    project_root: Path | None = None
    """The project's folder in a worker, which may lie in another project: no config above it is used."""
    loaded: "LoadedInputs | None" = None
    """The inputs that another plan with the same options has loaded. They are immutable, so plans can share them."""


async def build_run_plan(
    options: AllRunOptions, previous_run: PreviousRun | None = None, inputs: PlanInputs | None = None
) -> RunPlan:
    """Load and check everything that a run needs. Raises BadInput with all problems. The caller closes the plan.

    A resumed run passes the `previous_run`: its generated cases are used again. A worker passes the `inputs`.
    """
    if inputs is None:
        inputs = PlanInputs(
            generated_cases=previous_run.generated_cases if previous_run else {},
            standard_input=sys.stdin.buffer.read() if options.has_workers and STDIN in options.inputs else None,
            budget=Budget(options.max_cost_usd, previous_run.spent_usd if previous_run else 0.0),
        )
    http = HttpTransport()
    try:
        return await _build_run_plan(options, http, inputs)
    except BaseException:
        await http.close()  # a generator may have opened connections
        raise


async def _build_run_plan(options: AllRunOptions, http: HttpTransport, parts: PlanInputs) -> RunPlan:
    settings = config.load_project(options.config, options.folder.resolve(), options.env_file, top=parts.project_root)
    if not parts.is_worker:  # the coordinator has checked the options of a worker
        options = check_options(options, settings)
    settings.redactor.add_secrets(secret for text in options.inputs for secret in find_url_credentials(text))
    cassette_mode = CassetteMode(options, settings.redactor, settings.connectors, is_worker=parts.is_worker)
    agents = _create_agent_factory(options, settings, cassette_mode)
    load_options = _build_load_options(options, settings, agents, parts.standard_input)
    problems = list(find_helper_flag_problems(options, agents))
    if options.evaluator:
        problems += load_options.find_evaluator_problems(options.evaluator)
    inputs = _reuse_loaded_inputs(parts.loaded, agents) or _load_all_inputs(options, load_options, problems)
    inputs = structs.replace(inputs, helpers=tuple(agents.definitions))
    tested_agents = _find_tested_agents(options, settings, agents, inputs)
    suites = list(inputs.suites)
    if not parts.is_worker:
        suites = add_baselines(suites, options, settings, [agent.name for agent in tested_agents])
    audience_notes = check_intended_agents(suites, tested_agents, allow_mismatch=options.allow_agent_mismatch)
    workspaces = WorkspaceProvider(options, settings, tested_agents, inputs.files)
    helpers = HelperPool(agents.find_helper, http, settings.connectors, parts.budget.spend, workspaces.empty_workspaces)
    timeout_s = options.timeout_s or load_options.timeout_s
    generator = CaseGenerator(tested_agents[0], helpers, settings, load_options, timeout_s=timeout_s)
    generated_cases = await _generate_cases(generator, inputs.generators, parts)
    for name, cases in generated_cases.items():
        suites.append(native.load(wrap_values(cases, name), name, settings.folder, load_options))
    saver = ConversationSaver(load_options, options.folder, suites, tested_agents[0].name)
    prompt = options.create_person_prompt(settings.redactor.redact_text) if options.create_person_prompt else None
    person_policy = PersonPolicy(prompt, options.interactive, options.skip_interactive, saver)
    select_case = create_case_selector(options, settings.defaults, person_policy)
    await check_needed_features(suites, tested_agents, select_case)
    run_hooks = resolve_run_hooks(options, (*load_options.roots, str(options.folder)))
    selection = await select_cases(options, History(settings.data_folder), suites, select_case)
    notes = [*inputs.notes, *workspaces.describe_permissions(), *(note for suite in suites for note in suite.notes)]
    return RunPlan(
        options=selection.options,
        settings=settings,
        suites=suites,
        agents=agents,
        tested_agents=tested_agents,
        helpers=helpers,
        http=http,
        budget=parts.budget,
        person_policy=person_policy,
        workspaces=workspaces,
        cassette_mode=cassette_mode,
        select_case=selection.select_case,
        run_hooks=run_hooks,
        case_count=selection.counts.cases * len(tested_agents),
        trial_count=selection.counts.trials * len(tested_agents),
        all_trial_count=selection.all_counts.trials * len(tested_agents),
        interactive_count=selection.counts.interactive,
        case_counts=selection.counts.by_suite,
        planned_suites=[_create_planned_suite(suite, selection) for suite in suites],
        generated_cases=generated_cases,
        loaded=inputs,
        notes=[*notes, *audience_notes, *_list_selection_notes(selection)],
        standard_input=parts.standard_input,
        worker_load=WorkerLoad(),
    )


def _create_agent_factory(options: AllRunOptions, settings: Settings, cassette_mode: CassetteMode) -> AgentFactory:
    return AgentFactory(
        settings,
        options.connector,
        cassette_mode.wrap_agent,
        is_replaying=options.replay is not None,
        functions=options.functions,
        agent_fields=options.agent_fields,
    )


def _find_tested_agents(
    options: AllRunOptions, settings: Settings, agents: AgentFactory, inputs: "LoadedInputs"
) -> tuple[ConfiguredAgent, ...]:
    """The agents under test. None is required if all suites name their agents in their cases."""
    return agents.find_agents_under_test(
        options.agents,
        _find_target_of_suites(options, settings, inputs.suites, inputs.generators),
        is_required=bool(inputs.generators) or not all(suite.is_agent_optional for suite in inputs.suites),
        folder=options.folder,
    )


async def _generate_cases(
    generator: CaseGenerator, sources: Sequence[GeneratedCases], parts: PlanInputs
) -> dict[str, Sequence[Any]]:
    """The generated cases of each source, by its name. A resumed run uses the cases that were generated before."""
    earlier = parts.generated_cases
    return {source.name: earlier.get(source.name) or await generator.generate(source) for source in sources}


def _list_selection_notes(selection: CaseSelection) -> Iterator[str]:
    """Notes on the limits of `--until-decided` and on the size of the shard."""
    options = selection.options
    if (test := options.sequential) is not None:
        undecided = test.chances(test.min_pass).undecided
        yield (
            f"at most {test.max_runs} trials per case (--max-runs); a case with a pass rate of exactly {test.min_pass:.4g} "
            f"stays undecided in {undecided * 100:.2g} % of runs"
        )
    if options.shard is not None:
        cases = f"{selection.counts.cases} of {selection.all_counts.cases} cases"
        yield f"shard {options.shard}: {cases}; `viva merge` makes one run of all shards"


def _create_planned_suite(suite: Suite, selection: CaseSelection) -> PlannedSuite:
    return PlannedSuite(
        suite=suite.id,
        kind=suite.kind,
        version=suite.version,
        size=suite.count,
        cases=selection.all_counts.by_suite.get(suite.id, 0),
        threshold=suite.threshold,
    )


def _build_load_options(
    options: AllRunOptions, settings: Settings, agents: AgentFactory, standard_input: bytes | None
) -> LoadOptions:
    simulator = options.simulator or settings.defaults.simulator
    return LoadOptions(
        roots=(str(settings.folder),),
        attachment_roots=settings.attachment_roots,
        find_helper_problems=create_helper_check(agents, settings, options.agents),
        find_connector_problems=create_connector_check(agents, settings, options),
        update_snapshots=options.update_snapshots,
        has_before_run=options.before is not None,
        simulator=simulator.removeprefix("agents:") if simulator else None,
        timeout_s=settings.defaults.timeout_s or DEFAULT_TIMEOUT_S,
        folder=str(options.folder.resolve()),
        environ=settings.environ,
        standard_input=standard_input,
        evaluator=options.evaluator,
        default_evaluator=settings.defaults.evaluator,
        add_secret=settings.redactor.add_variable,
        functions=options.functions or {},
        eval_options=build_eval_options(options, settings, get_prompts=agents.list_tested_prompts),
        find_evaluator_problems=create_evaluator_check(agents, settings, options.evaluator),
    )


def _find_target_of_suites(
    options: AllRunOptions, settings: Settings, suites: Sequence[Suite], generators: Sequence[GeneratedCases]
) -> str | None:
    """The agent that the suites name. Raises BadInput if they name different agents and neither a flag nor the config decides."""
    targets = dict.fromkeys(suite.target for suite in suites if not suite.is_agent_optional)
    if generators:
        targets[None] = None
    if len(targets) > 1 and not options.agents and settings.defaults.agent is None:
        named = {target: next(suite.id for suite in suites if suite.target == target) for target in targets if target}
        listing = ", ".join(f"{suite} is for {target!r}" for target, suite in named.items())
        raise BadInput.of(f"The suites name different agents: {listing}. Pass -n NAME, or run them separately")
    return next(iter(targets), None)


class LoadedInputs(Struct, frozen=True):
    """What the inputs of `-i` are: suites of files and script tests, generators of cases, suite files, and notes to show."""

    suites: list[Suite]
    generators: list[GeneratedCases]
    files: list[Path]
    notes: list[str]
    helpers: tuple[str, ...] = ()
    """The names of the helpers that the suites use."""


def _reuse_loaded_inputs(loaded: LoadedInputs | None, agents: AgentFactory) -> LoadedInputs | None:
    """The inputs that another plan has loaded. Their helpers are built again, for this plan."""
    for helper in loaded.helpers if loaded else ():
        agents.find_agent(helper)
    return loaded


def _load_all_inputs(options: AllRunOptions, load_options: LoadOptions, problems: list[Problem]) -> LoadedInputs:
    """Load the suites of all inputs. Raises BadInput with all problems, including those passed in."""
    notes: list[str] = []
    paths: list[Path | StandardInput] = []
    generators: list[GeneratedCases] = []
    script_suites: dict[str, Suite] = {}  # by name: tests run once, even if several inputs name them
    for text in options.inputs:
        try:
            match parse_input(text, options.folder):
                case SuiteFiles() as suite_files:
                    paths += suite_files.paths
                    notes += [suite_files.note] if suite_files.note else []
                case StandardInput() as standard_input:
                    paths.append(standard_input)
                case PlainMessage(message):
                    what = f"the message {cut_end(message, 40)!r} cannot be mixed with suites; send it by itself"
                    problems.append(Problem("", 0, "", what))
                case GeneratedCases() as source:
                    suite = _load_script_tests(source, options.folder, load_options)
                    if suite is not None:
                        script_suites[suite.id] = suite
                    else:
                        generators.append(source)
        except BadInput as error:
            problems += error.problems
    by_place: dict[Path | StandardInput, Path | StandardInput] = {}
    for path in paths:  # a file runs once, even if several inputs name it
        by_place.setdefault(path if isinstance(path, StandardInput) else path.resolve(), path)
    files = [path for path in by_place if isinstance(path, Path)]
    refuse_overwriting_inputs(options, files)
    try:
        suites = load_files(list(by_place.values()), load_options, options.folder, options.format)
    except BadInput as error:
        raise BadInput(*dict.fromkeys((*problems, *error.problems))) from error
    if options.cases:
        try:
            suites.append(native.load(wrap_values(options.cases, "cases"), "cases", options.folder, load_options))
        except BadInput as error:
            problems += error.problems
    if options.shard is not None and any(source.source == "agents" for source in generators):
        what = "--shard: every machine would generate other cases; generate them once with --dry-run -o cases.jsonl"
        problems.append(Problem("", 0, "", what))
    if problems:
        raise BadInput(*dict.fromkeys(problems))
    return LoadedInputs([*suites, *script_suites.values()], generators, files, notes)


def _load_script_tests(source: GeneratedCases, folder: Path, load_options: LoadOptions) -> Suite | None:
    if source.source != "scripts":
        return None
    from viva.session.scripts.script_tests import (
        load_script_suite,  # imported only for runs with script tests: it is slow
    )

    return load_script_suite(source, folder, load_options)
