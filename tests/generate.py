"""Files that follow from the structs of the checks: the schema of assertions, `viva.check`, the methods of `t.assert_`,
and the examples in the generator's prompt.

Run as a program it names the files that are stale; with `--write` it writes them: `make schemas`.
"""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Struct, UnsetType

from viva import catalog
from viva.checks.base_check import AssertionFields, Spelling
from viva.model.case import Assertion
from viva.schemas.struct_schema import FieldSchema, Schema, list_field_schemas, merge_schemas
from viva.session.scripts.soft_assertions import SoftAssertions

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "src/viva/schemas/native.schema.json"
CHECK_MODULE = ROOT / "src/viva/check.py"
METHODS_MODULE = ROOT / "src/viva/session/scripts/check_methods.py"
PROMPT = ROOT / "src/viva/agents/prompts/generator.md"
REFERENCES = {Assertion: "#/$defs/assertion", tuple[Assertion, ...]: "#/$defs/assertions"}
COMMON = {f"every_{each.name}": each.schema for each in list_field_schemas(AssertionFields)}
"""Fields that every assertion has, by their names in `$defs`."""


# The schema


def build_native_schema() -> Schema:
    """The checked-in schema of native cases, with its part about assertions replaced."""
    schema: Schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    rest = {
        key: value
        for key, value in schema["$defs"].items()
        if key != "assertion" and not key.startswith(("assert_", "every_"))
    }
    checks = {f"assert_{name}": build_check_schema(name) for name in catalog.BUILT_IN["check"]}
    return {**schema, "$defs": {**checks, **COMMON, "assertion": _assertion_schema(), **rest}}


def build_check_schema(name: str) -> Schema:
    """The schema of an assertion with one check."""
    check = _find(name)
    fields = {each.name: each for each in list_field_schemas(check, REFERENCES)}
    spellings: Mapping[str, Spelling] = check.spellings
    other_keys = {key: _spelling_schema(each, fields) for key, each in spellings.items()}
    properties = {"type": {"enum": _names_of(name)}, **{each.name: each.schema for each in fields.values()}}
    required = [each.name for each in fields.values() if each.is_required]
    spelled = {field: key for key, each in spellings.items() for field in each.fields if field in required}
    common = {key.removeprefix("every_"): {"$ref": f"#/$defs/{key}"} for key in COMMON}
    schema: Schema = {
        "type": "object",
        "description": _summary(check),
        "properties": {**properties, **other_keys, **common},
        "required": ["type", *(field for field in required if field not in spelled)],
        "additionalProperties": False,
    }
    if spelled:
        schema["allOf"] = [{"anyOf": [{"required": [field]}, {"required": [key]}]} for field, key in spelled.items()]
    return schema


def _spelling_schema(spelling: Spelling, fields: Mapping[str, FieldSchema]) -> Schema:
    """The schema of another key for some fields: a value of the field's own type, an object with several, or both."""
    parts: list[Schema] = []
    if spelling.field is not None:
        parts.append(_without(fields[spelling.field].schema, "description", "default"))
    if spelling.members:
        members = {
            key: {**_without(fields[field].schema, "default"), "description": f"As `{field}`."}
            for key, field in spelling.members.items()
        }
        required = [key for key, field in spelling.members.items() if fields[field].is_required]
        parts.append({"type": "object", "properties": members, "required": required, "additionalProperties": False})
    names = " and ".join(f"`{field}`" for field in spelling.fields)
    return {**merge_schemas(parts), "description": f"Another spelling of {names}."}


def _assertion_schema() -> Schema:
    names = [each for name in catalog.BUILT_IN["check"] for each in _names_of(name)]
    return {
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {
                "type": "string",
                "$comment": "assertion type",
                "anyOf": [{"enum": names}, {"pattern": ":"}],
                "description": "Which check; a plugin's by `module:Name`.",
            }
        },
        "allOf": [
            {
                "if": {"properties": {"type": {"enum": _names_of(name)}}, "required": ["type"]},
                "then": {"$ref": f"#/$defs/assert_{name}"},
            }
            for name in catalog.BUILT_IN["check"]
        ],
    }


def _find(name: str) -> Any:
    return catalog.find_component("check", name)


def _names_of(name: str) -> list[str]:
    return [name, *(alias for alias, target in catalog.ALIASES["check"].items() if target == name)]


def _summary(check: type) -> str:
    return inspect.cleandoc(check.__doc__ or "").split("\n\n")[0].replace("\n", " ")


def _without(schema: Schema, *keys: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keys}


# Python helpers


CHECK_HEAD = '''"""Assertions for Python code. Each function returns what a suite file would contain.

    chat.expect(check.contains("submitted"), check.tool_called("submit_expense", arguments={"amount": 3500}))
    chat.expect(lambda turn: "Friday" in turn.text)         # a function is an assertion, too
    viva.run([{"input": "Hello", "assertions": [check.contains("name?")]}], agent)

Generated from the structs in `viva.checks` by `make schemas`; do not edit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from msgspec import UNSET, UnsetType

from viva.checks.script import TurnView
from viva.formats.assertions import build_assertion as build_assertion  # noqa: PLC0414 -- part of this module

AssertionDict = dict[str, Any]
"""An assertion as a suite file contains it: `{"type": "contains", "value": "hello"}`."""

AgentFunction = Callable[[Any], Any] | Callable[[Any, Any], Any]
"""A function that replies: to the message or the messages, or to the messages with the options. A lambda has these types."""

CheckFunction = Callable[[TurnView], object]
"""A function that checks a turn: it returns True or False, or asserts."""

AssertionInput = Mapping[str, Any] | CheckFunction
"""An assertion, or a function that checks a turn."""


class Common(TypedDict, total=False):
    """Options of every assertion."""

'''
CHECK_TAIL = '''

def _create_assertion(type_: str, arguments: dict[str, Any], *required: str) -> AssertionDict:
    """The assertion, without options that are not given."""
    common = arguments.pop("common")
    fields = {key: value for key, value in arguments.items() if value is not None or key in required}
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}
    return {"type": type_, **{key: value for key, value in values.items() if value is not UNSET}, **common}
'''


def write_check_module() -> str:
    """The text of `viva.check`."""
    common = "".join(
        f'    {each.name}: {python_type(each.hint)}\n    """{each.schema["description"]}"""\n'
        for each in list_field_schemas(AssertionFields)
    )
    functions = "\n\n".join(_function(name) for name in catalog.BUILT_IN["check"])
    return _format(f"{CHECK_HEAD}{common}\n\n{functions}{CHECK_TAIL}")


def _function(name: str) -> str:
    fields = list_field_schemas(_find(name), REFERENCES)
    main = [each for each in fields if each.is_required or _takes_anything(each)]
    options = [each for each in fields if each not in main]
    first = main or options[:1]
    types: Mapping[str, str] = _find(name).python_types
    if len(main) == 1 and (item := _item_type(main[0])) is not None:
        parameters = [f"*{main[0].name}: {types.get(main[0].name) or python_type(item)}"]
    else:
        parameters = [*(_parameter(each, types) for each in first), *(["*"] if len(first) < len(fields) else [])]
    parameters += [_parameter(each, types) for each in options if each not in first]
    required = "".join(f', "{each.name}"' for each in main)
    docs = "\n".join(f"    {each.name}: {each.schema['description']}" for each in fields)
    return (
        f"def {python_name(name)}({', '.join([*parameters, '**common: Unpack[Common]'])}) -> AssertionDict:\n"
        f'    """{_summary(_find(name))}\n\n{docs}\n    """\n'
        f'    return _create_assertion("{name}", locals(){required})\n'
    )


def python_name(name: str) -> str:
    return getattr(_find(name), "python_name", name)


def _parameter(field: FieldSchema, types: Mapping[str, str]) -> str:
    kind = types.get(field.name) or python_type(field.hint)
    if field.is_required:
        return f"{field.name}: {kind}"
    if _takes_anything(field):
        return f"{field.name}: Any | UnsetType = UNSET"
    return f"{field.name}: {kind} | None = None"


def _takes_anything(field: FieldSchema) -> bool:
    return python_type(field.hint) == "Any"


def _item_type(field: FieldSchema) -> Any:
    """The type of the items, for a field that is a list and nothing else."""
    hint = get_args(field.hint)[0] if get_origin(field.hint) is Annotated else field.hint
    return get_args(hint)[0] if get_origin(hint) is tuple else None


def python_type(hint: Any) -> str:
    """The annotation of a parameter for a field."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return python_type(arguments[0])
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if origin in (Union, UnionType):
        parts = [python_type(each) for each in arguments if each not in (UnsetType, NoneType)]
        if "Any" in parts:
            return "Any"
        literals = [each for each in arguments if get_origin(each) is Literal]
        if len(literals) > 1:
            return f"Literal[{', '.join(repr(v) for each in literals for v in get_args(each))}]"
        return " | ".join(dict.fromkeys(part for part in parts if part != "int" or "float" not in parts))
    if origin in (tuple, list, Sequence):
        return f"Sequence[{python_type(arguments[0])}]"
    if origin in (dict, Mapping):
        return "Mapping[str, Any]"
    if isinstance(hint, type) and issubclass(hint, Struct):
        return "Mapping[str, Any]"
    return "Any" if hint is Any else hint.__name__


METHODS_HEAD = '''"""The methods of `t.assert_` that run a check on a reply: one for each function of `viva.check`.

Generated from the structs in `viva.checks` by `make schemas`; do not edit.
"""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from viva import check

P = ParamSpec("P")


def _create_method(build: Callable[P, check.AssertionDict]) -> Callable[Concatenate["CheckMethods", Any, P], bool]:
    def run(self: "CheckMethods", response: Any, *args: P.args, **kwargs: P.kwargs) -> bool:
        return self.run_check(response, build(*args, **kwargs))

    run.__doc__ = build.__doc__
    return run


class CheckMethods:
    """Each method takes a reply and the arguments of the function of the same name in `viva.check`."""

    def run_check(self, response: Any, assertion: check.AssertionDict) -> bool:
        """Evaluates an assertion on a reply and records the result."""
        raise NotImplementedError

'''


def write_methods_module() -> str:
    """The text of the base class of `t.assert_`."""
    taken = {name for name in vars(SoftAssertions) if not name.startswith("_")}
    names = [each for name in catalog.BUILT_IN["check"] if (each := python_name(name)) not in taken]
    return _format(METHODS_HEAD + "".join(f"    {each} = _create_method(check.{each})\n" for each in names))


# The prompt


def write_prompt() -> str:
    """The generator's prompt, with an example of each check that has one."""
    examples = [
        json.dumps({"type": name, **example})
        for name in catalog.BUILT_IN["check"]
        if (example := getattr(_find(name), "example", None))
    ]
    text = PROMPT.read_text(encoding="utf-8")
    return re.sub(
        r"(?<=An assertion is one of:\n).*?(?=\n\n)", lambda _: "\n".join(examples), text, count=1, flags=re.DOTALL
    )


def _format(source: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    command = [ruff, "format", "--line-length", "120", "-"]
    return subprocess.run(command, input=source, stdout=subprocess.PIPE, text=True, check=True).stdout


def format_json(value: Any, indent: str = "", room: int = 120) -> str:
    """JSON in which each value that fits on one line is on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= room or not isinstance(value, dict | list):
        return line
    deeper = f"{indent} "
    if isinstance(value, list):
        return "[\n" + ",\n".join(deeper + format_json(item, deeper, room) for item in value) + f"\n{indent}]"
    pairs = [(f"{deeper}{json.dumps(key, ensure_ascii=False)}: ", item) for key, item in value.items()]
    lines = [start + format_json(item, deeper, room - len(start) + len(deeper)) for start, item in pairs]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def render_all() -> dict[Path, str]:
    """The text of each generated file, by its path."""
    return {
        SCHEMA: format_json(build_native_schema()),
        CHECK_MODULE: write_check_module(),
        METHODS_MODULE: write_methods_module(),
        PROMPT: write_prompt(),
    }


if __name__ == "__main__":
    stale = {file: text for file, text in render_all().items() if file.read_text(encoding="utf-8") != text}
    for file, text in stale.items():
        print("wrote" if "--write" in sys.argv else "stale:", file.relative_to(ROOT))
        if "--write" in sys.argv:
            file.write_text(text, encoding="utf-8")
    sys.exit(bool(stale) and "--write" not in sys.argv)
