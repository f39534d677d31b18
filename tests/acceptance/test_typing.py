"""The project of a user under pyright in strict mode: right code is clean, and each mistake is an error."""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from viva.types import CaseDict, CheckpointDict, TurnDict

GOOD = """\
import asyncio
from typing import Any

import pytest

import viva
from viva import check
from viva.types import AsyncContext, CaseDict, Context, T, TrialRecord, TurnView, VivaFixture


def reply(message: str) -> str:
    return message


def is_polite(turn: TurnView) -> bool:
    return "please" in turn.text and turn.tool_calls[0].name == "t"


def judge(messages: list[dict[str, Any]], options: dict[str, Any]) -> dict[str, Any]:
    return {"passed": True, "reason": options["metadata"]["criteria"]}


def main() -> None:
    case: CaseDict = {"input": "Hello", "assertions": [check.contains("name?"), is_polite, lambda turn: turn.awaiting]}
    viva.run({"input": "Hello", "assertions": [lambda turn: turn.text == "x"], "simulator": judge}, reply)
    result = viva.run([case], reply, parallel=8, options=viva.RunOptions(fail_fast=True, sandbox="none"))
    assert result, result
    lambdas = viva.RunOptions(reporter=lambda message: "x", evaluator=lambda messages, options: True)
    viva.run(case, lambda message: f"hi {message}", simulator=lambda messages, options: "x", options=lambdas)
    viva.run({"input": "x", "assertions": [check.judge("x", use=lambda messages, options: True)]}, {"a": reply})
    for record in result:
        print(record.id, record.turns[0].output)
    first: TrialRecord = result["case-1"]
    print(first.status, len(result), result.failures[0].error, result.to_dicts()[0]["id"])


async def amain() -> None:
    result = await viva.arun("tests/", reply, simulator=judge)
    print(result.passed)
    async with viva.Conversation(reply, timeout="5s") as chat:
        answer = await chat.say("hi")
        print(answer.text.upper(), answer.awaiting)
        chat.expect(check.contains("hi"), is_polite, lambda turn: "Friday" in turn.text)
        chat.expect(check.all_of(check.contains("x"), lambda turn: turn.awaiting), check.script(judge))
        verdict = await chat.judge("polite", use=judge)
        print(verdict.reason)


@pytest.fixture(scope="module")
def chat(viva_module: VivaFixture) -> viva.SyncConversation:
    return viva_module.chat(reply)


def test_chat(viva: VivaFixture, chat: viva.SyncConversation) -> None:
    chat.say("hi")
    chat.expect(viva.check.contains("hi"), lambda turn: turn.number == 1)
    result = viva.run("cases.jsonl", reply, runs=3, options=viva.RunOptions(retry_faults=0))
    assert result


def test_policy(t: T, ctx: Context) -> None:
    t.assert_.contains(ctx.call("a", "b").content, "x")


async def test_async(t: T, ctx: AsyncContext) -> None:
    t.assert_.contains((await ctx.call("a", "b")).content, "x")


def handle() -> None:
    try:
        main()
    except viva.BadInput as error:
        print(error.problems[0].message)
    except viva.AgentFailed as error:
        print(error.fault)


asyncio.run(amain())
"""
BAD = [
    "viva.containz",
    "check.containz('x')",
    "viva.run('x', parallel='8')",
    "viva.run('x', fail_fast=True)",
    "viva.RunOptions(fail_fas=True)",
    "viva.RunOptions(sandbox='chroot')",
    "check.contains(5)",
    "check.tool_called('t', status='good')",
    "viva.run('x').records()[0].statuz",
    "chat.expect('hello')",
    "chat.expect(lambda turn: turn.texxt == 'x')",
    "chat.say('hi').texxt",
]
HEAD = "import viva\nfrom viva import check\n\nchat = viva.SyncConversation()\n"


def test_a_users_project_in_strict_mode(tmp_path: Path):
    """pyright runs once for both files: starting it takes most of the time."""
    (tmp_path / "good.py").write_text(GOOD, encoding="utf-8")
    (tmp_path / "bad.py").write_text(HEAD + "\n".join(BAD) + "\n", encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", "pythonVersion": "3.11"}))
    pyright = Path(sys.executable).with_name("pyright")
    command = [pyright, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    in_good = [each for each in found if each["file"].endswith("good.py")]
    assert in_good == []
    lines = {each["range"]["start"]["line"] - HEAD.count("\n") for each in found if each["severity"] == "error"}
    assert [BAD[line] for line in sorted(lines)] == BAD


def test_cases_have_the_keys_of_a_suite_file():
    properties = json.loads((files("viva.schemas") / "native.schema.json").read_text(encoding="utf-8"))
    words_of_python = {"assert", "for"}
    assert set(CaseDict.__annotations__) == set(properties["properties"]) - words_of_python
    for kind, name in ((TurnDict, "turn"), (CheckpointDict, "checkpoint")):
        assert set(kind.__annotations__) == set(properties["$defs"][name]["properties"]) - words_of_python
