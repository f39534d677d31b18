"""Suggestions for mistyped names: near ones only."""

import pytest

from viva.text.similar_names import find_similar_names


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("contianz", ["contains", "not_contains", "equals"], ["contains"]),
        ("tow", ["one", "two", "three"], ["two"]),
        ("Refund", ["refund", "refunds-2"], ["refund"]),
        ("expense", ["assistants.expense", "assistants.travel"], ["assistants.expense"]),
        ("expected", ["user_input", "expected_outcome"], ["expected_outcome"]),
        ("case-4", ["case-1", "case-2", "other"], ["case-1", "case-2"]),
        ("nope.yaml", ["shop.py", "pytest.ini", "tools.py"], []),
        ("nope", ["open", "shop", "node"], ["open"]),
        ("a", ["b", "case", "alpha"], []),
        ("", ["a"], []),
        ("x" * 100_000, ["x" * 100_000], []),
    ],
)
def test_only_near_names_are_suggested(name, known, expected):
    assert find_similar_names(name, known) == expected
