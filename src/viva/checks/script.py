"""A check that the user writes in Python. A script that fails to run is an error, not a verdict on the agent."""

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from msgspec import UNSET, Struct

from viva.catalog import find_script, suggest_functions
from viva.checks.base_check import HelperOptions, Spelling
from viva.checks.formatting import cut_to_verdict_length, format_label, is_score_in_range, quote_value
from viva.concurrency.loops import await_with_timed_steps
from viva.concurrency.threads import is_being_cancelled, run_in_thread
from viva.errors import CheckError, is_ctrl_c
from viva.model import codec
from viva.model.component import BuildContext
from viva.model.message import Message, ToolCall
from viva.model.tracebacks import format_error, format_error_place
from viva.model.turn import FileChange, Turn, Verdict
from viva.state.trial_state import CheckContext, get_reply_text
from viva.text.function_source import has_assert, read_short_source

_PARAMETER_NAMES = ("output", "input", "metadata", "transcript", "turn")
_DEFAULT_FUNCTION_NAMES = ("validate", "check")
_ALLOWED_RESULTS = "True or False, {passed, reason, score}, a Verdict, or an AssertionError"
_CODING_ERRORS = (AttributeError, NameError, TypeError)
"""Mistakes in the user's code, which would happen again."""


class TurnView(Struct, frozen=True):
    """What a function that checks a turn sees: `lambda turn: "Friday" in turn.text`.

    In `final_assertions`, and with `scope="case"`, it is the last turn with the tool calls of all turns.
    """

    number: int
    """Which turn, from 1."""
    input: str
    """The text of the user's message."""
    text: str
    """The agent's text or, if it is empty, its data as compact JSON."""
    data: Any = None
    """The structured part of the reply."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tool calls, in order."""
    awaiting: bool = False
    """Does the agent wait for the user?"""
    latency_ms: float = 0.0
    """How long the agent took."""
    files: tuple[FileChange, ...] = ()
    """The files of the workspace that the turn changed."""
    messages: tuple[Message, ...] = ()
    """The whole conversation up to this turn."""


def _create_turn_view(context: CheckContext) -> TurnView:
    turn = context.turn
    return TurnView(
        number=turn.number,
        input=turn.user_message.message.text,
        text=context.text,
        data=None if context.reply.data is None else codec.to_plain(context.reply.data),
        tool_calls=codec.decode_own(codec.encode(context.tool_calls), type=tuple[ToolCall, ...]),
        awaiting=turn.awaiting is not None and turn.awaiting.is_awaiting,
        latency_ms=turn.latency_ms,
        files=turn.files,
        messages=tuple(context.state.list_messages()),
    )


class UserFunction:
    """A function of the user. It gets the values of `_PARAMETER_NAMES` for which it has parameters.

    A function that Python code has passed may have one parameter of any other name instead: it gets the turn.
    """

    def __init__(self, function: Callable[..., Any], reference: str, *, is_from_python: bool = False) -> None:
        self.is_from_python = is_from_python
        self.name = getattr(function, "__name__", reference)
        self.source = read_short_source(function) if is_from_python else ""
        self.may_return_none = is_from_python and has_assert(function)
        self.is_async = inspect.iscoroutinefunction(function)
        self._function = function
        only = _find_sole_own_parameter(function) if is_from_python else None
        self._parameters = ("turn",) if only else _list_known_parameters(function, reference)
        self._positional = only is not None

    @classmethod
    def load(cls, reference: str, context: BuildContext) -> Self:
        if (function := context.functions.get(reference)) is not None:
            return cls(function, reference, is_from_python=True)
        module, function = find_script(reference, context.module_folders)
        if function is None:
            functions = (getattr(module, name, None) for name in _DEFAULT_FUNCTION_NAMES)
            function = next((each for each in functions if callable(each)), None)
        if function is None:
            suggestion = suggest_functions(module, _DEFAULT_FUNCTION_NAMES[0])
            raise ValueError(f"{reference!r}: the module has neither `validate` nor `check`{suggestion}")
        return cls(function, reference)

    def call_directly(self, values: Mapping[str, Callable[[], Any]]) -> Any:
        own = {name: values[name]() for name in self._parameters}
        return self._function(*own.values()) if self._positional else self._function(**own)

    async def call(self, values: Mapping[str, Callable[[], Any]]) -> Any:
        if self.is_async:
            return await await_with_timed_steps(self.call_directly(values), lambda _took_s: None)
        result = await run_in_thread(lambda: self.call_directly(values))
        return await result if inspect.isawaitable(result) else result


class ScriptCheck(HelperOptions, frozen=True, kw_only=True):
    """A Python function of the project accepts the reply. It gets `output`, `input`, `metadata`, `transcript` and `turn` by parameter name."""

    looks_outside: ClassVar[bool] = True
    spellings: ClassVar[Mapping[str, Spelling]] = {"script": Spelling("use")}
    python_types: ClassVar[Mapping[str, str]] = {"use": "str | CheckFunction | Callable[..., object]"}
    use: str
    """The function: `scripts:module.function`; in Python also the function itself."""
    function: UserFunction  # not a JSON value, so it cannot be written in a file

    @classmethod
    def validate_field(cls, name: str, value: Any, context: BuildContext) -> None:
        if name == "use":
            UserFunction.load(value, context)

    @classmethod
    def build(cls, fields: Mapping[str, Any], context: BuildContext) -> Self:
        if isinstance(use := fields.get("use"), str):
            fields = {"function": UserFunction.load(use, context), **fields}
        return super().build(fields, context)

    @property
    def costly(self) -> bool:
        return False

    @property
    def label(self) -> str:
        return self.use if self.function.is_from_python else format_label("script", quote_value(self.use))

    @property
    def _name_in_reasons(self) -> str:
        """How a reason names the function. The label has the source of one that Python code has passed."""
        return "it" if self.function.is_from_python else self.use

    def check(self, context: CheckContext) -> Verdict | Awaitable[Verdict]:
        values = self._build_arguments(context)
        if not context.calls_directly or self.function.is_async:
            return self._call_function(values, context)
        try:
            return self._parse_result(self.function.call_directly(values), context)
        except BaseException as error:
            return self._explain_error(error, context)

    async def _call_function(self, values: Mapping[str, Callable[[], Any]], context: CheckContext) -> Verdict:
        try:
            return self._parse_result(await self.function.call(values), context)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            return self._explain_error(error, context)
        except BaseException as error:
            return self._explain_error(error, context)

    def _explain_error(self, error: BaseException, context: CheckContext) -> Verdict:
        """The verdict of an assertion that failed. Anything else that the user's code raises is not a verdict on the agent."""
        if isinstance(error, AssertionError):
            return self._create_failure(str(error) or _quote_assert_line(error), context)
        if isinstance(error, CheckError) or is_ctrl_c(error):
            raise error
        place = format_error_place(error)
        raise CheckError(
            f"{self._name_in_reasons} raised {format_error(error)}" + (f" ({place})" if place else ""),
            fault="judge",
            deterministic=isinstance(error, _CODING_ERRORS),
        ) from error

    def _build_arguments(self, context: CheckContext) -> Mapping[str, Callable[[], Any]]:
        """The values that a function can take, by parameter name. Each is a copy, so that a script cannot change the record."""
        return {
            "output": lambda: context.text,
            "input": lambda: context.turn.user_message.message.text,
            "metadata": lambda: codec.to_plain({**context.state.case.metadata, **self.all_metadata}),
            "transcript": lambda: codec.to_plain([_describe_turn(turn) for turn in context.state.turns]),
            "turn": lambda: _create_turn_view(context),
        }

    def _parse_result(self, result: Any, context: CheckContext) -> Verdict:
        if isinstance(result, Verdict):
            return result
        if result is None and self.function.may_return_none:
            result = True
        answer: Mapping[str, Any] = result if isinstance(result, Mapping) else {"passed": result}
        passed = answer.get("passed", answer.get("pass"))
        reason = answer.get("reason", answer.get("message")) or ""
        score = cast("float | None", answer.get("score"))
        has_score = score is None or is_score_in_range(score)
        if not isinstance(passed, bool) or not has_score or answer.get("pass", passed) is not passed:
            raise CheckError(
                f"{self._name_in_reasons} returned {quote_value(result)}; it must return {_ALLOWED_RESULTS}",
                fault="judge",
                deterministic=True,
            )
        if passed:
            return Verdict("passed", str(reason), score=score)
        if not reason and not self.function.is_from_python:
            reason = f"{self.function.name} returned {quote_value(result)}"
        return self._create_failure(str(reason), context, score)

    def _create_failure(self, reason: str, context: CheckContext, score: float | None = None) -> Verdict:
        """A failure shows the source of a function that Python code has passed."""
        reason = "\n".join(part for part in (reason, self.function.source) if part)
        return Verdict("failed", reason, score=score, actual=cut_to_verdict_length(context.text))


def _find_sole_own_parameter(function: Callable[..., Any]) -> str | None:
    """The only required parameter of a function, if it is not one of `_PARAMETER_NAMES`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return "turn"  # a built-in: it takes what it is called with
    required = [each for each in parameters if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    if len(required) != 1 or required[0].kind is required[0].KEYWORD_ONLY:
        return None
    by_name = required[0].name in _PARAMETER_NAMES and required[0].kind is required[0].POSITIONAL_OR_KEYWORD
    return None if by_name else required[0].name


def _list_known_parameters(function: Callable[..., Any], reference: str) -> tuple[str, ...]:
    """The names of `_PARAMETER_NAMES` that a function takes. ValueError if it requires a parameter of another name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{reference!r}: its parameters cannot be read: {error}") from error
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            return _PARAMETER_NAMES
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.name in _PARAMETER_NAMES and parameter.kind is not parameter.POSITIONAL_ONLY:
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            known = ", ".join(_PARAMETER_NAMES)
            raise ValueError(f"{reference!r}: parameter {parameter.name!r} cannot be filled by name; there are {known}")
    return tuple(names)


def _quote_assert_line(error: AssertionError) -> str:
    """The line of an `assert` without a message."""
    line = traceback.extract_tb(error.__traceback__)[-1]
    return f"{line.line} ({Path(line.filename).name}:{line.lineno})"


def _describe_turn(turn: Turn) -> dict[str, Any]:
    reply = turn.reply
    return {
        "turn": turn.number,
        "input": turn.user_message.message.text,
        "output": "" if reply is None else get_reply_text(reply),
        "tool_calls": [] if reply is None else [_describe_call(call) for call in reply.tool_calls],
    }


def _describe_call(call: ToolCall) -> dict[str, Any]:
    result = None if call.result is UNSET else call.result
    return {"name": call.name, "arguments": call.arguments, "result": result, "error": call.error}
