"""The HTTP API of a host by endpoint and status: section 3 of the OpenWOP specification."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from running_host import (
    ACME,
    ECHO,
    OTHER,
    OUTCOMES,
    READER,
    SUITE,
    Client,
    check_schema,
    event_types,
    parse_frames,
    run_host,
    write_project,
)
from viva.host.server import UNSUPPORTED_PATHS

NOOP = {"workflowId": "conformance-noop"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("host")
    write_project(folder)
    with run_host(folder) as client:
        yield client


@pytest.fixture(scope="module")
def done(client: Client) -> tuple[str, list[dict[str, Any]]]:
    """A finished run and its events."""
    run = client.post("/v1/runs", NOOP).json["runId"]
    return run, client.wait_for_events(run)


def test_discovery_is_public_accurate_and_cacheable(client: Client):
    response = client.with_token(None).get("/.well-known/openwop")
    assert response.status == 200
    assert response.headers["cache-control"]
    document = response.json
    assert document["fixtures"] == ["conformance-noop", "conformance-idempotent"]
    assert document["agents"]["liveRuntime"] == {"supported": True, "structuredOutput": True, "sources": ["run-api"]}
    assert document["agents"]["manifestRuntime"]["supported"] is True
    assert document["feedback"]["supported"] is document["providerUsage"]["supported"] is True
    for absent in ("budget", "webhooks", "prompts", "interrupt", "capabilities", "secrets", "conversationPrimitive"):
        assert absent not in document
    for absent in ("deployment", "supported", "roster", "dispatch", "confidenceEscalation"):
        assert absent not in document["agents"]
    again = client.with_token(None).get("/.well-known/openwop", if_none_match=response.headers["etag"])
    assert (again.status, again.headers["etag"]) == (304, response.headers["etag"])
    assert client.with_token(None).get("/.well-known/openwop", if_none_match='"other"').status == 200


def test_the_openapi_document_is_public(client: Client):
    response = client.with_token(None).get("/v1/openapi.json")
    assert response.status == 200
    assert re.match(r"3\.[1-9]", response.json["openapi"])


PATHS = ["/v1/runs/x", "/v1/runs/x/events", "/v1/runs/x/events/poll", "/v1/runs/x/eval-summary", "/v1/runs/x:diff",
         "/v1/runs/x/annotations", "/v1/agents", "/v1/agents/x", "/v1/workflows/x", "/v1/nothing", "/"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_all_other_paths_need_a_valid_token(client: Client, path: str):
    """The same response for no token, a wrong one, and another scheme."""
    missing, wrong = client.with_token(None).get(path), client.with_token("nobodys-token").get(path)
    basic = client.with_token(None).get(path, authorization=f"Basic {ACME}")
    for response in (missing, wrong, basic):
        assert response.status == 401
        assert response.json["error"] == "unauthenticated"
        assert response.raw == missing.raw
        assert response.headers["www-authenticate"] == "Bearer"


def test_creating_a_run_needs_a_token(client: Client):
    assert client.with_token(None).post("/v1/runs", NOOP).status == 401
    assert client.with_token("hk_not_a_real_key").post("/v1/runs", NOOP).status == 401


def test_a_noop_workflow_is_created_and_completes(client: Client):
    created = client.post("/v1/runs", NOOP)
    assert created.status == 201
    run = created.json["runId"]
    events = client.wait_for_events(run)
    assert event_types(events) == ["run.started", "node.started", "node.completed", "run.completed"]
    snapshot = client.get(f"/v1/runs/{run}")
    assert (snapshot.status, snapshot.json["status"], snapshot.json["runId"]) == (200, "completed", run)
    assert snapshot.json["owner"]["tenant"] == "acme"
    assert client.get(f"/v1/runs/{run}", if_none_match=snapshot.headers["etag"]).status == 304


def test_tags_and_metadata_are_returned(client: Client):
    created = client.post("/v1/runs", {**NOOP, "tags": ["a"], "metadata": {"b": 1}, "tenantId": "acme"})
    shown = client.get(f"/v1/runs/{created.json['runId']}").json
    assert (shown["tags"], shown["metadata"]) == (["a"], {"b": 1})


BAD: list[tuple[Any, str | None]] = [
    ({}, "workflowId"),
    (b"", "workflowId"),
    (b"{", None),
    ([], None),
    ({**NOOP, "baselineRunId": "x"}, None),
    ({"workflowId": "nobody-has-that"}, "workflowId"),
    ({"workflowId": "conformance-idempotent"}, "inputs"),
    ({"mode": "other", "workflowId": "conformance-noop"}, "mode"),
    ({**NOOP, "tags": [""]}, "tags.0"),
    ({**NOOP, "configurable": {"temperature": 9}}, "configurable.temperature"),
    ({**NOOP, "metadata": {"long": "x" * 60000}}, "metadata"),
    ({"workflowId": "viva.agent", "inputs": {"input": "x"}}, "agentId"),
    ({"workflowId": "viva.agent", "agentId": ECHO}, "inputs.input"),
    ({"workflowId": "viva.agent", "agentId": ECHO, "inputs": {"messages": [{"role": "assistant", "content": "x"}]}}, "inputs.messages"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "field"), BAD)
def test_an_invalid_request_is_refused_with_its_field(client: Client, body: Any, field: str | None):
    refused = client.post("/v1/runs", body)
    assert (refused.status, refused.json["error"]) == (400, "validation_error")
    if field and field != "inputs.input":
        assert refused.json["details"]["field"] == field


def test_a_token_without_scope_is_forbidden(client: Client, done: tuple[str, Any]):
    reader, other = client.with_token(READER), client.with_token(OTHER)
    run = other.post("/v1/runs", NOOP).json["runId"]
    assert reader.get(f"/v1/runs/{run}").status == 200
    for path, body in (("/v1/runs", NOOP), (f"/v1/runs/{run}/cancel", {}), (f"/v1/runs/{run}/annotations", {"signal": {"kind": "flag"}})):  # fmt: skip
        refused = reader.post(path, body)
        assert (refused.status, refused.json["error"]) == (403, "forbidden")
    assert client.post("/v1/runs", {**NOOP, "tenantId": "other"}).status == 403
    assert client.post("/v1/runs", {**NOOP, "configurable": {"mockProvider": {"id": "x"}}}).status == 403


def test_a_page_of_another_origin_is_refused(client: Client):
    assert client.get("/v1/agents", origin="https://evil.example").status == 403
    assert client.get("/v1/agents", origin=f"http://127.0.0.1:{client.port}").status == 200


def test_a_body_that_is_too_long_is_refused(client: Client):
    assert client.post("/v1/runs", b" " * (1024 * 1024 + 1)).status == 413


def test_unknown_methods_and_paths_use_the_error_envelope(client: Client):
    assert client.send("PUT", "/v1/runs", {}).status == 405
    assert client.get("/v1/runs").status == 405
    assert client.get("/v1/nothing").json["error"] == "not_found"
    assert client.get("/v1/runs/").status == 404


def test_too_many_unfinished_runs_are_refused(tmp_path: Path):
    write_project(tmp_path, serve="max_unfinished = 1")
    with run_host(tmp_path) as client:
        run = client.start_eval(agent="local.viva.hang").json["runId"]
        refused = client.post("/v1/runs", NOOP)
        assert (refused.status, refused.json["error"]) == (429, "rate_limited")
        assert int(refused.headers["retry-after"]) * 1000 == refused.json["details"]["retryAfterMs"] > 0
        assert refused.json["details"]["scope"] == "global"
        client.post(f"/v1/runs/{run}/cancel", {})
        client.wait_for_events(run)
        assert client.post("/v1/runs", NOOP).status == 201


@pytest.mark.parametrize(
    ("capability", "path"), [(name, path) for name, paths in UNSUPPORTED_PATHS.items() for path in paths]
)
def test_unsupported_endpoints_answer_501(client: Client, capability: str, path: str):
    filled = re.sub(r"\{[^}]*\}", "x", path)
    for method in ("GET", "POST"):
        assert client.with_token(None).send(method, filled).status == 401
        refused = client.send(method, filled)
        assert (refused.status, refused.json["error"]) == (501, "capability_not_provided")
        assert refused.json["details"] == {"capability": capability}


def test_unsupported_fields_of_a_run_are_refused(client: Client):
    for more in (
        {"configurable": {"budget": {"maxCostUsd": 1}}},
        {"callbackUrl": "https://x.example/"},
        {"residency": {}},
    ):
        refused = client.post("/v1/runs", {**NOOP, **more})
        assert (refused.status, refused.json["error"]) == (501, "capability_not_provided")


def test_the_same_key_and_body_creates_one_run(client: Client):
    body = {"workflowId": "conformance-idempotent", "inputs": {"nonce": "a"}}
    first, again = client.post("/v1/runs", body, key="same"), client.post("/v1/runs", body, key="same")
    assert (first.status, again.status) == (201, 201)
    assert first.raw == again.raw
    assert first.headers["openwop-idempotent-replay"] == "false"
    assert again.headers["openwop-idempotent-replay"] == "true"


def test_the_same_key_with_another_body_is_a_mismatch(client: Client):
    body = {"workflowId": "conformance-idempotent", "inputs": {"nonce": "a"}}
    assert client.post("/v1/runs", body, key="mismatch").status == 201
    other = client.post("/v1/runs", {**body, "inputs": {"nonce": "b"}}, key="mismatch")
    assert (other.status, other.json["error"]) == (409, "idempotency_key_mismatch")
    assert b"run-" not in other.raw


def test_keys_belong_to_a_tenant_and_an_endpoint(client: Client):
    first = client.post("/v1/runs", NOOP, key="shared").json["runId"]
    assert client.with_token(OTHER).post("/v1/runs", NOOP, key="shared").json["runId"] != first
    assert client.post(f"/v1/runs/{first}/annotations", {"signal": {"kind": "flag"}}, key="shared").status == 201


def test_an_error_is_not_stored_under_its_key(client: Client):
    assert client.post("/v1/runs", {"workflowId": "wrong"}, key="fixed").status == 400
    assert client.with_token("nobody").post("/v1/runs", NOOP, key="fixed").status == 401
    assert client.post("/v1/runs", NOOP, key="fixed").status == 201
    assert client.post("/v1/runs", NOOP, key="k" * 256).status == 400


def test_concurrent_requests_with_one_key_create_one_run(client: Client):
    def create(_: int) -> Any:
        return client.start_eval_with_key("ten")

    with ThreadPoolExecutor(10) as pool:
        responses = list(pool.map(create, range(10)))
    assert {response.status for response in responses} == {201}
    assert len({response.json["runId"] for response in responses}) == 1
    assert [response.headers["openwop-idempotent-replay"] for response in responses].count("false") == 1


def test_concurrent_requests_with_ten_keys_create_ten_runs(client: Client):
    with ThreadPoolExecutor(10) as pool:
        responses = list(pool.map(lambda at: client.post("/v1/runs", NOOP, key=f"each-{at}"), range(10)))
    assert len({response.json["runId"] for response in responses}) == 10


def test_annotations_are_idempotent(client: Client, done: tuple[str, Any]):
    path, body = f"/v1/runs/{done[0]}/annotations", {"signal": {"kind": "label", "label": "once"}}
    first, again = client.post(path, body, key="note"), client.post(path, body, key="note")
    assert first.raw == again.raw
    labels = [each["signal"].get("label") for each in client.get(path).json["annotations"]]
    assert labels.count("once") == 1


def test_the_default_stream_has_updates_and_ends_with_the_run(client: Client):
    run, events = client.run_eval()
    frames = client.read_stream(run)
    shown = [json.loads(frame["data"]) for frame in frames]
    assert [frame["event"] for frame in frames] == event_types(shown)
    assert event_types(shown) == [
        "run.started",
        "eval.started",
        "eval.scored",
        "eval.scored",
        "eval.completed",
        "run.completed",
    ]
    assert [int(frame["id"]) for frame in frames] == [each["sequence"] for each in shown]
    assert all(each in events for each in shown)


def test_debug_streams_all_events_and_messages_none(client: Client):
    run, events = client.run_eval()
    assert [json.loads(frame["data"]) for frame in client.read_stream(run, "?streamMode=debug")] == events
    assert client.read_stream(run, "?streamMode=messages") == []
    both = client.read_stream(run, "?streamMode=updates,debug")
    assert [json.loads(frame["data"]) for frame in both] == events


def test_values_are_snapshots_after_each_event(client: Client):
    run, _ = client.run_eval()
    frames = client.read_stream(run, "?streamMode=values")
    assert {frame["event"] for frame in frames} == {"state.snapshot"}
    statuses = [json.loads(frame["data"])["status"] for frame in frames]
    assert statuses == ["running"] * 5 + ["completed"]
    resumed = client.read_stream(run, "?streamMode=values", last="0")
    assert [json.loads(frame["data"])["status"] for frame in resumed] == ["running"] * 5 + ["completed"]


@pytest.mark.parametrize("mode", ["nothing", "values,updates", "updates,nothing", ""])
def test_an_unknown_stream_mode_is_refused(client: Client, done: tuple[str, Any], mode: str):
    response = client.get(f"/v1/runs/{done[0]}/events?streamMode={mode}")
    if mode:
        assert (response.status, response.json["error"]) == (400, "unsupported_stream_mode")
        assert response.json["details"]["supported"] == ["values", "updates", "messages", "debug"]
    else:
        assert response.status == 200


def test_a_stream_resumes_after_the_last_event(client: Client):
    run, events = client.run_eval()
    for last in ("4", events[4]["eventId"]):
        received = [json.loads(frame["data"]) for frame in client.read_stream(run, "?streamMode=debug", last=last)]
        assert received == events[5:]
    assert client.read_stream(run, last=str(events[-1]["sequence"])) == []
    assert client.read_stream(run, last="99999") == []
    response = client.get(f"/v1/runs/{run}/events", last_event_id="nobody")
    assert response.status == 400


def test_a_buffered_stream_sends_batches_and_the_end_at_once(client: Client):
    run, events = client.run_eval()
    frames = client.read_stream(run, "?streamMode=debug&bufferMs=4000")
    assert {frame["event"] for frame in frames} == {"batch"}
    assert [event for frame in frames for event in json.loads(frame["data"])] == events
    assert int(frames[-1]["id"]) == events[-1]["sequence"]
    assert all(frame["event"] != "batch" for frame in client.read_stream(run, "?bufferMs=0"))
    for wrong in ("99999", "-1", "soon"):
        assert client.get(f"/v1/runs/{run}/events?bufferMs={wrong}").status == 400


def test_polling_returns_events_after_a_number(client: Client):
    run, events = client.run_eval()
    path = f"/v1/runs/{run}/events/poll"
    assert client.get(path).json == {"events": events, "isComplete": True}
    assert client.get(f"{path}?lastSequence=3").json["events"] == events[4:]
    assert client.get(f"{path}?lastSequence=9999").json == {"events": [], "isComplete": True}
    for wrong in ("lastSequence=x", "lastSequence=1.5", "timeout=0", "timeout=61", "timeout=x"):
        assert client.get(f"{path}?{wrong}").status == 400


def test_polling_waits_for_the_next_event(client: Client):
    run = client.start_eval(agent="local.viva.hang").json["runId"]
    received = client.get(f"/v1/runs/{run}/events/poll?lastSequence=0&timeout=30").json
    assert (event_types(received["events"]), received["isComplete"]) == (["eval.started"], False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.get, f"/v1/runs/{run}/events/poll?lastSequence=1&timeout=30")
        assert client.post(f"/v1/runs/{run}/cancel", {}).status == 200
        assert event_types(waiting.result().json["events"]) == ["run.cancelled"]


def test_a_run_is_cancelled_once_and_not_after_its_end(client: Client, done: tuple[str, Any]):
    run = client.start_eval(agent="local.viva.hang").json["runId"]
    first = client.post(f"/v1/runs/{run}/cancel", {"reason": "enough"})
    assert first.status == 200
    assert first.json["status"] in ("cancelling", "cancelled")
    events = client.wait_for_events(run)
    assert [kind for kind in event_types(events) if kind in OUTCOMES] == ["run.cancelled"]
    assert client.get(f"/v1/runs/{run}").json["status"] == "cancelled"
    assert client.post(f"/v1/runs/{run}/cancel", {}).json == {"runId": run, "status": "cancelled"}
    late = client.post(f"/v1/runs/{done[0]}/cancel", {})
    assert (late.status, late.json["error"]) == (409, "run_terminal")
    assert client.post("/v1/runs/none/cancel", {}).status == 404
    assert client.post(f"/v1/runs/{run}/cancel", {"why": "x"}).status == 400


def test_agents_are_listed_without_prompts_and_connectors(client: Client):
    listed = client.get("/v1/agents").json
    ids = [agent["agentId"] for agent in listed["agents"]]
    assert ids == sorted(ids)
    assert (listed["total"], ECHO in ids, "local.viva.second" in ids) == (len(ids), True, True)
    assert client.get(f"/v1/agents/{ECHO}").json in listed["agents"]
    assert client.get("/v1/agents/nobody").status == 404
    pattern = r"(core|vendor|community|private|local)\.[a-z][a-z0-9_-]*(\.[a-z][a-zA-Z0-9_-]*)+"
    assert all(re.fullmatch(pattern, name) for name in ids)


def test_a_run_equals_itself(client: Client, done: tuple[str, Any]):
    run = done[0]
    same = client.get(f"/v1/runs/{run}:diff?against={run}").json
    assert same == {"a": run, "b": run, "divergedAtSeq": None, "eventDiffs": [], "stateDiff": {}}


def test_runs_of_one_workflow_are_equal_and_of_two_workflows_differ(client: Client, done: tuple[str, Any]):
    again = client.post("/v1/runs", NOOP).json["runId"]
    client.wait_for_events(again)
    assert client.get(f"/v1/runs/{done[0]}:diff?against={again}").json["eventDiffs"] == []
    other, _ = client.run_eval()
    diff = client.get(f"/v1/runs/{done[0]}:diff?against={other}").json
    assert (diff["divergedAtSeq"], diff["eventDiffs"][0]["op"]) == (0, "changed")
    assert {each["op"] for each in diff["eventDiffs"]} == {"changed", "added"}
    assert client.get(f"/v1/runs/{other}:diff?against={done[0]}").json["eventDiffs"][-1]["op"] == "removed"
    running = client.start_eval(agent="local.viva.hang").json["runId"]
    assert client.get(f"/v1/runs/{running}:diff?against={other}").json["truncated"] is True
    client.post(f"/v1/runs/{running}/cancel", {})
    assert client.get(f"/v1/runs/{done[0]}:diff").status == 400
    assert client.get(f"/v1/runs/{done[0]}:diff?against=none").status == 404


def test_annotations_do_not_change_the_run(client: Client, done: tuple[str, list[dict[str, Any]]]):
    run, events = done
    path = f"/v1/runs/{run}/annotations"
    made = client.post(path, {"signal": {"kind": "rating", "rating": 5}, "target": {"nodeId": "noop"}})
    assert made.status == 201
    assert made.json in client.get(path).json["annotations"]
    assert client.wait_for_events(run) == events
    for wrong in (
        {},
        {"signal": {"kind": "rating"}},
        {"signal": {"kind": "rating", "rating": 6}},
        {"signal": {"kind": "other"}},
        {"signal": {"kind": "flag"}, "target": {"runId": "x"}},
        {"signal": {"kind": "flag"}, "target": {"eventId": "none"}},
        {"signal": {"kind": "flag"}, "target": {"nodeId": "none"}},
    ):
        assert client.post(path, wrong).status == 400


def test_secrets_in_annotations_are_redacted(client: Client, done: tuple[str, Any]):
    path = f"/v1/runs/{done[0]}/annotations"
    secret = "sk-canary-do-not-leak-abc123"
    body = {
        "signal": {"kind": "correction", "correction": f"please use {secret}"},
        "note": f"token: {secret} and {ACME}",
    }
    made = client.post(path, body)
    assert made.status == 201
    shown = made.raw + client.get(path).raw
    assert secret.encode() not in shown
    assert ACME.encode() not in shown


def test_streams_get_a_notice_of_an_annotation(client: Client):
    run = client.start_eval(agent="local.viva.hang").json["runId"]
    with client.open_stream(run) as watched:
        assert watched.readline() == b"id: 0\n"  # the stream is open
        client.post(f"/v1/runs/{run}/annotations", {"signal": {"kind": "flag"}})
        client.post(f"/v1/runs/{run}/cancel", {})
        received = parse_frames("id: 0\n" + watched.read().decode())
    notices = [frame for frame in received if frame["event"] == "run.annotated"]
    assert len(notices) == 1
    assert "id" not in notices[0]
    assert "run.annotated" not in event_types(client.wait_for_events(run))


def test_an_agent_is_invoked_once(client: Client):
    body = {"workflowId": "viva.agent", "agentId": ECHO, "inputs": {"input": "hello {{there}}"}}
    events = client.wait_for_events(client.post("/v1/runs", body).json["runId"])
    assert event_types(events) == ["run.started", "agent.invocation.started", "agent.reasoned", "agent.decided", "agent.invocation.completed", "run.completed"]  # fmt: skip
    assert events[-1]["payload"]["outputs"] == {"output": "hello {{there}}", "outcome": "completed"}
    broken = client.post("/v1/runs", {**body, "agentId": "local.viva.broken"}).json["runId"]
    ended = client.wait_for_events(broken)[-1]
    assert (ended["type"], ended["payload"]["error"]["code"]) == ("run.failed", "agent_failed")
    assert b"boom" not in json.dumps(ended).encode()
    assert client.get(f"/v1/runs/{broken}").json["error"]["code"] == "agent_failed"


def test_workflows_can_be_read(client: Client):
    shown = client.get("/v1/workflows/conformance-noop").json
    assert shown["id"] == "conformance-noop"
    assert shown["nodes"][0]["typeId"] == "core.noop"
    assert client.get("/v1/workflows/none").status == 404


def test_conformance_routes_are_off_by_default(client: Client):
    for path in ("agents/eval-run", "agents/live-invoke", "test/reset", "test/emit-provider-usage"):
        assert client.post(f"/v1/host/sample/{path}", {}).status == 404
    assert client.get("/v1/host/sample/test/runs/__probe__/events").status == 404
    for name in ("dispatch-loop", "agent-reasoning", "delay", "cancellable"):
        assert client.post("/v1/runs", {"workflowId": f"conformance-{name}"}).status == 400


def test_requests_match_the_official_schema(client: Client):
    """Our schema of a request accepts the same bodies as the official one."""
    for body in (
        {"mode": "eval", "evalSuiteRef": SUITE, "agentId": ECHO},
        {**NOOP, "tags": ["a"], "configurable": {}},
    ):
        check_schema("derived/create-run-request.schema.json", body)
        assert client.post("/v1/runs", body).status == 201
