"""A host that is killed during a suite: after a restart the run continues, and no score is lost or repeated."""

import json
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from running_host import (
    ACME,
    AGENTS,
    MOODY,
    Reader,
    build_suite,
    event_types,
    free_port,
    golden_task,
    start_host,
    write_project,
)
from viva.testing import OpenAIServer, ReceivedRequest

WAITS = """
import asyncio, pathlib
HERE = pathlib.Path(__file__).parent

async def careful(messages, options):
    text = messages[-1]["content"]
    with (HERE / "asked.txt").open("a") as log:
        log.write(text + "\\n")
    if text == "task-4" and not (HERE / "go").exists():
        await asyncio.Event().wait()
    return text
"""


POLLS = """while not (HERE / "go").exists():
            await asyncio.sleep(0.02)"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tasks = [golden_task(f"task-{number}", f"task-{number}", f"task-{number}") for number in range(1, 7)]
    write_project(tmp_path, build_suite("six", *tasks))
    (tmp_path / "agents.py").write_text(AGENTS + WAITS)
    config = (tmp_path / "viva.toml").read_text()
    careful = '\n[agents.careful]\nuse = "python:./agents.py:careful"\nparallel = 1\n'
    (tmp_path / "viva.toml").write_text(config.replace("\n[openwop]\n", careful + "\n[openwop]\n"))
    return tmp_path


def asked(folder: Path) -> list[str]:
    return (folder / "asked.txt").read_text().split()


def test_a_run_continues_after_a_kill(folder: Path):
    port = free_port()
    with start_host(folder, port) as (client, process):
        created = client.post(
            "/v1/runs",
            {"mode": "eval", "evalSuiteRef": "acme.evals.six@1.0.0", "agentId": "local.viva.careful"},
            key="once-and-for-all",
        )
        run = created.json["runId"]
        with client.open_stream(run, "?streamMode=debug") as watched:
            received = b""
            while b'"taskId":"task-3"' not in received:
                received += watched.readline()
            process.send_signal(signal.SIGKILL)
            process.wait(300)
    before = [json.loads(line[6:]) for line in received.decode().splitlines() if line.startswith("data: ")]
    (folder / "go").touch()
    with start_host(folder, port) as (client, _):
        again = client.post(
            "/v1/runs",
            {"mode": "eval", "evalSuiteRef": "acme.evals.six@1.0.0", "agentId": "local.viva.careful"},
            key="once-and-for-all",
        )
        assert (again.json["runId"], again.headers["openwop-idempotent-replay"]) == (run, "true")
        events = client.wait_for_events(run)
        rest = client.read_stream(run, "?streamMode=debug", last=str(before[-1]["sequence"]))
        summary = client.get_summary(run)
    assert events[: len(before)] == before
    assert before + [json.loads(frame["data"]) for frame in rest] == events
    assert [event["sequence"] for event in events] == list(range(len(events)))
    scored = [event["payload"]["taskId"] for event in events if event["type"] == "eval.scored"]
    assert scored == [f"task-{number}" for number in range(1, 7)]
    assert event_types(events).count("eval.started") == event_types(events).count("run.completed") == 1
    assert (summary["taskCount"], summary["passedCount"], summary["passed"]) == (6, 6, True)
    # Only the task in flight runs again.
    assert asked(folder) == ["task-1", "task-2", "task-3", "task-4", "task-4", "task-5", "task-6"]


def test_verdicts_before_a_restart_are_kept(folder: Path):
    """After a restart, only tasks without a score are judged."""  # R18
    says = {"passed": True, "reason": "fine"}

    def judge_all(asked: ReceivedRequest) -> str:
        quote = re.findall(r"task-\d", asked.body.decode())[-1]
        return json.dumps({**says, "evidence": [{"turn": 1, "quote": quote}]})

    with OpenAIServer(judge_all) as model:
        config = (folder / "viva.toml").read_text()
        judge = f'\n[connectors.model]\nbase_url = "{model.url}"\nmodel = "m"\n'
        (folder / "viva.toml").write_text(config.replace("\n[openwop]\n", judge + "\n[openwop]\n"))
        path = folder / "evals" / "six.json"
        rubric = {"kind": "rubric", "rubric": [{"criterion": "it names a task", "weight": 1.0}]}
        tasks = [{"taskId": f"task-{at}", "input": f"task-{at}", "expected": rubric} for at in range(1, 7)]
        path.write_text(json.dumps(build_suite("six", *tasks, modes=("rubric",))))
        port = free_port()
        with start_host(folder, port) as (client, process):
            run = client.start_eval("acme.evals.six@1.0.0", "local.viva.careful").json["runId"]
            with client.open_stream(run) as watched:
                while b'"taskId":"task-3"' not in watched.readline():
                    continue
            process.send_signal(signal.SIGKILL)
        says["passed"] = False
        asked_before = len(model.model_requests)
        (folder / "go").touch()
        with start_host(folder, port) as (client, _):
            scores = [e["payload"]["score"] for e in client.wait_for_events(run) if e["type"] == "eval.scored"]
            assert [task["score"] for task in client.get_summary(run)["tasks"]] == scores == [1, 1, 1, 0, 0, 0]
    assert asked_before == 3
    assert len(model.model_requests) == 6


def test_a_suite_that_changed_fails_the_resumed_run(folder: Path):
    port = free_port()
    with start_host(folder, port) as (client, process):
        run = client.start_eval("acme.evals.six@1.0.0", "local.viva.careful").json["runId"]
        with client.open_stream(run) as watched:
            while b'"taskId":"task-3"' not in watched.readline():
                continue
        process.send_signal(signal.SIGKILL)
    path = folder / "evals" / "six.json"
    path.write_text(path.read_text().replace('"value": "task-6"', '"value": "other"'))
    with start_host(folder, port) as (client, _):
        assert client.wait_for_events(run)[-1]["payload"]["error"]["code"] == "suite_changed"
        assert client.get(f"/v1/runs/{run}").json["status"] == "failed"


def test_a_stop_without_drain_ends_streams_and_the_run_continues_later(folder: Path):
    port = free_port()
    with start_host(folder, port, "--drain", "0s") as (client, process):
        run = client.start_eval("acme.evals.six@1.0.0", "local.viva.careful").json["runId"]
        invoked = client.post(
            "/v1/runs", {"workflowId": "viva.agent", "agentId": "local.viva.hang", "inputs": {"input": "x"}}
        ).json["runId"]
        with client.open_stream(run) as watched:
            while b'"taskId":"task-3"' not in watched.readline():
                continue
            process.send_signal(signal.SIGTERM)
            assert b"run." not in watched.read()  # the stream ends, the run does not
        assert process.wait(300) == 0  # it stopped in order
    (folder / "go").touch()
    with start_host(folder, port) as (client, _):
        assert client.wait_for_events(run)[-1]["type"] == "run.completed"
        # An agent may have acted before the restart: it is not called twice.
        assert client.wait_for_events(invoked)[-1]["payload"]["error"]["code"] == "host_restarted"


def test_a_queued_call_is_made_after_a_restart(folder: Path):
    """Only a call that may have reached the agent fails."""
    config = (folder / "viva.toml").read_text()
    (folder / "viva.toml").write_text(f"{config}\n[serve.tenant_limits]\nat_once = 1\n")
    call = {"workflowId": "viva.agent", "agentId": "local.viva.hang", "inputs": {"input": "x"}}
    port = free_port()
    with start_host(folder, port) as (client, process):
        asked_before = client.post("/v1/runs", call).json["runId"]
        assert client.get(f"/v1/runs/{asked_before}/events/poll?timeout=20").json["events"]
        queued = client.post("/v1/runs", {**call, "agentId": "local.acme.echo"}).json["runId"]
        process.send_signal(signal.SIGKILL)
        process.wait(300)
    with start_host(folder, port) as (client, _):
        assert client.wait_for_events(asked_before)[-1]["payload"]["error"]["code"] == "host_restarted"
        events = client.wait_for_events(queued)
        assert events[-1]["payload"] == {"outputs": {"output": "x", "outcome": "completed"}}
        assert event_types(events).count("run.started") == 1


def test_sigterm_lets_running_runs_end(folder: Path):
    (folder / "agents.py").write_text(AGENTS + WAITS.replace("await asyncio.Event().wait()", POLLS))
    with start_host(folder, free_port(), "--drain", "60s") as (client, process):
        run = client.start_eval("acme.evals.six@1.0.0", "local.viva.careful").json["runId"]
        with client.open_stream(run) as watched:
            while b'"taskId":"task-3"' not in watched.readline():
                continue
            process.send_signal(signal.SIGTERM)
            while (refused := client.post("/v1/runs", {"workflowId": "conformance-noop"})).status == 201:
                continue
            assert (refused.status, refused.json["error"]) == (503, "draining")
            assert "retry-after" in refused.headers
            assert [each["code"] for each in client.get("/readyz").json["reasons"]] == ["draining"]
            (folder / "go").touch()
            assert b"event: run.completed" in watched.read()
        assert process.wait(300) == 0


def test_sighup_reloads_tokens_and_suites(folder: Path):
    config = (folder / "viva.toml").read_text()
    with start_host(folder, free_port()) as (client, process):
        assert process.stdout is not None
        (folder / "evals" / "new.json").write_text(json.dumps(build_suite("new", golden_task("one", "a", "a"))))
        changed = config.replace(ACME, "acme-token-of-tomorrow").replace('"evals/six.json"', '"evals/new.json"')
        (folder / "viva.toml").write_text(changed)
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline() == "The config was reloaded\n"
        assert client.get("/v1/agents").status == 401
        changed_client = client.with_token("acme-token-of-tomorrow")
        assert changed_client.run_eval("acme.evals.new@1.0.0")[1][-1]["type"] == "run.completed"
        assert changed_client.start_eval("acme.evals.six@1.0.0").status == 400
        (folder / "viva.toml").write_text("[agents\n")
        process.send_signal(signal.SIGHUP)
        assert process.stdout.readline().startswith("The config was not reloaded: ")
        assert changed_client.get("/v1/agents").status == 200


def test_two_hosts_cannot_share_a_store(folder: Path):
    with start_host(folder, free_port()):
        second = subprocess.run(
            [sys.executable, "-m", "viva", "serve", "--port", "0"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert second.returncode == 4
        assert "Another `viva serve`" in second.stderr


def test_without_tokens_one_is_generated_on_loopback_only(tmp_path: Path):
    (tmp_path / "viva.toml").write_text('[agents.echo]\nuse = "python:./agents.py:echo"\n')
    (tmp_path / "agents.py").write_text(AGENTS)
    with start_host(tmp_path, 0) as (client, process):
        assert process.stdout is not None
        token = process.stdout.readline().split()[-1]
        assert client.with_token(token).get("/v1/agents").json["total"] == 1
        assert client.with_token("viva-guess").get("/v1/agents").status == 401
        created = client.with_token(token).post("/v1/runs", {"workflowId": "conformance-noop"}).json
        assert created["eventsUrl"].startswith(f"http://127.0.0.1:{client.port}/v1/runs/")
    for place in (tmp_path / ".viva").rglob("*"):
        assert not place.is_file() or token.encode() not in place.read_bytes()
    refused = subprocess.run(
        [sys.executable, "-m", "viva", "serve", "--host", "0.0.0.0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (refused.returncode, "reachable from other machines" in refused.stderr) == (4, True)


@pytest.mark.soak
def test_kills_at_ten_moments_lose_and_repeat_nothing(tmp_path: Path):
    """The agent replies differently each time, so a repeated score would show."""  # R18
    names = [f"task-{number}" for number in range(30)]
    write_project(tmp_path, build_suite("many", *(golden_task(name, name, name) for name in names)))
    (tmp_path / "agents.py").write_text(AGENTS + MOODY)
    config = (tmp_path / "viva.toml").read_text()
    moody = '\n[agents.moody]\nuse = "python:./agents.py:moody"\nparallel = 2\n'
    (tmp_path / "viva.toml").write_text(config.replace("\n[openwop]\n", moody + "\n[openwop]\n"))
    port, chance, readers = free_port(), random.Random(7), list[Reader]()
    for life in range(11):
        with start_host(tmp_path, port) as (client, process):
            if life == 0:
                runs = [client.start_eval("acme.evals.many@1.0.0", "local.viva.moody").json["runId"] for _ in range(3)]
                readers = [Reader(port, run) for run in runs]
                for reader in readers:
                    reader.start()
            if life < 10:
                readers[0].join(chance.random() * 0.45)
                process.send_signal(signal.SIGKILL)
                continue
            for reader in readers:
                reader.join(300)
                events = client.wait_for_events(reader.run_id)
                assert reader.seen == events
                assert [event["sequence"] for event in events] == list(range(len(events)))
                for once in ("run.started", "eval.started", "eval.completed", "run.completed"):
                    assert event_types(events).count(once) == 1
                scores = [e["payload"] for e in events if e["type"] == "eval.scored"]
                assert [each["taskId"] for each in scores] == names
                summed = client.get_summary(reader.run_id)["tasks"]
                assert [each["score"] for each in summed] == [each["score"] for each in scores]
