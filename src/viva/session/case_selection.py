"""Which cases `-k`, `--tag` and `--last-failed` leave, and what to say where they leave none."""

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches

from viva.errors import BadInput, CheckError
from viva.model.case import Case, Suite
from viva.session.options import RunOptions
from viva.text.pattern import compile_pattern, search

_SHOWN = 10
_MOST = 5000
"""So many cases are looked at for names to show."""


def validate_filter(pattern: str | None) -> None:
    """Raises BadInput for a `-k` that is no regular expression."""
    if pattern is None:
        return
    try:
        compile_pattern(pattern)
    except ValueError as wrong:
        raise BadInput.of(f"-k {wrong}") from wrong


def is_selected(case: Case, options: RunOptions, selected_cases: Collection[tuple[str, str]] | None) -> bool:
    """Do the filters leave this case?"""
    if selected_cases is not None and (case.suite, case.id) not in selected_cases:
        return False
    if options.only is not None and not _matches(options.only, case.id):
        return False
    return not options.tags or not set(options.tags).isdisjoint(case.tags)


def _matches(pattern: str, case_id: str) -> bool:
    try:
        return search(pattern, case_id)
    except CheckError as wrong:
        raise BadInput.of(f"-k {wrong}") from wrong


async def explain_empty_selection(options: RunOptions, suites: Sequence[Suite]) -> str:
    """Why the filters leave no case, with the ids and tags that there are, near ones first."""
    cases = await _first_cases(suites)
    lines: list[str] = []
    if options.selected_cases is not None:
        lines.append("--last-failed: none of these cases failed in the latest run")
    if options.only is not None and not any(_matches(options.only, case.id) for case in cases):
        lines.append(f"-k {options.only!r} matches no id; there are {_listed(options.only, [c.id for c in cases])}")
    tags = list(dict.fromkeys(tag for case in cases for tag in case.tags))
    for tag in options.tags:
        if tag not in tags:
            known = f"there are {_listed(tag, tags)}" if tags else "no case has a tag"
            lines.append(f"--tag {tag!r} is on no case; {known}")
    return "\n".join(lines or ["no case fits all of these filters at once; leave one of them out"])


async def _first_cases(suites: Sequence[Suite]) -> list[Case]:
    cases: list[Case] = []
    for suite in suites:
        async for case in suite.cases():
            cases.append(case)
            if len(cases) == _MOST:
                return cases
    return cases


def _listed(wanted: str, names: Iterable[str]) -> str:
    known = list(dict.fromkeys(names))
    near = get_close_matches(wanted.strip("^$"), known, _SHOWN, 0.5)
    shown = list(dict.fromkeys([*near, *known]))[:_SHOWN]
    more = f" and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
    return ", ".join(shown) + more
