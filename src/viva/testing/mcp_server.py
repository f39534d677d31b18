"""A stub MCP server for tests of agents that speak the Model Context Protocol.

with McpServer({"lookup": {"city": "Rome"}}) as server:
    run_agent(mcp_url=server.url)              # streamable HTTP; or start `server.command` for stdio
assert server.calls == [ToolCall("lookup", {"id": 7}, result={"city": "Rome"})]
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from viva.agents.mcp_stub import BRIDGE, McpStub
from viva.model.case import ToolStub
from viva.model.message import ToolCall
from viva.testing.http_server import HttpServer, ReceivedRequest, StubResponse


class McpServer(HttpServer):
    """Serves canned tool results: one for each name, or stubs. Several stubs of one tool are used in order."""

    def __init__(
        self, tools: Mapping[str, Any] | Sequence[ToolStub], *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        stubs = [ToolStub(name, result) for name, result in tools.items()] if isinstance(tools, Mapping) else tools
        self._stub = McpStub(stubs)
        super().__init__(self._handle, host=host, port=port)

    @property
    def url(self) -> str:
        """The address for clients that speak MCP over streamable HTTP."""
        return f"{self.origin}/mcp"

    @property
    def command(self) -> list[str]:
        """The command for clients that start a server and speak MCP on its standard input and output."""
        return [sys.executable, "-I", str(BRIDGE), self.url]

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls so far, with the result or error that each got."""
        return list(self._stub.calls)

    @property
    def is_used(self) -> bool:
        """Has a client listed or called the tools?"""
        return self._stub.is_used

    def _handle(self, request: ReceivedRequest) -> StubResponse:
        if request.method != "POST":
            return StubResponse(status=200 if request.method == "DELETE" else 405)
        answer = self._stub.answer(request.body)
        if answer is None:
            return StubResponse(status=202)
        return StubResponse(body=answer, headers={"Content-Type": "application/json"})
