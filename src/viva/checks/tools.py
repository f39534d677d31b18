"""Checks of tool calls: which tools were called, how often, in what order, with what arguments, and what they returned."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from viva.checks.base_check import Count, LocalCheck, Spelling
from viva.checks.compare import GetPattern, explain_mismatch, list_patterns
from viva.checks.formatting import format_label, quote_value
from viva.model import codec
from viva.model.message import ToolCall
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext
from viva.text.embedded_json import decode_if_json
from viva.text.pattern import compile_pattern
from viva.text.tool_names import is_name_of_cli_tool, is_name_of_tool

CallStatus = Literal["ok", "error", "pending"]
StatusFilter = Literal["ok", "error", "pending", "any"]
ToolNames = Annotated[
    str | Annotated[tuple[str, ...], Meta(min_length=1)],
    Meta(extra_json_schema={"$comment": "a tool's name, or a list of names of which any will do"}),
]
_KEY_FOR_NAME_OR_CALL = {"value": Spelling("name", {"name": "name", "arguments": "arguments"})}
_REGEX_PREFIX = "regex:"


class CallCountRange(Struct, frozen=True, forbid_unknown_fields=True):
    """How often, at least and at most."""

    min: Count = 0
    """The lowest number of calls."""
    max: Count | UnsetType = UNSET
    """The highest number of calls."""

    def __post_init__(self) -> None:
        if self.max is UNSET and self.min == 0:
            raise ValueError("times allows any number of calls: write a number, or for example {min: 1, max: 3}")
        if self.max is not UNSET and self.max < self.min:
            raise ValueError(f"times has min {self.min} above max {self.max}: write for example {{min: 1, max: 3}}")

    def __contains__(self, count: int) -> bool:
        return self.min <= count and (self.max is UNSET or count <= self.max)

    def __str__(self) -> str:
        if self.max is UNSET:
            return f"at least {_format_times(self.min)}"
        return _format_times(self.min) if self.min == self.max else f"{self.min} to {self.max} times"


def _format_times(number: int) -> str:
    return f"{number} time" if number == 1 else f"{number} times"


class _ToolCheck(LocalCheck, frozen=True, kw_only=True):
    name: ToolNames
    """The tool, by its whole name or by what follows the last `.`, `__`, `:` or `/`; with a list, any of them."""

    def __post_init__(self) -> None:
        _refuse_empty_names("name", self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return (self.name,) if isinstance(self.name, str) else self.name

    @property
    def _quoted_names(self) -> str:
        return " or ".join(map(quote_value, self._names))


class _CallCheck(_ToolCheck, frozen=True, kw_only=True):
    spellings: ClassVar[Mapping[str, Spelling]] = _KEY_FOR_NAME_OR_CALL
    arguments: dict[str, Any] | UnsetType = UNSET
    """Arguments of one call: a deep subset. A value `{"matches": "..."}` is a regular expression."""
    status: StatusFilter = "any"
    """Which calls count: those that succeeded, that failed, that wait for a result (such as an approval), or all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _compile_patterns(self.arguments, _get_matches_pattern)

    def _format_label(self, kind: str, times: str = "") -> str:
        arguments = f"with {quote_value(self.arguments)}" if self.arguments else ""
        status = "" if self.status == "any" else f"({self.status})"
        return format_label(kind, self._quoted_names, arguments, status, times)

    def _compare_calls(self, context: CheckContext) -> Iterator[tuple[ToolCall, str | None]]:
        """The calls of the tool, each with what keeps it from being the call that is looked for."""
        for call, status in _iterate_calls_of(context, self._names):
            yield call, self._explain_difference(call, status)

    def _explain_difference(self, call: ToolCall, status: CallStatus) -> str | None:
        if self.status not in ("any", status):
            if (self.status, status) == ("pending", "ok"):
                return "it is not pending"
            return {
                "ok": "it did not fail",
                "error": f"it failed: {quote_value(call.error)}",
                "pending": "it is still pending",
            }[status]
        if self.arguments:
            mismatch = explain_mismatch(self.arguments, _get_arguments(call), _get_matches_pattern)
            return None if mismatch is None else f"its arguments differ: {mismatch}"
        return None


class ToolCalled(_CallCheck, frozen=True, kw_only=True):
    """The agent called a tool as often as `times` says, with these arguments among others, and with this status."""

    example: ClassVar[Mapping[str, Any]] = {"name": "tool", "arguments": {"some": "value"}}
    times: Annotated[Count | CallCountRange, Meta(extra_json_schema={"minProperties": 1})] | UnsetType = UNSET
    """How often: a number, or an object with `min` and `max`. At least once, if left out."""

    @property
    def label(self) -> str:
        return self._format_label("tool_called", "" if self.times is UNSET else str(self._times))

    @property
    def _times(self) -> CallCountRange:
        if self.times is UNSET:
            return CallCountRange(1)
        return CallCountRange(self.times, self.times) if isinstance(self.times, int) else self.times

    def check(self, context: CheckContext) -> Verdict:
        differences = [difference for _, difference in self._compare_calls(context)]
        count = differences.count(None)
        if count in self._times:
            return PASSED
        last = next((each for each in reversed(differences) if each is not None), None)
        names, all_calls = self._quoted_names, context.tool_calls
        if self.times is not UNSET:
            reason = f"{names} was called {_format_times(count)}, not {self._times}"
            reason += f" ({last})" if last else f"; {_format_calls(all_calls)}"
        elif last is None:
            reason = f"{names} was not called; {_format_calls(all_calls)}"
        else:
            reason = f"{names} was called, but {last}"
        return Verdict("failed", reason, expected=self.name, actual=[call.name for call in all_calls])


class ToolNotCalled(_CallCheck, frozen=True, kw_only=True):
    """The agent did not call a tool, or not with these arguments or this status."""

    example: ClassVar[Mapping[str, Any]] = {"name": "tool"}

    @property
    def label(self) -> str:
        return self._format_label("tool_not_called")

    def check(self, context: CheckContext) -> Verdict:
        for call, difference in self._compare_calls(context):
            if difference is None:
                reason = (
                    f"{quote_value(call.name)} must not be called, but was, with {quote_value(_get_arguments(call))}"
                )
                return Verdict("failed", reason)
        return PASSED


class ToolCallsContain(_ToolCheck, frozen=True, kw_only=True):
    """Each of these texts is in the arguments of some call of a tool, not all in the same call.

    Names that other CLIs have for the same tool count too. A call that was refused, or of a tool that does not exist,
    does not count.
    """

    values: tuple[str, ...] = ()
    """The texts. Without any, the tool must have been called."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(self.values):
            raise ValueError("values has an empty text, which every argument contains; leave it out")

    @property
    def label(self) -> str:
        values = f"with {' and '.join(map(quote_value, self.values))}" if self.values else ""
        return format_label("tool_calls_contain", self._quoted_names, values)

    def check(self, context: CheckContext) -> Verdict:
        names = self._quoted_names
        calls = [
            call for call in context.tool_calls if any(is_name_of_cli_tool(call.name, name) for name in self._names)
        ]
        if not calls:
            reason = f"{names} was not called; {_format_calls(context.tool_calls)}"
            return Verdict("failed", reason, expected=self.values)
        executed = [call for call in calls if not call.refused]
        if not executed:
            reason = f"{names} was called, but refused: {quote_value(calls[-1].error or '')}"
            return Verdict("failed", reason, expected=self.values)
        arguments = [_get_arguments(call) for call in executed]
        texts = [text for each in arguments for text in _iterate_argument_texts(each)]
        missing = [value for value in self.values if not any(value in text for text in texts)]
        if not missing:
            return PASSED
        reason = f"{names} was called, but no argument contains {' or '.join(map(quote_value, missing))}"
        reason += f"; the last call: {quote_value(arguments[-1])}"
        return Verdict("failed", reason, expected=self.values, actual=arguments)


class ToolSequence(LocalCheck, frozen=True, kw_only=True):
    """The agent called these tools in this order."""

    names: Annotated[tuple[str, ...], Meta(min_length=1)]
    """The names of the tools, in order."""
    exact: bool = False
    """No other calls before, between or after."""

    def __post_init__(self) -> None:
        _refuse_empty_names("names", self.names)

    @property
    def label(self) -> str:
        return format_label("tool_sequence", " → ".join(self.names), "(exact)" if self.exact else "")

    def check(self, context: CheckContext) -> Verdict:
        called = [call.name for call in context.tool_calls]
        reason = self._explain_inexact(called) if self.exact else self._explain_order(called)
        return PASSED if reason is None else Verdict("failed", reason, expected=list(self.names), actual=called)

    def _explain_inexact(self, called: list[str]) -> str | None:
        if len(called) == len(self.names) and all(map(is_name_of_tool, called, self.names)):
            return None
        return f"expected exactly {' → '.join(self.names)}, was {' → '.join(called) or 'no call'}"

    def _explain_order(self, called: list[str]) -> str | None:
        rest = iter(called)
        for index, name in enumerate(self.names):
            if not any(is_name_of_tool(tool, name) for tool in rest):
                after = f" after {quote_value(self.names[index - 1])}" if index else ""
                return f"{quote_value(name)} was not called{after}; called: {' → '.join(called) or 'no tool'}"
        return None


class ToolResult(LocalCheck, frozen=True, kw_only=True):
    """Some call of a tool did not fail and returned this."""

    spellings: ClassVar[Mapping[str, Spelling]] = {"value": Spelling(None, {"tool": "name", "result": "result"})}
    name: str
    """The tool's name."""
    result: Any | UnsetType = UNSET
    """A deep subset of the result. A text `regex:...` is a regular expression."""

    def __post_init__(self) -> None:
        _refuse_empty_names("name", (self.name,))
        _compile_patterns(self.result, _get_prefixed_pattern)

    @property
    def label(self) -> str:
        result = "" if self.result is UNSET else f"= {quote_value(self.result)}"
        return format_label("tool_result", quote_value(self.name), result)

    def check(self, context: CheckContext) -> Verdict:
        problem, actual = "", UNSET
        for call, status in _iterate_calls_of(context, (self.name,)):
            if status == "error":
                problem = problem or f"it failed: {quote_value(call.error)}"
            elif status == "pending":
                problem = problem or "it is still pending"
            elif self.result is UNSET:
                return PASSED
            elif call.result is UNSET:
                problem = problem or "its result is not known"
            else:
                result = decode_if_json(call.result) if isinstance(self.result, Mapping | list) else call.result
                mismatch = explain_mismatch(self.result, result, _get_prefixed_pattern)
                if mismatch is None:
                    return PASSED
                problem, actual = mismatch, result
        name = quote_value(self.name)
        if not problem:
            reason = f"{name} was not called; {_format_calls(context.tool_calls)}"
            return Verdict("failed", reason, expected=self.result)
        return Verdict("failed", f"{name} was called, but {problem}", expected=self.result, actual=actual)


def _refuse_empty_names(field: str, names: Sequence[str]) -> None:
    if not names or not all(names):
        raise ValueError(f"{field} is empty: write the name of a tool")


def _compile_patterns(value: Any, get_pattern: GetPattern) -> None:
    for pattern in list_patterns(value, get_pattern):
        compile_pattern(pattern)


def _get_matches_pattern(value: Any) -> str | None:
    """The pattern of `{"matches": pattern}`."""
    if isinstance(value, Mapping) and len(cast("Mapping[str, Any]", value)) == 1:
        pattern = cast("Mapping[str, Any]", value).get("matches")
        return pattern if isinstance(pattern, str) else None
    return None


def _get_prefixed_pattern(value: Any) -> str | None:
    """The pattern of `"regex:pattern"`."""
    return (
        value.removeprefix(_REGEX_PREFIX).lstrip()
        if isinstance(value, str) and value.startswith(_REGEX_PREFIX)
        else None
    )


def _get_arguments(call: ToolCall) -> Any:
    return {} if call.arguments in (None, "") else decode_if_json(call.arguments)


def _iterate_argument_texts(value: Any) -> Iterator[str]:
    """The values in arguments, at any depth, as texts; the names of arguments are not among them."""
    if isinstance(value, Mapping):
        for item in cast("Mapping[str, Any]", value).values():
            yield from _iterate_argument_texts(item)
    elif isinstance(value, list | tuple):
        for item in cast("Sequence[Any]", value):
            yield from _iterate_argument_texts(item)
    else:
        yield value if isinstance(value, str) else codec.compact_json(value)


def _iterate_calls_of(context: CheckContext, names: Sequence[str]) -> Iterator[tuple[ToolCall, CallStatus]]:
    """The calls of the tools with these names, each with its status.

    A call without a result is pending only while its reply waits; otherwise its result was not reported.
    """
    for turn in context.turns:
        for call in turn.reply.tool_calls if turn.reply else ():
            if any(is_name_of_tool(call.name, name) for name in names):
                is_pending = call.pending or (call.result is UNSET and turn.awaits_user)
                yield call, "error" if call.error is not None else "pending" if is_pending else "ok"


def _format_calls(calls: Sequence[ToolCall]) -> str:
    return "called: " + ", ".join(call.name for call in calls) if calls else "no tool was called"
