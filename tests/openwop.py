"""Eval suites and packs as the tests write them, and the official schemas where they are."""

import io
import json
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

OFFICIAL = Path(__file__).resolve().parents[2] / "shared" / "specs" / "openwop"
SUITE_ID = "acme.support.evals.demo"


def official(name: str, capsys: pytest.CaptureFixture[str]) -> Any:
    """A validator for an official schema; None, with a printed note, if the schema is not present."""
    path = OFFICIAL / f"{name}.schema.json"
    if path.is_file():
        registry = [(file.name, json.loads(file.read_text(encoding="utf-8"))) for file in OFFICIAL.glob("*.json")]
        resources = {name: value for name, value in registry if "$id" in value}
        schema = json.loads(path.read_text(encoding="utf-8"))

        def retrieve(address: str) -> Any:
            return resources[address.rsplit("/", 1)[-1]]

        return jsonschema_rs.Draft202012Validator(schema, retriever=retrieve)
    with capsys.disabled():
        print(f"\nNOT RUN: what the official schema says, for there is no {path}", file=sys.stderr, flush=True)
    return None


def golden(value: Any, strategy: str = "contains") -> dict[str, Any]:
    return {"kind": "golden", "match": {"strategy": strategy, "value": value}}


def rubric(*criteria: tuple[str, float]) -> dict[str, Any]:
    return {"kind": "rubric", "rubric": [{"criterion": text, "weight": weight} for text, weight in criteria]}


def task(task_id: str = "a", said: Any = "hello", expected: Any = None, **fields: Any) -> dict[str, Any]:
    """A task that an echoing agent passes."""
    return {"taskId": task_id, "input": said, "expected": expected or golden("hello"), **fields}


def suite(*tasks: Mapping[str, Any], modes: tuple[str, ...] = ("golden",), **fields: Any) -> dict[str, Any]:
    return {"suiteId": SUITE_ID, "version": "1.0.0", "modes": list(modes), "tasks": list(tasks or (task(),)), **fields}


def manifest(**agent: Any) -> dict[str, Any]:
    """A manifest with one agent."""
    return {
        "name": "vendor.acme.support",
        "version": "1.0.0",
        "engines": {"openwop": ">=1.0.0 <2.0.0"},
        "runtime": {"language": "remote", "entry": "pack.json"},
        "agents": [
            {
                "agentId": "vendor.acme.support.resolver",
                "persona": "Support",
                "modelClass": "writing",
                "systemPrompt": "Be kind.",
                "evalSuiteRef": "evals/suite.json",
                **agent,
            }
        ],
    }


def pack_files(**agent: Any) -> dict[str, bytes]:
    return {
        "pack.json": json.dumps(manifest(**agent), indent=1).encode(),
        "evals/suite.json": json.dumps(suite(), indent=1).encode(),
    }


def tarball(path: Path, files: Mapping[str, bytes | tarfile.TarInfo]) -> Path:
    """A `.tgz` with these files; a TarInfo is an entry of another kind."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
            else:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return path
