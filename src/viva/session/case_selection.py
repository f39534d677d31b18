"""Which cases run: the filters `-k`, `--tag` and `--last-failed`, shards, and the flags that override fields of cases."""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence

from msgspec import Struct, structs

from viva.config import Defaults
from viva.engine.scheduler import plan_trials
from viva.errors import BadInput, CheckError
from viva.history.index import History
from viva.history.trends import find_case_times
from viva.model.case import Case, Limits, Suite
from viva.protocols import PlannedTrial
from viva.session.interactive import PersonPolicy
from viva.session.options.run_options import AllRunOptions
from viva.session.shards.shard import SelectCase, Shard, filter_by_hash, filter_by_name, select_by_time
from viva.text.pattern import compile_pattern, has_pattern_match
from viva.text.similar_names import find_similar_names

_MAX_LISTED_NAMES = 10
_MAX_CASES_READ = 5000
"""At most this many cases are read to list their ids and tags."""


def validate_id_filter(pattern: str | None) -> None:
    """Raises BadInput if the pattern of `-k` is not a regular expression."""
    if pattern is None:
        return
    try:
        compile_pattern(pattern)
    except ValueError as error:
        raise BadInput.of(f"-k {error}") from error


def create_case_selector(options: AllRunOptions, defaults: Defaults, person_policy: PersonPolicy) -> SelectCase:
    """A function that returns a case with the options of this run applied, or None if the filters exclude it."""
    is_filtered = options.is_filtered
    selected_cases = None if options.selected_cases is None else frozenset(options.selected_cases)

    def select_case(case: Case) -> Case | None:
        if is_filtered and not _is_selected(case, options, selected_cases):
            return None
        limits = _override_limits(case.limits, options, defaults)
        on_missing_input = options.on_missing_input or case.on_missing_input
        if limits is not case.limits or on_missing_input != case.on_missing_input:
            case = structs.replace(case, limits=limits, on_missing_input=on_missing_input)
        return person_policy.add_person(case)

    return select_case


def iterate_selected_trials(
    options: AllRunOptions, suites: Sequence[Suite], select_case: SelectCase, agents: Sequence[str] = ("",)
) -> AsyncIterator[PlannedTrial]:
    """The trials of the selected cases on the given agents. With a sequential test, `runs` of a case is ignored.

    Without `agents` each case counts once: all agents run the same cases.
    """
    return plan_trials(suites, select_case, options.runs, agents, own_runs=options.sequential is None)


class CaseCounts(Struct, frozen=True):
    """Counts for one agent: cases, trials, interactive cases, and cases by suite."""

    cases: int
    trials: int
    interactive: int
    by_suite: Mapping[str, int]


class CaseSelection(Struct, frozen=True):
    """Which cases run: the options, the function that selects a case, the counts of this shard, and those of all shards."""

    options: AllRunOptions
    select_case: SelectCase
    counts: CaseCounts
    all_counts: CaseCounts


async def select_cases(
    options: AllRunOptions, history: History, suites: Sequence[Suite], select_case: SelectCase
) -> CaseSelection:
    """Selects and counts the cases of this shard. With `--shard-by time` the selection is stored in the options, because times change with every run."""
    if options.is_filtered:
        counts = await _count_selected_cases(iterate_selected_trials(options, suites, select_case))
    else:
        counts = _count_all_cases(options, suites)
    if options.shard is None:
        return CaseSelection(options, select_case, counts, counts)
    shard = Shard.parse(options.shard)
    if options.shard_by == "time" and options.shard_cases is None:
        trials = iterate_selected_trials(options, suites, select_case)
        names = await select_by_time(trials, find_case_times(history), shard)
        options = structs.replace(options, shard_cases=names)
    if options.shard_cases is None:
        select_case = filter_by_hash(select_case, shard)
    else:
        select_case = filter_by_name(select_case, options.shard_cases)
    shard_counts = await _count_selected_cases(iterate_selected_trials(options, suites, select_case))
    return CaseSelection(options, select_case, shard_counts, counts)


def _count_all_cases(options: AllRunOptions, suites: Sequence[Suite]) -> CaseCounts:
    """The counts of a run without filters. No case is read: the suites know their counts."""
    cases = sum(suite.count for suite in suites)
    case_runs = [] if options.sequential else [runs for suite in suites for runs in suite.case_runs]
    trials = (cases - len(case_runs)) * options.runs + sum(case_runs)
    interactive = sum(suite.interactive_cases for suite in suites)
    return CaseCounts(cases, trials, interactive, {suite.id: suite.count for suite in suites})


async def _count_selected_cases(planned_trials: AsyncIterator[PlannedTrial]) -> CaseCounts:
    """The counts of a run with filters. Every case is read."""
    by_suite = Counter[str]()
    trials = interactive = 0
    async for planned in planned_trials:
        trials += 1
        if planned.trial == 1:
            by_suite[planned.case.suite] += 1
            interactive += planned.case.interactive.enabled
    return CaseCounts(by_suite.total(), trials, interactive, by_suite)


def _override_limits(limits: Limits, options: AllRunOptions, defaults: Defaults) -> Limits:
    """A flag overrides the case; the config fills in what the case leaves out."""
    if options.timeout_s is not None:
        limits = structs.replace(limits, timeout_s=options.timeout_s)
    is_override = options.turn_timeout_s is not None
    if is_override or (limits.turn_timeout_s is None and defaults.turn_timeout_s is not None):
        turn_timeout_s = options.turn_timeout_s or defaults.turn_timeout_s
        limits = structs.replace(
            limits, turn_timeout_s=turn_timeout_s, overrides_message_timeouts=is_override, turn_timeout_text=""
        )
    return limits


def _is_selected(case: Case, options: AllRunOptions, selected_cases: Collection[tuple[str, str]] | None) -> bool:
    if selected_cases is not None and (case.suite, case.id) not in selected_cases:
        return False
    if options.only is not None and not _matches_id(options.only, case.id):
        return False
    return not options.tags or not set(options.tags).isdisjoint(case.tags)


def _matches_id(pattern: str, case_id: str) -> bool:
    try:
        return has_pattern_match(pattern, case_id)
    except CheckError as error:
        raise BadInput.of(f"-k {error}") from error


async def explain_empty_selection(options: AllRunOptions, suites: Sequence[Suite]) -> str:
    """Why the filters exclude every case, with the existing ids and tags, the most similar first."""
    cases = await _read_first_cases(suites)
    lines: list[str] = []
    if options.selected_cases is not None:
        lines.append("--last-failed: none of these cases failed in the latest run")
    if options.only is not None and not any(_matches_id(options.only, case.id) for case in cases):
        lines.append(
            f"-k {options.only!r} matches no id; ids: {_list_similar_names_first(options.only, [c.id for c in cases])}"
        )
    tags = list(dict.fromkeys(tag for case in cases for tag in case.tags))
    for tag in options.tags:
        if tag not in tags:
            existing = f"tags: {_list_similar_names_first(tag, tags)}" if tags else "no case has a tag"
            lines.append(f"--tag {tag!r} matches no case; {existing}")
    return "\n".join(lines or ["no case matches all of these filters; remove one of them"])


async def _read_first_cases(suites: Sequence[Suite]) -> list[Case]:
    cases: list[Case] = []
    for suite in suites:
        async for case in suite.cases():
            cases.append(case)
            if len(cases) == _MAX_CASES_READ:
                return cases
    return cases


def _list_similar_names_first(pattern: str, names: Iterable[str]) -> str:
    known = list(dict.fromkeys(names))
    similar = find_similar_names(pattern.strip("^$"), known, _MAX_LISTED_NAMES)
    shown = list(dict.fromkeys([*similar, *known]))[:_MAX_LISTED_NAMES]
    more = f" and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
    return ", ".join(shown) + more
