"""Our schema of playbooks accepts and refuses what the official one does, though it is written in our own words."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from viva.errors import BadInput
from viva.formats.load_options import LoadOptions
from viva.formats.sources import load_files
from viva.model import codec
from viva.schemas.validation import find_violations, read_schema

OFFICIAL = Path(__file__).resolve().parents[3] / "shared" / "specs" / "playbook.schema.json"

texts = st.text(max_size=4)
odd: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-1, 2) | st.floats(-1, 2) | texts | st.just([])
lists = st.lists(texts, max_size=2) | st.lists(odd, max_size=2) | odd
maps = st.dictionaries(texts, lists, max_size=2) | odd
step = st.fixed_dictionaries({}, optional={"user_input": texts, "expected_outcome": texts | odd, "x": texts}) | odd
whole_step = st.fixed_dictionaries({"user_input": texts, "expected_outcome": texts})
criteria = (
    st.fixed_dictionaries(
        {},
        optional={
            "llm_checks": lists,
            "flow_contains": lists,
            "files_exist": lists,
            "files_contain": maps,
            "tool_calls_contain": maps,
            "files": lists,
        },
    )
    | odd
)
limit = st.sampled_from([0, 1, 2, 1.0, 1.5, -1, True, "1", None])
persona = (
    st.fixed_dictionaries({"context": texts, "success_criteria": criteria}, optional={"initial_user_input": texts})
    | st.fixed_dictionaries(
        {},
        optional={
            "context": texts | odd,
            "success_criteria": criteria,
            "initial_user_input": texts | odd,
            "max_turns": limit,
            "goal": texts,
        },
    )
    | odd
)
playbooks = (
    st.fixed_dictionaries(
        {"name": texts},
        optional={
            "agent_model": texts,
            "evaluator_model": texts | odd,
            "tmpdir": st.fixed_dictionaries({}, optional={"link_paths": lists, "x": odd}) | odd,
            "timeout": limit,
            "env": lists,
            "steps": st.lists(whole_step, max_size=2) | st.lists(step, max_size=2) | odd,
            "persona": persona,
        },
    )
    | st.dictionaries(st.sampled_from(["name", "steps", "persona", "timeout", "x"]), odd, max_size=3)
    | odd
)


def official(capsys: pytest.CaptureFixture[str]) -> Any:
    """The official schema; None where it is not, and that is said."""
    if OFFICIAL.is_file():
        return jsonschema_rs.Draft7Validator(json.loads(OFFICIAL.read_text(encoding="utf-8")))
    with capsys.disabled():
        print(f"\nNOT RUN: playbooks by the official schema, for there is no {OFFICIAL}", file=sys.stderr, flush=True)
    return None


def test_both_schemas_accept_and_refuse_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """P1: whatever is generated, both say yes or both say no."""
    theirs = official(capsys)
    if theirs is None:
        return
    answers: set[bool] = set()

    @settings(max_examples=1500, deadline=None, derandomize=True)
    @example({"name": "x", "steps": []})
    @example({"name": "x", "steps": [], "persona": {"context": "", "success_criteria": {}}})
    @example({"name": "x", "persona": {"context": "", "success_criteria": {}}})
    @example({"name": "x", "persona": {"context": "", "success_criteria": {}, "initial_user_input": ""}})
    @example({"name": "x", "steps": [], "timeout": 1.0})
    @given(playbooks)
    def agree(value: Any) -> None:
        fits = theirs.is_valid(value)
        answers.add(fits)
        assert (not find_violations("playbook", value)) == fits, value  # P1

    agree()
    assert answers == {True, False}


def test_both_schemas_have_the_same_fields_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    """Each path of the official schema that names a field, a type, a default or a least value is in ours, and no other."""
    if official(capsys) is None:
        return
    theirs = json.loads(OFFICIAL.read_text(encoding="utf-8"))
    assert set(facts(codec.decode(read_schema("playbook")))) == set(facts(theirs))


def facts(schema: Any, at: str = "$") -> list[str]:
    """`$.steps[]: array` and the like."""
    found = [f"{at} {key}: {schema[key]}" for key in ("type", "default", "minimum") if key in schema]
    for name, inner in schema.get("properties", {}).items():
        found += facts(inner, f"{at}.{name}")
    if "items" in schema:
        found += facts(schema["items"], f"{at}[]")
    anything = schema.get("patternProperties", {}).get(".*") or schema.get("additionalProperties")
    return found + (facts(anything, f"{at}.*") if anything else [])


@settings(max_examples=300, deadline=None)
@example({"name": "", "steps": [], "tmpdir": {"link_paths": ["\0", "x" * 300, "a/" * 3000]}})
@example({"name": "x", "persona": {"context": "\0", "success_criteria": {"files_exist": ["\0", "a\n"]}}})
@given(playbooks)
def test_any_document_becomes_a_case_or_a_clear_error(value: Any) -> None:
    """P1: each problem names the file, a line in it, and what is wrong in one line."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "p.json"
        path.write_text(json.dumps(value), encoding="utf-8")
        reading = LoadOptions(environ={}, evaluator="judge", folder=folder)
        try:
            (suite,) = load_files([path], reading, path.parent, "playbook")
        except BadInput as wrong:
            for problem in wrong.problems:
                assert problem.file == "p.json"
                assert problem.line >= 1
                assert problem.message
                assert "\n" not in problem.message
        else:
            assert suite.count == 1
