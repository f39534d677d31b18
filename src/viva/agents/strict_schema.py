"""Converts JSON Schemas of answers to the form that providers with strict schemas take."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

_NAMED_SCHEMAS = ("properties", "$defs", "definitions")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE_SCHEMAS = ("items",)


def forbid_additional_properties(schema: Any) -> Any:
    """The schema with `additionalProperties: false` in every object that does not set it."""
    if not isinstance(schema, Mapping):
        return schema
    node = dict(cast("Mapping[str, Any]", schema))
    for key in _NAMED_SCHEMAS:
        if isinstance(node.get(key), Mapping):
            node[key] = {name: forbid_additional_properties(subschema) for name, subschema in node[key].items()}
    for key in _SCHEMA_LISTS:
        if isinstance(node.get(key), list | tuple):
            node[key] = [forbid_additional_properties(subschema) for subschema in node[key]]
    for key in _SINGLE_SCHEMAS:
        if key in node:
            node[key] = forbid_additional_properties(node[key])
    if _is_object(node):
        node.setdefault("additionalProperties", False)
    return node


def is_strict(schema: Any) -> bool:
    """Is every object closed with all properties required? Only such schemas may be sent as strict."""
    if not isinstance(schema, Mapping):
        return True
    node = cast("Mapping[str, Any]", schema)
    if _is_object(node):
        named = set(node.get("properties", ()))
        if node.get("additionalProperties") is not False or not named <= set(node.get("required", ())):
            return False
    return all(is_strict(subschema) for subschema in _iter_subschemas(node))


def _is_object(node: Mapping[str, Any]) -> bool:
    kind = node.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or isinstance(node.get("properties"), dict)


def _iter_subschemas(node: Mapping[str, Any]) -> Iterator[Any]:
    for key in _NAMED_SCHEMAS:
        yield from node.get(key, {}).values()
    for key in _SCHEMA_LISTS:
        yield from node.get(key, ())
    for key in _SINGLE_SCHEMAS:
        yield node.get(key)
