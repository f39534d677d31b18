"""Which cases run: the filters `-k`, `--tag` and `--last-failed`, and the flags that override fields of cases."""

from collections.abc import Callable, Collection, Iterable, Sequence
from difflib import get_close_matches

from msgspec import structs

from viva.config import Defaults
from viva.errors import BadInput, CheckError
from viva.model.case import Case, Limits, Suite
from viva.session.interactive import PersonPolicy
from viva.session.run_options import RunOptions
from viva.session.workspaces import WorkspaceProvider
from viva.text.pattern import compile_pattern, search

_MAX_NAMES = 10
_MAX_CASES_READ = 5000
"""At most this many cases are read to list their ids and tags."""


def validate_filter(pattern: str | None) -> None:
    """Raises BadInput if the pattern of `-k` is not a regular expression."""
    if pattern is None:
        return
    try:
        compile_pattern(pattern)
    except ValueError as error:
        raise BadInput.of(f"-k {error}") from error


def create_case_selector(
    options: RunOptions, defaults: Defaults, person_policy: PersonPolicy, workspaces: WorkspaceProvider
) -> Callable[[Case], Case | None]:
    """A function that returns a case with the options of this run applied, or None if the filters exclude it."""
    is_filtered = options.is_filtered
    selected_cases = None if options.selected_cases is None else frozenset(options.selected_cases)

    def select_case(case: Case) -> Case | None:
        if is_filtered and not _is_selected(case, options, selected_cases):
            return None
        if options.sequential is not None and case.runs is not None:
            case = structs.replace(case, runs=None)  # the sequential test decides the number of runs
        limits = _override_limits(case.limits, options, defaults)
        on_missing_input = options.on_missing_input or case.on_missing_input
        if limits is not case.limits or on_missing_input != case.on_missing_input:
            case = structs.replace(case, limits=limits, on_missing_input=on_missing_input)
        return person_policy.add_person(workspaces.assign_workspace(case))

    return select_case


def _override_limits(limits: Limits, options: RunOptions, defaults: Defaults) -> Limits:
    """A flag overrides the case; the config fills in what the case leaves out."""
    if options.timeout_s is not None:
        limits = structs.replace(limits, timeout_s=options.timeout_s)
    is_override = options.turn_timeout_s is not None
    if is_override or (limits.turn_timeout_s is None and defaults.turn_timeout_s is not None):
        turn_timeout_s = options.turn_timeout_s or defaults.turn_timeout_s
        limits = structs.replace(limits, turn_timeout_s=turn_timeout_s, is_override=is_override, turn_timeout_text="")
    return limits


def _is_selected(case: Case, options: RunOptions, selected_cases: Collection[tuple[str, str]] | None) -> bool:
    if selected_cases is not None and (case.suite, case.id) not in selected_cases:
        return False
    if options.only is not None and not _matches(options.only, case.id):
        return False
    return not options.tags or not set(options.tags).isdisjoint(case.tags)


def _matches(pattern: str, case_id: str) -> bool:
    try:
        return search(pattern, case_id)
    except CheckError as error:
        raise BadInput.of(f"-k {error}") from error


async def explain_empty_selection(options: RunOptions, suites: Sequence[Suite]) -> str:
    """Why the filters exclude every case, with the existing ids and tags, the most similar first."""
    cases = await _read_first_cases(suites)
    lines: list[str] = []
    if options.selected_cases is not None:
        lines.append("--last-failed: none of these cases failed in the latest run")
    if options.only is not None and not any(_matches(options.only, case.id) for case in cases):
        lines.append(f"-k {options.only!r} matches no id; ids: {_list_names(options.only, [c.id for c in cases])}")
    tags = list(dict.fromkeys(tag for case in cases for tag in case.tags))
    for tag in options.tags:
        if tag not in tags:
            existing = f"tags: {_list_names(tag, tags)}" if tags else "no case has a tag"
            lines.append(f"--tag {tag!r} is on no case; {existing}")
    return "\n".join(lines or ["no case matches all of these filters; remove one of them"])


async def _read_first_cases(suites: Sequence[Suite]) -> list[Case]:
    cases: list[Case] = []
    for suite in suites:
        async for case in suite.cases():
            cases.append(case)
            if len(cases) == _MAX_CASES_READ:
                return cases
    return cases


def _list_names(pattern: str, names: Iterable[str]) -> str:
    known = list(dict.fromkeys(names))
    similar = get_close_matches(pattern.strip("^$"), known, _MAX_NAMES, 0.5)
    shown = list(dict.fromkeys([*similar, *known]))[:_MAX_NAMES]
    more = f" and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
    return ", ".join(shown) + more
