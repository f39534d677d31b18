"""Any bytes become cases or a clear error; what loads does so however it is laid out."""

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from viva.errors import BadInput
from viva.formats.load_options import LoadOptions
from viva.formats.sources import load_files
from viva.model.case import Case

texts = st.text(max_size=6)
scalars = st.none() | st.booleans() | st.integers(-9, 99) | st.floats(-1, 1) | texts
KEYS = """
    id input turns assertions assert type value pattern path name arguments timeout content role set for skip max_turns
    final_assertions assertion options metadata x
"""
keys = st.sampled_from(KEYS.split())
names = st.sampled_from(
    ["contains", "regex", "json_path", "tool_called", "all", "not", "equals", "type", "user", "30s", "(", "$["]
)
odd = st.recursive(
    scalars | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | texts, inner, max_size=4),
    max_leaves=12,
)


def loaded(name: str, raw: bytes) -> list[Case] | BadInput:
    """The cases of a file with these bytes, pulled as in a run, or what is wrong. Anything else is a bug."""

    async def pulled() -> list[Case]:
        (suite,) = load_files([path], LoadOptions(), path.parent, "native")
        cases = [case async for case in suite.cases()]
        assert len(cases) == suite.count
        return cases

    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(raw)
        try:
            return asyncio.run(pulled())
        except BadInput as wrong:
            return wrong


def check_clear(found: list[Case] | BadInput, raw: bytes) -> None:
    """Cases with ids, or problems that each name the file, a line in it, and what is wrong in one line."""
    if not isinstance(found, BadInput):
        assert found
        assert all(isinstance(case.id, str) and case.id for case in found)
        return
    assert found.problems
    for problem in found.problems:
        assert problem.file.startswith("s.")
        assert 0 <= problem.line <= raw.count(b"\n") + raw.count(b"\r") + 1
        assert problem.message
        assert "\n" not in str(problem)
        assert problem.path == "" or problem.path.startswith("$")


@settings(max_examples=150)
@given(st.binary(max_size=80), st.sampled_from(["s.jsonl", "s.json", "s.yaml"]))
@example(b"\xff\xfe{\x00}\x00", "s.jsonl")
@example(b"- &a [*a]", "s.yaml")
@example(b"- !!binary x", "s.yaml")
@example(b"%YAML 9.9\n---\n- a", "s.yaml")
@example(b"- {? [a]: b}", "s.yaml")
@example(b"- !!set {a, b}", "s.yaml")
@example(b"- !!omap [a: 1]", "s.yaml")
@example(b"- !!timestamp 2001-01-01", "s.yaml")
@example(b'{"id": "a", "input": "\\ud800"}', "s.jsonl")
@example(b'{"id": "a", "input": "x", "metadata": {"n": 1e999}}', "s.jsonl")
@example(b'{"id": "a", "input": "x", "metadata": {"n": 123456789012345678901234567890}}', "s.jsonl")
@example(b'{"id": "a", "input": "x", "id": "b"}', "s.json")
@example(b"null", "s.json")
@example(b"[null]", "s.json")
@example(b'{"cases": 5}', "s.json")
def test_any_bytes_are_cases_or_a_clear_error(raw: bytes, name: str):
    check_clear(loaded(name, raw), raw)  # N2


@settings(max_examples=200)
@given(st.dictionaries(keys, odd, max_size=5))
@example({"id": "a", "input": "{{n}}", "for": [{"n": [1]}]})
@example({"id": "{{n}}", "input": "x", "for": [{"n": {"a": 1}}]})
@example({"id": "a", "turns": "{{n}}", "for": [{"n": [{"input": "x"}]}]})
@example({"id": "a", "input": "x", "assertions": [{"type": "contains", "value": "{{n}}"}], "for": [{"n": None}]})
@example(
    {
        "id": "a",
        "input": "x",
        "assertions": {"type": "all", "assertions": [{"type": "not", "assertion": {"type": "regex", "pattern": "("}}]},
    }
)
@example({"id": "a", "input": "x", "assertions": [{"type": "tool_called", "name": []}]})
@example({"id": "a", "input": [{"content": [{"type": "image"}]}]})
@example({"id": "a", "input": "x", "timeout": True})
def test_anything_that_looks_like_a_case_is_one_or_a_clear_error(value: dict[str, Any]):
    """In all three layouts, with the same answer: the same cases, or as many problems."""
    line = json.dumps(value).encode()
    pretty = json.dumps(value, indent=2).encode()
    answers = [loaded("s.jsonl", line), loaded("s.jsonl", pretty), loaded("s.json", pretty)]
    for found, raw in zip(answers, (line, pretty, pretty), strict=True):
        check_clear(found, raw)
    first = answers[0]
    for other in answers[1:]:
        if isinstance(first, BadInput):
            assert isinstance(other, BadInput)
            assert sorted((p.path, p.message) for p in other.problems) == sorted(
                (p.path, p.message) for p in first.problems
            )
        else:
            assert not isinstance(other, BadInput)
            assert [case.digest for case in other] == [case.digest for case in first]


cases = st.lists(texts.filter(bool), min_size=1, max_size=6, unique=True).map(
    lambda ids: [{"id": each, "input": each, "assertions": [{"type": "contains", "value": each}]} for each in ids]
)
between = st.lists(st.sampled_from(["", "// a comment", "   ", '// {"id": 1}']), max_size=2)


@settings(max_examples=60)
@given(cases, st.data())
def test_layout_comments_and_line_ends_change_nothing(written: list[Any], data: st.DataObject):
    """Compact or pretty-printed, with blank lines and comments between, with LF or CRLF, with a BOM or without."""
    lines: list[str] = []
    for each in written:
        lines += data.draw(between)
        lines += json.dumps(
            each, indent=data.draw(st.sampled_from([None, 1, 4])), ensure_ascii=data.draw(st.booleans())
        ).split("\n")
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    raw = (b"\xef\xbb\xbf" if data.draw(st.booleans()) else b"") + end.join(lines).encode("utf-8", "surrogatepass")
    found = loaded("s.jsonl", raw)
    assert not isinstance(found, BadInput), found  # N1
    assert [case.id for case in found] == [each["id"] for each in written]
