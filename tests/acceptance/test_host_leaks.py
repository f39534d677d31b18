"""An eval sends no text of a user, agent, judge or suite: every text has a marker, and all output is searched."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from running_host import AGENTS, Client, build_suite, golden_task, run_host, write_project
from viva.testing import OpenAIServer

MARKS = {
    name: f"LEAK{name.upper()}MARK"
    for name in ("input", "output", "rubric", "prompt", "expected", "memory", "tool", "metadata", "error", "judge")
}
KEY = "sk-LEAKKEYMARK-Q7mZt2Kx9LwR4vBn8"
AGENT = f"""
def leaky(messages, options, tools=None, memory=None):
    if "fail" in messages[-1]["content"]:
        raise RuntimeError("{MARKS["error"]}")
    if tools is not None:
        return "{MARKS["output"]} " + str(tools.call("kb:search", q="{MARKS["input"]}"))
    return Reply("{MARKS["output"]}", tool_calls=(ToolCall("{MARKS["tool"]} is a sentence", {{}}, result="{MARKS["tool"]}"),))
"""
FIXTURES = {
    "toolResponses": [{"tool": "kb:search", "response": MARKS["tool"]}],
    "memorySeed": [{"id": "m", "text": MARKS["memory"]}],
}
TASKS = [
    golden_task("golden", MARKS["input"], MARKS["expected"], "contains"),
    golden_task("object", {"deep": MARKS["input"]}, {"deep": MARKS["expected"]}, "json-match"),
    golden_task("fixed", f"{MARKS['input']} x", MARKS["expected"], fixtures=FIXTURES),
    golden_task("failing", f"{MARKS['input']} fail", MARKS["expected"]),
    {
        "taskId": "judged",
        "input": MARKS["input"],
        "expected": {"kind": "rubric", "rubric": [{"criterion": MARKS["rubric"], "weight": 1.0}]},
    },
]


def test_an_eval_sends_no_content(tmp_path: Path):
    """Responses, streams, errors, printed output and stored data; the journal of the run belongs to the owner of the host."""  # R14
    write_project(tmp_path, build_suite("leaky", *TASKS, modes=("golden", "rubric", "adversarial", "regression")))
    (tmp_path / "agents.py").write_text(AGENTS + AGENT)
    heard: list[bytes] = []
    verdict = {"passed": True, "reason": MARKS["judge"], "evidence": [{"turn": 1, "quote": MARKS["output"]}]}
    with OpenAIServer(json.dumps(verdict)) as model:
        config = (tmp_path / "viva.toml").read_text()
        more = (
            f'\n[agents.leaky]\nuse = "python:./agents.py:leaky"\ndescription = "an agent"\n'
            f'\n[agents.chatty]\ntype = "chat"\nconnector = "model"\nsystem = "{MARKS["prompt"]}"\n'
            f'\n[connectors.model]\nbase_url = "{model.url}"\nmodel = "m"\napi_key_env = "LEAK_KEY"\n'
        )
        (tmp_path / "viva.toml").write_text(config.replace("\n[openwop]\n", more + "\n[openwop]\n"))
        log = (tmp_path / "printed.txt").open("w+b")
        process = subprocess.Popen(
            [sys.executable, "-m", "viva", "serve", "--port", "0", "--conformance"],
            cwd=tmp_path,
            env={**os.environ, "LEAK_KEY": KEY, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            printed = process.stdout.readline()
            client = Client(int(re.findall(r":(\d+)", printed)[-1]))
            for agent in ("local.viva.leaky", "local.viva.chatty"):
                run, events = client.run_eval(
                    "acme.evals.leaky@1.0.0", agent, evalModes=["golden", "rubric", "adversarial"]
                )
                assert [e["type"] for e in events].count("eval.scored") == len(TASKS)
                assert [e["type"] for e in events][-1] == "run.completed"
                for mode in ("updates", "debug", "values"):
                    client.read_stream(run, f"?streamMode={mode}")
                client.get_summary(run)
                client.get(f"/v1/runs/{run}")
                client.get(f"/v1/runs/{run}:diff?against={run}")
                client.get(f"/v1/host/sample/test/runs/{run}/events")
                again, _ = client.run_eval("acme.evals.leaky@1.0.0", agent, evalModes=["golden", "rubric", "regression"], baselineRunId=run)  # fmt: skip
                client.get(f"/v1/runs/{again}:diff?against={run}")
            client.start_eval("acme.evals.leaky@1.0.0")
            client.start_eval(f"acme.evals.{MARKS['input']}@1.0.0")
            client.post("/v1/runs", {"workflowId": MARKS["input"], MARKS["input"]: 1})
            client.post("/v1/runs", {"workflowId": "conformance-noop", "configurable": {"temperature": MARKS["input"]}})
            for path in ("/v1/agents", "/.well-known/openwop", "/v1/openapi.json", f"/v1/runs/{MARKS['input']}"):
                client.get(path)
            heard = client.received
        finally:
            process.terminate()
            printed = process.communicate(timeout=300)[0]
            log.seek(0)
            errors = log.read()
            log.close()
    stored = [path.read_bytes() for path in (tmp_path / ".viva" / "host").rglob("*") if path.is_file()]
    searched = {"answers": b"\n".join(heard), "stdout": printed.encode(), "stderr": errors, "store": b"\n".join(stored)}
    for place, text in searched.items():
        found = [mark for mark in (*MARKS.values(), "LEAKKEYMARK", "acme-token") if mark.encode() in text]
        assert found == [], f"{place} holds {found}"
    assert len(searched["answers"]) > 10_000
    journals = b"".join(path.read_bytes() for path in (tmp_path / ".viva" / "runs").rglob("journal.jsonl"))
    assert MARKS["output"].encode() in journals  # the text existed
    assert b"LEAKKEYMARK" not in journals


SPILLING = """
import os

def spilling(messages, options):
    return {"data": {"told": os.environ["LEAK_KEY"] + " and other-token-0123456789"}}
"""


def test_an_invocation_returns_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An agent may know secrets of the host; they are redacted in replies and in the journal of an eval."""
    monkeypatch.setenv("LEAK_KEY", KEY)
    write_project(tmp_path)
    (tmp_path / "agents.py").write_text(AGENTS + SPILLING)
    config = (tmp_path / "viva.toml").read_text()
    more = (
        '\n[agents.spilling]\nuse = "python:./agents.py:spilling"\n'
        '\n[agents.chatty]\ntype = "chat"\nconnector = "model"\n'
        '\n[connectors.model]\nbase_url = "http://127.0.0.1:1"\nmodel = "m"\napi_key_env = "LEAK_KEY"\n'
    )
    (tmp_path / "viva.toml").write_text(config.replace("\n[openwop]\n", more + "\n[openwop]\n"))
    with run_host(tmp_path) as client:
        body = {"workflowId": "viva.agent", "agentId": "local.viva.spilling", "inputs": {"input": "x"}}
        output = client.wait_for_events(client.post("/v1/runs", body).json["runId"])[-1]["payload"]["outputs"]["output"]
        run, _ = client.run_eval(agent="local.viva.spilling")
    assert output == {"told": "*** and ***"}
    journal = (tmp_path / ".viva" / "runs" / run / "journal.jsonl").read_text()
    assert "*** and ***" in journal
    assert "LEAKKEYMARK" not in journal
    assert "other-token" not in journal
