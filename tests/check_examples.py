"""The examples of tests/check_examples.yaml, run by Viva: each check with a reply on which it passes and one on which it fails."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

import viva

FILE = Path(__file__).with_name("check_examples.yaml")
CONFIG = '[defaults]\njudge = "judge"\n[agents.judge]\nuse = "python:./checks.py:judge"\n'
CHECKS = """import re


def names_a_day(output):
    return "Friday" in output


def names_a_date(output):
    return re.search(r"\\d{4}-\\d{2}-\\d{2}", output) is not None


def judge(messages, options):
    passed = "apologises" in options["metadata"]["criteria"]
    return {"passed": passed, "reason": "It says sorry" if passed else "It names no date"}
"""


class Example(msgspec.Struct, forbid_unknown_fields=True):
    reply: Any
    passes: dict[str, Any]
    fails: dict[str, Any]
    files: dict[str, str] = {}
    snapshots: dict[str, str] = {}
    streamed: bool = False


class Outcome(msgspec.Struct):
    """Viva's verdict on one assertion of an example."""

    status: str
    reason: str


def read_examples() -> dict[str, Example]:
    return msgspec.convert(yaml.safe_load(FILE.read_text(encoding="utf-8")), dict[str, Example])


def run_examples(examples: Mapping[str, Example]) -> dict[str, tuple[Outcome, Outcome]]:
    """The outcomes of the passing and of the failing assertion of each example."""

    def reply(messages: list[Any], options: Mapping[str, Any]) -> Any:
        example = examples[messages[-1]["content"]]
        for name, text in example.files.items():
            (Path(options["workspace"]) / name).write_text(text, encoding="utf-8")
        return iter([example.reply]) if example.streamed else example.reply

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "viva.toml").write_text(CONFIG)
        (root / "checks.py").write_text(CHECKS)
        for example in examples.values():
            for name, text in example.snapshots.items():
                (root / name).write_text(text)
        cases = [_case(name, side, example) for name, example in examples.items() for side in ("passes", "fails")]
        (root / "examples.json").write_bytes(msgspec.json.encode(cases))
        result = viva.run(root / "examples.json", reply, config=root / "viva.toml", history=False)
        return {name: (_outcome(result[f"{name}-passes"]), _outcome(result[f"{name}-fails"])) for name in examples}


def _case(name: str, side: str, example: Example) -> dict[str, Any]:
    case: dict[str, Any] = {
        "id": f"{name}-{side}",
        "input": name,
        "assertions": [{"type": name, **getattr(example, side)}],
    }
    return case | ({"workspace": {"kind": "empty"}} if example.files else {})


def _outcome(record: Any) -> Outcome:
    return Outcome(record.status, "; ".join(_reasons(record)))


def _reasons(record: Any) -> Iterator[str]:
    for turn in record.turns:
        for assertion in turn.assertions:
            if not assertion["passed"]:
                yield assertion.get("reason") or assertion.get("error") or ""
