"""What the schema finds wrong, in our own words."""

from typing import Any

import pytest

from viva.schemas.validation import SchemaViolation, describe_type, find_violations, format_unknown_name


def said(value: Any) -> list[str]:
    return [complaint.message for complaint in find_violations("native", value)]


def test_what_fits_has_no_complaints():
    assert (
        find_violations("native", {"id": "a", "input": "x", "options": {"anything": [1]}, "metadata": {"k": None}})
        == []
    )  # N4


def test_a_typo_is_one_complaint_and_not_two():
    """A misspelt required key is missing and unexpected: the second says it all."""
    found = find_violations("native", {"id": "a", "input": "x", "assertions": [{"type": "contains", "valeu": "x"}]})
    assert found == [
        SchemaViolation(("assertions", 0), "unknown key 'valeu'; did you mean 'value'?", "valeu", "value")
    ]  # N2


def test_a_missing_key_beside_a_foreign_one_is_two():
    missing, foreign = said({"id": "a", "input": "x", "assertions": [{"type": "contains", "zzz": "x"}]})
    assert missing == "misses 'value'"
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
def test_types_have_their_articles(value: Any, kind: str):
    assert describe_type(value) == kind


def test_names_that_are_near_are_offered_and_else_all():
    assert (
        format_unknown_name("type", "contians", ["contains", "equals"])
        == "unknown type \"contians\"; did you mean 'contains'?"
    )
    assert (
        format_unknown_name("type", "zzz", ["contains", "equals"])
        == 'unknown type "zzz"; should be one of contains, equals'
    )
    assert format_unknown_name("type", 5, ["contains"]) == "unknown type 5; should be one of contains"


def test_a_long_value_is_not_quoted_whole():
    (what,) = said({"id": "a", "input": "x", "mode": "m" * 10_000})
    assert len(what) < 250


def test_the_type_of_an_assertion_is_complained_about_where_it_stands():
    found = find_violations("native", {"id": "a", "input": "x", "assertions": [{"type": "nope"}]})
    assert [complaint.path for complaint in found] == [("assertions", 0, "type")]


def test_assertions_of_plugins_are_left_to_the_catalog():
    """A type with a colon is a dotted path."""
    assert (
        find_violations("native", {"id": "a", "input": "x", "assertions": [{"type": "my.checks:Polite", "level": 3}]})
        == []
    )
