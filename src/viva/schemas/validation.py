"""Checks a document against its JSON Schema and says in our own words what is wrong and what would be right.

The schema beside this file is the one truth: the loader checks with it, `viva schema` prints it, editors read it.
"""

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

from msgspec import Struct

from viva import catalog
from viva.model import codec
from viva.schemas.positions import KeyPath

SchemaName = Literal["pack", "native", "playbook", "openwop", "config", "replies"]
PUBLIC_SCHEMAS: tuple[SchemaName, ...] = ("native", "playbook", "openwop", "config", "replies")


MAX_LISTED_NAMES = 12
"""More names than this are not listed in a message."""


class SchemaViolation(Struct, frozen=True):
    """What is wrong at a place. `key` is the member of that object which is unknown there, `near` the one that may have
    been meant; `missing` are members of which one has to be there.
    """

    path: KeyPath
    message: str
    unknown_key: str | None = None
    suggestion: str | None = None
    missing: tuple[str, ...] = ()


@cache
def read_schema(name: SchemaName) -> bytes:
    return files("viva.schemas").joinpath(f"{name}.schema.json").read_bytes()


@cache
def _compiled(name: SchemaName) -> tuple[Any, dict[str, Any]]:
    import jsonschema_rs

    schema = codec.decode(read_schema(name))
    return jsonschema_rs.Draft202012Validator(schema), schema


def find_violations(name: SchemaName, value: Any) -> list[SchemaViolation]:
    """Everything that is wrong with a value, in the order of its keys; nothing for one that fits."""
    return _find_violations(*_compiled(name), value)


def find_violations_in(schema: dict[str, Any], value: Any) -> list[SchemaViolation]:
    """The same for a schema that is not one of ours: that of a plugin."""
    import jsonschema_rs

    return _find_violations(jsonschema_rs.Draft202012Validator(schema), schema, value)


def _find_violations(validator: Any, schema: dict[str, Any], value: Any) -> list[SchemaViolation]:
    if validator.is_valid(value):
        return []
    errors = list(validator.iter_errors(value))
    return list(_without_twins([complaint for error in errors for complaint in _worded(error, schema)]))


def _worded(error: Any, schema: dict[str, Any]) -> Iterator[SchemaViolation]:
    path: KeyPath = tuple(error.instance_path)
    detail: dict[str, Any] = error.kind.as_dict()
    parent = _parent(schema, error.schema_path)
    match error.kind.name:
        case "additionalProperties":
            known = list(parent.get("properties", {}))
            for key in detail["unexpected"]:
                near = next(iter(get_close_matches(key, known, 1, 0.6)), None)
                yield SchemaViolation(path, _unknown_key(key, known, near), key, near)
        case "required":
            yield _missing(path, detail["property"])
        case "anyOf" if parent.get("$comment") == "assertion type":
            known = catalog.list_components("check")  # a plugin's too, of which no schema knows
            if error.instance not in known:
                yield SchemaViolation(path, format_unknown_name("assertion type", error.instance, known))
        case "anyOf" if all(set(each) == {"required"} for each in parent["anyOf"]):
            yield _missing(path, *(each["required"][0] for each in parent["anyOf"]))
        case "enum":
            yield SchemaViolation(path, format_unknown_name("value", error.instance, detail["options"]))
        case "type":
            quote = (
                " (in YAML, put quotes around words like yes, no, on and off)"
                if isinstance(error.instance, bool)
                else ""
            )
            yield SchemaViolation(
                path, f"is {describe_type(error.instance)}; should be {_expected(parent, detail)}{quote}"
            )
        case "minItems" | "minLength" | "minProperties":
            yield SchemaViolation(path, "is empty")
        case "minimum" | "maximum" | "exclusiveMinimum":
            word = {"maximum": "at most", "minimum": "at least"}.get(error.kind.name, "more than")
            yield SchemaViolation(path, f"is {error.instance}; should be {word} {detail.get('limit')}")
        case "pattern":
            expected = parent.get("$comment") or parent.get("description")
            yield SchemaViolation(path, f"is {codec.compact_json(error.instance)[:60]}; should be {expected}")
        case _:
            yield SchemaViolation(
                path, f"should be {parent.get('$comment') or parent.get('description') or error.kind.name}"
            )


def _expected(parent: dict[str, Any], detail: dict[str, Any]) -> str:
    if comment := parent.get("$comment"):
        return str(comment)
    return " or ".join(f"{'an' if t[0] in 'aeio' else 'a'} {t}" for t in detail["types"])


def _missing(path: KeyPath, *names: str) -> SchemaViolation:
    return SchemaViolation(path, "misses " + " or ".join(map(repr, names)), missing=names)


def _unknown_key(key: str, known: Sequence[str], near: str | None) -> str:
    if near is not None:
        return f"unknown key {key!r}; did you mean {near!r}?"
    more = ", ... (`viva schema` prints all)" if len(known) > MAX_LISTED_NAMES else ""
    return f"unknown key {key!r}; known keys: {', '.join(known[:MAX_LISTED_NAMES])}{more}"


def format_unknown_name(what: str, name: Any, known: Sequence[Any]) -> str:
    """`unknown assertion type 'contians'; did you mean 'contains'?`, or the list of known names."""
    names = [str(each) for each in known]
    near = get_close_matches(str(name), names, 3, 0.6) if isinstance(name, str) else []
    shown = codec.compact_json(name)
    if near:
        return f"unknown {what} {shown[:80]}; did you mean {' or '.join(map(repr, near))}?"
    return f"unknown {what} {shown[:80]}; should be one of {', '.join(names)}"


def describe_type(value: Any) -> str:
    """A JSON value's type, with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"the number {value}"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def _parent(schema: dict[str, Any], path: Sequence[str | int]) -> dict[str, Any]:
    """The schema object that holds the keyword which failed."""
    found: Any = schema
    for step in list(path)[:-1]:
        found = found[step]
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _without_twins(found: list[SchemaViolation]) -> Iterator[SchemaViolation]:
    """A typo shows up as a key that is missing and a key that is unknown: the second says it all."""
    mistyped = {(each.path, each.suggestion) for each in found if each.suggestion is not None}
    for complaint in found:
        if not any((complaint.path, name) in mistyped for name in complaint.missing):
            yield complaint
