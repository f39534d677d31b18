"""A request is carried out as a whole or refused: settings of the agent, baselines, framing, names of the host."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from running_host import ACME, ECHO, SUITE, Client, build_suite, golden_task, run_host, write_project
from viva.testing import OpenAIServer, ReceivedRequest

CHAT, BARE, PROMPT = "local.viva.chat", "local.viva.bare", "local.viva.summary"
AGENTS = """
[connectors.model]
base_url = "{url}"
model = "small"
models = ["large-*"]
max_tokens = 500

[agents.chat]
type = "chat"
connector = "model"
system_file = "system.md"

[agents.bare]
type = "chat"
connector = "model"

[agents.summary]
type = "prompt"
prompt = "prompt.md"
connector = "model"

"""
EVAL = {"mode": "eval", "evalSuiteRef": SUITE, "agentId": CHAT}
ASK = {"workflowId": "viva.agent", "agentId": CHAT, "inputs": {"input": "hello"}}


@pytest.fixture(scope="module")
def bodies() -> list[dict[str, Any]]:
    """What the model was asked."""
    return []


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, bodies: list[dict[str, Any]]) -> Iterator[Client]:
    def answer(asked: ReceivedRequest) -> str:
        bodies.append(json.loads(asked.body))
        return "hello"

    folder: Path = tmp_path_factory.mktemp("host")
    write_project(folder, build_suite("shadow", golden_task("one", "hello", "hello"), modes=("golden", "regression", "live-shadow")))  # fmt: skip
    (folder / "system.md").write_text("You are from the file.")
    (folder / "prompt.md").write_text("Summarise.")
    with OpenAIServer(answer) as model:
        config = (folder / "viva.toml").read_text()
        agents = AGENTS.replace("{url}", model.url)
        (folder / "viva.toml").write_text(config.replace("\n[openwop]\n", agents + "\n[openwop]\n"))
        with run_host(folder) as client:
            yield client


SETTINGS: dict[str, Any] = {
    "model": "large-2",
    "temperature": 0.25,
    "maxTokens": 77,
    "promptOverrides": {"system": "You are overridden."},
}


def test_settings_reach_the_model_and_the_record(client: Client, bodies: list[dict[str, Any]]):  # W7
    for body in ({**EVAL, "configurable": SETTINGS}, {**ASK, "configurable": SETTINGS}):
        bodies.clear()
        created = client.post("/v1/runs", body)
        assert created.status == 201, created
        events = client.wait_for_events(created.json["runId"])
        assert events[-1]["type"] == "run.completed"
        assert client.get(f"/v1/runs/{created.json['runId']}").json["configurable"] == SETTINGS
        assert len(bodies) == (2 if body["agentId"] == CHAT and "mode" in body else 1)
        for sent in bodies:
            assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("large-2", 0.25, 77)
            assert sent["messages"][0] == {"role": "system", "content": "You are overridden."}
        usage = next(event["payload"] for event in events if event["type"] == "provider.usage")
        assert usage["model"] == "large-2"


def test_other_runs_keep_the_settings_of_the_config(client: Client, bodies: list[dict[str, Any]]):
    bodies.clear()
    client.wait_for_events(client.post("/v1/runs", ASK).json["runId"])
    (sent,) = bodies
    assert (sent["model"], sent["max_tokens"], "temperature" in sent) == ("small", 500, False)
    assert sent["messages"][0]["content"] == "You are from the file."


@pytest.mark.parametrize(
    ("agent", "configurable", "field"),
    [
        (ECHO, {"model": "large-2"}, "model"),
        (ECHO, {"temperature": 0.5}, "temperature"),
        (ECHO, {"promptOverrides": {"system": "x"}}, "promptOverrides"),
        (ECHO, {"seed": 1}, "seed"),
        (CHAT, {"recursionLimit": 5}, "recursionLimit"),
        (CHAT, {"model": "expensive"}, "model"),
        (CHAT, {"maxTokens": 501}, "maxTokens"),
        (CHAT, {"promptOverrides": {"other": "x"}}, "promptOverrides.other"),
        (PROMPT, {"promptOverrides": {"system": "x"}}, "promptOverrides.system"),
        (CHAT, {"temperature": 0.5, "say hello": 1}, "unknown"),
    ],
)
def test_what_the_agent_cannot_take_is_refused(client: Client, agent: str, configurable: Any, field: str):  # W7
    for body in ({**EVAL, "agentId": agent}, {**ASK, "agentId": agent}):
        refused = client.post("/v1/runs", {**body, "configurable": configurable})
        assert (refused.status, refused.json["error"]) == (400, "validation_error")
        assert refused.json["details"]["field"] == f"configurable.{field}"


def test_a_workflow_without_an_agent_takes_no_settings(client: Client):  # W7
    refused = client.post("/v1/runs", {"workflowId": "conformance-noop", "configurable": {"temperature": 1}})
    assert (refused.status, refused.json["details"]["field"]) == (400, "configurable.temperature")


def test_an_agent_without_a_system_prompt_gets_one(client: Client, bodies: list[dict[str, Any]]):
    bodies.clear()
    body = {**ASK, "agentId": BARE, "configurable": {"promptOverrides": {"system": "Be short."}}}
    client.wait_for_events(client.post("/v1/runs", body).json["runId"])
    assert bodies[0]["messages"][0]["content"] == "Be short."


def test_live_shadow_is_requested_by_name_and_is_not_a_baseline(client: Client):  # W2 W7
    ref = "acme.evals.shadow@1.0.0"
    unnamed = client.start_eval(ref, ECHO)
    assert (unnamed.status, unnamed.json["details"]["declared"]) == (400, ["golden", "regression", "live-shadow"])
    live, _ = client.run_eval(ref, ECHO, evalModes=["live-shadow"])
    stubbed, _ = client.run_eval(ref, ECHO, evalModes=["golden"])
    compare = {"evalModes": ["golden", "regression"]}
    refused = client.start_eval(ref, ECHO, **compare, baselineRunId=live)
    assert (refused.status, refused.json["details"]["field"]) == (400, "configurable.baselineRunId")
    assert client.start_eval(ref, ECHO, **compare, baselineRunId=stubbed).status == 201


@pytest.mark.parametrize("body", [
    b'{"workflowId":"conformance-noop","workflowId":"conformance-noop"}',
    b'{"workflowId":"conformance-noop","metadata":{"a":{"b":1,"b":2}}}',
    b'{"workflowId":"conformance-noop","metadata":{"a":[{"b":1,"\\u0062":2}]}}',
])  # fmt: skip
def test_a_key_that_stands_twice_is_refused(client: Client, body: bytes):
    refused = client.post("/v1/runs", body)
    assert (refused.status, refused.json["error"]) == (400, "validation_error")


def exchange(port: int, head: str, body: bytes = b"") -> bytes:
    """Sends bytes as they are; returns all that comes back until the host closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + body)
        received = b""
        while part := connection.recv(65536):
            received += part
    return received


FRAMED = """POST /v1/runs HTTP/1.1
Host: 127.0.0.1
Authorization: Bearer {token}
Content-Type: application/json
{lines}

"""


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ("Content-Length: 5\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
        ("Content-Length: 2\nContent-Encoding: gzip", b"{}"),
        ("Content-Length: 2\nContent-Encoding: br, identity", b"{}"),
        ("Content-Length: 2\nContent-Encoding: identity\nContent-Encoding: gzip", b"{}"),
        ("Content-Length: 2\nContent-Length: 3", b"{}"),
        ("Transfer-Encoding: gzip, chunked", b"0\r\n\r\n"),
        ("Content-Length: 2\nAuthorization: Bearer another", b"{}"),
    ],
)
def test_a_request_with_two_meanings_is_refused_and_its_connection_closed(client: Client, lines: str, body: bytes):
    answer = exchange(client.port, FRAMED.format(token=ACME, lines=lines), body)
    assert answer.split()[1] in (b"400", b"501")
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "[", "169.254.169.254"])  # fmt: skip
def test_a_foreign_host_header_is_refused(client: Client, name: str):
    """A page of another site whose name points to this address cannot use it."""
    refused = client.send("GET", "/.well-known/openwop", headers={"Host": name})
    assert (refused.status, refused.json["details"]["field"]) == (400, "Host")


def test_names_of_this_machine_are_accepted(client: Client):
    for name in ("localhost", f"127.0.0.1:{client.port}", "LOCALHOST:1", "[::1]:80"):
        assert client.send("GET", "/v1/agents", headers={"Host": name}).status == 200
