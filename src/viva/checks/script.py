"""A check that the user wrote in Python: it says yes or no, and when it breaks that is no verdict on the agent."""

import asyncio
import inspect
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from msgspec import UNSET

from viva.catalog import find_script, suggest_functions
from viva.checks.base import LocalCheck
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

_OFFERED = ("output", "input", "metadata", "transcript")
_ENTRIES = ("validate", "check")
_SHAPE = "True or False, {passed, reason, score}, or an AssertionError"


class UserFunction:
    """A function of the user's, called with those of our four values that it has parameters for."""

    def __init__(self, function: Callable[..., Any], reference: str) -> None:
        self.name = getattr(function, "__name__", reference)
        self._function = function
        self._wanted = _parameters(function, reference)
        self._is_async = inspect.iscoroutinefunction(function)

    @classmethod
    def load(cls, reference: str, roots: tuple[str, ...]) -> Self:
        module, function = find_script(reference, roots)
        if function is None:
            function = next((found for name in _ENTRIES if callable(found := getattr(module, name, None))), None)
        if function is None:
            near = suggest_functions(module, _ENTRIES[0])
            raise ValueError(f"{reference!r}: the module has neither `validate` nor `check`{near}")
        return cls(function, reference)

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        arguments = {name: arguments[name] for name in self._wanted}
        if self._is_async:
            return await time_steps(self._function(**arguments), lambda _took_s: None)
        returned = await run_in_thread(lambda: self._function(**arguments))
        return await returned if inspect.isawaitable(returned) else returned


class ScriptCheck(LocalCheck, frozen=True, kw_only=True):
    """The function at `use` agrees. It gets `output`, `input`, `metadata` and `transcript` by parameter name."""

    looks_outside: ClassVar[bool] = True
    use: str
    metadata: Mapping[str, Any] = {}
    function: UserFunction  # no value in a file can be one, so it cannot be written there

    @classmethod
    def build(cls, fields: Mapping[str, Any], building: BuildContext) -> Self:
        written = dict(fields)
        if isinstance(use := written.get("use"), str):
            written.setdefault("function", UserFunction.load(use, building.module_folders))
        return super().build(written, building)

    @property
    def label(self) -> str:
        return format_label("script", quote_value(self.use))

    def check(self, context: CheckContext) -> Awaitable[Verdict]:
        return self._ask(context)

    async def _ask(self, context: CheckContext) -> Verdict:
        try:
            returned = await self.function.call(self._offered(context))
            return self._verdict(returned, context)
        except AssertionError as denied:
            return Verdict("failed", str(denied) or _failed_line(denied), actual=truncate_text(context.text))
        except CheckError:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as broken:  # the user's own code: whatever it raises is no verdict on the agent
            if isinstance(broken, asyncio.CancelledError) and is_being_cancelled():
                raise
            raise CheckError(f"{self.use} raised {error_text(broken)}", fault="judge") from broken

    def _offered(self, context: CheckContext) -> dict[str, Any]:
        """Copies: what a script does to them must not reach the record."""
        return {
            "output": context.text,
            "input": context.turn.user_message.message.text,
            "metadata": codec.to_plain({**context.state.case.metadata, **self.metadata}),
            "transcript": codec.to_plain([_shown_turn(turn) for turn in context.state.turns]),
        }

    def _verdict(self, returned: Any, context: CheckContext) -> Verdict:
        answer: Mapping[str, Any] = returned if isinstance(returned, Mapping) else {"passed": returned}
        passed = answer.get("passed", answer.get("pass"))
        reason = answer.get("reason", answer.get("message")) or ""
        score = answer.get("score")
        numeric = score is None or is_score(score)
        if not isinstance(passed, bool) or not numeric or answer.get("pass", passed) is not passed:
            raise CheckError(
                f"{self.use} returned {quote_value(returned)}; what counts is {_SHAPE}",
                fault="judge",
                deterministic=True,
            )
        if passed:
            return Verdict("passed", str(reason), score=cast("float | None", score))
        said = str(reason) or f"{self.function.name} returned {quote_value(returned)}"
        return Verdict("failed", said, score=cast("float | None", score), actual=truncate_text(context.text))


def _parameters(function: Callable[..., Any], reference: str) -> tuple[str, ...]:
    """Which of the offered values a function takes. ValueError if it needs one that is not offered."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as hidden:
        raise ValueError(f"{reference!r}: its parameters cannot be read: {hidden}") from hidden
    wanted: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            return _OFFERED
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        if parameter.name in _OFFERED and parameter.kind is not parameter.POSITIONAL_ONLY:
            wanted.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise ValueError(
                f"{reference!r}: parameter {parameter.name!r} cannot be filled by name; there are {', '.join(_OFFERED)}"
            )
    return tuple(wanted)


def _failed_line(denied: AssertionError) -> str:
    """For an `assert` without a message: the line itself."""
    line = traceback.extract_tb(denied.__traceback__)[-1]
    return f"{line.line} ({Path(line.filename).name}:{line.lineno})"


def _shown_turn(turn: Turn) -> dict[str, Any]:
    reply = turn.reply
    return {
        "turn": turn.number,
        "input": turn.user_message.message.text,
        "output": "" if reply is None else reply_text(reply),
        "tool_calls": [] if reply is None else [_shown_call(call) for call in reply.tool_calls],
    }


def _shown_call(call: ToolCall) -> dict[str, Any]:
    result = None if call.result is UNSET else call.result
    return {"name": call.name, "arguments": call.arguments, "result": result, "error": call.error}
