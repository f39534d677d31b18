"""Names, schema and code agree."""

from typing import Any

import pytest

from viva import catalog
from viva.errors import BadInput
from viva.model import codec
from viva.schemas.validation import PUBLIC_SCHEMAS, read_schema

SCHEMA: dict[str, Any] = codec.decode(read_schema("native"))


def assertion_types() -> list[str]:
    found: list[Any] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if value.get("$comment") == "assertion type":
                found.append(value["anyOf"][0]["enum"])
            value = list(value.values())
        for each in value if isinstance(value, list) else ():
            walk(each)

    walk(SCHEMA)
    assert found
    assert all(each == found[0] for each in found)
    return found[0]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in catalog.BUILT_IN.items() for name in names])
def test_every_built_in_component_is_where_the_catalog_says(kind: Any, name: str):
    assert isinstance(catalog.find_component(kind, name), type)


def test_every_check_is_in_the_schema_and_the_other_way_round():
    built = set(catalog.BUILT_IN["check"])
    assert set(assertion_types()) == built
    assert {name.removeprefix("assert_") for name in SCHEMA["$defs"] if name.startswith("assert_")} == set(
        assertion_types()
    )


@pytest.mark.parametrize("name", sorted(set(catalog.BUILT_IN["check"])))
def test_the_fields_of_a_check_are_those_of_the_schema(name: str):
    """Less the claim's own, and less second spellings, which the loader turns into the first."""
    component = catalog.find_component("check", name)
    assert component is not None
    written = set(SCHEMA["$defs"][f"assert_{name}"]["properties"]) - {"type", "message", "negate", "weight"}
    fields = {field for field in component.__struct_fields__ if not field.startswith("_")}
    second = {"value", "script", "options", "metadata", "use"}
    nested = {"assertions", "assertion"}  # built into claims
    assert written - fields <= second | nested, f"the schema has more: {written - fields}"


@pytest.mark.parametrize("name", PUBLIC_SCHEMAS)
def test_schemas_are_valid_and_describe_what_they_know(name: Any):
    import jsonschema_rs

    schema = codec.decode(read_schema(name))
    assert jsonschema_rs.meta.is_valid(schema)
    for key, value in schema["properties"].items():
        explained = value.keys() & {"description", "$ref", "properties", "additionalProperties"}
        assert explained, f"{name}: {key} has no description"


def test_a_name_that_nobody_has_is_none_and_a_path_that_does_not_import_is_named():
    assert catalog.find_component("check", "no_such_check") is None
    with pytest.raises(BadInput, match=r"no_such_package:Check.*does not import"):
        catalog.find_component("check", "no_such_package:Check")
