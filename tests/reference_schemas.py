"""Reference pages of what authors write, made from the JSON Schemas that the loader itself checks with."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml

from check_examples import Example, Outcome, read_examples, run_examples
from viva.catalog import BUILT_IN
from viva.model import codec
from viva.schemas.validation import SchemaName, read_schema

Complain = Callable[[str], None]
Schema = Mapping[str, Any]
COMMON = ("type", "message", "negate", "weight")
SECTIONS = ("input", "message", "part", "attachment", "turn", "checkpoint", "options")
HEAD = "| key | type | meaning |\n| --- | --- | --- |"
TITLES = {
    "native": ("Native cases", "viva schema native"),
    "playbook": ("Playbooks", "viva schema playbook"),
    "openwop": ("OpenWOP eval suites", "viva schema openwop"),
    "pack": ("pack.json", ""),
}


class Tables:
    """Tables of a schema's keys. Keys without a description are reported."""

    def __init__(self, name: SchemaName, complain: Complain) -> None:
        self.schema: dict[str, Any] = codec.decode(read_schema(name))
        self.name = name
        self._complain = complain

    def table(self, schema: Schema, but: tuple[str, ...] = (), place: str = "") -> str:
        return HEAD + "\n" + "\n".join(self._rows(schema, place, but)) + "\n"

    def _rows(self, schema: Schema, place: str, but: tuple[str, ...] = ()) -> Iterator[str]:
        required = schema.get("required", ())
        for key, value in schema.get("properties", {}).items():
            if key in but or not isinstance(value, Mapping):
                continue
            path = f"{place}{key}"
            words = value.get("description") or self._resolved(value).get("description")
            if not words:
                self._complain(f"{self.name}: {path}")
            default = f" Default: `{codec.compact_json(value['default'])}`." if "default" in value else ""
            needed = " **Required.**" if key in required else ""
            yield f"| `{path}` | {self._type(value)} | {_cell(words or '')}{default}{needed} |"
            yield from self._inner(value, path)

    def _inner(self, value: Schema, path: str) -> Iterator[str]:
        """The keys of an object that is described in place, below the one that holds it."""
        if "properties" in value:
            yield from self._rows(value, f"{path}.")
        if "properties" in value.get("then", {}):
            yield from self._rows(value["then"], f"{path}.")
        items = value.get("items")
        if isinstance(items, Mapping):
            yield from self._inner(items, f"{path}[]")
        more = value.get("additionalProperties")
        if isinstance(more, Mapping):
            yield from self._inner(more, f"{path}.NAME")

    def _resolved(self, value: Schema) -> Schema:
        return self.schema["$defs"][value["$ref"].rpartition("/")[2]] if "$ref" in value else value

    def _type(self, value: Schema) -> str:
        if "$ref" in value:
            name = value["$ref"].rpartition("/")[2]
            if name in ("assertion", "assertions"):
                return "[assertion](checks.md)" + ("s" if name == "assertions" else "")
            if name in SECTIONS:
                return f"[{name}](native.md#{name})"
            return str(name)
        if "enum" in value:
            return ", ".join(
                f"`{each}`" if isinstance(each, str) else f"`{codec.compact_json(each)}`" for each in value["enum"]
            )
        if "$comment" in value and str(value["$comment"]).startswith("a duration"):
            return "duration"
        kinds = value.get("type", "any")
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        items = value.get("items")
        if kinds == ["array"] and isinstance(items, Mapping):
            return f"list of {self._type(items)}"
        return " or ".join(kinds)


def _cell(words: str) -> str:
    return " ".join(words.split()).replace("|", "\\|")


def file_page(name: SchemaName, complain: Complain, level: int = 1) -> Iterator[str]:
    """The keys of one kind of file."""
    tables = Tables(name, complain)
    title, command = TITLES[name]
    yield f"{'#' * level} {title}\n"
    yield tables.schema["description"] + (f" `{command}` prints the JSON Schema.\n" if command else "\n")
    yield tables.table(tables.schema)
    defs = tables.schema.get("$defs", {})
    for section in SECTIONS if name == "native" else ():
        yield f"{'#' * (level + 1)} {section}\n"
        what = defs[section].get("description") or defs[section].get("$comment")
        yield f"{what[0].upper()}{what[1:]}.\n".replace("..", ".") if what else ""
        if section == "input":
            yield "A message is an object: see [message](#message).\n"
        elif section == "part":
            yield tables.table(
                {
                    **defs["part"],
                    "properties": defs["part"]["properties"]
                    | defs["part"]["then"]["properties"]
                    | {"type": defs["part"]["properties"]["type"]},
                }
            )
            yield "Any other part is an [attachment](#attachment).\n"
        else:
            yield tables.table(defs[section])


def check_pages(complain: Complain) -> Iterator[str]:
    """Every check with its fields; common fields are listed once."""
    tables = Tables("native", complain)
    defs = tables.schema["$defs"]
    examples = read_examples()
    outcomes = run_examples(examples)
    yield "# Checks\n"
    yield (
        "An assertion is an object with a `type`. Checks of your own: a [script](../how-to/plugins.md), or a plugin by "
        "`module:Name`.\n"
    )
    yield "## What every check has\n"
    yield tables.table({"properties": {key: defs[f"every_{key}"] for key in COMMON[1:]}})
    for name in BUILT_IN["check"]:
        check = defs[f"assert_{name}"]
        yield f"## {name}\n"
        if not check.get("description"):
            complain(f"native: the check {name}")
        yield f"{check.get('description', '')}\n"
        if others := check["properties"]["type"]["enum"][1:]:
            yield f"Other name: {', '.join(f'`{each}`' for each in others)}.\n"
        if set(check["properties"]) - set(COMMON):
            yield tables.table(check, but=COMMON)
        if name in examples:
            yield _example(name, examples[name], outcomes[name])


def _example(name: str, example: Example, outcomes: tuple[Outcome, Outcome]) -> str:
    """The reply, an assertion that passes and one that fails, with the reason that Viva gave."""
    passed, failed = outcomes
    assert (passed.status, failed.status) == ("passed", "failed"), (name, outcomes)
    # How long it took differs from run to run.
    reason = re.sub(r"\b\d+(\.\d+)?(us|ms)\b", "2ms", failed.reason)
    lines = [
        *(f"# {each}" for each in [f"the reply: {_flow(example.reply)}", *_surroundings(example)]),
        f"- {_flow({'type': name, **example.passes})}  # passes",
        f"- {_flow({'type': name, **example.fails})}  # fails:",
        f"  # {reason}",
    ]
    return "```yaml\n" + "\n".join(lines) + "\n```\n"


def _surroundings(example: Example) -> Iterator[str]:
    for name, text in example.files.items():
        yield f"in the workspace, {name}: {text}"
    for name, text in example.snapshots.items():
        yield f"beside the suite, {name}: {text}"


def _flow(value: Any) -> str:
    """A value as YAML in one line."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False).removesuffix("\n...\n").strip()


def config_page(complain: Complain) -> Iterator[str]:
    """The page of viva.toml: single tables first, then agents by type, then connectors."""
    tables = Tables("config", complain)
    properties = tables.schema["properties"]
    yield "# viva.toml\n"
    yield (
        "The nearest `viva.toml` upward from the working folder, or `--config FILE`. Paths in it resolve against it. "
        "`viva schema config` prints the JSON Schema.\n"
    )
    for key, value in properties.items():
        if key in ("agents", "connectors"):
            continue
        if "properties" in value:
            yield f"## [{key}]\n\n{value.get('description', '')}\n"
            yield tables.table(value, place="")
        else:
            yield f"## {key}\n\n" + tables.table({"properties": {key: value}})
    yield "## [agents.NAME]\n"
    yield "An agent is named by its table. Which keys it takes follows from `type`, or from `use`.\n"
    yield from _agents(tables)
    yield "## [connectors.NAME]\n\nHow a model is reached.\n"
    yield tables.table(tables.schema["$defs"]["connector"])


def _agents(tables: Tables) -> Iterator[str]:
    kinds = [
        (_types(part["if"]), part["then"])
        for part in tables.schema["$defs"]["agent"]["allOf"]
        if "properties" in part["if"]
    ]
    shared = [key for key in kinds[0][1]["properties"] if all(key in then["properties"] for _, then in kinds)]
    first = kinds[0][1]["properties"]
    yield "### What all of them have\n"
    yield tables.table({"properties": {key: first[key] for key in shared}})
    for names, then in kinds:
        yield f"### type = {', '.join(names)}\n"
        own = {key: value for key, value in then["properties"].items() if key not in shared}
        yield tables.table({"properties": own, "required": then.get("required", ())})


def _types(condition: Schema) -> list[str]:
    kind = condition["properties"]["type"]
    return [kind["const"]] if "const" in kind else list(kind["enum"])


def replies_table(complain: Complain) -> Iterator[str]:
    tables = Tables("replies", complain)
    yield tables.schema["description"] + " `viva schema replies` prints the JSON Schema.\n"
    yield tables.table(tables.schema)
