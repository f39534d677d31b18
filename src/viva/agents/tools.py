"""Tools of an agent: local Python functions, or canned answers; and their results for the model."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, field, structs

from viva.concurrency.loops import await_with_timed_steps
from viva.concurrency.threads import is_being_cancelled, run_in_thread
from viva.errors import is_ctrl_c
from viva.model import codec
from viva.model.case import Fixtures, ToolStub
from viva.model.message import Message, ToolCall
from viva.model.progress import CallProgress
from viva.model.tracebacks import build_tracebacks, format_error
from viva.state.trial_state import to_text
from viva.text.tool_names import is_same_full_name, is_same_tool

NOT_RUN_TEXT = "This tool is not run here. The user gives its result next."


def _create_empty_schema() -> Mapping[str, Any]:
    return {"type": "object", "properties": {}}


class Tool(Struct, frozen=True):
    """A tool that the model can call. `run` is called with the arguments by name; without it the call is only reported."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=_create_empty_schema)
    run: Callable[..., Any] | None = None


class ToolStubs:
    """The canned answers of one session. Those of a tool are used in order; the last one repeats."""

    def __init__(self, stubs: Sequence[ToolStub]) -> None:
        self._left: dict[str, list[ToolStub]] = {}
        for stub in stubs:
            self._left.setdefault(stub.tool, []).append(stub)

    def answer_call(self, call: ToolCall) -> ToolCall:
        """The call with its canned result; with an error if there is none, or if the name is ambiguous."""
        names = (
            [call.name] if call.name in self._left else [name for name in self._left if is_same_tool(call.name, name)]
        )
        if not names:
            return structs.replace(call, error=f"no canned response for the tool {call.name!r}")
        if len(names) > 1:  # the whole name may be there, with the separators that an API allows
            names = [name for name in names if is_same_full_name(call.name, name)] or names
        if len(names) > 1:
            return structs.replace(
                call, error=f"the tool {call.name!r} is ambiguous: there are canned responses for {', '.join(names)}"
            )
        stubs = self._left[names[0]]
        stub = stubs.pop(0) if len(stubs) > 1 else stubs[0]
        if stub.error is not None:
            return structs.replace(call, error=stub.error)
        return structs.replace(call, result=stub.response)  # a function is called by the caller of this

    @property
    def has_functions(self) -> bool:
        """Is some canned answer a function of the test?"""
        return any(callable(stub.response) for stubs in self._left.values() for stub in stubs)


class CannedTools(list[dict[str, Any]]):
    """The `tools` of a Python agent: each canned answer as a dict, and `call` to get the answer of a tool.

    `call` records what was called, for agents that report no tool calls themselves.
    """

    def __init__(self, stubs: Sequence[ToolStub]) -> None:
        super().__init__(codec.to_plain(stubs))
        self._stubs = ToolStubs(stubs)
        self.calls: list[ToolCall] = []

    def call(self, name: str, /, **arguments: Any) -> Any:
        """The canned answer of a tool. LookupError if there is none, or if it is an error."""
        used = self._stubs.answer_call(ToolCall(name, arguments))
        if callable(used.result):
            used = call_function(used, used.result)
        self.calls.append(used)
        if used.error is not None:
            raise LookupError(used.error)
        return codec.to_plain(used.result)


class Toolbox:
    """The tools of one session. With stubs, nothing runs live."""

    def __init__(self, tools: Sequence[Tool], fixtures: Fixtures | None, progress: CallProgress) -> None:
        self._progress = progress
        self._tools = {tool.name: tool for tool in tools}
        self._stubs = ToolStubs(fixtures.tools) if fixtures is not None and fixtures.stub_all_tools else None

    async def run_call(self, call: ToolCall) -> ToolCall:
        """The call with its result or error; with neither if the tool cannot be run here."""
        try:
            arguments = _decode_arguments(call.arguments)
        except codec.DecodeError as wrong:
            return structs.replace(call, error=f"the arguments are not valid JSON: {wrong}")
        call = structs.replace(call, arguments=arguments)
        if not isinstance(arguments, dict):
            return structs.replace(call, error="the arguments must be a JSON object")
        if self._stubs is not None:
            answered = self._stubs.answer_call(call)
            return await self._run_tool(call, answered.result) if callable(answered.result) else answered
        tool = self._tools.get(call.name)
        if tool is None and self._tools:
            return structs.replace(call, error=f"there is no tool {call.name!r}", refused=True)
        return call if tool is None or tool.run is None else await self._run_tool(call, tool.run)

    async def _run_tool(self, call: ToolCall, run: Callable[..., Any]) -> ToolCall:
        try:
            if inspect.iscoroutinefunction(run):
                result = run(**call.arguments)
            else:
                result = await run_in_thread(lambda: run(**call.arguments))
            if inspect.isawaitable(result):
                result = await await_with_timed_steps(result, self._progress.record_block)
            return structs.replace(call, result=codec.to_plain_checked(result))
        except BaseException as raised:  # user code: the model gets the error, and may correct itself
            if is_ctrl_c(raised) or (isinstance(raised, asyncio.CancelledError) and is_being_cancelled()):
                raise
            self._progress.tracebacks += build_tracebacks(raised, f"tool {call.name}")
            return structs.replace(call, error=format_error(raised))


def call_function(call: ToolCall, function: Callable[..., Any]) -> ToolCall:
    """The call with the result of a stub that is a function of the test. The function cannot be async: the agent waits for it."""
    try:
        if inspect.iscoroutinefunction(function):
            raise TypeError("an `async def` cannot answer a tool of this agent; write a plain function")
        return structs.replace(call, result=codec.to_plain_checked(function(**call.arguments)))
    except Exception as raised:  # user code: the agent gets the error
        return structs.replace(call, result=UNSET, error=format_error(raised))


def lacks_result(call: ToolCall) -> bool:
    """Has the call neither result nor error?"""
    return call.result is UNSET and call.error is None


def add_missing_ids(calls: Sequence[ToolCall], first: int = 1) -> tuple[ToolCall, ...]:
    """Gives an id to each call without one: results refer to calls by id. The calls are numbered from `first`."""
    return tuple(
        call if call.id else structs.replace(call, id=f"call_{number}") for number, call in enumerate(calls, first)
    )


def format_result(call: ToolCall) -> str:
    """The result of a call, as text for the model."""
    if call.error is not None:
        return codec.compact_json({"error": call.error})
    return NOT_RUN_TEXT if call.result is UNSET else to_text(call.result)


def parse_arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments as an object, which some APIs require."""
    try:
        arguments = _decode_arguments(call.arguments)
    except codec.DecodeError:
        arguments = call.arguments
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def split_at_tool_results(message: Message) -> tuple[Message, tuple[ToolCall, ...], Message | None]:
    """Splits a message into the three parts that model APIs expect: the tool calls, their results, and the text after them.

    If no call has a result, the message stays whole: the results follow as separate messages.
    """
    if not message.tool_calls:
        return message, (), None
    calls = add_missing_ids(message.tool_calls)
    if all(map(lacks_result, calls)):
        return structs.replace(message, tool_calls=calls), (), None
    asking = Message(message.role, tool_calls=calls)
    return asking, calls, structs.replace(message, tool_calls=()) if message.content else None


def _decode_arguments(arguments: Any) -> Any:
    """Models send arguments as JSON in a string, as an object, or not at all."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    return codec.decode(arguments) if arguments.strip() else {}
