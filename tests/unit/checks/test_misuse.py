"""What is wrong with an assertion, as far as it can be known when a file is loaded. `judge` and `script` have their own tables."""

from typing import Any

import pytest

P = {"type": "contains", "value": "a"}
MISUSE: dict[str, list[tuple[dict[str, Any], str]]] = {
    "all": [
        ({}, "assertions is missing"),
        ({"assertions": []}, "a list of at least one assertion"),
        ({"assertions": ["a"]}, "assertions[0] is an assertion, like"),
        ({"assertions": [P, {"type": "regex", "pattern": "("}]}, "assertions[1]: '(' is not a regular expression"),
        ({"assertions": [P], "min": 1}, "unknown field 'min'"),
    ],
    "any": [
        ({"assertions": "contains"}, "a list of at least one assertion"),
        ({"assertions": {"type": "contains"}}, "assertions: "),
    ],
    "not": [
        ({"assertions": [P]}, "unknown field 'assertions'; the only one here is 'assertion'"),
        ({}, "assertion is missing"),
        ({"assertion": {"type": "any", "assertions": [{"type": "contains"}]}}, "assertion: assertions[0]: "),
    ],
    "json_path": [
        ({"path": "$.a["}, "'$.a[' is not a JSONPath"),
        ({"path": "a-b"}, "$['some-key']"),
        ({"path": ""}, "of length >= 1"),
        ({"path": "$.a", "matches": "("}, "is not a regular expression"),
        ({"path": "$.a", "gt": "5"}, "Expected `int | float`, got `str`"),
        ({"path": "$.a", "gt": True}, "got `bool`"),
        ({"path": "$.a", "eq": 5}, "unknown field `eq`"),
        ({"path": "$.a", "exists": False, "value": 5}, "can never hold"),
        ({"value": 5}, "missing required field `path`"),
    ],
    "type": [
        ({"value": "text"}, "Invalid enum value 'text'"),
        ({}, "missing required field `value`"),
        ({"value": "string", "path": "$["}, "is not a JSONPath"),
    ],
    "max_latency": [
        ({"value": "5 parsecs"}, "'5 parsecs' is not a duration: write for example 30s"),
        ({"value": -1}, "-1 is not a duration"),
        ({"value": True}, "got `bool`"),
    ],
    "max_cost": [
        ({"value": "5"}, "got `str`"),
        ({"value": -0.1}, ">= 0"),
    ],
    "max_tokens": [
        ({"value": 1.5}, "got `float`"),
    ],
    "max_turns": [
        ({"value": -1}, ">= 0"),
        ({}, "missing required field `value`"),
    ],
    "snapshot": [
        ({"path": "../x.txt"}, "must be a file in the suite's folder"),
        ({"path": "a/../../x.txt"}, "must be a file in the suite's folder"),
        ({"path": "/etc/passwd"}, "must be a file in the suite's folder"),
        ({"path": ""}, "of length >= 1"),
        ({"path": "."}, "must be a file in the suite's folder"),
        ({"path": "x.txt", "of": "all"}, "Invalid enum value 'all'"),
        ({}, "missing required field `path`"),
        ({"path": "x.txt", "folder": {}}, "Expected `SnapshotFolder`, got `dict`"),
    ],
    "contains": [
        ({"value": 5}, "Expected `str`, got `int` - at `$.value`"),
        ({}, "missing required field `value`"),
        ({"value": ""}, "value is empty"),
    ],
    "not_contains": [
        ({"value": ["a"]}, "Expected `str`, got `array`"),
        ({"value": ""}, "value is empty"),
    ],
    "regex": [
        ({"pattern": "("}, "'(' is not a regular expression: missing )"),
        ({"pattern": "a", "ignore_case": True}, "unknown field `ignore_case`"),
    ],
    "tool_called": [
        ({}, "missing required field `name`"),
        ({"name": ""}, "name is empty"),
        ({"name": []}, "of length >= 1"),
        ({"name": ["a", ""]}, "name is empty"),
        ({"name": 5}, "got `int`"),
        ({"name": "t", "arguments": "x"}, "got `str`"),
        ({"name": "t", "arguments": {"a": [{"matches": "("}]}}, "is not a regular expression"),
        ({"name": "t", "times": -1}, ">= 0"),
        ({"name": "t", "times": {"min": 3, "max": 1}}, "times has min 3 above max 1"),
        ({"name": "t", "times": {}}, "times allows any number of calls"),
        ({"name": "t", "times": {"min": 0}}, "times allows any number of calls"),
        ({"name": "t", "times": {"min": -1, "max": 1}}, ">= 0"),
        ({"name": "t", "times": {"atleast": 3}}, "unknown field `atleast`"),
        ({"name": "t", "times": True}, "got `bool`"),
        ({"name": "t", "status": "failed"}, "Invalid enum value 'failed'"),
    ],
    "tool_sequence": [
        ({"names": []}, "of length >= 1"),
        ({"names": "a"}, "got `str`"),
        ({}, "missing required field `names`"),
        ({"names": [""]}, "names is empty"),
    ],
    "tool_calls_contain": [
        ({"name": ""}, "name is empty"),
        ({"name": ["a", ""]}, "name is empty"),
        ({"name": "a", "values": [""]}, "values has an empty text"),
    ],
    "tool_result": [
        ({"name": "t", "result": {"a": ["regex:("]}}, "is not a regular expression"),
        ({"name": ""}, "name is empty"),
    ],
}


@pytest.mark.parametrize(
    ("kind", "fields", "message"), [(kind, *row) for kind, rows in MISUSE.items() for row in rows], ids=str
)
def test_misuse_is_refused_at_load(bench, kind: str, fields: dict[str, Any], message: str):  # N2, N24
    with pytest.raises(ValueError) as problem:
        bench.assertion({"type": kind, **fields})
    assert message in str(problem.value)
