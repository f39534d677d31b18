"""The stub MCP server, and agents whose tools it replaces."""

import asyncio
import json
import subprocess
import urllib.request
from typing import Any

import pytest

from viva.agents.acp import _list_mcp_servers
from viva.agents.cli.claude import CLAUDE
from viva.agents.cli.codex import CODEX
from viva.agents.cli.qwen import QWEN
from viva.agents.cli.spec import TurnRequest
from viva.agents.http import HttpAgent
from viva.agents.mcp_stub import BRIDGE, McpStub, StubbedAgent
from viva.agents.python import PythonAgent
from viva.errors import AgentFailed
from viva.llm.transport import HttpTransport
from viva.model import codec
from viva.model.case import Fixtures, Key, ToolStub
from viva.model.message import Message, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.protocols import Agent, SessionContext
from viva.testing import HttpServer, McpServer, json_response

STUBS = (ToolStub("lookup", {"city": "Rome"}), ToolStub("lookup", "gone"), ToolStub("pay", error="declined"))


def ask(stub: McpStub, method: str, params: Any = None, **fields: Any) -> Any:
    answer = stub.answer(codec.encode({"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **fields}))
    return None if answer is None else codec.decode(answer)


def call_tool(url: str, name: str, **arguments: Any) -> Any:
    """As an agent would call it."""
    params = {"name": name, "arguments": arguments}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
        return json.load(answer)["result"]


# The protocol


def test_a_client_is_greeted_in_its_version_or_the_newest():
    stub = McpStub(STUBS)
    greeted = ask(stub, "initialize", {"protocolVersion": "2025-03-26"})["result"]
    assert (greeted["protocolVersion"], greeted["serverInfo"]["name"]) == ("2025-03-26", "viva")
    assert "tools" in greeted["capabilities"]
    assert ask(stub, "initialize", {"protocolVersion": "1999"})["result"]["protocolVersion"] == "2025-11-25"
    assert ask(stub, "ping")["result"] == {}
    assert not stub.is_used


def test_tools_are_listed_and_answer_in_order():  # W3
    stub = McpStub(STUBS)
    assert [tool["name"] for tool in ask(stub, "tools/list")["result"]["tools"]] == ["lookup", "pay"]
    assert stub.is_used
    first = ask(stub, "tools/call", {"name": "lookup", "arguments": {"id": 7}})["result"]
    assert (first["structuredContent"], first["isError"]) == ({"city": "Rome"}, False)
    assert json.loads(first["content"][0]["text"]) == {"city": "Rome"}
    for _ in range(2):
        assert ask(stub, "tools/call", {"name": "lookup"})["result"]["content"][0]["text"] == "gone"
    assert ask(stub, "tools/call", {"name": "pay"})["result"]["isError"]
    unknown = ask(stub, "tools/call", {"name": "other"})["result"]
    assert (unknown["isError"], unknown["content"][0]["text"]) == (True, "no canned response for the tool 'other'")
    assert stub.calls[0] == ToolCall("lookup", {"id": 7}, result={"city": "Rome"})
    assert [call.name for call in stub.calls] == ["lookup", "lookup", "lookup", "pay", "other"]


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (b"{", -32700),
        (b"7", -32600),
        (b'{"id": 1, "method": "server/discover"}', -32601),
        (b'{"method": "notifications/initialized"}', None),
        (b'{"id": 1, "result": {}}', None),
        (b"[]", None),
    ],
)
def test_other_messages(message: bytes, answer: int | None):
    given = McpStub(STUBS).answer(message)
    assert (codec.decode(given)["error"]["code"] if given is not None else None) == answer


def test_a_batch_is_answered_as_one():
    body = b'[{"id": 1, "method": "ping"}, {"method": "notifications/x"}, {"id": 2, "method": "prompts/list"}]'
    answers = codec.decode(McpStub(()).answer(body) or b"")
    assert [each["result"] for each in answers] == [{}, {"prompts": []}]


def test_the_public_server_speaks_http_and_stdio():
    with McpServer({"lookup": "Rome"}) as server:
        assert call_tool(server.url, "lookup", id=7)["content"][0]["text"] == "Rome"
        lines = b'{"id": 1, "method": "tools/list"}\n\n{"method": "notifications/initialized"}\n{"id": 2, "method": "ping"}\n'
        spoken = subprocess.run(server.command, input=lines, capture_output=True, check=True).stdout.splitlines()
    assert [codec.decode(line)["id"] for line in spoken] == [1, 2]
    assert server.calls == [ToolCall("lookup", {"id": 7}, result="Rome")]
    assert server.is_used


# Agents


def converse(agent: Agent, fixtures: Fixtures | None, *output: str) -> tuple[list[Reply], CallProgress]:
    progress = CallProgress()

    async def scenario() -> list[Reply]:
        http = HttpTransport()
        try:
            context = SessionContext(
                key=Key("s", "c"), meter=lambda _: None, http=http, progress=progress, fixtures=fixtures
            )
            async with StubbedAgent(agent).open(context) as session:
                return [await session.send(Message("user", line), {}) for line in output or ("go",)]
        finally:
            await http.close()

    return asyncio.run(scenario()), progress


def test_calls_are_recorded_in_the_turn_that_made_them():
    def agent(messages: list[Any], options: Any) -> str:
        return str(call_tool(options["mcp_url"], "lookup", turn=len(messages))["content"][0]["text"])

    (first, second), progress = converse(PythonAgent(agent), Fixtures(STUBS), "a", "b")
    assert (first.content, second.content) == ('{"city":"Rome"}', "gone")
    assert first.tool_calls == (ToolCall("lookup", {"turn": 1}, result={"city": "Rome"}),)
    assert second.tool_calls == (ToolCall("lookup", {"turn": 3}, result="gone"),)
    assert progress.warnings == []


def test_a_function_gives_the_result():
    def double(n: int) -> dict[str, int]:
        return {"n": 2 * n}

    async def wait() -> None: ...

    def agent(_messages: list[Any], options: Any) -> str:
        answers = [call_tool(options["mcp_url"], "double", **arguments) for arguments in ({"n": 2}, {"m": 2})]
        assert [answer["isError"] for answer in answers] == [False, True]
        assert "cannot answer a tool" in call_tool(options["mcp_url"], "wait")["content"][0]["text"]
        return str(answers[0]["structuredContent"]["n"])

    (reply,), _ = converse(PythonAgent(agent), Fixtures((ToolStub("double", double), ToolStub("wait", wait))))
    assert reply.content == "4"
    assert reply.tool_calls[0] == ToolCall("double", {"n": 2}, result={"n": 4})
    assert "unexpected keyword argument 'm'" in str(reply.tool_calls[1].error)


@pytest.mark.parametrize("name", ["lookup", "viva_lookup", "mcp_viva_lookup", "mcp__viva__lookup", "viva.lookup"])
def test_a_call_that_the_agent_reports_itself_is_there_once_by_its_bare_name(name: str):
    def agent(messages: list[Any], options: Any) -> Any:
        call_tool(options["mcp_url"], "lookup", id=7)
        return {"content": "x", "tool_calls": [{"id": "c1", "name": name, "arguments": {"id": 7}}, {"name": "bash"}]}

    (reply,), _ = converse(PythonAgent(agent), Fixtures(STUBS))
    assert [call.name for call in reply.tool_calls] == ["lookup", "bash"]


def test_calls_of_a_turn_that_fails_are_kept():  # N16
    def agent(messages: list[Any], options: Any) -> str:
        call_tool(options["mcp_url"], "pay")
        raise RuntimeError("broken")

    progress = CallProgress()

    async def scenario() -> None:
        context = SessionContext(
            key=Key("s", "c"),
            meter=lambda _: None,
            http=HttpTransport(),
            progress=progress,
            fixtures=Fixtures(STUBS),
        )
        async with StubbedAgent(PythonAgent(agent)).open(context) as session:
            await session.send(Message("user", "go"), {})

    with pytest.raises(AgentFailed, match="broken"):
        asyncio.run(scenario())
    assert progress.partial is not None
    assert progress.partial.tool_calls == (ToolCall("pay", {}, error="declined"),)


def test_an_agent_that_never_asks_for_its_tools_is_a_warning():
    _, progress = converse(PythonAgent(lambda messages: "no tools"), Fixtures(STUBS), "a", "b")
    (warning,) = progress.warnings
    assert "`fixtures.tools` have no effect" in warning


def test_without_canned_tools_there_is_no_server():
    def agent(messages: list[Any], options: Any) -> str:
        return str("mcp_url" in options)

    assert [reply.content for reply in converse(PythonAgent(agent), None)[0]] == ["False"]
    assert StubbedAgent(PythonAgent(agent)).provides == {"workspace", "tool_stubs"}


def test_an_http_agent_gets_the_address_by_its_template():
    with HttpServer(lambda request: json_response(call_tool(request.json["mcp"], "lookup"))) as server:
        body = {"mcp": "{{mcp_url}}"}
        agent = HttpAgent(url=server.url, body=body, mcp_stub=True, content="$.content[0].text", retries=0)
        (reply,), _ = converse(agent, Fixtures(STUBS))
    assert (reply.content, len(reply.tool_calls)) == ('{"city":"Rome"}', 1)
    with pytest.raises(ValueError, match=r"mcp_stub needs \{\{mcp_url\}\}"):
        HttpAgent(url="http://x", mcp_stub=True)


def test_each_cli_gets_the_server_in_its_own_config():
    env = {"VIVA_MCP_URL": "http://m/mcp"}
    request = TurnRequest(prompt="Hi", env=env, approval="bypass")
    assert 'mcp_servers.viva.url="http://m/mcp"' in CODEX.build_argv(request)
    argv = CLAUDE.build_argv(request)
    config = json.loads(argv[argv.index("--mcp-config") + 1])
    assert config["mcpServers"]["viva"] == {"type": "http", "url": "http://m/mcp"}
    settings = json.loads(QWEN.build_home_files(env)[".qwen/settings.json"])
    assert settings["mcpServers"]["viva"]["httpUrl"] == "http://m/mcp"


@pytest.mark.parametrize("speaks_http", [True, False])
def test_an_acp_agent_gets_the_server_over_http_or_stdio(speaks_http: bool):
    initialized = {"agentCapabilities": {"mcpCapabilities": {"http": speaks_http}}}
    (server,) = _list_mcp_servers("http://m/mcp", initialized)
    assert server.get("url") == ("http://m/mcp" if speaks_http else None)
    assert server.get("args") == (None if speaks_http else ["-I", str(BRIDGE), "http://m/mcp"])
    assert _list_mcp_servers("", initialized) == []
