"""The examples do what they promise, and the specification's own samples hold of the example assistant."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SPECIFICATION = ROOT.parent / "shared" / "specs" / "agent-test-v2.md"
COMMENTED_OBJECT = re.compile(r"(?:^//[^\n]*\n)*^\{\n.*?^\}$", re.MULTILINE | re.DOTALL)


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def viva_test(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    config = EXAMPLES / "expense" / "viva.toml"
    return run("-m", "viva", "test", "--config", config, "--no-history", *arguments, cwd=cwd)


def records_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_demo_passes_its_suites_and_catches_the_planted_bug(tmp_path: Path) -> None:
    """`make demo`: exit code 0, the failing check with its reason on the console, three reports that can be read."""
    demo = run(EXAMPLES / "demo.py", cwd=tmp_path)
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    passing, planted = demo.stdout.split("a bug planted in it")
    assert "22 passed" in passing
    assert "Exit code 0, expected 0." in passing
    assert "2 passed" in planted
    assert "1 failed" in planted
    assert '✗ tool_not_called "submit_expense"' in planted
    assert "It submits what the user has just corrected" in planted
    assert "Exit code 1, expected 1." in planted
    out = tmp_path / "demo-out"
    assert {record["status"] for record in records_in(out / "expense.jsonl")} == {"passed"}  # N34
    assert len(ET.parse(out / "expense.xml").findall(".//testcase")) == 22
    assert "22" in (out / "expense.md").read_text(encoding="utf-8")


def test_demo_fails_when_the_bug_is_not_caught(tmp_path: Path) -> None:
    """With the bug mended, the planted suite passes: that is not what the demo promises, and it says so."""
    examples = shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__", ".viva"))
    config = examples / "expense" / "viva.toml"
    mended = config.read_text(encoding="utf-8").replace("./buggy.py:HastyAssistant", "./assistant.py:ExpenseAssistant")
    config.write_text(mended, encoding="utf-8")
    demo = run("examples/demo.py", cwd=tmp_path)
    assert demo.returncode == 1, demo.stdout + demo.stderr
    assert "Exit code 0, expected 1." in demo.stdout


def test_cases_do_not_share_state(tmp_path: Path) -> None:
    """Each case has its own ledger (N19): every first reference is EXP-0001, many cases at once or one by one."""
    suite = EXAMPLES / "expense" / "tests" / "amounts.jsonl"
    for parallel in ("1", "8"):
        report = tmp_path / f"{parallel}.jsonl"
        ended = viva_test("-i", suite, "--parallel", parallel, "-k", "corrected|cents", "-o", report, cwd=tmp_path)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        expenses = [record["turns"][0]["data"]["expense"] for record in records_in(report)]
        assert [expense["reference"] for expense in expenses] == ["EXP-0001", "EXP-0001"]


def test_static_samples_of_the_specification_hold_as_they_are_written(tmp_path: Path, capsys) -> None:
    """Pasted with their comments and line breaks (N1), the specification's static cases pass."""
    if not specification_is_there(capsys):
        return
    cases = static_cases()
    assert [json.loads(without_comments(text))["id"] for text in cases] == ["T001", "expense-static"]
    suite = tmp_path / "specification.jsonl"
    suite.write_text("\n".join(cases), encoding="utf-8")
    ended = viva_test("-i", suite, "-v", "-o", tmp_path / "report.jsonl", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert [record["status"] for record in records_in(tmp_path / "report.jsonl")] == ["passed", "passed"]


def test_record_of_the_specification_can_be_made_again(tmp_path: Path, capsys) -> None:
    """The sample of a JSONL record, run as a case, gives a record with all of its keys (N34) and its `$.expense.status` (N12)."""
    if not specification_is_there(capsys):
        return
    (sample,) = [value for value in map(parsed, blocks()) if value and "status" in value]
    case = {
        "id": sample["id"],
        "turns": [
            {"input": turn["input"], "assertions": assertion_lines(turn["assertions"])} for turn in sample["turns"]
        ],
        "final_assertions": assertion_lines(sample["final_assertions"]),
    }
    suite = tmp_path / "sample.jsonl"
    suite.write_text(json.dumps(case), encoding="utf-8")
    ended = viva_test("-i", suite, "-o", tmp_path / "report.jsonl", cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (record,) = records_in(tmp_path / "report.jsonl")
    assert sample.keys() <= record.keys()
    for wanted, turn in zip(sample["turns"], record["turns"], strict=True):
        assert wanted.keys() <= turn.keys()
        assert (wanted["input"], wanted["input_source"]) == (turn["input"], turn["input_source"])
        assert wanted["awaiting_input"] is turn["awaiting_input"]
        assert_holds(turn["assertions"], wanted["assertions"])
    assert_holds(record["final_assertions"], sample["final_assertions"])


def assert_holds(assertions: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """Each wanted assertion is there with its verdict; ours may say more."""
    for ours, theirs in zip(assertions, wanted, strict=True):
        assert theirs.items() <= ours.items()


def specification_is_there(capsys) -> bool:
    if SPECIFICATION.is_file():
        return True
    with capsys.disabled():
        print(f"\nNOT RUN: the specification's samples, for there is no {SPECIFICATION}", file=sys.stderr, flush=True)
    return False


def blocks() -> list[str]:
    return re.findall(r"^```jsonl\n(.*?)^```$", SPECIFICATION.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def static_cases() -> list[str]:
    """The objects of all blocks that are whole cases with a checked script, each with the comment above it."""
    found = [text for block in blocks() for text in COMMENTED_OBJECT.findall(block)]
    return [text for text in found if is_checked_script(parsed(text))]


def is_checked_script(value: dict[str, Any] | None) -> bool:
    """A case, not a record (which has a status), whose every turn claims something."""
    return (
        bool(value) and "id" in value and "status" not in value and all(map(has_assertions, value.get("turns", [{}])))
    )


def has_assertions(turn: dict[str, Any]) -> bool:
    return "assertions" in turn


def parsed(text: str) -> dict[str, Any] | None:
    """None for placeholders like `[...]`, and for a block of several objects."""
    try:
        return json.loads(without_comments(text))
    except json.JSONDecodeError:
        return None


def without_comments(text: str) -> str:
    return re.sub(r"^//.*$", "", text, flags=re.MULTILINE)


def assertion_lines(assertions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in assertion.items() if key != "passed"} for assertion in assertions]


def test_the_model_driven_example_loads() -> None:
    """Its suite, its connector in one line and its tools are right; what a model makes of it is tried elsewhere."""
    command = [sys.executable, "-m", "viva", "check", "tests"]
    environ = {**os.environ, "OPENAI_API_KEY": "unused"}
    folder = EXAMPLES / "support"
    checked = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "2 cases in 1 file: no problems\n"), checked
