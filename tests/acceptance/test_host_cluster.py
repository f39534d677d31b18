"""Several hosts that share a PostgreSQL database: runs survive the death of hosts and a restart of the database."""

import json
import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

import postgres
from running_host import (
    AGENTS,
    MOODY,
    Client,
    Reader,
    build_suite,
    event_types,
    find_run_files,
    free_port,
    golden_task,
    start_host,
    write_project,
)
from viva.host.tokens import TokenFile

TASKS = [f"task-{number}" for number in range(5)]
SUITE = "acme.evals.five@1.0.0"
MOODY_ID = "local.viva.moody"
ADMIN = "administrator-0123456789"
SLOW = {"workflowId": "viva.agent", "agentId": "local.viva.hang", "inputs": {"input": "x"}}
EVAL = {"mode": "eval", "evalSuiteRef": SUITE, "agentId": MOODY_ID}


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server | None]:
    if not postgres.works():
        postgres.say_not_run("hosts that share a database")
        yield None
        return
    with postgres.run_server() as server:
        yield server


def write_host(folder: Path, url: str, *, agents: str = "") -> Path:
    """The same project in a folder of its own, as on another machine."""
    folder.mkdir()
    serve = f'store = "{url}"\nlease = "3s"'
    write_project(folder, build_suite("five", *(golden_task(name, name, name) for name in TASKS)), serve=serve)
    (folder / "agents.py").write_text(AGENTS + MOODY + agents)
    config = (folder / "viva.toml").read_text()
    moody = '\n[agents.moody]\nuse = "python:./agents.py:moody"\nparallel = 2\n'
    (folder / "viva.toml").write_text(config.replace("\n[openwop]\n", moody + "\n[openwop]\n"))
    return folder


def check_run(clients: list[Client], run: str) -> list[dict[str, Any]]:
    """The run has ended, every host shows the same events, without gaps, and each task has one score."""
    events = clients[0].wait_for_events(run)
    for client in clients[1:]:
        assert client.wait_for_events(run) == events
    assert [event["sequence"] for event in events] == list(range(len(events)))
    assert event_types(events)[-1] == "run.completed"
    for once in ("run.started", "eval.started", "eval.completed", "run.completed"):
        assert event_types(events).count(once) == 1
    scores = [event["payload"] for event in events if event["type"] == "eval.scored"]
    assert [each["taskId"] for each in scores] == TASKS
    summed = clients[0].get_summary(run)["tasks"]
    assert [each["score"] for each in summed] == [each["score"] for each in scores]
    return events


def test_hosts_share_runs_and_one_takes_over_when_another_dies(tmp_path: Path, server: postgres.Server | None):
    if server is None:
        return
    url = server.create_database("takeover")
    ports = [free_port(), free_port()]
    folders = [write_host(tmp_path / name, url) for name in ("first", "second")]
    with start_host(folders[0], ports[0]) as (first, process), start_host(folders[1], ports[1]) as (second, _):
        slow = first.post("/v1/runs", SLOW).json["runId"]
        assert second.get(f"/v1/runs/{slow}/events/poll?timeout=20").json["events"]
        assert second.post(f"/v1/runs/{slow}/cancel", {}).json["status"] == "cancelling"
        assert second.wait_for_events(slow)[-1]["type"] == "run.cancelled"
        assert first.get(f"/v1/runs/{slow}").json["status"] == "cancelled"
        created = first.post("/v1/runs", EVAL, key="once")
        replayed = second.post("/v1/runs", EVAL, key="once")
        assert (replayed.json, replayed.headers["openwop-idempotent-replay"]) == (created.json, "true")
        runs = [created.json["runId"], *(first.post("/v1/runs", EVAL).json["runId"] for _ in range(5))]
        readers = [Reader(ports[1], run) for run in runs]
        for reader in readers:
            reader.start()
        with second.open_stream(runs[-1]) as watched:  # of whichever host executes it
            while b"eval.scored" not in watched.readline():
                continue
        process.send_signal(signal.SIGKILL)
        process.wait(300)
        for reader in readers:
            reader.join(300)
            assert reader.seen == check_run([second], reader.run_id)
        with start_host(folders[0], ports[0]) as (restarted, _):
            check_run([restarted, second], runs[0])


def test_a_run_that_one_host_deletes_leaves_no_files_on_another(tmp_path: Path, server: postgres.Server | None):
    if server is None:
        return
    url, ports = server.create_database("deletions"), [free_port(), free_port()]
    folders = [write_host(tmp_path / name, url) for name in ("first", "second")]
    TokenFile(folders[1] / ".viva" / "host").add(ADMIN, "", ["admin"])
    with start_host(folders[0], ports[0]) as (first, _):
        runs = [first.post("/v1/runs", EVAL).json["runId"] for _ in range(2)]
        for run in runs:
            check_run([first], run)
    assert all(find_run_files(folders[0], run) for run in runs)
    with start_host(folders[1], ports[1]) as (second, _):
        assert second.with_token(ADMIN).send("DELETE", f"/v1/admin/runs/{runs[0]}").json == {"deleted": 1}
        with start_host(folders[0], ports[0]):
            while find_run_files(folders[0], runs[0]):
                time.sleep(0.1)
            assert find_run_files(folders[0], runs[1])


def test_a_database_that_restarts_holds_runs_up_and_loses_nothing(tmp_path: Path, server: postgres.Server | None):
    if server is None:
        return
    url = server.create_database("restart")
    with start_host(write_host(tmp_path / "first", url), free_port()) as (client, _):
        runs = [client.post("/v1/runs", EVAL).json["runId"] for _ in range(4)]
        with client.open_stream(runs[0]) as watched:
            while b"eval.scored" not in watched.readline():
                continue
        server.stop()
        while (refused := client.post("/v1/runs", EVAL)).status == 201:
            continue
        assert (refused.status, refused.json["error"]) == (503, "database_unavailable")
        assert client.get("/.well-known/openwop").status == 200
        assert [each["code"] for each in client.get("/readyz").json["reasons"]] == ["database_unavailable"]
        server.start()
        while client.get(f"/v1/runs/{runs[0]}").status != 200:
            time.sleep(0.1)
        for run in runs:
            check_run([client], run)


def test_a_database_that_does_not_answer_stops_no_other_requests(tmp_path: Path, server: postgres.Server | None):
    if server is None:
        return
    url = server.create_database("frozen")
    with start_host(write_host(tmp_path / "first", url), free_port()) as (client, _):
        run = client.post("/v1/runs", EVAL).json["runId"]
        with server.frozen():
            refused = client.get(f"/v1/runs/{run}")
            assert (refused.status, refused.json["error"]) == (503, "database_unavailable")
            assert client.get("/healthz").status == 200
            while client.get("/readyz").status == 200:
                time.sleep(0.1)
            assert client.post("/v1/runs", EVAL).status == 503
        while client.get("/readyz").status != 200:
            time.sleep(0.1)
        check_run([client], run)


def test_a_locked_table_holds_up_one_statement_only(tmp_path: Path, server: postgres.Server | None):
    if server is None:
        return
    url = server.create_database("locked")
    with start_host(write_host(tmp_path / "first", url), free_port()) as (client, _):
        with psycopg.connect(url) as locking:
            locking.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
            while client.get("/readyz").status == 200:
                time.sleep(0.1)
            for _ in range(100):  # each that waited for the table would take seconds
                assert client.get("/v1/runs/run-0").status == 503
            assert client.get("/readyz").status == 503
        while client.get("/readyz").status != 200:
            time.sleep(0.1)
        check_run([client], client.post("/v1/runs", EVAL).json["runId"])


@pytest.mark.soak
def test_kills_of_three_hosts_at_twenty_moments_lose_and_repeat_nothing(tmp_path: Path, server: postgres.Server | None):
    """200 evals; each reply is random, so a repeated score would show."""
    if server is None:
        return
    url, chance = server.create_database("kills"), random.Random(11)
    folders = [write_host(tmp_path / f"host-{number}", url) for number in range(3)]
    ports = [free_port() for _ in folders]
    with ExitStack() as exits:
        hosts = [exits.enter_context(start_host(folder, port)) for folder, port in zip(folders, ports, strict=True)]
        runs = [hosts[number % 3][0].post("/v1/runs", EVAL).json["runId"] for number in range(200)]
        readers = [Reader(ports[number % 3], runs[number]) for number in range(0, 200, 20)]
        for reader in readers:
            reader.start()
        for kill in range(20):
            time.sleep(chance.random())
            at = chance.randrange(3)
            process = hosts[at][1]
            process.send_signal(signal.SIGKILL)
            process.wait(300)
            if kill == 9:
                server.restart()
            hosts[at] = exits.enter_context(start_host(folders[at], ports[at]))
        clients = [client for client, _ in hosts]
        for run in runs:
            check_run(clients, run)
        for reader in readers:
            reader.join(300)
            assert reader.seen == clients[0].wait_for_events(reader.run_id)
    print(json.dumps({"evals": len(runs), "kills": 20}))
