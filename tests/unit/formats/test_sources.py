"""What `-i` means (N7)."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import viva
from running import run_cases
from viva.catalog import BUILT_IN
from viva.cli.main import main
from viva.errors import BadInput
from viva.formats.documents import Document
from viva.formats.load_options import LoadOptions
from viva.formats.sources import (
    GeneratedCases,
    PlainMessage,
    StandardInput,
    SuiteFiles,
    detect_format,
    load_files,
    parse_input,
)
from viva.model import codec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.jsonl", "tests/b.yaml", "tests/deep/c.json", "notes.txt", "what is this.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "text",
    [
        "Hello",
        "Hello, how are you?",
        "and/or what",
        "see tests/b.yaml please",
        "Why?",
        "[draft] *bold* hi",
        "x" * 5000,
        "a\x00b",
        "what.is.this",
    ],
)
def test_a_text_that_is_not_a_file_is_a_message(folder: Path, text: str):
    assert parse_input(text, folder) == PlainMessage(text)


@pytest.mark.parametrize(
    "text", ["b.yaml", "tests/c.json", "no/where", "a.jsnol/", "tests\\b.yaml", "x.toml", "*.jsonl.yaml"]
)
def test_what_looks_like_a_file_and_is_none_is_refused(folder: Path, text: str):
    with pytest.raises(BadInput, match="there is no file"):
        parse_input(text, folder)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("python:agent.py:agent", "-n python:agent.py:agent,"),
        ("agent.py:agent", "-n python:agent.py:agent,"),
        ("src/agent.py:agent", "-n python:src/agent.py:agent,"),
        ("http://localhost:8000/chat", "-n http://localhost:8000/chat,"),
        ("https://user:secret1@host/chat", "-n https://***@host/chat,"),
    ],
)
def test_an_agent_is_never_sent_as_a_message(folder: Path, text: str, reference: str):  # N7
    with pytest.raises(BadInput) as refused:
        parse_input(text, folder)
    assert reference in str(refused.value)


def test_python_code_is_not_a_suite(folder: Path):
    (folder / "agent.py").write_text("agent = str", encoding="utf-8")
    with pytest.raises(BadInput) as refused:
        parse_input("agent.py", folder)
    for hint in ("agent.py: is Python code", "-n python:agent.py:NAME", "-i scripts:agent"):
        assert hint in str(refused.value)


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_input_is_not_the_whole_folder(folder: Path, text: str):
    """`-i "$SUITE"` with nothing in it."""
    with pytest.raises(BadInput, match="empty input"):
        parse_input(text, folder)


def test_near_names_are_offered(folder: Path):
    with pytest.raises(BadInput, match=r"did you mean tests/b\.yaml\?"):
        parse_input("tests/bb.yaml", folder)


def test_files_folders_and_globs_are_found(folder: Path):
    assert parse_input("a.jsonl", folder) == SuiteFiles((folder / "a.jsonl",))
    assert parse_input("what is this.jsonl", folder) == SuiteFiles((folder / "what is this.jsonl",))
    assert parse_input("notes.txt", folder) == SuiteFiles((folder / "notes.txt",))
    assert parse_input("tests", folder) == SuiteFiles((folder / "tests/b.yaml", folder / "tests/deep/c.json"))
    assert parse_input("tests/*.yaml", folder) == SuiteFiles((folder / "tests/b.yaml",))
    assert parse_input("tes*", folder) == SuiteFiles((folder / "tests/b.yaml", folder / "tests/deep/c.json"))
    assert parse_input(str(folder / "a.jsonl"), folder) == SuiteFiles((folder / "a.jsonl",))


def test_a_folder_without_suites_is_refused(folder: Path):
    (folder / "empty").mkdir()
    with pytest.raises(BadInput, match="contains no suite files"):
        parse_input("empty", folder)


def test_generators_come_first_and_their_values_are_typed(folder: Path):
    """`agents:` and `scripts:` win over a file of that name; values are int, float, bool or string."""
    (folder / "agents:x").write_text("", encoding="utf-8")
    made = parse_input("agents:x?count=10&share=0.5&strict=true&focus=edge-cases&empty=", folder)
    assert made == GeneratedCases(
        "agents", "x", {"count": 10, "share": 0.5, "strict": True, "focus": "edge-cases", "empty": ""}
    )
    assert parse_input("scripts:tests.gen", folder) == GeneratedCases("scripts", "tests.gen", {})


def test_a_dash_is_standard_input(folder: Path):
    (folder / "-").write_text("", encoding="utf-8")
    assert parse_input("-", folder) == StandardInput()
    assert parse_input("./-", folder) == SuiteFiles((folder / "-",))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"id": "a", "input": "x"}, "native"),
        ({"suiteId": "s", "version": "1"}, "openwop"),
        ({"tasks": []}, "openwop"),
        ({"steps": []}, "playbook"),
        ({"persona": {}}, "playbook"),
        ({"tmpdir": "x"}, "playbook"),
        ({"id": "a", "steps": []}, "native"),
        ([1], "native"),
        (None, "native"),
    ],
)
def test_the_format_follows_the_keys(value: object, kind: str):
    assert detect_format(Document("f", 1, value)) == kind  # N1
    assert detect_format(None) == "native"


@pytest.mark.parametrize(
    ("value", "tool"),
    [
        ({"prompts": ["{{q}}"], "providers": ["p"], "tests": []}, "promptfoo"),
        ({"eval_set_id": "s", "eval_cases": []}, "the Agent Development Kit"),
    ],
)
def test_a_file_of_another_tool_is_refused_with_the_command_that_converts_it(tmp_path: Path, value: object, tool: str):
    file = tmp_path / "other.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(BadInput) as raised:
        load_files([file], LoadOptions(), tmp_path)
    expected = f"is a file of {tool}; `viva convert other.json -o cases.yaml` makes cases of it"
    assert [problem.message for problem in raised.value.problems] == [expected]


OWN = {
    **{f"r{extension}": r"an? \w+ report" for extension in BUILT_IN["reporter"]},
    "talk.jsonl": "a cassette",
    "journal.jsonl": "a journal",
    "eval.json": "an eval summary",
    "compared.json": "a comparison",
    "compared.md": "a Markdown report",
}
SUITE = {
    "suiteId": "acme.evals.one",
    "version": "1.0.0",
    "modes": ["golden"],
    "tasks": [
        {
            "taskId": "a",
            "input": "hello",
            "expected": {"kind": "golden", "match": {"strategy": "exact", "value": "hello"}},
        }
    ],
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with suites, and in it all that Viva writes."""
    folder = tmp_path_factory.mktemp("written")
    tests = folder / "tests"
    tests.mkdir()
    (tests / "suite.json").write_text(codec.encode(SUITE).decode())
    (tests / "cases.jsonl").write_text(
        '{"id": "r\\"1", "name": "n", "input": "x", "assertions": [{"type": "contains", "value": "x"}]}\n'
    )

    def run(*inputs: str, **options: Any) -> viva.RunResult:
        return run_cases(list(inputs), lambda messages: messages[-1]["content"], folder=folder, **options)

    reports = [tests / name for name in OWN if name.startswith("r.")]
    first = run("tests/cases.jsonl", "tests/suite.json", outputs=reports, record=tests / "talk.jsonl")
    assert first.passed
    assert run("tests/suite.json", eval_summary=tests / "eval.json").passed
    assert first.folder is not None
    shutil.copy(first.folder / "journal.jsonl", tests)
    outputs = ["-o", "tests/compared.json", "-o", "tests/compared.md"]
    with contextlib.chdir(folder), pytest.raises(SystemExit):
        main(["compare", "tests/r.jsonl", "tests/r.json", *outputs])
    assert {path.name for path in tests.iterdir()} == {*OWN, "suite.json", "cases.jsonl"}
    return folder


def test_files_that_viva_wrote_are_left_out_of_a_folder_and_of_a_glob(written: Path):
    suites = (written / "tests/cases.jsonl", written / "tests/suite.json")
    own = tuple(sorted(written / "tests" / name for name in OWN if name.endswith((".json", ".jsonl"))))
    for text in ("tests", "tests/*.json*"):
        found = parse_input(text, written)
        assert found == SuiteFiles(suites, own)
        assert isinstance(found, SuiteFiles)
        assert "skipped, because Viva wrote them: " in str(found.note)
    result = run_cases("tests", lambda messages: messages[-1]["content"], folder=written)
    assert (result.passed, result.summary.total) == (True, 2)


@pytest.mark.parametrize(("name", "kind"), OWN.items())
def test_a_file_that_viva_wrote_is_not_an_input(written: Path, name: str, kind: str):
    with pytest.raises(BadInput, match=rf"tests/{name}: is {kind} written by Viva, not a suite"):
        parse_input(f"tests/{name}", written)


def test_a_folder_with_nothing_but_reports_holds_no_suites(written: Path, tmp_path: Path):
    shutil.copy(written / "tests/r.jsonl", tmp_path)
    with pytest.raises(BadInput, match="contains no suites, only files written by Viva"):
        parse_input(".", tmp_path)
