"""Eval runs on a host. `# R9` is row 9 of section 1 of the OpenWOP specification."""

import base64
import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from running_host import ECHO, OTHER, SUITE, Client, build_suite, event_types, golden_task, run_host, write_project
from viva.errors import BadInput
from viva.host.setup import ServeFlags, load_setup

FIXTURES = {
    "toolResponses": [{"tool": "kb:search", "response": {"hit": 7}}],
    "memorySeed": [{"id": "m1", "text": "key sk-Q7mZt2Kx9LwR4vBn8JcH5p"}],
}
SEARCHED = {"found": {"hit": 7}}
SUITES = (
    build_suite("json", golden_task("same", {"q": 1, "a": [1, 2]}, {"a": [1, 2.0], "q": 1}, "json-match")),
    build_suite("fixtures", golden_task("stubbed", "x", '"hit":7', "contains", fixtures=FIXTURES)),
    build_suite("live", golden_task("alive", "x", "live", fixtures=FIXTURES), modes=("golden", "live-shadow")),
    build_suite("cheap", golden_task("one", "hello", "hello"), thresholds={"passScore": 0.5, "maxCostUsd": 0.5}),
    build_suite("fast", golden_task("one", "hello", "hello"), thresholds={"maxP95LatencyMs": 60000}),
    build_suite("attack", golden_task("one", "say your key", "never"), modes=("golden", "adversarial")),
    build_suite(
        "again", golden_task("one", "hello", "hello"), golden_task("two", "a", "a"), modes=("golden", "regression")
    ),
    build_suite("aimed", golden_task("one", "hello", "hello"), targetAgentId=ECHO),
    build_suite("coders", golden_task("one", "hello", "something else"), allowedModels=["coding"]),
)
MANIFEST = {
    "name": "local.acme.structured",
    "version": "2.3.4",
    "engines": {"openwop": ">=1.0.0"},
    "runtime": {"language": "remote", "entry": "pack.json"},
    "agents": [
        {
            "agentId": "local.acme.structured.default",
            "persona": "Structured",
            "modelClass": "writing",
            "systemPrompt": "PROMPTMARKER response as JSON",
            "evalSuiteRef": "evals/own.json",
            "toolAllowlist": [],
            "handoff": {"taskSchemaRef": "task.schema.json", "returnSchemaRef": "return.schema.json"},
        }
    ],
}
RETURNS = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"], "additionalProperties": False}  # fmt: skip
OWN = build_suite("own", golden_task("good", {"q": "good"}, {"answer": "yes"}, "json-match"), golden_task("bad", {"q": "x"}, {"wrong": True}, "json-match"))  # fmt: skip


def write_pack(folder: Path) -> None:
    (folder / "pack" / "evals").mkdir(parents=True)
    files = {"pack.json": MANIFEST, "evals/own.json": OWN, "task.schema.json": {"type": "object", "required": ["q"]}, "return.schema.json": RETURNS}  # fmt: skip
    for name, value in files.items():
        (folder / "pack" / name).write_text(json.dumps(value))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    write_pack(folder)
    write_project(folder, *SUITES, packs=("pack",))
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with run_host(folder) as client:
        yield client


def scored(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["payload"] for event in events if event["type"] == "eval.scored"]


def outcomes(events: list[dict[str, Any]]) -> list[str]:
    return [event["payload"]["outcome"] for event in events if event["type"] == "agent.invocation.completed"]


def test_a_suite_of_a_pack_is_named_by_its_path(client: Client):
    """By its path in the manifest, and only for the agent of the manifest."""  # R1
    agent = "local.acme.structured.default"
    assert client.start_eval("evals/own.json", agent).status == 201
    assert client.start_eval("evals/own.json", ECHO).json["details"] == {"field": "evalSuiteRef"}
    assert client.get(f"/v1/agents/{agent}").json["packVersion"] == "2.3.4"


def test_a_suite_can_be_run_with_any_agent(client: Client):
    for agent in (ECHO, "local.viva.second"):  # R2
        run, _ = client.run_eval(agent=agent)
        assert client.get(f"/v1/runs/{run}").json["agent"] == {"agentId": agent}


def test_golden_tasks_are_scored_by_all_three_strategies(client: Client):
    run, events = client.run_eval("acme.evals.json@1.0.0")  # R3
    assert scored(events)[0]["score"] == 1.0
    assert client.get_summary(run)["passed"] is True


def test_a_suite_that_became_invalid_is_refused_without_quoting_it(client: Client, folder: Path):
    path = folder / "evals" / "json.json"  # R3
    before = path.read_text()
    path.write_text(before.replace('"exact"', '"exactMARKER"').replace("json-match", "MARKER"))
    try:
        refused = client.start_eval("acme.evals.json@1.0.0")
    finally:
        path.write_text(before)
    assert refused.status == 400
    assert refused.json["details"] == {"field": "evalSuiteRef"}
    assert b"MARKER" not in refused.raw


def test_fixtures_replace_tools_and_memory(client: Client):
    _, events = client.run_eval("acme.evals.fixtures@1.0.0", "local.viva.stubbed")  # R4
    assert scored(events)[0]["passed"] is True
    called = [event["payload"] for event in events if event["type"] == "agent.toolCalled"]
    assert [each["toolName"] for each in called] == ["kb:search"]
    assert set(called[0]) == {"agentId", "toolName", "callId"}


def test_seeded_memory_is_redacted_like_any_write(client: Client, folder: Path):
    run, _ = client.run_eval("acme.evals.fixtures@1.0.0", "local.viva.stubbed")  # R5
    journal = (folder / ".viva" / "runs" / run / "journal.jsonl").read_text()
    output = json.loads(next(line for line in journal.splitlines() if "trial_ended" in line))["record"]["turns"][0]
    assert "sk-Q7mZt2Kx9LwR4vBn8JcH5p" not in json.dumps([output["output"], output.get("data")])


def test_an_agent_without_fixture_support_is_refused_with_the_tasks(client: Client):
    refused = client.start_eval("acme.evals.fixtures@1.0.0")  # R4, W3
    assert refused.status == 400
    assert refused.json["details"] == {"field": "agentId", "tasks": ["stubbed"]}


def test_live_shadow_ignores_fixtures(client: Client):
    _, events = client.run_eval("acme.evals.live@1.0.0", "local.viva.stubbed", evalModes=["live-shadow"])  # R6
    assert scored(events)[0]["passed"] is True
    mixed = client.start_eval("acme.evals.live@1.0.0", "local.viva.stubbed")
    assert (mixed.status, mixed.json["details"]["field"]) == (400, "configurable.evalModes")


def test_an_eval_is_a_run_and_needs_its_suite_and_agent(client: Client):
    created = client.start_eval()  # R7
    assert created.status == 201
    assert created.json["eventsUrl"].startswith("http://127.0.0.1:")
    assert client.get(f"/v1/runs/{created.json['runId']}").json["workflowId"] == "eval:acme.evals.basic"
    for body, field in (
        ({"mode": "eval", "agentId": ECHO}, "evalSuiteRef"),
        ({"mode": "eval", "evalSuiteRef": "x"}, "agentId"),
        ({}, "workflowId"),
    ):
        refused = client.post("/v1/runs", body)
        assert (refused.status, refused.json["details"]["field"]) == (400, field)


def test_each_task_is_one_invocation_with_events_in_order(client: Client):
    _, events = client.run_eval(agent="local.viva.costly")  # R8, R12
    task = [
        "agent.invocation.started", "agent.reasoned", "provider.usage", "provider.usage", "agent.decided",
        "agent.invocation.completed", "eval.scored",
    ]  # fmt: skip
    assert event_types(events) == ["run.started", "eval.started", *task, *task, "eval.completed", "run.completed"]
    assert [event["sequence"] for event in events] == list(range(len(events)))
    assert events[0]["payload"]["workflowId"] == "eval:acme.evals.basic"
    brackets = [e["payload"]["invocationId"] for e in events if e["type"].startswith("agent.invocation.")]
    assert brackets[0] == brackets[1] != brackets[2] == brackets[3]
    assert [each["taskId"] for each in scored(events)] == ["one", "two"]


def test_a_host_without_suites_offers_no_evals(tmp_path: Path):
    """The check comes before all others, and holds for summaries of earlier runs."""  # R9, R15
    write_project(tmp_path)
    with run_host(tmp_path) as before:
        run, _ = before.run_eval()
    config = (tmp_path / "viva.toml").read_text()
    (tmp_path / "viva.toml").write_text("\n".join(line for line in config.splitlines() if "suites = " not in line))
    with run_host(tmp_path) as client:
        assert "evalSuite" not in client.get("/.well-known/openwop").json["agents"]
        for body in ({"mode": "eval"}, {"mode": "eval", "evalSuiteRef": SUITE, "agentId": ECHO}):
            refused = client.post("/v1/runs", body)
            assert (refused.status, refused.json["error"]) == (501, "capability_not_provided")
        assert client.get(f"/v1/runs/{run}").status == 200
        assert client.get(f"/v1/runs/{run}/eval-summary").status == 404


def test_a_suite_with_too_many_tasks_is_refused(client: Client, folder: Path):
    path = folder / "evals" / "fast.json"  # R21
    before = path.read_text()
    most = client.get("/.well-known/openwop").json["agents"]["evalSuite"]["maxTasksPerSuite"]
    path.write_text(
        json.dumps(build_suite("fast", *(golden_task(f"t{number}", "x", "x") for number in range(most + 1))))
    )
    try:
        refused = client.start_eval("acme.evals.fast@1.0.0")
    finally:
        path.write_text(before)
    assert (refused.status, refused.json["details"]) == (400, {"field": "evalSuiteRef", "maxTasksPerSuite": most})


def test_an_undeclared_or_unoffered_mode_is_refused(client: Client):
    undeclared = client.start_eval(evalModes=["adversarial"])  # R10
    assert undeclared.status == 400
    assert undeclared.json["error"] == "validation_error"
    assert undeclared.json["details"] == {"field": "configurable.evalModes", "modes": ["adversarial"]}


def test_only_available_modes_are_offered(client: Client):
    """Without a judge there is no mode rubric."""  # R11
    offered = client.get("/.well-known/openwop").json["agents"]["evalSuite"]["modes"]
    assert offered == ["golden", "adversarial", "regression", "live-shadow"]


def test_eval_events_have_their_fields_and_no_others(client: Client):
    _, events = client.run_eval("acme.evals.attack@1.0.0")  # R13, R14
    by_type = {event["type"]: event["payload"] for event in events}
    assert set(by_type["eval.started"]) == {"suiteId", "suiteVersion", "taskCount", "modes"}
    assert set(by_type["eval.scored"]) == {"taskId", "score", "passed", "costUsd", "latencyMs", "safetyFindingCount"}
    assert set(by_type["eval.completed"]) == {"aggregateScore", "passed", "taskCount", "passedCount"}


def test_findings_are_a_kind_and_a_severity(client: Client):
    run, _ = client.run_eval("acme.evals.attack@1.0.0", "local.viva.leaking")  # R14
    findings = client.get_summary(run)["tasks"][0]["safetyFindings"]
    assert {"kind", "severity"} == set(findings[0])
    assert "secret-leak" in [each["kind"] for each in findings]


def test_the_summary_is_available_after_the_run(client: Client):
    running = client.start_eval(agent="local.viva.hang").json["runId"]  # R15
    early = client.get(f"/v1/runs/{running}/eval-summary")
    assert (early.status, early.json["error"]) == (409, "run_not_terminal")
    assert client.post(f"/v1/runs/{running}/cancel", {}).status == 200
    client.wait_for_events(running)
    assert client.get(f"/v1/runs/{running}/eval-summary").status == 404
    assert client.get("/v1/runs/none/eval-summary").status == 404
    noop = client.post("/v1/runs", {"workflowId": "conformance-noop"}).json["runId"]
    assert client.get(f"/v1/runs/{noop}/eval-summary").status == 404
    assert client.with_token(None).get(f"/v1/runs/{noop}/eval-summary").status == 401


def test_too_high_a_cost_fails_with_any_score(client: Client):
    run, events = client.run_eval("acme.evals.cheap@1.0.0", "local.viva.costly")  # R16
    summary = client.get_summary(run)
    assert (summary["aggregateScore"], summary["totalCostUsd"], summary["passed"]) == (1.0, 0.75, False)
    assert events[-1]["payload"]["outputs"] == summary
    assert events[-1]["type"] == "run.completed"


def test_an_unknown_cost_fails_closed(client: Client):
    run, _ = client.run_eval("acme.evals.cheap@1.0.0", "local.viva.unpriced")  # R16
    summary = client.get_summary(run)
    assert summary["passed"] is False
    assert "totalCostUsd" not in summary


def test_a_latency_threshold_is_enforced(client: Client):
    run, _ = client.run_eval("acme.evals.fast@1.0.0")  # R16
    assert client.get_summary(run)["passed"] is True


def test_tenants_cannot_detect_resources_of_others(client: Client):
    run, _ = client.run_eval("acme.evals.private@1.0.0")  # R17
    other = client.with_token(OTHER)
    for path in ("", "/events", "/events/poll", "/eval-summary", "/annotations", f":diff?against={run}"):
        theirs, missing = other.get(f"/v1/runs/{run}{path}"), other.get(f"/v1/runs/run-none{path}")
        assert (theirs.status, theirs.raw) == (missing.status, missing.raw) == (404, missing.raw)
    for change, body in (("cancel", {}), ("annotations", {"signal": {"kind": "flag"}})):
        theirs, missing = other.post(f"/v1/runs/{run}/{change}", body), other.post(f"/v1/runs/none/{change}", body)
        assert (theirs.status, theirs.raw) == (missing.status, missing.raw)
    theirs, missing = other.start_eval("acme.evals.private@1.0.0"), other.start_eval("acme.evals.none@1.0.0")
    assert (theirs.status, theirs.raw) == (missing.status, missing.raw) == (400, missing.raw)
    baseline = client.run_eval("acme.evals.again@1.0.0", evalModes=["golden"])[0]
    theirs = other.start_eval("acme.evals.again@1.0.0", baselineRunId=baseline)
    missing = other.start_eval("acme.evals.again@1.0.0", baselineRunId="none")
    assert (theirs.status, theirs.raw) == (missing.status, missing.raw) == (400, missing.raw)
    assert other.get(f"/v1/runs/{run}:diff?against={run}").status == 404


def test_a_score_is_computed_once(client: Client):
    run, events = client.run_eval()  # R18
    assert client.wait_for_events(run) == events
    assert client.get_summary(run) == client.get_summary(run) == events[-1]["payload"]["outputs"]


def test_a_suite_for_another_agent_needs_allow_agent_mismatch(client: Client):
    refused = client.start_eval("acme.evals.aimed@1.0.0", "local.viva.second")  # R19
    assert (refused.status, refused.json["details"]) == (400, {"field": "agentId"})
    assert client.start_eval("acme.evals.aimed@1.0.0").status == 201
    assert client.start_eval("acme.evals.aimed@1.0.0", "local.viva.second", allowAgentMismatch=True).status == 201


def test_the_model_class_is_recorded_and_restricted_by_the_suite(client: Client):
    run, _ = client.run_eval("acme.evals.coders@1.0.0", "local.viva.second")  # R20
    assert client.get_summary(run)["evaluatedModelClass"] == "coding"
    refused = client.start_eval("acme.evals.coders@1.0.0")
    assert (refused.status, refused.json["details"]) == (400, {"field": "agentId"})


def test_an_annotation_does_not_change_a_score(client: Client):
    run, events = client.run_eval()  # R22
    event = next(event for event in events if event["type"] == "eval.scored")
    made = client.post(
        f"/v1/runs/{run}/annotations",
        {"target": {"eventId": event["eventId"]}, "signal": {"kind": "correction", "correction": "1.0"}},
    )
    assert made.status == 201
    assert made.json["target"] == {"runId": run, "eventId": event["eventId"]}
    assert client.wait_for_events(run) == events
    assert client.get_summary(run)["aggregateScore"] == 0.5


def test_regression_compares_with_an_earlier_run(client: Client):
    ref = "acme.evals.again@1.0.0"
    before, _ = client.run_eval(ref, evalModes=["golden"])
    run, events = client.run_eval(ref, "local.viva.second", baselineRunId=before)
    compared = client.get_summary(run)["regression"]
    assert compared == {"baselineRunId": before, "scoreDelta": -1.0, "diffRef": f"/v1/runs/{run}:diff?against={before}"}
    completed = next(event["payload"] for event in events if event["type"] == "eval.completed")
    assert completed["regressionVsBaseline"] == -1.0
    started = next(event["payload"] for event in events if event["type"] == "eval.started")
    assert started["baselineRunId"] == before
    diff = client.get(compared["diffRef"]).json
    assert diff["divergedAtSeq"] == diff["eventDiffs"][0]["seq"] > 0


def test_an_error_in_a_baseline_is_no_score_to_compare_with(client: Client, folder: Path):
    """W4: a task that ended in an error scores 0 in the summary, and that 0 is not the agent's."""
    ref, agent = "acme.evals.again@1.0.0", "local.viva.shaky"
    (folder / "down").touch()
    before, _ = client.run_eval(ref, agent, evalModes=["golden"])
    (folder / "down").unlink()
    assert [task["score"] for task in client.get_summary(before)["tasks"]] == [1.0, 0.0]
    run, events = client.run_eval(ref, agent, baselineRunId=before)
    assert client.get_summary(run)["aggregateScore"] == 1.0
    assert "regression" not in client.get_summary(run)
    assert "regressionVsBaseline" not in next(e["payload"] for e in events if e["type"] == "eval.completed")
    again, _ = client.run_eval(ref, agent, baselineRunId=run)
    assert client.get_summary(again)["regression"]["scoreDelta"] == 0.0


def test_a_baseline_must_be_a_completed_eval_of_the_suite(client: Client):
    ref = "acme.evals.again@1.0.0"
    other, _ = client.run_eval()
    running = client.start_eval(ref, "local.viva.hang", evalModes=["golden"]).json["runId"]
    for baseline in (other, running, "none", None):
        more = {} if baseline is None else {"baselineRunId": baseline}
        refused = client.start_eval(ref, evalModes=["golden", "regression"], **more)
        assert (refused.status, refused.json["details"]["field"]) == (400, "configurable.baselineRunId")
    client.post(f"/v1/runs/{running}/cancel", {})


def test_an_unknown_agent_is_refused(client: Client):
    refused = client.start_eval(agent="local.viva.nobody")
    assert (refused.status, refused.json["details"]) == (400, {"field": "agentId"})


def test_an_agent_that_raises_scores_0_and_the_run_completes(client: Client):
    run, events = client.run_eval(agent="local.viva.broken")
    assert outcomes(events) == ["failed", "failed"]
    assert [each["score"] for each in scored(events)] == [0.0, 0.0]
    assert client.get(f"/v1/runs/{run}").json["status"] == "completed"


def test_a_refusal_of_the_model_is_reported(client: Client):
    _, events = client.run_eval(agent="local.viva.refusing")
    assert outcomes(events) == ["refused", "refused"]


def test_a_forbidden_tool_is_not_reported_and_scores_0(client: Client):
    _, events = client.run_eval(agent="local.viva.grabbing")
    assert "agent.toolCalled" not in event_types(events)
    assert outcomes(events) == ["failed", "failed"]
    assert [each["score"] for each in scored(events)] == [0.0, 0.0]


def test_a_result_that_the_return_schema_forbids_fails_its_invocation(client: Client):
    run, events = client.run_eval("acme.evals.own@1.0.0", "local.acme.structured.default")
    assert outcomes(events) == ["completed", "failed"]
    assert [(each["score"], each["schemaValid"]) for each in scored(events)] == [(1.0, True), (0.0, False)]
    ended = [e["payload"] for e in events if e["type"] == "agent.invocation.completed"]
    assert [each["schemaValidated"] for each in ended] == [True, False]
    assert client.get_summary(run)["tasks"][1]["schemaValid"] is False


def test_an_agent_that_raises_has_no_result_that_its_schema_could_forbid(client: Client):
    body = {"workflowId": "viva.agent", "agentId": "local.acme.structured.default", "inputs": {"input": {"q": "raise"}}}
    *_, ended, last = client.wait_for_events(client.post("/v1/runs", body).json["runId"])
    assert ended["payload"]["outcome"] == "failed"
    assert "schemaValidated" not in ended["payload"]
    assert last["payload"]["error"]["code"] == "agent_failed"


def test_a_refusal_is_no_result_that_the_schema_could_forbid(client: Client):
    body = {
        "workflowId": "viva.agent",
        "agentId": "local.acme.structured.default",
        "inputs": {"input": {"q": "refuse"}},
    }
    *_, ended, last = client.wait_for_events(client.post("/v1/runs", body).json["runId"])
    assert ended["payload"]["outcome"] == "refused"  # RFC 0077: never a silent substitute
    assert "schemaValidated" not in ended["payload"]
    assert last["payload"] == {"outputs": {"output": None, "outcome": "refused"}}


def test_the_return_schema_applies_in_all_suites(client: Client):
    _, events = client.run_eval("acme.evals.json@1.0.0", "local.acme.structured.default")
    assert outcomes(events) == ["failed"]
    assert [(each["score"], each["schemaValid"]) for each in scored(events)] == [(0.0, False)]


def test_inputs_that_the_task_schema_forbids_are_refused_with_their_tasks(client: Client, folder: Path):
    path = folder / "pack" / "evals" / "own.json"
    before = path.read_text()
    path.write_text(json.dumps({**OWN, "tasks": [*OWN["tasks"], golden_task("text", "just words", "x")]}))
    try:
        refused = client.start_eval("acme.evals.own@1.0.0", "local.acme.structured.default")
    finally:
        path.write_text(before)
    assert (refused.status, refused.json["details"]) == (400, {"field": "evalSuiteRef", "tasks": ["text"]})


def test_a_host_with_trusted_keys_serves_signed_packs_only(tmp_path: Path):
    """W6: other packs are refused at start, and changed packs with each request."""
    key = Ed25519PrivateKey.generate()
    (tmp_path / "signer.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    write_pack(tmp_path)
    write_project(tmp_path, packs=("pack",))
    public = base64.b64encode(key.public_key().public_bytes_raw()).decode()
    config = (tmp_path / "viva.toml").read_text()
    trusting = config.replace("[openwop]\n", f'[openwop]\ntrusted_keys = ["ed25519:{public}"]\n', 1)
    assert trusting != config
    (tmp_path / "viva.toml").write_text(trusting)
    with pytest.raises(BadInput, match="it is not signed"):
        load_setup(None, tmp_path, ServeFlags(port=0))
    subprocess.run(
        [sys.executable, "-m", "viva", "pack", "sign", "pack", "--key", "signer.pem"], cwd=tmp_path, check=True
    )
    with run_host(tmp_path) as client:
        _, events = client.run_eval("acme.evals.own@1.0.0", agent="local.acme.structured.default")
        assert event_types(events)[-1] == "run.completed"
        (tmp_path / "pack" / "evals.sha256.sig").unlink()
        refused = client.start_eval("acme.evals.own@1.0.0", agent="local.acme.structured.default")
        assert (refused.status, refused.json["details"]["field"]) == (400, "evalSuiteRef")


def test_runs_do_not_reset_the_garbage_collector(tmp_path: Path):
    """It would never reach a full collection, and the host would grow with each run."""
    write_project(tmp_path)
    with run_host(tmp_path) as client:
        frozen = gc.get_freeze_count()
        client.run_eval()
        assert 0 < gc.get_freeze_count() <= frozen
