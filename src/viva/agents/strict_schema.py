"""The JSON Schema of a model's answers, in the form that providers with strict schemas take."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

_NAMED = ("properties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items",)


def close_objects(schema: Any) -> Any:
    """The schema with every object closed, unless it says otherwise: what fits it fits the original too."""
    if not isinstance(schema, Mapping):
        return schema
    node = dict(cast("Mapping[str, Any]", schema))
    for key in _NAMED:
        if isinstance(node.get(key), Mapping):
            node[key] = {name: close_objects(below) for name, below in node[key].items()}
    for key in _LISTED:
        if isinstance(node.get(key), list | tuple):
            node[key] = [close_objects(below) for below in node[key]]
    for key in _SINGLE:
        if key in node:
            node[key] = close_objects(node[key])
    if _is_object(node):
        node.setdefault("additionalProperties", False)
    return node


def is_strict(schema: Any) -> bool:
    """Is every object closed, and each of its properties required? Only such schemas may be sent as strict."""
    if not isinstance(schema, Mapping):
        return True
    node = cast("Mapping[str, Any]", schema)
    if _is_object(node):
        named = set(node.get("properties", ()))
        if node.get("additionalProperties") is not False or not named <= set(node.get("required", ())):
            return False
    return all(is_strict(below) for below in _below(node))


def _is_object(node: Mapping[str, Any]) -> bool:
    kind = node.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or isinstance(node.get("properties"), dict)


def _below(node: Mapping[str, Any]) -> Iterator[Any]:
    for key in _NAMED:
        yield from node.get(key, {}).values()
    for key in _LISTED:
        yield from node.get(key, ())
    for key in _SINGLE:
        yield node.get(key)
