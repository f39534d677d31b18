"""Malformed requests: each gets an error envelope, none breaks the host, and none appears in its log."""

import http.client
import json
import re
import socket
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from running_host import ACME, ECHO, Client, build_suite, free_port, golden_task, run_host, start_host, write_project

NOOP = {"workflowId": "conformance-noop"}
ASK = {"workflowId": "viva.agent", "agentId": ECHO}
STUBBED = golden_task("stubbed", "x", "y", fixtures={"toolResponses": [{"tool": "a:b", "response": 1}]})
LOST = '\n[agents.lost]\nuse = "python:./lost.py:agent"\n'
RAISING = '\n[agents.raising]\nuse = "python:./raising.py:agent"\n'


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("host")
    write_project(folder, build_suite("fixed", STUBBED))
    (folder / "raising.py").write_text('raise RuntimeError("IMPORTMARKER")\n')
    config = (folder / "viva.toml").read_text()
    (folder / "viva.toml").write_text(config.replace("\n[openwop]\n", LOST + RAISING + "\n[openwop]\n"))
    with run_host(folder) as client:
        yield client


@pytest.fixture(scope="module")
def done(client: Client) -> tuple[str, list[dict[str, Any]]]:
    """A finished eval with more than ten events."""
    run, events = client.run_eval()
    assert len(events) > 10
    return run, events


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("last", ["--5", "-", "9" * 5000, "1_0", "0x1", "²"])
def test_an_invalid_last_event_id_is_refused(client: Client, done: tuple[str, Any], last: str):
    refused = client.get(f"/v1/runs/{done[0]}/events", last_event_id=last)
    assert (refused.status, refused.json["details"]) == (400, {"field": "Last-Event-ID"})


def test_a_negative_last_event_id_means_the_start(client: Client, done: tuple[str, list[dict[str, Any]]]):
    """It does not count from the end."""
    received = [json.loads(frame["data"]) for frame in client.read_stream(done[0], "?streamMode=debug", last="-7")]
    assert received == done[1]


@pytest.mark.parametrize("number", ["1_0", "%201", "1%20", "%D9%A1", "+1", "", "9" * 5000])
def test_numbers_must_be_ascii_digits(client: Client, done: tuple[str, Any], number: str):
    for query in (f"events/poll?lastSequence={number}", f"events/poll?timeout={number}", f"events?bufferMs={number}"):
        refused = client.get(f"/v1/runs/{done[0]}/{query}")
        assert (refused.status, refused.json["error"]) == (400, "validation_error")


@pytest.mark.parametrize(
    "body",
    [
        b'{"workflowId":"\xff\xfe"}',
        b'{"workflowId":"conformance-noop","metadata":{"a":"\\ud800"}}',
        b'{"workflowId":"conformance-noop","metadata":{"a":NaN}}',
        b'{"workflowId":"conformance-noop","metadata":{"a":1e999}}',
        b"[" * 100_000,
        json.dumps({**NOOP, "metadata": {"a": deep(101)}}).encode(),
        json.dumps({**ASK, "inputs": {"input": deep(500)}}).encode(),
    ],
    ids=["bytes", "surrogate", "nan", "infinite", "unclosed", "deep metadata", "deep input"],
)
def test_a_body_that_is_not_json_or_too_deep_is_refused(client: Client, done: tuple[str, Any], body: bytes):
    for path in ("/v1/runs", f"/v1/runs/{done[0]}/annotations", f"/v1/runs/{done[0]}/cancel"):
        refused = client.post(path, body)
        assert (refused.status, refused.json["error"]) == (400, "validation_error")


def test_a_body_of_moderate_depth_is_accepted(client: Client):
    run = client.post("/v1/runs", {**NOOP, "metadata": {"a": deep(90)}}).json["runId"]
    assert client.get(f"/v1/runs/{run}").json["metadata"] == {"a": deep(90)}


@pytest.mark.parametrize("origin", ["http://[", "null", "", "file://", "http://127.0.0.1:1"])
def test_other_origins_are_refused(client: Client, origin: str):
    assert client.get("/v1/agents", origin=origin).status == 403


@pytest.mark.parametrize("path", ["/v1/runs/%00", "/v1/runs/%ff%fe", "/v1/runs/..%2f..%2fetc%2fpasswd", "/v1/runs/../../etc/passwd",
                                  "//v1/agents", "/v1/agents/", "/v1/agents/%ed%a0%80", "/v1/runs/x:other"])  # fmt: skip
def test_an_unknown_path_is_not_found(client: Client, path: str):
    assert client.with_token(None).get(path).status == 401
    assert client.get(path).status == 404


def test_links_use_the_configured_public_url(client: Client):
    created = client.send("POST", "/v1/runs", NOOP, {"X-Forwarded-Host": "evil.example"}).json
    assert created["eventsUrl"].startswith(f"http://127.0.0.1:{client.port}/")
    assert b"evil" not in client.get(f"/v1/runs/{created['runId']}").raw


def test_head_of_a_stream_is_answered_at_once(client: Client):
    """Also for a run in progress."""
    run = client.start_eval(agent="local.viva.hang").json["runId"]
    for path in (f"/v1/runs/{run}/events", f"/v1/runs/{run}", "/.well-known/openwop"):
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=300)
        connection.request("HEAD", path, headers={"Authorization": f"Bearer {ACME}"})
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"")
        connection.close()
    client.post(f"/v1/runs/{run}/cancel", {})
    client.wait_for_events(run)


def test_a_second_cancel_does_not_interrupt_the_clean_up(client: Client):
    run = client.start_eval(agent="local.viva.hang").json["runId"]
    for _ in range(3):
        response = client.post(f"/v1/runs/{run}/cancel", {})
        assert (response.status, response.json["status"] in ("cancelling", "cancelled")) == (200, True)
    assert [event["type"] for event in client.wait_for_events(run)].count("run.cancelled") == 1


@pytest.mark.parametrize("agent", ["local.viva.lost", "local.viva.raising"])
def test_an_agent_that_cannot_be_opened_is_refused_without_details(client: Client, agent: str):
    for ref in ("acme.evals.basic@1.0.0", "acme.evals.fixed@1.0.0"):
        refused = client.start_eval(ref, agent)
        assert (refused.status, refused.json["details"]) == (400, {"field": "agentId"})
        assert b"MARKER" not in refused.raw
    ended = client.wait_for_events(
        client.post("/v1/runs", {**ASK, "agentId": agent, "inputs": {"input": "x"}}).json["runId"]
    )
    assert ended[-1]["payload"]["error"] == {"code": "agent_gone", "message": "The agent cannot be opened"}


def test_the_agent_workflow_can_be_read(client: Client):
    assert client.get("/v1/workflows/viva.agent").json["nodes"][0]["typeId"] == "viva.agent"


def test_an_internal_error_is_logged_without_content(tmp_path: Path):
    """Neither the response nor the log has the message. A client that disconnects is not an error."""  # R14
    write_project(tmp_path)
    with start_host(tmp_path, free_port()) as (client, process):
        run = client.post("/v1/runs", NOOP).json["runId"]
        client.wait_for_events(run)
        with sqlite3.connect(tmp_path / ".viva" / "host" / "host.sqlite") as stored:
            stored.execute("DROP TABLE annotations")
        stored.close()
        broken = client.get(f"/v1/runs/{run}/annotations")
        with socket.create_connection(("127.0.0.1", client.port)) as gone:
            head = f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ACME}\r\nContent-Length: 99\r\n\r\n"
            gone.sendall(head.encode() + b"{")
        assert client.get(f"/v1/runs/{run}").status == 200
        process.terminate()
        printed = process.communicate(timeout=300)[0]
    assert (broken.status, broken.json["error"]) == (500, "internal_error")
    assert b"table" not in broken.raw
    number = broken.json["details"]["correlationId"]
    assert re.findall(r"^request (\w+): (\w+)$", printed, re.MULTILINE) == [(number, "OperationalError")]
    assert "Traceback" not in printed
    assert "no such table" not in printed


def test_annotations_have_limits(tmp_path: Path, shorten: Callable[[str, float], None]):  # 20.3
    """A list of them is one response."""
    shorten("viva.host.routes.MAX_ANNOTATIONS", 3)
    write_project(tmp_path)
    with run_host(tmp_path) as client:
        run, _ = client.run_eval()
        path, flag = f"/v1/runs/{run}/annotations", {"kind": "flag"}
        long = client.post(path, {"signal": flag, "note": "x" * 10_001})
        assert (long.status, long.json["details"]["field"]) == (400, "note")
        answers = [client.post(path, {"signal": flag}, key=f"note-{number}") for number in range(4)]
        assert [answer.status for answer in answers] == [201, 201, 201, 409]
        assert answers[-1].json["error"] == "too_many_annotations"
        assert client.post(path, {"signal": flag}, key="note-0").json == answers[0].json
        assert len(client.get(path).json["annotations"]) == 3


def test_a_large_body_is_validated_as_a_small_one(client: Client):
    for body in (b'{"workflowId": "x", "workflowId": "y", "inputs": {"input": "%b"}}', b'{"inputs": {"input": "%b"}}'):
        assert client.send("POST", "/v1/runs", body % (b"x" * 200_000)).status == 400
    assert client.post("/v1/runs", {"workflowId": "conformance-noop", "inputs": {"x": "x" * 200_000}}).status == 201
