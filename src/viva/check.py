"""Assertions for Python code: small functions that write what a suite file would hold, and nothing else.

    chat.expect(viva.contains("submitted"), viva.tool_called("submit_expense", arguments={"amount": 3500}))
    viva.run([{"id": "hello", "input": "Hello", "assertions": [viva.contains("name?")]}], agent)

What they return is checked like a line of a file. `message` (shown when it does not hold), `negate` and `weight` can be
added to any of them: `viva.contains("x") | {"message": "It must say x"}`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from viva.errors import BadInput, Problem
from viva.formats.assertions import AssertionBuilder
from viva.formats.documents import format_key_path
from viva.model import codec
from viva.model.case import Assertion, TextScope, TurnScope
from viva.schemas.positions import KeyPath
from viva.schemas.validation import find_violations

AssertionDict = dict[str, Any]
"""An assertion as a suite file holds it: `{"type": "contains", "value": "hello"}`."""

JsonType = Literal["string", "number", "integer", "boolean", "array", "object", "null"]


def equals(value: Any) -> AssertionDict:
    """The reply is exactly this: a string is compared with its text, anything else with its data."""
    return {"type": "equals", "value": value}


def contains(value: str, *, ignore_case: bool = False) -> AssertionDict:
    """The text holds this: `contains("submitted")`."""
    return {"type": "contains", "value": value, **_given(ignore_case=ignore_case or None)}


def not_contains(value: str, *, ignore_case: bool = False) -> AssertionDict:
    """The text does not hold this."""
    return {"type": "not_contains", "value": value, **_given(ignore_case=ignore_case or None)}


def regex(pattern: str) -> AssertionDict:
    """The pattern matches somewhere in the text: `regex("(?i)order [0-9]+")`."""
    return {"type": "regex", "pattern": pattern}


def json_path(
    path: str,
    value: Any | UnsetType = UNSET,
    *,
    exists: bool | None = None,
    gt: float | None = None,
    gte: float | None = None,
    lt: float | None = None,
    lte: float | None = None,
    matches: str | None = None,
) -> AssertionDict:
    """What the path finds in the reply's data (or JSON) fulfils all that is given: `json_path("$.total", gt=0)`."""
    wanted = {} if value is UNSET else {"value": value}
    operators = _given(exists=exists, gt=gt, gte=gte, lt=lt, lte=lte, matches=matches)
    return {"type": "json_path", "path": path, **wanted, **operators}


def type_is(value: JsonType, path: str | None = None) -> AssertionDict:
    """The reply's data, or what `path` finds in it, is of this JSON type: `type_is("array", "$.items")`."""
    return {"type": "type", "value": value, **_given(path=path)}


def json_schema(schema: Mapping[str, Any] | bool) -> AssertionDict:
    """The reply's data (or JSON) is valid by this JSON Schema."""
    return {"type": "json_schema", "schema": schema}


def tool_called(
    name: str | Sequence[str],
    *,
    arguments: Mapping[str, Any] | None = None,
    times: int | Mapping[Literal["min", "max"], int] | None = None,
    status: Literal["ok", "error", "any"] | None = None,
) -> AssertionDict:
    """A tool of that name was called: `tool_called("search", arguments={"city": {"matches": "^Ber"}}, times=1)`."""
    return {"type": "tool_called", "name": _names(name), **_given(arguments=arguments, times=times, status=status)}


def tool_not_called(
    name: str | Sequence[str],
    *,
    arguments: Mapping[str, Any] | None = None,
    status: Literal["ok", "error", "any"] | None = None,
) -> AssertionDict:
    """No tool of that name was called, with these arguments if some are given."""
    return {"type": "tool_not_called", "name": _names(name), **_given(arguments=arguments, status=status)}


def tool_sequence(*names: str, exact: bool = False) -> AssertionDict:
    """Tools of these names were called in this order; with `exact`, and no others."""
    return {"type": "tool_sequence", "names": list(names), **_given(exact=exact or None)}


def tool_result(name: str, result: Any | UnsetType = UNSET) -> AssertionDict:
    """Some call of that tool did not fail, and returned `result`, or something that holds it."""
    return {"type": "tool_result", "name": name, **({} if result is UNSET else {"result": result})}


def max_latency(value: str | float) -> AssertionDict:
    """The agent took no longer than this: `max_latency("2s")`."""
    return {"type": "max_latency", "value": value}


def max_cost(usd: float) -> AssertionDict:
    """The agent's model calls cost no more than this."""
    return {"type": "max_cost", "value": usd}


def max_tokens(value: int) -> AssertionDict:
    """The agent's model calls used no more tokens than this, input and output together."""
    return {"type": "max_tokens", "value": value}


def max_turns(value: int) -> AssertionDict:
    """The conversation took no more turns than this."""
    return {"type": "max_turns", "value": value}


def script(use: str, metadata: Mapping[str, Any] | None = None) -> AssertionDict:
    """A Python function of the project agrees: `script("scripts:checks.amount")`."""
    return {"type": "script", "use": use, **_given(metadata=metadata)}


def agent_says(
    criteria: str | None = None,
    *,
    use: str | None = None,
    min_score: float | None = None,
    votes: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> AssertionDict:
    """A judge says that the criteria hold: `agent_says("The reply is polite")`. Without `use`, the built-in judge does."""
    asked = _given(use=use, criteria=criteria, min_score=min_score, votes=votes, metadata=metadata)
    return {"type": "agent", **asked}


def rubric(
    *criteria: str | Mapping[str, Any],
    use: str | None = None,
    min_score: float | None = None,
    votes: int | None = None,
) -> AssertionDict:
    """Weighted criteria, each judged by itself: `rubric("polite", {"criterion": "correct", "weight": 3}, min_score=0.8)`."""
    return {"type": "rubric", "criteria": list(criteria), **_given(use=use, min_score=min_score, votes=votes)}


def all_of(*assertions: Mapping[str, Any]) -> AssertionDict:
    """Every one of these holds."""
    return {"type": "all", "assertions": list(assertions)}


def any_of(*assertions: Mapping[str, Any]) -> AssertionDict:
    """At least one of these holds."""
    return {"type": "any", "assertions": list(assertions)}


def not_(assertion: Mapping[str, Any]) -> AssertionDict:
    """This does not hold. What cannot be evaluated stays an error."""
    return {"type": "not", "assertion": assertion}


def build_assertion(
    assertion: Mapping[str, Any],
    folder: str,
    roots: Sequence[str] = (),
    *,
    on: TextScope = "reply",
    scope: TurnScope = "turn",
) -> Assertion:
    """The claim behind an assertion, checked like one of a file. Raises BadInput with all that is wrong with it."""
    try:
        written = codec.to_definition(assertion)
    except (TypeError, ValueError) as wrong:
        raise BadInput.of(f"{assertion!r} cannot stand in a suite: {wrong}") from wrong
    found = find_violations("native", {"id": "expect", "input": "", "assertions": [written]})
    problems = list(dict.fromkeys(_problem(c.path[2:], c.message) for c in found))
    if not problems:
        builder = AssertionBuilder(folder, (*roots, folder))
        assertions = builder.build_all(
            written, (), lambda at, what, _key: problems.append(_problem(at, what)), on=on, over=scope
        )
        if assertions:
            return assertions[0]
    raise BadInput(*problems)


def _problem(at: KeyPath, what: str) -> Problem:
    return Problem("", 0, format_key_path(at), what)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _names(name: str | Sequence[str]) -> str | list[str]:
    return name if isinstance(name, str) else list(name)
