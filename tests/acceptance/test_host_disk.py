"""A host whose disk is full, in a sandbox with a small file system."""

import json
import sys
from pathlib import Path

import bubblewrap
from running_host import AGENTS, build_suite, event_types, free_port, golden_task, start_host, write_project

SIZE = 12 * 1024 * 1024
FILLS = """
import pathlib, threading, time
HERE = pathlib.Path(__file__).parent
FILLER = HERE / ".viva" / "filler"

def make_room():
    while not (HERE / "go").exists():
        time.sleep(0.02)
    FILLER.unlink()

def fill():
    with FILLER.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    threading.Thread(target=make_room, daemon=True).start()

def filling(messages, options):
    text = messages[-1]["content"]
    with (HERE / "asked.txt").open("a") as log:
        log.write(text + "\\n")
    if text == "task-2" and not (HERE / "full").exists():
        (HERE / "full").touch()
        fill()
    return text
"""


def test_a_full_disk_holds_runs_up_and_they_go_on_when_there_is_room(tmp_path: Path):
    if not bubblewrap.works():
        print("\nNOT RUN: a host on a full disk: bubblewrap does not work here", file=sys.stderr, flush=True)
        return
    names = [f"task-{number}" for number in range(1, 5)]
    write_project(
        tmp_path, build_suite("four", *(golden_task(name, name, name) for name in names)), serve="min_free_mb = 1"
    )
    (tmp_path / "agents.py").write_text(AGENTS + FILLS)
    config = (tmp_path / "viva.toml").read_text()
    agent = '\n[agents.filling]\nuse = "python:./agents.py:filling"\nparallel = 1\n'
    (tmp_path / "viva.toml").write_text(config.replace("\n[openwop]\n", agent + "\n[openwop]\n"))
    (tmp_path / ".viva").mkdir()
    small_disk = ("--size", str(SIZE), "--tmpfs", str(tmp_path / ".viva"))
    sandbox = ("bwrap", "--die-with-parent", "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", *small_disk)
    with start_host(tmp_path, free_port(), sandbox=sandbox) as (client, process):
        run = client.start_eval("acme.evals.four@1.0.0", "local.viva.filling").json["runId"]
        while (refused := client.post("/v1/runs", {"workflowId": "conformance-noop"})).status == 201:
            continue
        assert (refused.status, refused.json["error"]) == (507, "disk_full")
        assert "retry-after" in refused.headers
        unready = client.get("/readyz")
        assert (unready.status, [each["code"] for each in unready.json["reasons"]]) == (
            503,
            ["disk_full"],
        )
        assert client.get(f"/v1/runs/{run}").json["status"] == "running"
        (tmp_path / "go").touch()
        events = client.wait_for_events(run)
        process.terminate()
        assert process.stdout is not None
        log = process.stdout.read()
    scored = [event["payload"]["taskId"] for event in events if event["type"] == "eval.scored"]
    assert (event_types(events)[-1], scored) == ("run.completed", names)
    assert [event["sequence"] for event in events] == list(range(len(events)))
    asked = (tmp_path / "asked.txt").read_text().split()
    assert sorted(set(asked)) == names
    assert len(asked) <= len(names) + 1  # only the reply that could not be stored is asked for again
    assert "Traceback" not in log
    assert "task-" not in log, json.dumps(log)
