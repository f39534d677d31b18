"""An assertion that the schema accepts can be decoded by the struct of its check, and no other can."""

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import ValidationError

from viva import catalog
from viva.formats.assertions import AssertionBuilder, normalize_spellings
from viva.model import codec
from viva.model.component import BuildContext
from viva.schemas.validation import find_violations, read_schema

SCHEMA: dict[str, Any] = codec.decode(read_schema("native"))
COMMON = {"message", "negate", "weight"}
CHECKS = {
    name: {key for key in SCHEMA["$defs"][f"assert_{name}"]["properties"] if key not in COMMON | {"type"}}
    for name in catalog.BUILT_IN["check"]
}

words = ["x", "", "$.a", "2s", "abc", "ok", "any", "reply", "exact", "string", "low", "viva.validator", "{{x}}s"]
scalars = (
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([0.5, 1.0, -1.0, 2.5]) | st.sampled_from(words)
)
keys = st.sampled_from(["name", "arguments", "tool", "result", "min", "max", "criterion", "weight", "matches", "zzz"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=2), max_leaves=5
)


@st.composite
def assertions(draw: st.DrawFn) -> dict[str, Any]:
    """An assertion with some of the keys of its check, and now and then a key of another."""
    name = draw(st.sampled_from(sorted(CHECKS)))
    own = sorted(CHECKS[name])
    required = [key for key in SCHEMA["$defs"][f"assert_{name}"]["required"] if key != "type"]
    chosen = set(required) if draw(st.integers(0, 4)) else set[str]()
    chosen |= set(draw(st.lists(st.sampled_from(own), max_size=2)))
    if not draw(st.integers(0, 9)):
        chosen.add(draw(st.sampled_from(["value", "zzz", "path"])))
    return {"type": name, **{key: draw(_values_of(name, key)) for key in sorted(chosen)}}


def _values_of(name: str, key: str) -> st.SearchStrategy[Any]:
    """Any value, with those that the schema names more often."""
    schema = SCHEMA["$defs"][f"assert_{name}"]["properties"].get(key, {})
    return values | st.sampled_from(schema["enum"]) if "enum" in schema else values


def is_valid(definition: dict[str, Any]) -> bool:
    return find_violations("native", {"id": "a", "input": "x", "assertions": [definition]}) == []


def decode(definition: dict[str, Any]) -> bool | None:
    """Whether the struct takes the assertion. None if code of the check refuses it, such as a broken pattern."""
    check: Any = catalog.find_component("check", definition["type"])
    builder = AssertionBuilder(".", (".",), may_hold_variables=False)
    try:
        check.build(normalize_spellings(check, definition), BuildContext(".", (".",), builder._build_definition))
    except ValidationError as error:
        return False if error.__cause__ is None else None
    except ValueError:
        return None
    return True


@settings(max_examples=1500, deadline=None)
@given(assertions())
@example({"type": "max_turns", "value": 2.0})
@example({"type": "tool_called", "name": "a", "times": {"min": 1.0}})
@example({"type": "tool_called", "value": {"name": "a", "arguments": {}}})
@example({"type": "tool_called", "value": {"arguments": {}}})
@example({"type": "tool_called"})
@example({"type": "tool_not_called", "name": "a", "status": "pending"})
@example({"type": "tool_result", "value": {"tool": "a"}})
@example({"type": "tool_result", "value": {"tool": "a"}, "result": 1})
@example({"type": "tool_result", "name": "a", "value": {}})
@example({"type": "tool_called", "name": "a", "value": {"arguments": {}}})
@example({"type": "json_path", "path": "$.a", "exists": None})
@example({"type": "safety", "allowed_tools": None})
@example({"type": "rubric", "criteria": ["a", {"criterion": "b"}], "min_score": 1})
@example({"type": "max_latency", "value": "{{limit}}s"})
def test_the_schema_accepts_what_the_struct_decodes(definition: dict[str, Any]):
    assert decode(definition) in (is_valid(definition), None)
