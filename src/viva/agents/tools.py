"""An agent's tools: local Python functions, or canned answers instead of them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, field, structs

from viva.model import codec
from viva.model.case import Fixtures, ToolStub
from viva.model.message import ToolCall
from viva.threads import in_thread


def _no_parameters() -> Mapping[str, Any]:
    return {"type": "object", "properties": {}}


class Tool(Struct, frozen=True):
    """A tool as the model is told of it. `run` is called with the arguments by name; without it the call is only reported."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=_no_parameters)
    run: Callable[..., Any] | None = None


class Toolbox:
    """The tools of one session. Stubs are used in order, and the last repeats; where there are stubs, nothing runs live."""

    def __init__(self, tools: Sequence[Tool], fixtures: Fixtures | None) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._stubs: dict[str, list[ToolStub]] | None = None
        if fixtures is not None and fixtures.stubbed:
            self._stubs = {}
            for stub in fixtures.tools:
                self._stubs.setdefault(stub.tool, []).append(stub)

    async def use(self, call: ToolCall) -> ToolCall:
        """The call with its result or error; with neither, if the tool is none that can be run here."""
        try:
            arguments = _decoded(call.arguments)
        except codec.DecodeError as wrong:
            return structs.replace(call, error=f"the arguments are no valid JSON: {wrong}")
        call = structs.replace(call, arguments=arguments)
        if not isinstance(arguments, dict):
            return structs.replace(call, error="the arguments have to be a JSON object")
        if self._stubs is not None:
            return _canned(call, self._stubs.get(call.name))
        tool = self._tools.get(call.name)
        if tool is None and self._tools:
            return structs.replace(call, error=f"there is no tool {call.name!r}")
        return call if tool is None or tool.run is None else await _run(call, tool.run)


def _canned(call: ToolCall, stubs: list[ToolStub] | None) -> ToolCall:
    if not stubs:
        return structs.replace(call, error=f"no canned response for the tool {call.name!r}")
    stub = stubs.pop(0) if len(stubs) > 1 else stubs[0]
    return (
        structs.replace(call, result=stub.response) if stub.error is None else structs.replace(call, error=stub.error)
    )


async def _run(call: ToolCall, run: Callable[..., Any]) -> ToolCall:
    try:
        if inspect.iscoroutinefunction(run):
            result = await run(**call.arguments)
        else:
            result = await in_thread(lambda: run(**call.arguments))
            if inspect.isawaitable(result):
                result = await result
        return structs.replace(call, result=codec.builtins(result))
    except Exception as raised:  # the tool's own code: the model is told, and may do better
        return structs.replace(call, error=f"{type(raised).__name__}: {raised}")


def _decoded(arguments: Any) -> Any:
    """Models send arguments as JSON in a string, some as an object, some nothing at all."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    return codec.decode(arguments) if arguments.strip() else {}
