"""Checks of what the agent did: which tools it called, how often, in what order, with what, and what came back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from msgspec import UNSET, Struct, UnsetType

from viva.checks.base import LocalCheck
from viva.checks.compare import find_mismatch, list_patterns
from viva.checks.formatting import format_label, quote_value
from viva.model import codec
from viva.model.message import ToolCall
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext
from viva.text.pattern import compile_pattern
from viva.text.tool_names import matches_cli_tool, matches_tool

CallStatus = Literal["ok", "error", "pending"]
StatusFilter = CallStatus | Literal["any"]
_REGEX = "regex:"


class TimesRange(Struct, frozen=True, forbid_unknown_fields=True):
    """How often, at least and at most."""

    min: int = 0
    max: int | None = None

    def __post_init__(self) -> None:
        if self.min < 0 or (self.max is not None and self.max < self.min):
            raise ValueError(f"no number is {self}: write for example {{min: 1, max: 3}}")
        if self.min == 0 and self.max is None:
            raise ValueError("times says nothing: write a number, or for example {min: 1, max: 3}")

    def __str__(self) -> str:
        if self.max is None:
            return f"at least {_times(self.min)}"
        return _times(self.min) if self.min == self.max else f"{self.min} to {self.max} times"


def _times(number: int) -> str:
    return f"{number} time" if number == 1 else f"{number} times"


class ToolCalled(LocalCheck, frozen=True, kw_only=True):
    """A tool of that name (or one of those names) was called: so often, with these arguments among others, with that status."""

    name: str | tuple[str, ...]
    arguments: dict[str, Any] | None = None
    times: int | TimesRange | None = None
    status: StatusFilter = "any"

    def __post_init__(self) -> None:
        _refuse_empty_names("name", _names(self.name))
        _compile_patterns(self.arguments, _matches)
        if isinstance(self.times, int) and self.times < 0:
            raise ValueError(f"times is {self.times}: a tool cannot be called less than 0 times")

    @property
    def label(self) -> str:
        return _label(
            "tool_called", self.name, self.arguments, self.status, None if self.times is None else self._times
        )

    @property
    def _times(self) -> TimesRange:
        if isinstance(self.times, int):
            return TimesRange(self.times, self.times)
        return self.times or TimesRange(1)

    def check(self, context: CheckContext) -> Verdict:
        calls = context.tool_calls
        count, near = _count(_with_status(context), _names(self.name), self.arguments, self.status)
        times = self._times
        if times.min <= count and (times.max is None or count <= times.max):
            return PASSED
        wanted = _either(_names(self.name))
        if self.times is None:
            reason = (
                f"{wanted} was not called; {_called(calls)}" if near is None else f"{wanted} was called, but {near}"
            )
        else:
            reason = f"{wanted} was called {_times(count)}, not {times}" + (
                f" ({near})" if near else f"; {_called(calls)}"
            )
        return Verdict("failed", reason, expected=self.name, actual=[call.name for call in calls])


class ToolCallsContain(LocalCheck, frozen=True, kw_only=True):
    """Each of these texts is in an argument of some call of that tool (or of one of those), not all in the same call.

    A call that was refused does not count; one that ran does, however it ended. What other CLIs call the same tool counts too.
    """

    name: str | tuple[str, ...]
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _refuse_empty_names("name", _names(self.name))
        if not all(self.values):
            raise ValueError("values holds an empty text, which every argument contains; leave it out")

    @property
    def label(self) -> str:
        said = f"with {' and '.join(map(quote_value, self.values))}" if self.values else ""
        return format_label("tool_calls_contain", _either(_names(self.name)), said)

    def check(self, context: CheckContext) -> Verdict:
        names, wanted = _names(self.name), _either(_names(self.name))
        calls = [call for call in context.tool_calls if any(matches_cli_tool(call.name, name) for name in names)]
        if not calls:
            return Verdict("failed", f"{wanted} was not called; {_called(context.tool_calls)}", expected=self.values)
        ran = [call for call in calls if not call.refused]
        if not ran:
            reason = f"{wanted} was called, but refused: {quote_value(calls[-1].error or '')}"
            return Verdict("failed", reason, expected=self.values)
        texts = [text for call in ran for text in _texts_in(_arguments(call))]
        missing = [value for value in self.values if not any(value in text for text in texts)]
        if not missing:
            return PASSED
        last = f"; the last call: {quote_value(_arguments(ran[-1]))}"
        reason = f"{wanted} was called, but no argument contains {' or '.join(map(quote_value, missing))}{last}"
        return Verdict("failed", reason, expected=self.values, actual=[_arguments(call) for call in ran])


class ToolNotCalled(LocalCheck, frozen=True, kw_only=True):
    """No tool of that name (or of those names) was called, with these arguments if some are given."""

    name: str | tuple[str, ...]
    arguments: dict[str, Any] | None = None
    status: StatusFilter = "any"

    def __post_init__(self) -> None:
        _refuse_empty_names("name", _names(self.name))
        _compile_patterns(self.arguments, _matches)

    @property
    def label(self) -> str:
        return _label("tool_not_called", self.name, self.arguments, self.status, None)

    def check(self, context: CheckContext) -> Verdict:
        names = _names(self.name)
        for call, status in _with_status(context):
            if _is_any(call, names) and _unlike(call, status, self.arguments, self.status) is None:
                reason = f"{quote_value(call.name)} must not be called, but was, with {quote_value(_arguments(call))}"
                return Verdict("failed", reason)
        return PASSED


class ToolSequence(LocalCheck, frozen=True, kw_only=True):
    """Tools of these names were called in this order; with `exact`, and no others."""

    names: tuple[str, ...]
    exact: bool = False

    def __post_init__(self) -> None:
        _refuse_empty_names("names", self.names)

    @property
    def label(self) -> str:
        return format_label("tool_sequence", " → ".join(self.names), "(exact)" if self.exact else "")

    def check(self, context: CheckContext) -> Verdict:
        called = [call.name for call in context.tool_calls]
        reason = self._not_exactly(called) if self.exact else self._out_of_order(called)
        return PASSED if reason is None else Verdict("failed", reason, expected=list(self.names), actual=called)

    def _not_exactly(self, called: list[str]) -> str | None:
        if len(called) == len(self.names) and all(map(matches_tool, called, self.names)):
            return None
        return f"expected exactly {' → '.join(self.names)}, was {' → '.join(called) or 'no call'}"

    def _out_of_order(self, called: list[str]) -> str | None:
        rest = iter(called)
        for place, name in enumerate(self.names):
            if not any(matches_tool(tool, name) for tool in rest):
                after = f" after {quote_value(self.names[place - 1])}" if place else ""
                return f"{quote_value(name)} was not called{after}; called: {' → '.join(called) or 'no tool'}"
        return None


class ToolResult(LocalCheck, frozen=True, kw_only=True):
    """Some call of that tool did not fail, and returned `result`, or something that holds it."""

    name: str
    result: Any | UnsetType = UNSET

    def __post_init__(self) -> None:
        _refuse_empty_names("name", (self.name,))
        _compile_patterns(self.result, _after_regex)

    @property
    def label(self) -> str:
        return format_label(
            "tool_result", quote_value(self.name), "" if self.result is UNSET else f"= {quote_value(self.result)}"
        )

    def check(self, context: CheckContext) -> Verdict:
        near, seen = "", UNSET
        for call in context.tool_calls:
            if not matches_tool(call.name, self.name):
                continue
            if call.error is not None:
                near = near or f"it failed: {quote_value(call.error)}"
            elif self.result is UNSET:
                return PASSED
            elif call.result is UNSET:
                near = near or "no result of it is known"
            else:
                result = _decoded(call.result) if isinstance(self.result, Mapping | list) else call.result
                why = find_mismatch(self.result, result, _after_regex)
                if why is None:
                    return PASSED
                near, seen = why, result
        if not near:
            near = _called(context.tool_calls)
            return Verdict("failed", f"{quote_value(self.name)} was not called; {near}", expected=self.result)
        return Verdict("failed", f"{quote_value(self.name)} was called, but {near}", expected=self.result, actual=seen)


def _names(name: str | tuple[str, ...]) -> tuple[str, ...]:
    return (name,) if isinstance(name, str) else name


def _refuse_empty_names(field: str, names: Sequence[str]) -> None:
    if not names or not all(names):
        raise ValueError(f"{field} is empty: write the name of a tool")


def _compile_patterns(value: Any, pattern_of: Any) -> None:
    for pattern in list_patterns(value, pattern_of):
        compile_pattern(pattern)


def _matches(value: Any) -> str | None:
    """`{"matches": re}` stands for any value that the pattern matches."""
    if isinstance(value, Mapping) and len(cast("Mapping[str, Any]", value)) == 1:
        pattern = cast("Mapping[str, Any]", value).get("matches")
        return pattern if isinstance(pattern, str) else None
    return None


def _after_regex(value: Any) -> str | None:
    """`"regex:re"` stands for any value that the pattern matches."""
    return value.removeprefix(_REGEX).lstrip() if isinstance(value, str) and value.startswith(_REGEX) else None


def _decoded(value: Any) -> Any:
    """A JSON text as its value; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return codec.decode(value)
    except codec.DecodeError:
        return value


def _arguments(call: ToolCall) -> Any:
    return {} if call.arguments in (None, "") else _decoded(call.arguments)


def _texts_in(value: Any) -> Iterator[str]:
    """The values in arguments, however deep, as texts; names of arguments are none of them."""
    if isinstance(value, Mapping):
        for each in cast("Mapping[str, Any]", value).values():
            yield from _texts_in(each)
    elif isinstance(value, list | tuple):
        for each in cast("Sequence[Any]", value):
            yield from _texts_in(each)
    else:
        yield value if isinstance(value, str) else codec.compact_json(value)


def _is_any(call: ToolCall, names: Sequence[str]) -> bool:
    return any(matches_tool(call.name, name) for name in names)


def _with_status(context: CheckContext) -> Iterator[tuple[ToolCall, CallStatus]]:
    """Each call and what became of it. One without a result waits if its reply does; else its result is not reported."""
    for turn in context.turns:
        for call in turn.reply.tool_calls if turn.reply else ():
            if call.error is not None:
                yield call, "error"
            else:
                yield call, "pending" if call.pending or (call.result is UNSET and turn.is_unanswered) else "ok"


def _unlike(call: ToolCall, status: CallStatus, arguments: dict[str, Any] | None, wanted: StatusFilter) -> str | None:
    """In what a call differs from the one that is looked for; None if it is such a call."""
    if wanted not in ("any", status):
        became = {
            "ok": "it did not fail",
            "error": f"it failed: {quote_value(call.error)}",
            "pending": "it is still pending",
        }
        return became[status] if (wanted, status) != ("pending", "ok") else "it is not pending"
    if arguments and (why := find_mismatch(arguments, _arguments(call), _matches)) is not None:
        return f"its arguments differ: {why}"
    return None


def _count(
    calls: Iterable[tuple[ToolCall, CallStatus]],
    names: Sequence[str],
    arguments: dict[str, Any] | None,
    wanted: StatusFilter,
) -> tuple[int, str | None]:
    """How many calls are meant, and what is wrong with the last one that is nearly meant."""
    count, near = 0, None
    for call, status in calls:
        if _is_any(call, names):
            unlike = _unlike(call, status, arguments, wanted)
            if unlike is None:
                count += 1
            else:
                near = unlike
    return count, near


def _label(
    kind: str,
    name: str | tuple[str, ...],
    arguments: dict[str, Any] | None,
    status: StatusFilter,
    times: TimesRange | None,
) -> str:
    return format_label(
        kind,
        _either(_names(name)),
        f"with {quote_value(arguments)}" if arguments else "",
        "" if status == "any" else f"({status})",
        "" if times is None else str(times),
    )


def _either(names: Sequence[str]) -> str:
    return " or ".join(map(quote_value, names))


def _called(calls: Sequence[ToolCall]) -> str:
    return "called: " + ", ".join(call.name for call in calls) if calls else "no tool was called"
