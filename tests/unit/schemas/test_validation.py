"""Messages for values that a schema refuses."""

from typing import Any

import pytest

from viva.schemas.validation import SchemaViolation, describe_type, find_violations, format_unknown_name


def said(value: Any) -> list[str]:
    return [complaint.message for complaint in find_violations("native", value)]


def test_a_valid_value_has_no_violations():
    assert (
        find_violations("native", {"id": "a", "input": "x", "options": {"anything": [1]}, "metadata": {"k": None}})
        == []
    )  # N4


def test_a_mistyped_key_is_one_violation():
    """A misspelt required key is missing and unknown: only the second is reported."""
    found = find_violations("native", {"id": "a", "input": "x", "assertions": [{"type": "contains", "valeu": "x"}]})
    assert found == [
        SchemaViolation(("assertions", 0), "unknown key 'valeu'; did you mean 'value'?", "valeu", "value")
    ]  # N2


def test_a_missing_key_and_an_unknown_one_are_two():
    missing, foreign = said({"id": "a", "input": "x", "assertions": [{"type": "contains", "zzz": "x"}]})
    assert missing == "is missing 'value'"
    assert foreign.startswith("unknown key 'zzz'; known keys: type, value,")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        (True, "true"),
        (False, "false"),
        (5, "the number 5"),
        (1.5, "the number 1.5"),
        ("x", "a string"),
        ([], "an array"),
        ({}, "an object"),
    ],
)
def test_types_have_articles(value: Any, kind: str):
    assert describe_type(value) == kind


def test_similar_names_are_suggested_or_all_listed():
    assert (
        format_unknown_name("type", "contians", ["contains", "equals"])
        == "unknown type \"contians\"; did you mean 'contains'?"
    )
    assert (
        format_unknown_name("type", "zzz", ["contains", "equals"])
        == 'unknown type "zzz"; should be one of contains, equals'
    )
    assert format_unknown_name("type", 5, ["contains"]) == "unknown type 5; should be one of contains"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("llm-rubric", "'judge'"),
        ("icontains", "'contains' with `ignore_case: true`"),
        ("not-icontains", "'contains' with `ignore_case: true`, with `negate: true`"),
        ("not-contains", "'not_contains'"),
    ],
)
def test_names_of_promptfoo_are_translated(name: str, meant: str):
    (message,) = said({"id": "a", "input": "x", "assertions": [{"type": name, "value": "x"}]})
    assert message.startswith(f'unknown assertion type "{name}"; did you mean {meant}')


def test_a_long_value_is_shortened():
    (what,) = said({"id": "a", "input": "x", "mode": "m" * 10_000})
    assert len(what) < 250


def test_an_unknown_assertion_type_is_reported_at_its_path():
    found = find_violations("native", {"id": "a", "input": "x", "assertions": [{"type": "nope"}]})
    assert [complaint.path for complaint in found] == [("assertions", 0, "type")]


def test_plugins_are_not_validated_by_the_schema():
    """A type with a colon is a dotted path."""
    assert (
        find_violations("native", {"id": "a", "input": "x", "assertions": [{"type": "my.checks:Polite", "level": 3}]})
        == []
    )
