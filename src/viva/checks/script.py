"""A check that the user writes in Python. A script that fails to run is an error, not a verdict on the agent."""

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from msgspec import UNSET

from viva.catalog import find_script, suggest_functions
from viva.checks.base_check import HelperOptions, Spelling
from viva.checks.formatting import format_label, is_score, quote_value, truncate_text
from viva.concurrency.loops import time_steps
from viva.concurrency.threads import is_being_cancelled, run_in_thread
from viva.errors import CheckError
from viva.model import codec
from viva.model.component import BuildContext
from viva.model.message import ToolCall
from viva.model.tracebacks import error_text
from viva.model.turn import Turn, Verdict
from viva.state.trial_state import CheckContext, reply_text

_ARGUMENTS = ("output", "input", "metadata", "transcript")
_FUNCTIONS = ("validate", "check")
_ALLOWED_RESULTS = "True or False, {passed, reason, score}, or an AssertionError"


class UserFunction:
    """A function of the user. It is called with those of our four values that it has parameters for."""

    def __init__(self, function: Callable[..., Any], reference: str) -> None:
        self.name = getattr(function, "__name__", reference)
        self._function = function
        self._parameters = _list_parameters(function, reference)
        self._is_async = inspect.iscoroutinefunction(function)

    @classmethod
    def load(cls, reference: str, roots: tuple[str, ...]) -> Self:
        module, function = find_script(reference, roots)
        if function is None:
            functions = (getattr(module, name, None) for name in _FUNCTIONS)
            function = next((each for each in functions if callable(each)), None)
        if function is None:
            suggestion = suggest_functions(module, _FUNCTIONS[0])
            raise ValueError(f"{reference!r}: the module has neither `validate` nor `check`{suggestion}")
        return cls(function, reference)

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        own = {name: arguments[name] for name in self._parameters}
        if self._is_async:
            return await time_steps(self._function(**own), lambda _took_s: None)
        result = await run_in_thread(lambda: self._function(**own))
        return await result if inspect.isawaitable(result) else result


class ScriptCheck(HelperOptions, frozen=True, kw_only=True):
    """A Python function of the project agrees. It gets `output`, `input`, `metadata` and `transcript` by parameter name."""

    looks_outside: ClassVar[bool] = True
    spellings: ClassVar[Mapping[str, Spelling]] = {"script": Spelling("use")}
    use: str
    """The function: `scripts:module.function`."""
    function: UserFunction  # not a JSON value, so it cannot be written in a file

    @classmethod
    def validate_field(cls, name: str, value: Any, context: BuildContext) -> None:
        if name == "use":
            UserFunction.load(value, context.module_folders)

    @classmethod
    def build(cls, fields: Mapping[str, Any], context: BuildContext) -> Self:
        if isinstance(use := fields.get("use"), str):
            fields = {"function": UserFunction.load(use, context.module_folders), **fields}
        return super().build(fields, context)

    @property
    def costly(self) -> bool:
        return False

    @property
    def label(self) -> str:
        return format_label("script", quote_value(self.use))

    def check(self, context: CheckContext) -> Awaitable[Verdict]:
        return self._run(context)

    async def _run(self, context: CheckContext) -> Verdict:
        try:
            return self._parse(await self.function.call(self._build_arguments(context)), context)
        except AssertionError as error:
            return Verdict("failed", str(error) or _quote_line(error), actual=truncate_text(context.text))
        except (CheckError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the user's own code: whatever it raises is not a verdict on the agent
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise
            raise CheckError(f"{self.use} raised {error_text(error)}", fault="judge") from error

    def _build_arguments(self, context: CheckContext) -> dict[str, Any]:
        """Copies, so that a script cannot change the record."""
        return {
            "output": context.text,
            "input": context.turn.user_message.message.text,
            "metadata": codec.to_plain({**context.state.case.metadata, **self.all_metadata}),
            "transcript": codec.to_plain([_describe_turn(turn) for turn in context.state.turns]),
        }

    def _parse(self, result: Any, context: CheckContext) -> Verdict:
        answer: Mapping[str, Any] = result if isinstance(result, Mapping) else {"passed": result}
        passed = answer.get("passed", answer.get("pass"))
        reason = answer.get("reason", answer.get("message")) or ""
        score = cast("float | None", answer.get("score"))
        has_score = score is None or is_score(score)
        if not isinstance(passed, bool) or not has_score or answer.get("pass", passed) is not passed:
            raise CheckError(
                f"{self.use} returned {quote_value(result)}; it must return {_ALLOWED_RESULTS}",
                fault="judge",
                deterministic=True,
            )
        if passed:
            return Verdict("passed", str(reason), score=score)
        reason = str(reason) or f"{self.function.name} returned {quote_value(result)}"
        return Verdict("failed", reason, score=score, actual=truncate_text(context.text))


def _list_parameters(function: Callable[..., Any], reference: str) -> tuple[str, ...]:
    """The arguments that a function takes. ValueError if it needs one that there is not."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{reference!r}: its parameters cannot be read: {error}") from error
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            return _ARGUMENTS
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.name in _ARGUMENTS and parameter.kind is not parameter.POSITIONAL_ONLY:
            names.append(parameter.name)
        elif parameter.default is parameter.empty:
            known = ", ".join(_ARGUMENTS)
            raise ValueError(f"{reference!r}: parameter {parameter.name!r} cannot be filled by name; there are {known}")
    return tuple(names)


def _quote_line(error: AssertionError) -> str:
    """The line of an `assert` without a message."""
    line = traceback.extract_tb(error.__traceback__)[-1]
    return f"{line.line} ({Path(line.filename).name}:{line.lineno})"


def _describe_turn(turn: Turn) -> dict[str, Any]:
    reply = turn.reply
    return {
        "turn": turn.number,
        "input": turn.user_message.message.text,
        "output": "" if reply is None else reply_text(reply),
        "tool_calls": [] if reply is None else [_describe_call(call) for call in reply.tool_calls],
    }


def _describe_call(call: ToolCall) -> dict[str, Any]:
    result = None if call.result is UNSET else call.result
    return {"name": call.name, "arguments": call.arguments, "result": result, "error": call.error}
