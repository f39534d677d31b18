"""Validates values against the JSON Schemas beside this file, and says what is wrong and what is valid.

The loader uses the schemas, `viva schema` prints them, editors read them.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, cast

from msgspec import Struct

from viva import catalog
from viva.model import codec
from viva.model.ellipsis import cut_end
from viva.schemas.positions import KeyPath
from viva.text.similar_names import find_similar_names

SchemaName = Literal["pack", "native", "playbook", "openwop", "config", "replies"]
PUBLIC_SCHEMAS: tuple[SchemaName, ...] = ("native", "playbook", "openwop", "config", "replies")
MAX_LISTED_NAMES = 12
"""The maximum number of names in a message."""
_CHECKS_OF_PROMPTFOO = {
    "llm-rubric": "'judge'", "model-graded-closedqa": "'judge'", "factuality": "'judge'", "similar": "'judge'",
    "icontains": "'contains' with `ignore_case: true`", "starts-with": "'regex'", "is-json": "'json_schema'",
    "contains-json": "'json_schema'", "contains-all": "'all'", "contains-any": "'any'", "javascript": "'script'",
    "python": "'script'", "latency": "'max_latency'", "cost": "'max_cost'",
}  # fmt: skip
"""What Viva has in place of assertion types of promptfoo, for error messages."""


class SchemaViolation(Struct, frozen=True):
    """A problem of a value at a path. `suggestion` is the known key that is similar to `unknown_key`. At least one of the
    keys in `missing` is required.
    """

    path: KeyPath
    message: str
    unknown_key: str | None = None
    suggestion: str | None = None
    missing: tuple[str, ...] = ()


@cache
def read_schema(name: SchemaName) -> bytes:
    return Path(__file__).with_name(f"{name}.schema.json").read_bytes()


@cache
def _compile_named_schema(name: SchemaName) -> tuple[Any, dict[str, Any]]:
    schema = codec.decode(read_schema(name))
    return _compile_schema(schema), schema


def _compile_schema(schema: dict[str, Any]) -> Any:
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(schema)


def find_violations(name: SchemaName, value: Any) -> list[SchemaViolation]:
    """Everything that is wrong with a value, in the order of its keys."""
    return _list_violations(*_compile_named_schema(name), value)


def find_schema_violations(schema: dict[str, Any], value: Any) -> list[SchemaViolation]:
    """Like `find_violations`, for a schema that is not a file beside this one, such as a plugin's."""
    return _list_violations(_compile_schema(schema), schema, value)


def _list_violations(validator: Any, schema: Mapping[str, Any], value: Any) -> list[SchemaViolation]:
    if validator.is_valid(value):
        return []
    errors = list(validator.iter_errors(value))
    return list(
        _drop_keys_reported_as_unknown(
            [violation for error in errors for violation in _describe_schema_error(error, schema)]
        )
    )


def _describe_schema_error(error: Any, schema: Mapping[str, Any]) -> Iterator[SchemaViolation]:
    path: KeyPath = tuple(error.instance_path)
    detail: dict[str, Any] = error.kind.as_dict()
    parent = _find_schema_object(schema, error.schema_path)
    hint = parent.get("$comment") or parent.get("description")
    match error.kind.name:
        case "additionalProperties":
            known = list(parent.get("properties", {}))
            for key in detail["unexpected"]:
                suggestion = next(iter(find_similar_names(key, known, 1)), None)
                yield SchemaViolation(path, _format_unknown_key(key, known, suggestion), key, suggestion)
        case "required":
            yield _describe_missing(path, detail["property"])
        case "anyOf" if parent.get("$comment") == "assertion type":
            if error.instance not in catalog.list_components("check"):  # plugins too, which are not in the schema
                yield SchemaViolation(path, format_unknown_check(error.instance))
        case "anyOf" if all(set(part) == {"required"} for part in parent["anyOf"]):
            yield _describe_missing(path, *(part["required"][0] for part in parent["anyOf"]))
        case "enum":
            yield SchemaViolation(path, format_unknown_name("value", error.instance, detail["options"]))
        case "type":
            is_word = isinstance(error.instance, bool)
            quotes = " (in YAML, put quotes around words like yes, no, on and off)" if is_word else ""
            expected = parent.get("$comment") or _join_type_names(detail["types"])
            yield SchemaViolation(path, f"is {describe_type(error.instance)}; should be {expected}{quotes}")
        case "minItems" | "minLength" | "minProperties":
            yield SchemaViolation(path, "is empty")
        case "minimum" | "maximum" | "exclusiveMinimum":
            word = {"maximum": "at most", "minimum": "at least"}.get(error.kind.name, "more than")
            yield SchemaViolation(path, f"is {error.instance}; should be {word} {detail.get('limit')}")
        case "pattern":
            yield SchemaViolation(path, f"is {cut_end(codec.compact_json(error.instance), 60)}; should be {hint}")
        case _:
            yield SchemaViolation(path, f"should be {hint or error.kind.name}")


def _join_type_names(types: Sequence[str]) -> str:
    return " or ".join(f"{'an' if name[0] in 'aeio' else 'a'} {name}" for name in types)


def _describe_missing(path: KeyPath, *names: str) -> SchemaViolation:
    return SchemaViolation(path, "is missing " + " or ".join(map(repr, names)), missing=names)


def _format_unknown_key(key: str, known: Sequence[str], suggestion: str | None) -> str:
    if suggestion is not None:
        return f"unknown key {key!r}; did you mean {suggestion!r}?"
    more = ", ... (`viva schema` prints all)" if len(known) > MAX_LISTED_NAMES else ""
    return f"unknown key {key!r}; known keys: {', '.join(known[:MAX_LISTED_NAMES])}{more}"


def format_unknown_check(name: Any) -> str:
    """The message for an assertion `type` that does not exist. It knows the names that promptfoo uses."""
    if isinstance(name, str) and (own := _CHECKS_OF_PROMPTFOO.get(name.removeprefix("not-"))):
        negation = ", with `negate: true`" if name.startswith("not-") else ""
        return f'unknown assertion type "{name}"; did you mean {own}{negation}?'
    return format_unknown_name("assertion type", name, catalog.list_components("check"))


def format_unknown_name(kind: str, name: Any, known: Sequence[Any]) -> str:
    """`unknown assertion type 'contians'; did you mean 'contains'?`, or the list of known names."""
    names = [str(each) for each in known]
    similar = find_similar_names(str(name), names) if isinstance(name, str) else []
    start = f"unknown {kind} {cut_end(codec.compact_json(name), 80)}"
    if similar:
        return f"{start}; did you mean {' or '.join(map(repr, similar))}?"
    return f"{start}; should be one of {', '.join(names)}"


def describe_type(value: Any) -> str:
    """The JSON type of a value, with its article."""
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


def _find_schema_object(schema: Mapping[str, Any], path: Sequence[str | int]) -> dict[str, Any]:
    """The schema object with the keyword that failed."""
    parent: Any = schema
    for step in list(path)[:-1]:
        parent = parent[step]
    return cast("dict[str, Any]", parent) if isinstance(parent, dict) else {}


def _drop_keys_reported_as_unknown(violations: list[SchemaViolation]) -> Iterator[SchemaViolation]:
    """Drops a missing key if a similar key is reported as unknown at the same path: it is only mistyped."""
    mistyped = {(each.path, each.suggestion) for each in violations if each.suggestion is not None}
    for violation in violations:
        if not any((violation.path, name) in mistyped for name in violation.missing):
            yield violation
