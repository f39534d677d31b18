"""JSON Schema of a struct, from its fields: types, constraints, defaults, and the docstrings below them.

A field whose values cannot be written in a file, such as a function, has no schema.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, UNSET, Meta, Struct, UnsetType
from msgspec.structs import FieldInfo, fields

Schema = dict[str, Any]

_JSON_TYPE_NAMES: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
}
_CONSTRAINTS = {
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"min_length": "minProperties", "max_length": "maxProperties"},
    "number": {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"},
}
_NO_DEFAULT = (NODEFAULT, UNSET, None, False, "", (), [], {})


class FieldSchema(Struct, frozen=True):
    """A field that users write: its type, its schema with description and default, and whether it must be there."""

    name: str
    hint: Any
    schema: Schema
    is_required: bool


def list_field_schemas(struct: type[Struct], references: Mapping[Any, str] | None = None) -> list[FieldSchema]:
    """The fields of a struct that users write: required ones first, then a class's own before those it inherits.

    A type in `references` becomes a `$ref`.
    """
    hints = get_type_hints(struct, include_extras=True)
    docs = read_field_docs(struct)
    schemas: list[FieldSchema] = []
    for field in sorted(
        fields(struct), key=lambda field: (not field.required, _count_classes_above(struct, field.name))
    ):
        hint = hints[field.name]
        if (schema := build_type_schema(hint, references or {})) is not None:
            described = {**schema, **_build_default_keyword(field), "description": docs.get(field.name, "")}
            schemas.append(FieldSchema(field.encode_name, hint, described, field.required))
    return schemas


def _count_classes_above(struct: type, field: str) -> int:
    """How many classes up a field is declared."""
    return next(depth for depth, each in enumerate(struct.__mro__) if field in inspect.get_annotations(each))


def build_struct_schema(struct: type[Struct], references: Mapping[Any, str] | None = None) -> Schema:
    """The schema of an object that is decoded as `struct`."""
    members = list_field_schemas(struct, references)
    schema: Schema = {"type": "object", "properties": {each.name: each.schema for each in members}}
    if required := [each.name for each in members if each.is_required]:
        schema["required"] = required
    return {**schema, "additionalProperties": False}


def build_type_schema(hint: Any, references: Mapping[Any, str]) -> Schema | None:
    """The schema of a type; None for a class whose values cannot be written in a file."""
    if hint in references:
        return {"$ref": references[hint]}
    if hint is Any:
        return {}
    if hint in _JSON_TYPE_NAMES:
        return {"type": _JSON_TYPE_NAMES[hint]}
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _add_constraints(
            build_type_schema(arguments[0], references), [each for each in arguments[1:] if isinstance(each, Meta)]
        )
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        parts = [build_type_schema(each, references) for each in arguments if each is not UnsetType]
        return None if None in parts else merge_schemas([each for each in parts if each is not None])
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": build_type_schema(arguments[0], references)}
    if origin in (dict, Mapping):
        return {"type": "object"}
    if isinstance(hint, type) and issubclass(hint, Struct):
        return build_struct_schema(hint, references)
    return None


def _add_constraints(schema: Schema | None, metas: Sequence[Meta]) -> Schema | None:
    if schema is None:
        return None
    kinds = _list_types(schema)
    for meta in metas:
        for kind, names in _CONSTRAINTS.items():
            if kind in kinds or (kind == "number" and "integer" in kinds):
                for name, keyword in names.items():
                    if (value := getattr(meta, name)) is not None:
                        schema = {**schema, keyword: value}
        extra = meta.extra_json_schema or {}
        schema = dict(extra) if "$ref" in extra else {**schema, **extra}
    return schema


def merge_schemas(parts: Sequence[Schema]) -> Schema:
    """One schema for a union of types: keywords of one type do not constrain values of another."""
    if len(parts) == 1:
        return parts[0]
    if any(not part for part in parts):  # Any
        return {}
    if all("enum" in part for part in parts):
        return {"enum": [value for part in parts for value in part["enum"]]}
    kinds = [kind for part in parts for kind in _list_types(part)]
    if "number" in kinds:
        kinds = [kind for kind in kinds if kind != "integer"]
    if "enum" in {key for part in parts for key in part} or len(set(kinds)) != len(kinds):
        raise TypeError(f"no single schema for this union: {parts}")
    merged: Schema = {key: value for part in parts for key, value in part.items()}
    return {**merged, "type": kinds[0] if len(kinds) == 1 else kinds}


def _list_types(schema: Schema) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _build_default_keyword(field: FieldInfo) -> Schema:
    plain = field.default_factory is NODEFAULT and field.default not in _NO_DEFAULT
    return {"default": field.default} if plain else {}


def read_field_docs(struct: type) -> dict[str, str]:
    """The docstring below each field, from the source: Python does not keep it."""
    docs: dict[str, str] = {}
    for each in reversed(struct.__mro__):
        if issubclass(each, Struct) and each.__module__ != "msgspec":
            docs.update(_parse_field_docs(textwrap.dedent(inspect.getsource(each))))
    return docs


def _parse_field_docs(source: str) -> Iterator[tuple[str, str]]:
    (class_,) = ast.parse(source).body
    assert isinstance(class_, ast.ClassDef)
    for field, below in zip(class_.body, class_.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str() as text)):
                yield name, inspect.cleandoc(text)
            case _:
                pass
