"""The shipped page equals the build of its sources, and its types match the Python structs."""

import re
import sys

import msgspec
import pytest

from built_page import SHIPPED, SOURCES, build, installed
from viva.model.event import RunSummary, SuiteSummary
from viva.model.message import Step
from viva.model.record import CheckpointRecord, ToolCallRecord, TrialRecord, TurnRecord
from viva.model.turn import CriterionResult, HelperCall
from viva.reporters.breakdown import Breakdown, FailureGroup, NamedRate
from viva.reporters.page import CaseRow, Overview, TurnCost

CODE = sorted(path for path in (SOURCES / "src").rglob("*") if path.is_file())


def test_the_page_equals_its_build() -> None:
    """If it fails: run `make page`."""
    if not installed():
        print("\nNOT RUN: the build of the page (npm cannot install its packages)", file=sys.stderr, flush=True)
        return
    assert build() == SHIPPED.read_bytes()


def test_build_dependencies_are_pinned_without_registry() -> None:
    manifest = msgspec.json.decode((SOURCES / "package.json").read_bytes())
    versions = {**manifest["dependencies"], **manifest["devDependencies"]}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions.values())
    assert list(manifest["dependencies"]) == ["preact"]
    lock = msgspec.json.decode((SOURCES / "package-lock.json").read_bytes())
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]
    assert "registry" not in (SOURCES / "package-lock.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CODE, ids=lambda path: path.name)
def test_texts_are_never_inserted_as_html(path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert text.count("\n") <= 420 or path.suffix == ".css"


@pytest.mark.parametrize(
    ("name", "struct"),
    [
        ("CaseRow", CaseRow),
        ("Overview", Overview),
        ("TurnCost", TurnCost),
        ("Trial", TrialRecord),
        ("Turn", TurnRecord),
        ("ToolCall", ToolCallRecord),
        ("Checkpoint", CheckpointRecord),
        ("Summary", RunSummary),
        ("SuiteSummary", SuiteSummary),
        ("HelperCall", HelperCall),
        ("Step", Step),
        ("Criterion", CriterionResult),
        ("FailureGroup", FailureGroup),
        ("NamedRate", NamedRate),
        ("Breakdown", Breakdown),
    ],
)
def test_the_page_reads_only_existing_fields(name: str, struct: type[msgspec.Struct]) -> None:
    """The types are repeated in TypeScript: a renamed field must be renamed there too."""
    declared = "".join((SOURCES / "src" / name).read_text(encoding="utf-8") for name in ("data.ts", "detail_data.ts"))
    body = re.search(rf"^export interface {name} \{{\n(.*?)^\}}", declared, re.MULTILINE | re.DOTALL)
    assert body is not None
    fields = re.findall(r"^  (\w+)\??:", body[1], re.MULTILINE)
    assert fields
    assert not set(fields) - set(struct.__struct_fields__)
