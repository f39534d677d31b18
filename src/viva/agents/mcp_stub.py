"""A stub MCP server: it serves the canned tools of a case to any agent that speaks the Model Context Protocol, and records
the calls.

`McpStub` is the protocol without I/O, in the revisions that begin with `initialize`; clients of later ones fall back to
them. `StubbedAgent` gives an agent the address of such a server for each conversation: `mcp_stub = true` in its config.
"""

import re
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import structs

from viva import __version__
from viva.agents.cli.spec import MCP_SERVER
from viva.agents.json_objects import as_object, get_text
from viva.agents.tools import ToolStubs, call_function
from viva.concurrency.threads import run_in_thread
from viva.model import codec
from viva.model.case import Feature, ToolStub
from viva.model.ellipsis import cut_end
from viva.model.message import Message, Reply, ToolCall
from viva.protocols import Agent, AgentSession, SessionContext
from viva.state.trial_state import to_text

MAX_BODY_BYTES = 16 * 1024 * 1024
BRIDGE = Path(__file__).with_name("mcp_bridge.py")
"""The program that speaks MCP on standard input and output for such a server: `python mcp_bridge.py URL`."""
_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
_METHOD_NOT_FOUND, _INVALID_REQUEST, _PARSE_ERROR = -32601, -32600, -32700
_MAX_CALLS = 100_000
_NO_WORD = re.compile(r"[^A-Za-z0-9_]")


class McpStub:
    """One server. `calls` has every tool call, with its canned result or error; `is_used` after a client listed its tools.
    It `may_block` if functions of the test give some of the results.
    """

    def __init__(self, stubs: Sequence[ToolStub]) -> None:
        self.calls: list[ToolCall] = []
        self.is_used = False
        self.tool_names = tuple(dict.fromkeys(stub.tool for stub in stubs))
        self._stubs = ToolStubs(stubs)
        self.may_block = self._stubs.has_functions

    def answer(self, body: bytes) -> bytes | None:
        """The answer to a message or a batch of them; None if none of them is a request."""
        try:
            value = codec.decode(body)
        except codec.DecodeError as error:
            return codec.encode(_build_error(None, _PARSE_ERROR, f"not JSON: {error}"))
        if isinstance(value, list):
            answers = [answer for each in value if (answer := self._answer_message(each)) is not None]
            return codec.encode(answers) if answers else None
        answer = self._answer_message(value)
        return None if answer is None else codec.encode(answer)

    def _answer_message(self, value: Any) -> dict[str, Any] | None:
        message = as_object(value)
        method, key = message.get("method"), message.get("id")
        if not isinstance(method, str):
            is_answer = "result" in message or "error" in message
            return None if is_answer else _build_error(key, _INVALID_REQUEST, "not a message of JSON-RPC")
        if "id" not in message:
            return None
        params = as_object(message.get("params"))
        match method:
            case "initialize":
                return _build_result(key, self._initialize(params))
            case "ping":
                return _build_result(key, {})
            case "tools/list":
                self.is_used = True
                return _build_result(key, {"tools": [_describe_tool(name) for name in self.tool_names]})
            case "tools/call":
                self.is_used = True
                return _build_result(key, self._call_tool(params))
            case "resources/list" | "resources/templates/list" | "prompts/list":
                field = {"resources/list": "resources", "prompts/list": "prompts"}.get(method, "resourceTemplates")
                return _build_result(key, {field: []})
            case _:
                return _build_error(key, _METHOD_NOT_FOUND, f"unknown method {cut_end(method, 60)!r}")

    def _initialize(self, params: Mapping[str, Any]) -> dict[str, Any]:
        version = params.get("protocolVersion")
        return {
            "protocolVersion": version if version in _VERSIONS else _VERSIONS[-1],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": MCP_SERVER, "version": __version__},
        }

    def _call_tool(self, params: Mapping[str, Any]) -> dict[str, Any]:
        call = self._stubs.answer_call(ToolCall(get_text(params, "name"), params.get("arguments") or {}))
        if callable(call.result):
            call = call_function(call, call.result)
        if len(self.calls) < _MAX_CALLS:
            self.calls.append(call)
        if call.error is not None:
            return {"content": [{"type": "text", "text": call.error}], "isError": True}
        result: dict[str, Any] = {"content": [{"type": "text", "text": to_text(call.result)}], "isError": False}
        return result | {"structuredContent": call.result} if isinstance(call.result, Mapping) else result


def _describe_tool(name: str) -> dict[str, Any]:
    return {"name": name, "description": f"The tool {name}.", "inputSchema": {"type": "object", "properties": {}}}


def _build_result(key: Any, result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "result": result}


def _build_error(key: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": key, "error": {"code": code, "message": message}}


@asynccontextmanager
async def serve_stub(stub: McpStub) -> AsyncGenerator[str]:
    """Serves a stub over streamable HTTP on a loopback port; its address, which nothing else knows."""
    from aiohttp import web  # slow to import; most runs need none

    async def handle(request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.Response(status=200 if request.method == "DELETE" else 405)
        body = await request.read()
        answer = await run_in_thread(stub.answer, body) if stub.may_block else stub.answer(body)
        return (
            web.Response(status=202) if answer is None else web.Response(body=answer, content_type="application/json")
        )

    app = web.Application(client_max_size=MAX_BODY_BYTES)
    path = f"/{secrets.token_urlsafe(16)}/mcp"
    app.router.add_route("*", path, handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}{path}"
    finally:
        await runner.cleanup()


class StubbedAgent:
    """An agent whose MCP tools are those of the case's fixtures. Everything else is as with the agent itself."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._agent, name)

    @property
    def provides(self) -> frozenset[Feature]:
        return self._agent.provides | frozenset[Feature]({"tool_stubs"})

    def open(self, context: SessionContext) -> AbstractAsyncContextManager[AgentSession]:
        fixtures = context.fixtures
        if fixtures is None or not (fixtures.tools or fixtures.stub_all_tools):
            return self._agent.open(context)
        return self._open_with_stub(context, McpStub(fixtures.tools))

    @asynccontextmanager
    async def _open_with_stub(self, context: SessionContext, stub: McpStub) -> AsyncGenerator[AgentSession]:
        async with serve_stub(stub) as url, self._agent.open(structs.replace(context, mcp_url=url)) as session:
            yield _StubbedSession(session, context, stub)


class _StubbedSession:
    """Adds the recorded calls to each reply, with the names that the tools have in the case."""

    def __init__(self, session: AgentSession, context: SessionContext, stub: McpStub) -> None:
        self._session, self._context, self._stub = session, context, stub
        self._has_warned = False

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        progress, start = self._context.progress, len(self._stub.calls)
        try:
            reply = await self._session.send(message, options)
        except BaseException:
            if (partial := progress.partial) is not None or self._stub.calls[start:]:
                progress.partial = self._add_calls(partial or Reply(), start)
            raise
        if not self._stub.is_used and not self._has_warned:
            self._has_warned = True
            progress.warnings.append(
                "the agent has not asked the stub MCP server for its tools (`mcp_stub`): the case's `fixtures.tools` have no effect"
            )
        return self._add_calls(reply, start)

    def _add_calls(self, reply: Reply, start: int) -> Reply:
        """The reply's own calls with the tools' bare names, then the recorded calls that it does not report."""
        reported = [structs.replace(call, name=self._find_bare_name(call.name)) for call in reply.tool_calls]
        missing = list(self._stub.calls[start:])
        for call in reported:
            known = next((at for at, each in enumerate(missing) if each.name == call.name), None)
            if known is not None:
                del missing[known]
        return structs.replace(reply, tool_calls=(*reported, *missing))

    def _find_bare_name(self, name: str) -> str:
        """The name of a tool in the case: clients prefix it with `mcp` and the server's name, and replace characters in it."""
        shown = _NO_WORD.sub("_", name)
        for bare in self._stub.tool_names:
            end = _NO_WORD.sub("_", bare)
            if re.fullmatch(rf"(?:mcp_+)?{MCP_SERVER}_+{re.escape(end)}", shown):
                return bare
        return name
