"""The routes for OpenWOP's conformance suite."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from running_host import ECHO, OTHER, READER, Client, check_schema, event_types, parse_frames, run_host, write_project

SEAM = "/v1/host/sample"
EVAL_FORBIDDEN = {"taskOutput", "output", "rubric", "completion", "prompt", "body", "secret", "credentials", "token", "apiKey"}  # fmt: skip
BRACKET_FORBIDDEN = {"prompt", "result", "body", "input", "output", "apiKey", "secret", "credentials", "token"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("host")
    write_project(folder)
    with run_host(folder, conformance=True) as client:
        yield client


def log_of(client: Client, run: str, query: str = "") -> list[dict[str, Any]]:
    response = client.get(f"{SEAM}/test/runs/{run}/events{query}")
    assert response.status == 200
    return response.json["events"]


def test_the_log_of_an_unknown_run_is_empty_and_reset_deletes_nothing(client: Client):
    assert log_of(client, "__probe__") == []
    run, events = client.run_eval()
    assert client.post(f"{SEAM}/test/reset", {}).status == 200
    assert log_of(client, run) == events
    assert log_of(client.with_token(OTHER), run) == []
    assert client.with_token(None).get(f"{SEAM}/test/runs/{run}/events").status == 401


def test_the_eval_route_answers_at_the_end_of_the_run(client: Client):
    response = client.post(f"{SEAM}/agents/eval-run", {"modes": ["golden"]})
    assert 200 <= response.status < 300
    run = response.json["runId"]
    started, scored, completed = (log_of(client, run, f"?type=eval.{kind}") for kind in ("started", "scored", "completed"))  # fmt: skip
    assert (len(started), len(completed)) == (1, 1)
    assert len(scored) == completed[0]["payload"]["taskCount"] == response.json["taskCount"]
    assert started[0]["sequence"] < min(e["sequence"] for e in scored)
    assert max(e["sequence"] for e in scored) < completed[0]["sequence"]
    for event in (*started, *scored, *completed):
        assert not EVAL_FORBIDDEN & set(event["payload"])
    summary = client.get_summary(run)
    assert summary["passed"] is True
    assert all(not EVAL_FORBIDDEN & set(task) for task in summary["tasks"])


def test_a_live_invocation_has_start_and_end_events(client: Client):
    response = client.post(f"{SEAM}/agents/live-invoke", {"source": "run-api"})
    events = log_of(client, response.json["runId"])
    scoped = [event for event in events if event["type"].startswith("agent.")]
    assert (scoped[0]["type"], scoped[-1]["type"]) == ("agent.invocation.started", "agent.invocation.completed")
    assert (
        scoped[0]["payload"]["invocationId"] == scoped[-1]["payload"]["invocationId"] == response.json["invocationId"]
    )
    assert scoped[-1]["payload"]["outcome"] == response.json["outcome"] == "completed"
    for event in (scoped[0], scoped[-1]):
        assert not BRACKET_FORBIDDEN & set(event["payload"])


def test_a_forced_invalid_result_fails_and_a_valid_one_does_not(client: Client):
    body = {"source": "run-api", "returnSchemaRef": "conformance-strict-handoff"}
    for forced, outcome in ((True, "failed"), (False, "completed")):
        run = client.post(f"{SEAM}/agents/live-invoke", {**body, "forceInvalidResult": forced}).json["runId"]
        ended = log_of(client, run, "?type=agent.invocation.completed")[-1]["payload"]
        assert (ended["outcome"], ended["schemaValidated"]) == (outcome, not forced)
        assert event_types(log_of(client, run))[-1] == ("run.failed" if forced else "run.completed")


def test_a_tool_that_is_not_allowed_is_not_called_and_an_allowed_one_is(client: Client):
    run = client.post(f"{SEAM}/agents/live-invoke", {"attemptTool": "conformance-disallowed-tool"}).json["runId"]
    assert log_of(client, run, "?type=agent.toolCalled") == []
    assert log_of(client, run, "?type=agent.invocation.completed")[0]["payload"]["outcome"] == "failed"
    run = client.post(f"{SEAM}/agents/live-invoke", {"attemptTool": "viva:echo"}).json["runId"]
    assert [e["payload"]["toolName"] for e in log_of(client, run, "?type=agent.toolCalled")] == ["viva:echo"]
    assert log_of(client, run, "?type=agent.invocation.completed")[0]["payload"]["outcome"] == "completed"


def test_an_agent_of_the_inventory_can_be_dispatched(client: Client):
    agent = client.get("/v1/agents").json["agents"][0]["agentId"]
    for each in (agent, ECHO):
        body = {"task": {}, "validateHandoff": False, "availableTools": []}
        response = client.post(f"{SEAM}/agents/{each}/dispatch", body).json
        assert response["status"] == "completed"
        assert {"agent.reasoned", "agent.decided"} <= {event["type"] for event in response["events"]}
        assert all(event["agentId"] == each for event in response["events"])
    assert client.post(f"{SEAM}/agents/nobody/dispatch", {}).status == 404


def test_usage_is_emitted_once_and_credentials_are_refused(client: Client):
    usage = {"provider": "anthropic", "model": "m", "inputTokens": 200, "outputTokens": 80, "nodeId": "node-1"}
    body = {"runId": "r-usage-1", "payload": usage, "correlationId": "r:1", "nodeId": "node-1"}
    assert client.post(f"{SEAM}/test/emit-provider-usage", body).status == 200
    (event,) = log_of(client, "r-usage-1", "?type=provider.usage")
    assert (event["payload"], event["causationId"], event["nodeId"]) == (usage, "r:1", "node-1")
    check_schema("run-event-payloads.schema.json", event["payload"], "providerUsage")
    for leak in ({**usage, "nodeId": "secret:tenant:key:v1"}, {**usage, "credentialRef": "x"}):
        refused = client.post(f"{SEAM}/test/emit-provider-usage", {**body, "payload": leak})
        assert (refused.status, refused.json["error"]) == (400, "provider_usage_credential_leak")
    for wrong in (
        {"provider": "x"},
        {**usage, "inputTokens": 1.5},
        {**usage, "other": 1},
        {**usage, "inputTokens": -1},
    ):
        assert client.post(f"{SEAM}/test/emit-provider-usage", {**body, "payload": wrong}).status == 400
    assert client.with_token(OTHER).post(f"{SEAM}/test/emit-provider-usage", body).status == 404


def test_two_workflows_of_different_shape_can_be_compared(client: Client):
    runs = [client.post("/v1/runs", {"workflowId": f"conformance-{name}"}).json["runId"] for name in ("agent-reasoning", "dispatch-loop")]  # fmt: skip
    for run in runs:
        client.wait_for_events(run)
    diff = client.get(f"/v1/runs/{runs[0]}:diff?against={runs[1]}").json
    assert diff["divergedAtSeq"] == diff["eventDiffs"][0]["seq"]
    fixtures = ["conformance-noop", "conformance-idempotent", "conformance-delay", "conformance-cancellable"]
    assert client.get("/.well-known/openwop").json["fixtures"] == fixtures


def test_a_waiting_workflow_is_running_and_its_end_is_sent_at_once(client: Client):
    run = client.post("/v1/runs", {"workflowId": "conformance-delay", "inputs": {"delayMs": 60_000}}).json["runId"]
    client.get(f"/v1/runs/{run}/events/poll?lastSequence=0&timeout=30")
    with client.open_stream(run, "?streamMode=debug&bufferMs=5000") as watched:
        assert watched.readline() == b"id: 1\n"  # earlier events are sent at once
        assert client.get(f"/v1/runs/{run}").json["status"] == "running"
        client.post(f"/v1/runs/{run}/cancel", {})
        received = parse_frames("id: 1\n" + watched.read().decode())
    assert [frame["event"] for frame in received] == ["batch", "batch"]
    output = [event for frame in received for event in json.loads(frame["data"])]
    assert event_types(output) == ["run.started", "node.started", "run.cancelled"]
    body = {"workflowId": "conformance-delay", "inputs": {"delayMs": 1}}
    ended = client.wait_for_events(client.post("/v1/runs", body).json["runId"])
    assert event_types(ended)[1:] == ["node.started", "node.completed", "run.completed"]
    for wrong in (-1, 60_001, "soon", True):
        refused = client.post("/v1/runs", {"workflowId": "conformance-delay", "inputs": {"delayMs": wrong}})
        assert (refused.status, refused.json["details"]["field"]) == (400, "inputs.delayMs")


def test_a_workflow_that_waits_can_be_cancelled(client: Client):
    run = client.post("/v1/runs", {"workflowId": "conformance-cancellable", "inputs": {"delayMs": 60_000}}).json["runId"]  # fmt: skip
    assert client.post(f"/v1/runs/{run}/cancel", {"reason": "enough"}).status == 200
    assert event_types(client.wait_for_events(run))[-1] == "run.cancelled"


def test_runs_have_the_current_event_log_version(client: Client):
    """Below 2, clients read snapshots only."""
    run = client.post("/v1/runs", {"workflowId": "conformance-noop"}).json["runId"]
    assert client.get(f"/v1/runs/{run}").json["eventLogSchemaVersion"] >= 2
    assert client.get("/.well-known/openwop").json["eventLogSchemaVersion"] >= 2


def test_the_echo_agent_is_listed_first(client: Client):
    """The conformance suite uses the first agent of the list."""
    assert client.get("/v1/agents").json["agents"][0]["agentId"] == "core.viva.conformance"


def test_bodies_of_conformance_routes_are_validated(client: Client):
    for path, body in (
        ("agents/live-invoke", {"agentId": ["x"]}),
        ("agents/live-invoke", {"source": "elsewhere"}),
        ("agents/live-invoke", b"[" * 9999),
        ("agents/live-invoke", []),
        ("agents/eval-run", {"modes": {"a": 1}}),
        ("agents/eval-run", {"agentId": 7}),
        ("test/emit-provider-usage", {"runId": "r", "nodeId": [1], "payload": {"provider": "p", "model": "m", "inputTokens": 1, "outputTokens": 1}}),
    ):  # fmt: skip
        assert client.post(f"{SEAM}/{path}", body).status == 400


def test_deployments_are_not_provided(client: Client):
    refused = client.post(f"{SEAM}/agents/deployment-transition", {})
    assert (refused.status, refused.json["error"]) == (501, "capability_not_provided")


@pytest.mark.parametrize("executors", [2, 5, 32])
def test_only_one_of_several_executors_starts_a_run(client: Client, executors: int):
    result = client.post(f"{SEAM}/test/idempotency/concurrent-claim", {"executors": executors}).json
    assert (result["attempted"], len(result["mintedIds"]), result["delivered"]) == (executors, executors, 1)
    assert set(result["mintedIds"]) == {result["logicalInvocationId"]}
    other = client.post(f"{SEAM}/test/idempotency/concurrent-claim", {"executors": executors}).json
    assert other["logicalInvocationId"] != result["logicalInvocationId"]


def test_one_executor_is_not_a_race(client: Client):
    for wrong in (1, 33, "2", True):
        refused = client.post(f"{SEAM}/test/idempotency/concurrent-claim", {"executors": wrong})
        assert (refused.status, refused.json["details"]["field"]) == (400, "executors")


def test_nothing_is_appended_after_the_last_event(client: Client):
    run, events = client.run_eval()
    usage = {"provider": "p", "model": "m", "inputTokens": 1, "outputTokens": 1}
    refused = client.post(f"{SEAM}/test/emit-provider-usage", {"runId": run, "payload": usage})
    assert (refused.status, refused.json["error"]) == (409, "run_terminal")
    assert client.post(f"/v1/runs/{run}/annotations", {"signal": {"kind": "flag"}}).status == 201
    assert client.post(f"/v1/runs/{run}/cancel", {}).status == 409
    assert log_of(client, run) == events


def test_several_runs_are_cancelled_at_once(client: Client):
    delay = {"workflowId": "conformance-cancellable", "inputs": {"delayMs": 60_000}}
    running = [client.post("/v1/runs", delay).json["runId"] for _ in range(2)]
    done, _ = client.run_eval()
    foreign = client.with_token(OTHER).post("/v1/runs", delay).json["runId"]
    names = [running[0], "run-unknown", done, foreign, running[1]]
    for status in (("cancelled", "cancelling"), ("cancelled", "cancelling")):  # a second time too
        results = client.post("/v1/runs:bulk-cancel", {"runIds": names, "reason": "enough"}).json["results"]
        assert [result["runId"] for result in results] == names
        assert [result["ok"] for result in results] == [True, False, False, False, True]
        assert results[0]["status"] in status
        assert [results[at]["error"]["code"] for at in (1, 2, 3)] == ["not_found", "run_terminal", "not_found"]
    for run in running:
        assert event_types(client.wait_for_events(run))[-1] == "run.cancelled"
    client.with_token(OTHER).post(f"/v1/runs/{foreign}/cancel", {})


def test_a_bulk_cancel_has_limits_and_needs_its_scope(client: Client):
    assert client.post("/v1/runs:bulk-cancel", {"runIds": []}).json["error"] == "validation_error"
    refused = client.post("/v1/runs:bulk-cancel", {"runIds": ["run-x"] * 101})
    assert (refused.status, refused.json["details"]["maxRunIds"]) == (400, 100)
    reader = client.with_token(READER).post("/v1/runs:bulk-cancel", {"runIds": ["run-x"]})
    assert (reader.status, reader.json["details"]["requiredScope"]) == (403, "runs:cancel")


def test_pause_and_resume_do_not_exist(client: Client):
    for path in ("/v1/runs/x:pause", "/v1/runs/x/resume"):
        assert (client.post(path, {}).status, client.with_token(None).post(path, {}).status) == (404, 401)


def test_clients_can_see_when_to_negotiate_again(client: Client):
    first, second = (client.with_token(None).get("/.well-known/openwop") for _ in range(2))
    assert first.headers["capabilities-etag"] == second.headers["capabilities-etag"]
    assert first.headers["capabilities-etag"] != first.headers["etag"]
    assert first.json["idempotency"]["idempotencyAckTimeoutSec"] >= 5
