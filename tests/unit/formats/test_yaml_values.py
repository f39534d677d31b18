"""YAML as JSON would have it."""

from typing import Any

import pytest
import yaml

from viva.formats.yaml_values import parse_yaml


def one(text: str) -> Any:
    ((value, _),) = parse_yaml(text)
    return value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("12", 12),
        ("-7", -7),
        ("0", 0),
        ("0x1F", 31),
        ("012", "012"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("2024-05-01", "2024-05-01"),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("+2.0E-1", 0.2),
        ("1.2.3", "1.2.3"),
        (".inf", ".inf"),
        (".nan", ".nan"),
        ("'12'", "12"),
        ("=", "="),
        ("!!str 12", "12"),
    ],
)
def test_scalars_are_those_of_the_core_schema(written: str, value: Any):
    """A time, a date, a postal code and a plain `no` stay what they look like."""
    found = one(f"a: {written}")["a"]
    assert (found, type(found)) == (value, type(value))


def test_anchors_and_merges_work():
    assert one("- &base {a: 1, b: 2}\n- {<<: *base, b: 3}\n- *base") == [
        {"a": 1, "b": 2},
        {"a": 1, "b": 3},
        {"a": 1, "b": 2},
    ]


def test_members_have_their_lines():
    assert parse_yaml("# c\n- a: 1\n\n- b: 2\n") == [([{"a": 1}, {"b": 2}], [2, 4])]
    assert parse_yaml("cases:\n  - a: 1\n  - b: 2\n") == [({"cases": [{"a": 1}, {"b": 2}]}, [2, 3])]
    assert parse_yaml("---\na: 1\n---\n---\nb: 2\n") == [({"a": 1}, [2]), (None, [4]), ({"b": 2}, [5])]


@pytest.mark.parametrize(
    ("text", "what", "line"),
    [
        ("a:\n  1: x", "the key '1' is not a text", 2),
        ("a: {true: x}", "the key 'true' is not a text", 1),
        ("a: 1\nb: 2\na: 3", "the key 'a' is there twice", 3),
        ("? [a, b]\n: 1", "is not a text", 1),
        ("a: &a\n  - *a", "is an alias of a value that contains it", 1),
        ("x: 1\ny: " + "[" * 400, "is nested more than 128 levels deep", 2),
        ("- " * 400, "is nested more than 128 levels deep", 1),
        (
            "- &a0 [x]\n" + "".join(f"- &a{n} [*a{n - 1}]\n" for n in range(1, 400)),
            "is nested more than 128 levels deep",
            129,
        ),
        ("a: !!python/object:os.system x", "the tag !!python/object:os.system is not supported", 1),
        ("a: 1\nb: !!set {x, y}", "the tag !!set is not supported", 2),
        ("!!binary aGk=", "the tag !!binary is not supported", 1),
        ("a: !mine x", "the tag !mine is not supported", 1),
        ("a: [\n  }", "did not find expected node content", 2),
    ],
)
def test_what_json_could_not_say_is_refused_with_its_line(text: str, what: str, line: int):
    with pytest.raises(yaml.MarkedYAMLError) as raised:
        parse_yaml(text)
    assert what in str(raised.value.problem)
    mark = raised.value.problem_mark or raised.value.context_mark
    assert mark is not None
    assert mark.line + 1 == line


def test_aliases_that_explode_are_refused():
    """Ten lines that stand for a billion values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(yaml.MarkedYAMLError, match="stands for more than 5000000 values"):
        parse_yaml("\n".join(lines))
