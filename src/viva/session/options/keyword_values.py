"""Checks the keywords of `viva.run` by the table of run options, and documents them."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from viva.errors import BadInput, Problem
from viva.formats.functions import is_function_or_agent
from viva.session.options.run_options import FLAGS, KEYWORDS, AllRunOptions, Option, find_option_conflicts
from viva.stats.sequential import SequentialTest
from viva.text.duration import parse_duration
from viva.text.similar_names import find_similar_names

F = TypeVar("F", bound=Callable[..., Any])
_CALLABLE = Callable[..., Any]
_LEADING_FLAG = re.compile(r"(?m)(^|\bGive )(?!--no-)(--?[a-z][a-z-]*)( ?)")
_TYPE_NAMES: Mapping[Any, str] = {bool: "True or False", int: "an integer", float: "a number", str: "a string"}


def build_run_options(keywords: Mapping[str, Any]) -> AllRunOptions:
    """The options of a run, without inputs, from the keywords of `viva.run`. Raises BadInput for bad values.

    A sequential test sets the number of runs and the pass rate.
    """
    if unknown := [name for name in keywords if name not in KEYWORDS]:
        near = find_similar_names(unknown[0], KEYWORDS, 1)
        hint = f". Did you mean {near[0]!r}?" if near else ""
        raise TypeError(f"run() got an unexpected keyword argument {unknown[0]!r}{hint}")
    values, problems = _parse_keyword_values(keywords)
    labels = {option.name: keyword for keyword, option in KEYWORDS.items()}
    changed = {name: value for name, value in values.items() if _differs_from_default(KEYWORDS[labels[name]], value)}
    problems += find_option_conflicts(changed, labels, KEYWORDS.values())
    sequential: SequentialTest | None = values.get("sequential")
    if sequential is not None and not problems:
        problems += find_sequential_problems(sequential, "")
        values |= {"runs": sequential.max_runs, "min_pass": sequential.min_pass}
    if problems:
        raise BadInput(*(Problem("", 0, "", problem) for problem in problems))
    return AllRunOptions(inputs=(), **values)


def check_keyword_values(keywords: Mapping[str, Any]) -> None:
    """Raises BadInput for values of a wrong type or out of range, each checked by itself."""
    _, problems = _parse_keyword_values(keywords)
    if problems:
        raise BadInput(*(Problem("", 0, "", problem) for problem in problems))


def _parse_keyword_values(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The parsed values by field name, and a message for each wrong value."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for keyword, value in keywords.items():
        option = KEYWORDS[keyword]
        if value is None:
            continue  # as if it was not passed
        try:
            values[option.name] = parse_value(option, value)
        except ValueError as error:
            problems.append(f"{keyword}: {error}")
    return values, problems


def _differs_from_default(option: Option, value: Any) -> bool:
    if option.takes_one:
        return True  # any object: comparing it could call its own code
    return option.default is None or value != option.default


def parse_value(option: Option, value: Any) -> Any:
    """Convert a value that Python code passes to the type of the field. Raises ValueError that says what would be right."""
    if option.takes_one:
        return _wrap_in_tuple(value)
    if not option.is_list:
        return _parse_single_value(option, value)
    if isinstance(value, str | Path):
        if option.item_type is not Path:
            raise ValueError(f"{value!r} is a string; pass a list: [{value!r}]")
        value = [value]
    if not isinstance(value, Iterable):
        raise ValueError(f"{value!r} is not a list")
    return tuple(_parse_single_value(option, item) for item in cast("Iterable[Any]", value))


def _wrap_in_tuple(value: Any) -> tuple[Any, ...]:
    """A tuple of the values: a single value becomes a tuple of one. Raises ValueError for an empty list."""
    if not isinstance(value, list | tuple):
        return (value,)
    values = tuple(cast("Sequence[Any]", value))
    if None in values or (isinstance(value, list) and not values):
        raise ValueError("None is not an agent" if values else "an empty list; pass at least one agent")
    return values


def _parse_single_value(option: Option, value: Any) -> Any:
    if option.takes_function:
        if not isinstance(value, str) and not is_function_or_agent(value):
            raise ValueError(f"{value!r} is neither the name of an agent nor a function")
        return value
    expected = option.item_type
    if expected is str and not isinstance(value, str):
        raise ValueError(f"{value!r} is not a string")
    if option.parse is not None and not option.is_list:
        return option.parse(value)
    if option.is_duration:
        seconds = parse_duration(value)
        if not seconds:
            raise ValueError("must be greater than 0")
        return seconds
    if option.choices:
        if value not in option.choices:
            raise ValueError(f"{value!r} is not one of {', '.join(option.choices)}")
    elif expected is Path:
        if not isinstance(value, str | Path):
            raise ValueError(f"{value!r} is not a path")
        return Path(value)
    elif expected in _TYPE_NAMES:
        is_number = expected is float and isinstance(value, int) and not isinstance(value, bool)
        if not is_number and expected is not str and type(value) is not expected:
            raise ValueError(f"{value!r} is not {_TYPE_NAMES[expected]}")
    elif _CALLABLE in get_args(expected):
        if not isinstance(value, str) and not callable(value):
            raise ValueError(f"{value!r} is neither a function nor the name of one")
    elif expected is SequentialTest and not isinstance(value, SequentialTest):
        raise ValueError(f"{value!r} is not a viva.types.SequentialTest")
    if option.range is not None and value not in option.range:
        raise ValueError(f"{value!r} is not {option.range}")
    return value if option.parse is None or option.is_list else option.parse(str(value))


def find_sequential_problems(test: SequentialTest, prefix: str) -> Iterator[str]:
    """A message if no case can pass a sequential test within its `max_runs`. `prefix` is `--` if messages name flags."""
    if test.min_passes > test.max_runs:
        runs = "--max-runs" if prefix else "max_runs"
        yield (
            f"to distinguish {test.min_pass:g} from {test.too_low:g} takes {test.min_passes} passes in a row, more than "
            f"{runs} {test.max_runs}; raise {runs}, {prefix}margin or {prefix}alpha"
        )


def replace_flags_in_error(error: BadInput) -> BadInput:
    """The error with keywords of `viva.run` in its messages, instead of flags of `viva test`."""
    return BadInput(*(replace(each, message=replace_flags_in_message(each.message)) for each in error.problems))


def replace_flags_in_message(message: str) -> str:
    """Replace the flag that begins a message by its keyword: `-k 'x' matches no id` becomes `only='x' matches no id`.

    Flags elsewhere in the message stay: they may be part of a command or a quote.
    """
    keywords = _map_flags_to_keywords()

    def replace_flag(match: re.Match[str]) -> str:
        keyword = keywords.get(match[2])
        return f"{match[1]}{keyword}{'=' if match[3] else ''}" if keyword else match[0]

    return _LEADING_FLAG.sub(replace_flag, message)


def _map_flags_to_keywords() -> Mapping[str, str]:
    return {flag: option.keyword for option in FLAGS.values() for flag in option.flags if option.keyword}


def build_keyword_docs() -> Mapping[str, str]:
    """The documentation of each keyword of `viva.run`: the help of its flag, with keywords instead of flags."""
    keywords = _map_flags_to_keywords()

    def replace_flag(match: re.Match[str]) -> str:
        return f"`{keywords[match[0]]}`" if match[0] in keywords else match[0]

    docs: dict[str, str] = {}
    for keyword, option in KEYWORDS.items():
        text = re.sub(r"(?<![\w-])--?[a-z][a-z-]*", replace_flag, option.help.replace(" Repeatable.", ""))
        docs[keyword] = f"False: {text[0].lower()}{text[1:]}" if option.default is True else text
    return docs


def list_signature_keywords(function: Callable[..., Any]) -> Sequence[str]:
    """The names of the parameters of a function."""
    return function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]


def add_keyword_docs(function: F) -> F:
    """A decorator that adds the documentation of the keywords to the docstring of `viva.run`."""
    docs = build_keyword_docs()
    lines = [
        f"- `{name}`: {docs[name]}"
        for name in list_signature_keywords(function)
        if name in docs and name not in ("inputs", "agent")
    ]
    function.__doc__ = f"{inspect.getdoc(function)}\n\n" + "\n".join(lines)
    return function
