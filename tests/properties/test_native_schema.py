"""A case that fits the types of its format is valid by the JSON Schema, and a valid one of the usual form fits them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from check_examples import read_examples
from viva import catalog
from viva.formats.documents import wrap_values
from viva.formats.load_options import LoadOptions
from viva.formats.native import _SuiteReader
from viva.formats.plain_case import build_plain_case, decode_plain_case
from viva.formats.typed_case import fits_types
from viva.model import codec
from viva.model.case import Assertion, Case
from viva.schemas.validation import find_violations, read_schema
from viva.users.script import Script

SCHEMA: dict[str, Any] = codec.decode(read_schema("native"))
RARE = {"for", "fixtures", "workspace", "attachments"}
"""Keys that are left to the schema."""
NOT_PLAIN = {"file_exists", "file_contains", "snapshot", "script", "judge", "rubric", "all", "any", "not"}
"""Checks that need files or functions, ask an agent, or hold other checks."""

texts = st.sampled_from(["", "x", "$.a", "30s", "2m30s", "1.5h", "soon", "٣s", " 5s ", "5s\n", "static", "skip", "a:B"])
scalars = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from([0.5, 2.0, -0.5, 1e300, 10**30]) | texts
loose = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2), max_leaves=4
)


def objects(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Objects with mostly fitting members, now and then without a required one, with a loose one or an unknown key."""

    @st.composite
    def build(draw: st.DrawFn) -> dict[str, Any]:
        chosen = draw(st.lists(st.sampled_from(sorted(optional)), max_size=4, unique=True))
        members = {**required, **{key: optional[key] for key in chosen}}
        odd = draw(st.sampled_from([""] * 6 + [*members, "zzz"]))
        if odd in required and draw(st.booleans()):
            members.pop(odd)
        return {key: draw(loose if key == odd else members.get(key, loose)) for key in (*members, *{odd} & {"zzz"})}

    return build()


names = st.sampled_from(["a", "b", "c"])
durations = texts | st.sampled_from([0, 1, 2.5, "30s", "500ms"])
messages = objects({"content": names}, {"role": st.sampled_from(["user", "tool"]), "name": names, "tool_calls": loose})
inputs = names | messages | st.lists(messages, max_size=2)
options = st.fixed_dictionaries({}, optional={"connector": texts, "skip": loose, "metadata": loose, "own": loose})
assertions = st.one_of(
    objects({"type": st.just("contains"), "value": names}, {"ignore_case": st.booleans(), "message": names}),
    objects({"type": st.just("regex")}, {"pattern": names, "value": names, "negate": st.booleans()}),
    objects({"type": st.just("json_path"), "path": st.just("$.a")}, {"gt": scalars, "value": loose, "weight": scalars}),
    objects({"type": st.just("max_turns"), "value": scalars}, {"weight": st.integers(0, 2)}),
    objects({"type": st.just("not"), "assertion": st.fixed_dictionaries({"type": texts})}, {"weight": scalars}),
    objects({"type": texts}, {"value": loose}),
)
several = assertions | st.lists(assertions, max_size=2)
turns = objects(
    {"input": inputs},
    {"assertions": several, "assert": several, "options": options, "turn_timeout": durations, "set": loose},
)
checkpoints = objects(
    {"id": names, "assertion": assertions}, {"after": st.lists(names, max_size=1), "required": st.booleans()}
)
cases = objects(
    {"id": names},
    {
        "input": inputs,
        "turns": st.lists(turns, max_size=2),
        "assertions": several,
        "assert": several,
        "final_assertions": several,
        "checkpoints": st.lists(checkpoints, max_size=2),
        "simulator": objects({"use": names}, {"options": options}),
        "interactive": objects({}, {"enabled": st.booleans(), "timeout": durations}),
        "options": options,
        "metadata": loose,
        "tags": st.lists(names, max_size=2),
        "mode": texts,
        "on_missing_input": texts,
        "max_turns": scalars,
        "timeout": durations,
        "skip": scalars,
        "runs": scalars,
        "name": names,
    },
)


def build_by_types(case: Any) -> list[Case]:
    documents = wrap_values([case], "x")
    reader = _SuiteReader(documents, "x", Path(), LoadOptions())
    return reader._build_by_types(documents.documents[0])


def loads_without_schema(case: Any) -> bool:
    return bool(build_by_types(case))


@settings(max_examples=1500, deadline=None)
@given(cases | loose)
@example({"id": "a", "input": "x", "assertions": [{"type": "contains", "value": "x", "weight": "1"}]})
@example({"id": "a", "input": "x", "assertions": [{"type": "not", "assertion": {"type": "contains", "value": 1}}]})
@example({"id": "a", "input": "x", "timeout": "٣s"})
@example({"id": "a", "input": "x", "runs": True})
@example({"id": "a", "turns": []})
@example({"id": "a", "turns": [{"input": [{"content": "x", "role": "user"}], "set": {"a": 1}}]})
def test_what_fits_the_types_is_valid_by_the_schema(case: Any):
    if loads_without_schema(case):
        assert find_violations("native", case) == []


plain_turns = objects({"input": names}, {"assertions": several, "set": loose})
plain_cases = objects(
    {"id": names},
    {
        "input": names,
        "turns": st.lists(plain_turns, max_size=2),
        "assertions": several,
        "final_assertions": several,
        "max_turns": scalars,
        "metadata": loose,
        "tags": st.lists(names, max_size=2),
        "name": names,
        "description": names,
        "skip": scalars,
        "runs": scalars,
        "mode": texts,
    },
)


@settings(max_examples=1500, deadline=None)
@given(plain_cases | cases)
@example({"id": "a", "input": "x", "turns": [{"input": "x"}]})
@example({"id": "a", "turns": [{"input": "x"}, {"input": "x"}], "max_turns": 1})
@example({"id": "a", "turns": [{"input": "x"}], "assertions": []})
def test_a_plain_case_is_built_as_any_other_case(case: Any):  # N2
    plain = build_if_plain(case)
    if plain is not None:
        assert find_violations("native", case) == []
        (built,) = build_by_types(case)
        assert describe_case(plain) == describe_case(built)


def build_if_plain(case: Any) -> Case | None:
    (document,) = wrap_values([case], "x").documents
    plain = decode_plain_case(document)
    return None if plain is None else build_plain_case(plain, document, LoadOptions().timeout_s)


def describe_case(case: Case) -> dict[str, Any]:
    """All fields of a case, as values that can be compared."""
    script = case.user
    assert isinstance(script, Script)
    lines = [
        structs.asdict(structs.replace(line, assertions=())) | {"assertions": list(map(describe, line.assertions))}
        for line in script.planned_messages
    ]
    fields = {**structs.asdict(case), "user": (script.has_variables, lines)}
    return fields | {"final_assertions": list(map(describe, case.final_assertions))}


def describe(assertion: Assertion) -> dict[str, Any]:
    """All fields of an assertion. The check of a plain case also has the fields that assertions have in common."""
    check: Any = assertion.check
    own: Any = catalog.find_component("check", assertion.definition["type"])
    assert isinstance(check, own)
    values = {field: getattr(check, field) for field in own.__struct_fields__}
    return {**structs.asdict(assertion), "check": (check.label, check.costly, values)}


@pytest.mark.parametrize(
    ("name", "example"),
    [(name, example) for name, each in read_examples().items() for example in (each.passes, each.fails)],
)
def test_a_plain_case_has_checks_that_only_need_their_fields(name: str, example: Any):  # N2
    check: Any = catalog.find_component("check", name)
    case = {"id": "x", "input": "x", "assertions": [{"type": name, "message": "m", "weight": 2, **example}]}
    uses_other_names = bool(example.keys() & check.spellings.keys())
    if name in NOT_PLAIN or uses_other_names:
        assert build_if_plain(case) is None
    else:
        plain = build_if_plain(case)
        assert plain is not None
        assert describe_case(plain) == describe_case(*build_by_types(case))


@settings(max_examples=1500, deadline=None)
@given(cases)
def test_a_valid_case_of_the_usual_form_fits_the_types(case: Any):
    if find_violations("native", case) == [] and not _is_left_to_the_schema(case):
        assert fits_types(case)


def _is_left_to_the_schema(value: Any) -> bool:
    """Rare keys, lists of parts, whole numbers with a point, numbers that no float can hold, unusual durations."""
    if isinstance(value, dict):
        members = [(key, each) for key, each in value.items() if key not in ("metadata", "own", "value", "zzz")]
        unusual = any(
            (key in ("timeout", "turn_timeout") and isinstance(each, str) and not each.isalnum())
            or (key == "content" and isinstance(each, list))
            for key, each in members
        )
        return unusual or bool(RARE & value.keys()) or any(_is_left_to_the_schema(each) for _, each in members)
    if isinstance(value, list):
        return any(map(_is_left_to_the_schema, value))
    return isinstance(value, float | int) and not isinstance(value, bool) and (value == 2.0 or abs(value) > 1e9)


def test_the_types_have_every_key_of_the_schema_but_the_rare_ones():
    properties: dict[str, Any] = SCHEMA["properties"]
    assert properties.keys() | SCHEMA["$defs"]["turn"]["properties"].keys() >= RARE
    for key in properties.keys() - RARE:
        accepted = {"$ref": "x"} if "$ref" in properties[key] else properties[key]
        value = accepted.get("enum", [{"string": "x", "boolean": True, "integer": 1}.get(str(accepted.get("type")))])[0]
        if value is not None:
            assert fits_types({"id": "x", key: value}), key


def test_usual_cases_need_no_schema():
    check = {"type": "contains", "value": "x", "weight": 2}
    assert loads_without_schema({"id": "a", "input": "x", "assertions": check, "tags": ["t"], "timeout": "2m"})
    assert loads_without_schema({"id": "a", "turns": [{"input": {"content": "x"}, "assert": [check]}], "runs": 2})
    dynamic = {"simulator": {"use": "u"}, "checkpoints": [{"id": "c", "assertion": check}], "final_assertions": [check]}
    assert loads_without_schema({"id": "a", **dynamic})
