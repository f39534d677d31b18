"""What operators of a host use: health, readiness, metrics, logs, the list of runs, deletion, and agents per tenant."""

import asyncio
import http.client
import json
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from running_host import (
    ACME,
    ECHO,
    OTHER,
    READER,
    SUITE,
    Client,
    find_run_files,
    free_port,
    parse_frames,
    run_host,
    start_host,
    write_project,
)
from viva.host.operations import delete_old_runs
from viva.host.server import open_host
from viva.host.setup import ServeFlags, load_setup
from viva.host.tokens import Principal, TokenFile

ADMIN = "admin-token-0123456789"
SERVE = f"""admin_tokens = ["{ADMIN}"]
access_log = "access.jsonl"
audit_log = "audit.jsonl"
trusted_proxies = ["127.0.0.1"]"""
NOOP = {"workflowId": "conformance-noop"}
DELAY = {"workflowId": "conformance-cancellable", "inputs": {"delayMs": 60_000}}
JUDGE = """
[agents.judge]
use = "python:./agents.py:echo"

[agents.private]
use = "python:./agents.py:echo"

[openwop]
judge = "judge"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    write_project(folder, serve=SERVE)
    config = (folder / "viva.toml").read_text().replace("\n[openwop]\n", JUDGE)
    (folder / "viva.toml").write_text(
        config.replace("[openwop.tenants.acme]", '[openwop.tenants.acme]\nagents = ["private"]')
    )
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with run_host(folder, conformance=True) as client:
        yield client


@pytest.fixture
def admin(client: Client) -> Client:
    return client.with_token(ADMIN)


def read_log(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def wait_for_entry(client: Client, folder: Path, name: str, **fields: Any) -> list[dict[str, Any]]:
    """The entries of a log, as soon as one has these fields: it is written after its response was sent."""
    entries: list[dict[str, Any]] = []
    for _ in range(1000):
        entries = read_log(folder, name)
        if any(fields.items() <= entry.items() for entry in entries):
            return entries
        client.get("/healthz")
    raise AssertionError(f"{name} has no entry with {fields}: {entries[-20:]}")


def parse_metrics(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^([^#].*) (\S+)$", text, re.MULTILINE)}


def test_health_and_readiness_need_no_token(client: Client):
    stranger = client.with_token(None)
    assert stranger.get("/healthz").json == {"status": "ok"}
    assert stranger.get("/readyz").json == {"ready": True, "reasons": []}


def test_metrics_count_requests_runs_and_connections(client: Client, admin: Client):
    client.run_eval()
    before = parse_metrics(admin.get("/metrics").raw.decode())
    client.run_eval()
    assert client.with_token(None).get("/v1/agents").status == 401
    response = admin.get("/metrics")
    after = parse_metrics(response.raw.decode())
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    changed = {name: after[name] - before.get(name, 0) for name in after}
    assert changed['viva_runs_ended_total{kind="eval",status="completed"}'] == 1
    assert changed['viva_http_requests_total{method="POST",code="201"}'] == 1
    assert changed['viva_http_requests_total{method="GET",code="401"}'] == 1
    assert after["viva_ready"] == 1
    assert after["viva_connections"] >= 1
    assert after["process_resident_memory_bytes"] > 1e6


def test_metrics_have_the_form_of_prometheus(admin: Client):
    for line in admin.get("/metrics").raw.decode().splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [0-9.e+-]+', line), line


def test_metrics_need_their_scope(client: Client, folder: Path):
    assert client.with_token(None).get("/metrics").status == 401
    assert client.get("/metrics").json["details"] == {"requiredScope": "metrics"}
    TokenFile(folder / ".viva" / "host").add("viva-metrics-0123456789", "", ["metrics"])
    metrics = client.with_token("viva-metrics-0123456789")
    assert metrics.get("/metrics").status == 200
    assert metrics.get("/v1/admin/runs").json["details"] == {"requiredScope": "admin"}


def test_a_token_is_added_and_revoked_while_the_host_runs(client: Client, folder: Path):
    file, token = TokenFile(folder / ".viva" / "host"), "viva-added-0123456789"
    added = client.with_token(token)
    assert added.get("/v1/agents").status == 401
    stored = file.add(token, "acme", ["runs:read"])
    assert added.get("/v1/agents").status == 200
    assert added.post("/v1/runs", NOOP).json["details"] == {"requiredScope": "runs:create"}
    file.revoke(stored.id)
    assert added.get("/v1/agents").status == 401
    file.add(token, "acme", ["runs:read"], expires_at=time.time() - 1)
    assert added.get("/v1/agents").status == 401


def test_an_administrator_lists_the_runs_of_all_tenants(client: Client, admin: Client):
    mine = client.post("/v1/runs", {**NOOP, "metadata": {"secret": "METAMARKER"}, "tags": ["TAGMARKER"]}).json["runId"]
    theirs, _ = client.with_token(OTHER).run_eval()
    client.wait_for_events(mine)
    everything = admin.get("/v1/admin/runs")
    by_id = {run["runId"]: run for run in everything.json["runs"]}
    assert (by_id[mine]["tenant"], by_id[theirs]["tenant"]) == ("acme", "other")
    assert b"MARKER" not in everything.raw

    def names(query: str) -> list[str]:
        return [run["runId"] for run in admin.get(f"/v1/admin/runs?{query}").json["runs"]]

    assert theirs in names("tenant=other&kind=eval&status=completed,failed")
    assert mine not in names("tenant=other")
    assert names("tenant=nobody") == []
    assert theirs in names(f"agentId={ECHO}")
    first = admin.get("/v1/admin/runs?limit=1").json
    assert first["runs"][0]["runId"] == names("limit=1000")[0]
    assert names(f"limit=1&before={first['nextBefore']}") == names("limit=2")[1:]
    for wrong in ("status=unknown", "limit=0", "before=x"):
        assert admin.get(f"/v1/admin/runs?{wrong}").status == 400


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/admin/runs"), ("POST", "/v1/admin/runs:cancel"),
                                              ("DELETE", "/v1/admin/runs/x"), ("DELETE", "/v1/admin/tenants/acme/runs")])  # fmt: skip
def test_tenants_are_not_administrators(client: Client, method: str, path: str):
    for token in (ACME, READER):
        refused = client.with_token(token).send(method, path, {} if method == "POST" else None)
        assert (refused.status, refused.json["details"]) == (403, {"requiredScope": "admin"})
    assert client.with_token(None).send(method, path).status == 401


def test_an_administrator_has_no_runs_of_its_own(admin: Client):
    assert admin.post("/v1/runs", NOOP).status == 403
    assert admin.get("/v1/agents").status == 403


def test_an_administrator_cancels_runs_by_filter(client: Client, admin: Client):
    other = client.with_token(OTHER)
    mine = [client.post("/v1/runs", DELAY).json["runId"] for _ in range(2)]
    theirs = other.post("/v1/runs", DELAY).json["runId"]
    results = admin.post("/v1/admin/runs:cancel", {"tenant": "acme", "kind": "workflow"}).json["results"]
    assert {result["runId"] for result in results} == set(mine)
    assert all(result["ok"] for result in results)
    for run in mine:
        assert client.wait_for_events(run)[-1]["payload"]["cancelledBy"].startswith("host/")
    assert other.get(f"/v1/runs/{theirs}").json["status"] in ("pending", "running")
    (result, unknown) = admin.post("/v1/admin/runs:cancel", {"runIds": [theirs, "run-x"]}).json["results"]
    assert (result["ok"], unknown["error"]["code"]) == (True, "not_found")
    assert admin.post("/v1/admin/runs:cancel", {}).status == 400


def find_traces(folder: Path, run: str) -> list[str]:
    """Where a run is still named: tables of the store, and files."""
    with sqlite3.connect(folder / ".viva" / "host" / "host.sqlite") as db:
        tables = [
            name for name, column in (("runs", "id"), ("events", "run"), ("annotations", "run"), ("journals", "run"))
            if db.execute(f"SELECT 1 FROM {name} WHERE {column} = ?", (run,)).fetchone()
        ]  # fmt: skip
    db.close()
    return tables + find_run_files(folder / ".viva", run)


def test_deleting_a_run_removes_rows_journal_and_summary(client: Client, admin: Client, folder: Path):
    run, _ = client.run_eval()
    assert client.post(f"/v1/runs/{run}/annotations", {"signal": {"kind": "flag"}}).status == 201
    assert {"runs", "events", "annotations", run} <= set(find_traces(folder, run))
    running = client.post("/v1/runs", DELAY).json["runId"]
    refused = admin.send("DELETE", f"/v1/admin/runs/{running}")
    assert (refused.status, refused.json["error"]) == (409, "run_not_terminal")
    assert admin.send("DELETE", f"/v1/admin/runs/{run}").json == {"deleted": 1}
    assert find_traces(folder, run) == []
    assert client.get(f"/v1/runs/{run}").status == 404
    assert admin.send("DELETE", f"/v1/admin/runs/{run}").status == 404
    client.post(f"/v1/runs/{running}/cancel", {})


def test_deleting_a_tenant_removes_all_its_runs_and_no_others(client: Client, admin: Client, folder: Path):
    other = client.with_token(OTHER)
    kept, _ = client.run_eval()
    key = {"mode": "eval", "evalSuiteRef": SUITE, "agentId": ECHO}
    gone = other.post("/v1/runs", key, "a-key").json["runId"]
    other.wait_for_events(gone)
    running = other.post("/v1/runs", DELAY).json["runId"]
    assert admin.send("DELETE", "/v1/admin/tenants/other/runs").json["details"]["unfinished"] >= 1
    other.post(f"/v1/runs/{running}/cancel", {})
    other.wait_for_events(running)
    assert admin.send("DELETE", "/v1/admin/tenants/other/runs").json["deleted"] >= 2
    wait_for_entry(client, folder, "audit", action="delete_tenant", status=200, tenant="other")
    assert find_traces(folder, gone) == []
    assert {"runs", "events", kept} <= set(find_traces(folder, kept))
    assert admin.get("/v1/admin/runs?tenant=other").json["runs"] == []
    assert other.post("/v1/runs", key, "a-key").json["runId"] != gone  # its response is not stored any more


def test_agents_of_a_tenant_and_judges_are_not_listed_for_others(client: Client):
    def names(listed: Client) -> set[str]:
        return {agent["agentId"] for agent in listed.get("/v1/agents").json["agents"]}

    other = client.with_token(OTHER)
    assert "local.viva.private" in names(client)
    assert "local.viva.private" not in names(other)
    assert not {"local.viva.judge"} & (names(client) | names(other))
    assert other.get("/v1/agents/local.viva.private").status == 404
    for body in ({"mode": "eval", "evalSuiteRef": SUITE}, {"workflowId": "viva.agent", "inputs": {"input": "x"}}):
        for agent in ("local.viva.private", "local.viva.judge"):
            refused = other.post("/v1/runs", {**body, "agentId": agent})
            assert (refused.status, refused.json["details"]) == (400, {"field": "agentId"})
        assert client.post("/v1/runs", {**body, "agentId": "local.viva.private"}).status == 201


def test_the_access_log_has_who_and_what_but_no_content(client: Client, folder: Path):
    body = {"workflowId": "viva.agent", "agentId": ECHO, "inputs": {"input": "BODYMARKER"}}
    sent = client.send("POST", "/v1/runs", body, {"X-Forwarded-For": "192.0.2.7", "Idempotency-Key": "KEYMARKER"})
    run = sent.json["runId"]
    client.get(f"/v1/runs/{run}/events/poll?timeout=5&x=QUERYMARKER")
    client.get("/PATHMARKER")
    entries = wait_for_entry(client, folder, "access", operation="poll_events", run=run)
    created = next(entry for entry in entries if entry.get("run") == run and entry["method"] == "POST")
    assert {**created, "at": "", "ms": 0, "bytes": 0} == {
        "at": "", "client": "192.0.2.7", "method": "POST", "operation": "create_run", "run": run, "tenant": "acme",
        "token": "acme/1", "status": 201, "ms": 0, "bytes": 0,
    }  # fmt: skip
    assert any(entry.get("operation") == "poll_events" and entry["client"] == "127.0.0.1" for entry in entries)
    for name in ("access", "audit"):
        text = (folder / f"{name}.jsonl").read_text()
        assert "MARKER" not in text
        assert ACME not in text
        assert (folder / f"{name}.jsonl").stat().st_mode & 0o077 == 0


def test_the_audit_log_has_changes_and_refused_tokens(client: Client, admin: Client, folder: Path):
    run = client.post("/v1/runs", DELAY).json["runId"]
    client.post(f"/v1/runs/{run}/cancel", {})
    client.get(f"/v1/runs/{run}")
    client.with_token("a-wrong-token-0123456789").get("/v1/agents")
    client.with_token(READER).post("/v1/runs", NOOP)
    entries = wait_for_entry(client, folder, "audit", action="create_run", status=403, tenant="other")
    assert entries[0]["action"] == "start"
    of_run = [(entry["action"], entry["token"], entry["status"]) for entry in entries if entry.get("run") == run]
    assert of_run == [("create_run", "acme/1", 201), ("cancel_run", "acme/1", 200)]
    assert any({"action": "list_agents", "status": 401}.items() <= entry.items() for entry in entries)


def test_a_renamed_log_is_opened_again(client: Client, folder: Path):
    (folder / "access.jsonl").rename(folder / "access.1")
    client.get("/healthz")
    client.get("/healthz")
    assert wait_for_entry(client, folder, "access", operation="get_health")


def get_from(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_old_runs_go_and_metrics_have_an_address_of_their_own(tmp_path: Path):
    """Forwarded headers of strangers are not believed. Runs that are too old are deleted at the start."""
    port, metrics_port = free_port(), free_port()
    tenant = '[openwop.tenants.acme]\nkeep = "1s"'
    log = 'access_log = "-"'
    write_project(tmp_path, serve=f'metrics_address = "127.0.0.1:{metrics_port}"\n{log}')
    config = (tmp_path / "viva.toml").read_text()
    (tmp_path / "viva.toml").write_text(config.replace("[openwop.tenants.acme]", tenant))
    with start_host(tmp_path, port, "--keep", "30d") as (client, process):
        old, _ = client.run_eval()
        kept, _ = client.with_token(OTHER).run_eval()
        assert get_from(metrics_port, "/metrics")[0] == 200
        assert get_from(metrics_port, "/readyz")[0] == 200
        assert get_from(metrics_port, "/v1/agents")[0] == 404
        assert get_from(metrics_port, "/.well-known/openwop")[0] == 404
        assert client.with_token(None).get("/metrics").status == 401
        client.send("GET", "/healthz", headers={"X-Forwarded-For": "192.0.2.7"})
        process.terminate()
        printed = process.communicate(timeout=40)[0]
    assert "192.0.2.7" not in printed
    assert '"operation":"get_health"' in printed
    with sqlite3.connect(tmp_path / ".viva" / "host" / "host.sqlite") as db:
        doc = json.loads(db.execute("SELECT doc FROM runs WHERE id = ?", (old,)).fetchone()[0])
        doc["completed_at"] = "2026-01-01T00:00:00.000Z"
        db.execute("UPDATE runs SET doc = ?, created = 0 WHERE id = ?", (json.dumps(doc).encode(), old))
    db.close()
    with start_host(tmp_path, port) as (client, _):
        while client.get(f"/v1/runs/{old}").status != 404:
            pass
        while (left := find_traces(tmp_path, old)) != []:
            assert left == [old]  # the folder goes after the rows
        assert client.with_token(OTHER).get(f"/v1/runs/{kept}").status == 200


def test_a_wrong_clock_of_a_host_deletes_no_new_run(tmp_path: Path):  # 20.8
    """The age of a run is that of the database. A host whose clock was slow has ended the run long ago, as it seems."""
    write_project(tmp_path)
    host = open_host(load_setup(tmp_path / "viva.toml", tmp_path, ServeFlags(port=0, keep_s=86400.0)), asyncio.Event())
    run = host.build_run(Principal("acme", "acme/1"), kind="workflow", workflow="conformance-noop", request={})
    run.status, run.completed_at = "completed", "2026-01-01T00:00:00.000Z"
    host.store.create_run(run)

    async def act() -> list[int]:
        now = host.store.read_clock()
        counts = [await delete_old_runs(host, now + seconds) for seconds in (0, 86000, 87000)]
        await host.close()
        return counts

    assert asyncio.run(act()) == [0, 0, 1]


def test_streams_are_counted_at_their_end(client: Client, folder: Path):
    run, _ = client.run_eval()
    assert parse_frames(client.send("GET", f"/v1/runs/{run}/events").raw.decode())
    entries = wait_for_entry(client, folder, "access", operation="stream_events", run=run)
    entry = next(entry for entry in entries if entry.get("operation") == "stream_events" and entry.get("run") == run)
    assert (entry["status"], entry["bytes"] > 100) == (200, True)
