"""Agents that speak A2A and AG-UI, and the stub MCP server, against peers made with the protocols' own SDKs."""

import asyncio
import json
import subprocess
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from real_protocols import FOLDER, find_python, run_server
from viva.agents.a2a import A2aAgent
from viva.agents.agui import AguiAgent
from viva.agents.remote_config import RemoteEndpoint
from viva.awaiting.detector import detect_awaiting
from viva.errors import AgentFailed
from viva.llm.transport import HttpTransport
from viva.model.case import Key, ToolStub, WorkspaceSpec
from viva.model.message import File, Message, ModelCall, Reply, Text, ToolCall
from viva.model.progress import CallProgress
from viva.protocols import Agent, Meter, SessionContext
from viva.testing import McpServer
from viva.workspace.folders import LocalWorkspaces

A2A = ["/rpc", "/rest", "/rpc-old", "/rest-old", "/rpc-whole", "/rest-whole"]


@pytest.fixture(scope="module")
def server() -> Generator[str]:
    with run_server() as origin:
        yield origin


def converse(agent: Agent, *output: str | Message, meter: Meter = lambda _: None, **context: Any) -> list[Reply]:
    async def scenario() -> list[Reply]:
        http = HttpTransport()
        try:
            opened = SessionContext(key=Key("s", "c"), meter=meter, http=http, **context)
            async with agent.open(opened) as session:
                return [
                    await session.send(Message("user", line) if isinstance(line, str) else line, {}) for line in output
                ]
        finally:
            await http.close()

    return asyncio.run(scenario())


def travel(server: str, path: str, **fields: Any) -> A2aAgent:
    return A2aAgent(endpoint=RemoteEndpoint(url=server + path, retries=0), **fields)


# A2A


@pytest.mark.parametrize("path", A2A)
def test_an_a2a_agent_answers_by_a_message(server: str, path: str):
    (reply,) = converse(travel(server, path), "hello")
    assert (reply.content, reply.protocol_state, reply.declared_state) == ("Heard: hello", None, None)
    assert (reply.first_token_ms is None) == ("whole" in path)


@pytest.mark.parametrize("path", A2A)
def test_a_task_continues_until_it_is_completed(server: str, path: str):  # N15, N22
    first, second, third = converse(travel(server, path), "book", "May 5", "hello again")
    assert first.parts == ("Flights: AB1, AB2.", "Which date?")
    assert (first.protocol_state, first.input_hint) == ("input-required", "Which date?")
    assert (detect_awaiting(first).is_awaiting, detect_awaiting(first).reason) == (True, "protocol_state")
    assert second.parts == ("Booked for May 5.", "Have a good flight.")
    data, file = second.data
    assert data == {"flight": "AB1", "seats": 2}
    assert (file["name"], file["media_type"]) == ("../ticket.pdf", "application/pdf")
    assert (second.protocol_state, second.declared_state) == ("completed", "done")
    assert third.content == "Heard: hello again"


@pytest.mark.parametrize("path", A2A)
def test_other_states_of_a_task(server: str, path: str):  # N17, N22
    (reply,) = converse(travel(server, path), "login")
    assert (reply.content, reply.protocol_state) == ("Please log in.", "auth-required")
    assert detect_awaiting(reply).is_awaiting
    with pytest.raises(AgentFailed, match="ended as failed: No such flight"):
        converse(travel(server, path), "fail")


@pytest.mark.parametrize("path", A2A)
def test_parts_that_are_not_text_arrive(server: str, path: str):
    file = File("a.txt", "a.txt", "text/plain", "data:text/plain;base64,aGk=")
    (reply,) = converse(travel(server, path), Message("user", (Text("hello"), file), data={"n": 1}))
    assert reply.content == "Heard: hello | a part | a part"


def test_a_completed_task_may_be_one_turn_of_many(server: str):
    _, second = converse(travel(server, "/rpc", task_per_turn=True), "book", "May 5")
    assert (second.declared_state, second.protocol_state) == (None, None)


def test_files_of_artifacts_are_in_the_workspace(server: str, tmp_path: Path):
    async def scenario() -> bytes:
        http = HttpTransport()
        async with LocalWorkspaces(str(tmp_path))(WorkspaceSpec("empty"), Key("s", "c")) as workspace:
            context = SessionContext(key=Key("s", "c"), meter=lambda _: None, http=http, workspace=workspace)
            async with travel(server, "/rest").open(context) as session:
                for line in ("book", "May 5"):
                    await session.send(Message("user", line), {})
            await http.close()
            return Path(workspace.path, "ticket.pdf").read_bytes()

    assert asyncio.run(scenario()) == b"PDF"


def test_a_history_comes_with_the_first_message(server: str):  # N5
    history = (Message("user", "I am Ann."), Message("assistant", "hello Ann"))
    first, second = converse(travel(server, "/rpc"), "who am I?", "hello", history=history)
    assert "user: I am Ann." in first.content
    assert second.content == "Heard: hello"


@pytest.mark.parametrize("path", ["/rpc", "/rest", "/rpc-old", "/rest-old"])
def test_a_task_that_is_cut_off_is_canceled(server: str, path: str):  # N18
    progress = CallProgress()

    async def scenario() -> None:
        http = HttpTransport()
        context = SessionContext(key=Key("s", "c"), meter=lambda _: None, http=http, progress=progress)
        async with travel(server, path).open(context) as session:
            call = asyncio.ensure_future(session.send(Message("user", "slow"), {}))
            while session._reader is None or session._reader.state != "working":
                await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.wait([call])
        await http.close()

    before = read_list(server, "/canceled")
    asyncio.run(scenario())
    assert len(read_list(server, "/canceled")) == len(before) + 1
    assert progress.partial is not None
    assert progress.partial.protocol_state == "working"


def read_list(server: str, path: str) -> list[str]:
    with urllib.request.urlopen(server + path) as answer:
        return json.load(answer)


@pytest.mark.parametrize("path", ["/rpc-push", "/rest-push"])
def test_push_notifications_are_never_asked_for(server: str, path: str):  # N22
    with urllib.request.urlopen(f"{server}{path}/.well-known/agent-card.json") as answer:
        assert json.load(answer)["capabilities"]["pushNotifications"]
    before = read_list(server, "/push-configs")
    first, second = converse(travel(server, path), "book", "May 5")
    assert (first.protocol_state, second.declared_state) == ("input-required", "done")
    assert read_list(server, "/push-configs") == before


def test_the_server_notes_a_client_that_asks_for_push_notifications(server: str):
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "book"}]}
    asked = {"message": message, "configuration": {"taskPushNotificationConfig": {"url": "http://127.0.0.1:9/"}}}
    headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
    request = urllib.request.Request(f"{server}/rest-push/message:send", json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer)["task"]["id"] in read_list(server, "/push-configs")


# AG-UI


def test_an_agui_run_has_text_tools_state_and_an_interrupt_that_is_resumed(server: str):  # N22
    calls: list[ModelCall] = []
    agent = AguiAgent(endpoint=RemoteEndpoint(url=f"{server}/agui", retries=0))
    first, second = converse(agent, "go", "yes", meter=calls.append)
    assert first.first_token_ms is not None
    assert structs.replace(first, first_token_ms=None) == Reply(
        "Let me see.\nShall I book AB1?",
        data={"flight": "AB1"},
        tool_calls=(ToolCall("search", {"to": "Rome"}, "c1", "AB1"),),
        input_hint="Book it?",
        protocol_state="input-required",
        calls=(ModelCall("m", "openai", 7, 3),),
        parts=("Let me see.", "Shall I book AB1?"),
    )
    assert detect_awaiting(first).is_awaiting
    assert second.content == 'Resumed with ["yes"]; 4 messages.'
    assert second.data == {"flight": "AB1", "booked": True}
    assert calls == [ModelCall("m", "openai", 7, 3)]


def test_an_agui_run_may_end_with_a_result_or_an_error(server: str):  # N17
    agent = AguiAgent(endpoint=RemoteEndpoint(url=f"{server}/agui", retries=0))
    (reply,) = converse(agent, "stop")
    assert (reply.data, reply.protocol_state) == ({"found": 1}, None)
    with pytest.raises(AgentFailed, match="no such flight"):
        converse(agent, "fail")


# MCP


@pytest.mark.parametrize("transport", ["http", "stdio"])
def test_a_client_of_the_mcp_sdk_uses_the_stub_server(transport: str):
    with McpServer([ToolStub("lookup", {"city": "Rome"}), ToolStub("pay", error="declined")]) as server:
        words = [server.url] if transport == "http" else server.command
        client = [str(find_python()), str(FOLDER / "mcp_client.py"), *words]
        shown = subprocess.run(client, capture_output=True, check=True, text=True).stdout
    assert json.loads(shown) == [["lookup", '{"city":"Rome"}', False], ["pay", "declined", True]]
    assert server.calls == [
        ToolCall("lookup", {"n": 1}, result={"city": "Rome"}),
        ToolCall("pay", {"n": 1}, error="declined"),
    ]
