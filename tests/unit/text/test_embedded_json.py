"""JSON in texts: whole, fenced, among words."""

import time

import pytest
from msgspec import UNSET

from viva.text.embedded_json import find_json, parse_whole_json


@pytest.mark.parametrize(
    ("text", "whole", "inside"),
    [
        ('{"a": 1}', {"a": 1}, {"a": 1}),
        (" [1, 2]\n", [1, 2], [1, 2]),
        ('```json\n{"a": 1}\n```', {"a": 1}, {"a": 1}),
        ('```\n{"a": 1}\n```', {"a": 1}, {"a": 1}),
        ('Here:\n```json\n{"a": 1}\n```\nBye', UNSET, {"a": 1}),
        ('```python\nx = {}\n```\n```json\n{"a": 1}\n```', UNSET, {"a": 1}),
        ('Here: {"a": 1}.', UNSET, {"a": 1}),
        ('```{"a": 1}```', UNSET, {"a": 1}),
        ('Take {this} or {"a": "}"}', UNSET, {"a": "}"}),
        ('See [1], [ ] and {"a": 1}', UNSET, {"a": 1}),
        ("See [1] and [2].", UNSET, [1]),
        ('- [ ] take ["a"]', UNSET, ["a"]),
        ("See [1]: {}", UNSET, {}),
        ("See [1]: [true]", UNSET, [True]),
        ('[link](x) ["a"]', UNSET, ["a"]),
        ('{"a": "```"}', {"a": "```"}, {"a": "```"}),
        ('{"a": 1} {"b": 2}', UNSET, {"a": 1}),
        ("5", UNSET, UNSET),
        ('"text"', UNSET, UNSET),
        ("null", UNSET, UNSET),
        ("", UNSET, UNSET),
        ("[x](y) " * 5000 + '{"a": 1}', UNSET, {"a": 1}),
        ('{"a" ' * 100 + '{"a": 1}', UNSET, {"a": 1}),
        ("no { JSON [ here", UNSET, UNSET),
        ('{"a": NaN}', UNSET, UNSET),
        ('\ud800 {"a": 1}', UNSET, {"a": 1}),
        ('{"a": "\ud800"}', UNSET, UNSET),
        (r'so: {"a": "\ud800"}', UNSET, UNSET),
        ("so: " + '{"a":' * 200 + "1" + "}" * 200, UNSET, UNSET),
        ('so: {"a": 1e999}', UNSET, UNSET),
    ],
)
def test_json_is_found(text, whole, inside):  # N25, N29
    assert parse_whole_json(text) == whole
    assert find_json(text) == inside


@pytest.mark.parametrize(
    "text",
    [
        "[" * 300_000,
        '{"a":' * 100_000,
        "[" * 900 + "1," * 300_000,
        "```\n" * 100_000,
        "{x" * 200_000,
        '{"' * 200_000,
        "[1x" * 200_000,
    ],
    ids=["openings", "deep", "deep and long", "fences", "no keys", "keys only", "no end"],
)
def test_no_text_takes_long_to_look_through(text):
    began = time.process_time()
    assert find_json(text) is UNSET
    assert time.process_time() - began < 20
