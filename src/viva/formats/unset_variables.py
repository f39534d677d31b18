r"""Finds `{{variables}}` of a native case that nothing sets, before it runs.

The input of a turn can use variables that earlier turns `set`; its assertions can also use those that the turn itself sets.
Cases with a `before` hook are not checked, because what it returns is known only at run time.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from viva.schemas.positions import KeyPath
from viva.text.similar_names import find_similar_names
from viva.text.template import list_variables
from viva.users.simulator import facts_from_options

_ASSERTION_KEYS = ("assertions", "assert")


def find_unset_variables(case: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """The path and a message for each text that uses a variable that nothing sets."""
    turns = cast("list[Mapping[str, Any]]", case.get("turns", ()))
    setters: dict[str, int] = {}
    for number, turn in enumerate(turns, 1):
        for name in turn.get("set", {}):
            setters.setdefault(name, number)
    for place, text, turn in _iterate_filled_texts(case, turns):
        known = {name for name, number in setters.items() if number <= turn}
        yield from ((place, what) for what in _describe_unset_variables(text, known, setters))
    simulator: Mapping[str, Any] = case.get("simulator") or {}
    options: Mapping[str, Any] = simulator.get("options") or {}
    for place, text in _iterate_all_texts(options, ("simulator", "options")):
        yield from ((place, what) for what in _describe_unset_variables(text, set(facts_from_options(options)), {}))


def _describe_unset_variables(text: str, known: set[str], setters: Mapping[str, int]) -> list[str]:
    unset = [name for name in dict.fromkeys(list_variables(text)) if name not in known]
    return [_describe_unset_variable(name, known, setters) for name in unset]


def _describe_unset_variable(name: str, known: set[str], setters: Mapping[str, int]) -> str:
    what = f"nothing sets {{{{{name}}}}}"
    if name in setters:
        return f"{what} before this: turn {setters[name]} does, which comes later"
    if near := find_similar_names(name, known, 1):
        return f"{what}; did you mean {{{{{near[0]}}}}}?"
    return f"{what}; set it with `set` in an earlier turn or with `before`, or write \\{{{{ for a literal {{{{"


def _iterate_filled_texts(
    case: Mapping[str, Any], turns: list[Mapping[str, Any]]
) -> Iterator[tuple[KeyPath, str, int]]:
    """Each text that is filled in, its path, and the last turn whose `set` it may use."""
    for holder, at, number in ((case, (), 1), *((turn, ("turns", i), i + 1) for i, turn in enumerate(turns))):
        for key in ("input", "attachments"):
            yield from ((place, text, number - 1) for place, text in _iterate_input_texts(holder.get(key), (*at, key)))
        for key in _ASSERTION_KEYS:
            yield from ((place, text, number) for place, text in _iterate_all_texts(holder.get(key), (*at, key)))
    last = len(turns)
    yield from (
        (place, text, last) for place, text in _iterate_all_texts(case.get("final_assertions"), ("final_assertions",))
    )
    for i, checkpoint in enumerate(cast("list[Mapping[str, Any]]", case.get("checkpoints", ()))):
        for key in ("assertion", "assert"):
            yield from ((*each, last) for each in _iterate_all_texts(checkpoint.get(key), ("checkpoints", i, key)))


def _iterate_input_texts(value: Any, at: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """The texts of an input: a string, messages, or parts of one."""
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, list):
        for i, item in enumerate(cast("list[Any]", value)):
            yield from _iterate_input_texts(item, (*at, i))
    elif isinstance(value, Mapping):
        for key in ("content", "text"):
            yield from _iterate_input_texts(cast("Mapping[str, Any]", value).get(key), (*at, key))


def _iterate_all_texts(value: Any, at: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if isinstance(value, str):
        yield at, value
    elif isinstance(value, list):
        for i, item in enumerate(cast("list[Any]", value)):
            yield from _iterate_all_texts(item, (*at, i))
    elif isinstance(value, Mapping):
        for key, item in cast("Mapping[str, Any]", value).items():
            yield from _iterate_all_texts(item, (*at, key))
