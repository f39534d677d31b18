"""What `-i` means (N7)."""

from pathlib import Path

import pytest

from viva.errors import BadInput
from viva.formats.documents import Document
from viva.formats.sources import Files, Made, Piped, Words, sniffed, understood


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
def test_a_message_is_what_is_no_file(folder: Path, text: str):
    assert understood(text, folder) == Words(text)


@pytest.mark.parametrize(
    "text", ["b.yaml", "tests/c.json", "no/where", "a.jsnol/", "tests\\b.yaml", "x.toml", "*.jsonl.yaml"]
)
def test_what_looks_like_a_file_and_is_none_is_refused(folder: Path, text: str):
    with pytest.raises(BadInput, match="there is no file"):
        understood(text, folder)


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_input_is_not_the_whole_folder(folder: Path, text: str):
    """`-i "$SUITE"` with nothing in it."""
    with pytest.raises(BadInput, match="an input is empty"):
        understood(text, folder)


def test_near_names_are_offered(folder: Path):
    with pytest.raises(BadInput, match=r"did you mean tests/b\.yaml\?"):
        understood("tests/bb.yaml", folder)


def test_files_folders_and_globs_are_found(folder: Path):
    assert understood("a.jsonl", folder) == Files((folder / "a.jsonl",))
    assert understood("what is this.jsonl", folder) == Files((folder / "what is this.jsonl",))
    assert understood("notes.txt", folder) == Files((folder / "notes.txt",))
    assert understood("tests", folder) == Files((folder / "tests/b.yaml", folder / "tests/deep/c.json"))
    assert understood("tests/*.yaml", folder) == Files((folder / "tests/b.yaml",))
    assert understood("tes*", folder) == Files((folder / "tests/b.yaml", folder / "tests/deep/c.json"))
    assert understood(str(folder / "a.jsonl"), folder) == Files((folder / "a.jsonl",))


def test_a_folder_without_suites_is_refused(folder: Path):
    (folder / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no suite files"):
        understood("empty", folder)


def test_generators_come_first_and_their_values_are_typed(folder: Path):
    """`agents:` and `scripts:` win over a file of that name; values are int, float, bool or string."""
    (folder / "agents:x").write_text("", encoding="utf-8")
    made = understood("agents:x?count=10&share=0.5&strict=true&focus=edge-cases&empty=", folder)
    assert made == Made("agents", "x", {"count": 10, "share": 0.5, "strict": True, "focus": "edge-cases", "empty": ""})
    assert understood("scripts:tests.gen", folder) == Made("scripts", "tests.gen", {})


def test_a_dash_is_standard_input(folder: Path):
    (folder / "-").write_text("", encoding="utf-8")
    assert understood("-", folder) == Piped()
    assert understood("./-", folder) == Files((folder / "-",))


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
    assert sniffed(Document("f", 1, value)) == kind  # N1
    assert sniffed(None) == "native"
