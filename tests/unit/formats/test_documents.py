"""Files as documents: where each begins, what cannot be read, and that a large file is not held."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from viva.errors import BadInput, Problem
from viva.formats.documents import (
    Document,
    LoadedDocuments,
    StreamedDocuments,
    format_key_path,
    open_documents,
    open_json_stream,
    read_chunks,
)


def read(path: Path) -> tuple[list[tuple[int, Any]], list[str]]:
    """The documents of a file with their lines, and the problems."""
    problems: list[Problem] = []
    try:
        documents = open_documents(path, path.name)
    except BadInput as error:
        return [], [str(problem) for problem in error.problems]
    found = [(document.line, document.value) for document in documents.read_valid(problems)]
    return found, [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}\n{"a": 2}', [(1, 1), (2, 2)]),
        ('\n\n  {"a": 1}  \n\n', [(3, 1)]),
        ('// x\n{"a": 1}\n  // y\n//{"a": 9}\n{"a": 2}\n', [(2, 1), (5, 2)]),
        ('{\n"a": 1\n}\n{\n"a": 2\n}\n', [(1, 1), (4, 2)]),
        ('{\n  "b": "}",\n  // no\n\n  "a": 1}\n{"a": 2}', [(1, 1), (6, 2)]),
        ('{"b": "// \\" {[",\n"a": 1}\n', [(1, 1)]),
        ('{"b": [\n{"c": {}}\n],\n"a": 1}'.replace("\n{", "\n {"), [(1, 1)]),
        ("\ufeff" + '{"a": 1}', [(1, 1)]),
        ('{"a": 1}\r\n\r\n{\r\n"a": 2}\r\n', [(1, 1), (3, 2)]),
        ('{"a": 1}{"a": 2} {"a": 3}\n{"a": 4}', [(1, 1), (1, 2), (1, 3), (2, 4)]),
        ('{\n"a": 1, "b": "}{"\n}{\n"a": 2\n} {"a": 3}\n', [(1, 1), (3, 2), (5, 3)]),
    ],
)
def test_documents_of_a_stream_begin_where_their_first_line_is(tmp_path: Path, text: str, found: list[tuple[int, int]]):
    path = tmp_path / "s.jsonl"
    path.write_text(text, encoding="utf-8", newline="")
    documents, problems = read(path)
    assert problems == []  # N1
    assert [(line, value["a"]) for line, value in documents] == found


def test_a_broken_document_does_not_take_its_neighbours_along(tmp_path: Path):
    """An object that is never closed ends where the next begins at the start of a line."""
    path = tmp_path / "s.jsonl"
    path.write_text('{"a": 1}\n{"a": \n  [2,\n{"a": 3}\nnonsense\n{"a": 4}\n', encoding="utf-8")
    documents, problems = read(path)
    assert [value["a"] for _, value in documents] == [1, 3, 4]  # N2
    assert problems == [
        "s.jsonl:2: is not JSON: the value that starts here does not end",
        "s.jsonl:5: is not JSON: expecting value (column 1)",
    ]


def test_the_line_of_what_breaks_is_the_one_inside(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    path.write_text('{"a": 1}\n{\n  "a": 1,\n  "b": tru\n}\n', encoding="utf-8")
    _, problems = read(path)
    assert problems == ["s.jsonl:4: is not JSON: expecting value (column 8)"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', [(1, 1)]),
        ('\n\n{\n"a": 1}', [(3, 1)]),
        ('[{"a": 1}, {"a": 2},\n\n {"a": 3}]', [(1, 1), (1, 2), (3, 3)]),
        ('{"cases": [\n{"a": 1},\n{"b": "],[{", "a": 2}\n]}', [(2, 1), (3, 2)]),
        ('// top\n[\n// in\n{"a": 1}\n]', [(4, 1)]),
        ("[]", []),
    ],
)
def test_members_of_a_json_file_have_their_lines(tmp_path: Path, text: str, found: list[tuple[int, int]]):
    path = tmp_path / "s.json"
    path.write_text(text, encoding="utf-8")
    documents, problems = read(path)
    assert problems == []  # N1
    assert [(line, value["a"]) for line, value in documents] == found


def test_members_of_any_type_keep_their_places(tmp_path: Path):
    """A list of odd things still has a line for each, so that each can be complained about."""
    path = tmp_path / "s.json"
    path.write_text('[1,\n"a, [b]",\n[],\n{},\nnull, [[1], {"x": 2}],\ntrue]', encoding="utf-8")
    documents, _ = read(path)
    assert documents == [(1, 1), (2, "a, [b]"), (3, []), (4, {}), (5, None), (5, [[1], {"x": 2}]), (6, True)]


def test_a_problem_knows_its_line_and_path_in_every_format(tmp_path: Path):
    value = {"id": "x", "turns": [{"input": "a"}, {"input": "b", "odd key": 1}]}
    for name, text, line in (
        ("s.jsonl", "\n" + json.dumps(value, indent=1), 10),
        ("s.json", json.dumps([0, value], indent=1), 11),
        ("s.yaml", "- 0\n- id: x\n  turns:\n    - input: a\n    - input: b\n      odd key: 1\n", 6),
    ):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        document = list(open_documents(path, name).read_valid([]))[-1]
        problem = document.make_problem(("turns", 1), "is odd", key="odd key")
        prefix = "$" if name == "s.jsonl" else "$[1]"
        assert str(problem) == f"{name}:{line}: {prefix}.turns[1]: is odd"  # N2


def test_paths_are_shown_as_people_write_them():
    assert format_key_path(()) == "$"
    assert format_key_path(("turns", 0, "odd key", "x")) == "$.turns[0]['odd key'].x"


def test_a_file_that_changed_in_between_is_refused(tmp_path: Path):
    """What was checked is what is read the second time: another, a longer and a shorter file are not."""
    path = tmp_path / "s.jsonl"
    for after in ('{"a": 2}\n{"b": 1}\n', '{"a": 1}\n{"b": 1}\n{"c": 1}\n', '{"a": 1}\n'):
        path.write_text('{"a": 1}\n{"b": 1}\n', encoding="utf-8")
        documents = StreamedDocuments(path, "s.jsonl")
        assert len(list(documents.read_valid([]))) == 2
        assert [decode().value for decode in documents.iterate_again()] == [{"a": 1}, {"b": 1}]
        path.write_text(after, encoding="utf-8")
        with pytest.raises(BadInput, match="while it was being run"):
            list(documents.iterate_again())


def test_a_file_that_cannot_be_opened_is_a_problem(tmp_path: Path):
    (tmp_path / "s.jsonl").mkdir()
    assert read(tmp_path / "s.jsonl")[1] == ["s.jsonl: is a folder, not a file"]
    assert read(tmp_path / "absent.json")[1] == ["absent.json: cannot be read: No such file or directory"]


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        (b'{"a": 1}\n{"a": 2}\n', StreamedDocuments, [{"a": 1}, {"a": 2}]),
        (b'// c\n{\n"a": 1}\n', StreamedDocuments, [{"a": 1}]),
        (b'\n [{"a": 1},\n {"a": 2}]', LoadedDocuments, [{"a": 1}, {"a": 2}]),
        (b'{"cases": [\n  {"a": 1}]}', LoadedDocuments, [{"a": 1}]),
        (b"", StreamedDocuments, []),
    ],
)
def test_a_pipe_is_read_twice_though_it_flows_once(text: bytes, kind: type, values: list[Any]):
    documents = open_json_stream(io.BytesIO(text), "-")
    assert isinstance(documents, kind)  # N7
    assert [document.value for document in documents.read_valid([])] == values
    assert [decode().value for decode in documents.iterate_again()] == values


def test_readers_of_a_pipe_do_not_disturb_each_other():
    documents = open_json_stream(io.BytesIO(b'{"a": 1}\n{"a": 2}\n'), "-")
    one, other = documents.read_valid([]), documents.read_valid([])
    assert [next(one).value, next(other).value, next(one).value, next(other).value] == [
        {"a": 1},
        {"a": 1},
        {"a": 2},
        {"a": 2},
    ]


def test_a_line_with_a_huge_string_costs_no_more_than_a_few_times_its_size(tmp_path: Path):
    """Brackets are counted without stepping back, also where every other character is escaped."""
    import tracemalloc

    path = tmp_path / "s.jsonl"
    path.write_text(json.dumps({"a": '\\"' * 500_000}, indent=1), encoding="utf-8")
    tracemalloc.start()
    (chunk,) = read_chunks(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(chunk.raw) > 2_000_000
    assert peak < 8 * len(chunk.raw)


def test_a_document_by_itself_tells_its_line():
    document = Document("f", 10, {"a": 1}, raw=b'{\n"b": 2,\n"a": 1}')
    assert document.make_problem((), "is wrong", key="a").line == 12
    assert document.make_problem(("absent",), "is wrong").line == 10


@pytest.mark.parametrize("name", ["s.jsonl", "s.json"])
def test_a_key_that_is_written_twice_is_refused_with_its_line(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_text(
        '{\n"a": [{"b": "x: \\": y", "c": 1}, {"b": 2}],\n"d": {"b": 3,\n"\\u0062" : 4}}\n', encoding="utf-8"
    )
    assert read(path)[1] == [f"{name}:4: the key 'b' is there twice; remove one"]  # N2
    path.write_text('{"a": "at 12:30, \\"b\\": 1", "b": {"a": [{"a": 1}, {"a": 2}]}}\n', encoding="utf-8")
    assert read(path)[1] == []
