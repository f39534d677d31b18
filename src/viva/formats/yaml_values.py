"""YAML as JSON values: the types of YAML 1.2's core schema, unique text keys, limited aliases.

PyYAML implements YAML 1.1, where `no` is false, `12:30` is 750, `012` is 10 and `2024-05-01` is a date.
"""

import re
from functools import cache
from typing import Any

import yaml

from viva.formats.documents import CASES_KEY, is_case_list
from viva.model import codec

MAX_NODES = 5_000_000
"""The largest number of values in a document, aliases counted each time they are used."""

_TAG_PREFIX = "tag:yaml.org,2002:"
_STRING_TAG, _MERGE_TAG = f"{_TAG_PREFIX}str", f"{_TAG_PREFIX}merge"
_ALLOWED_TAGS = frozenset(_TAG_PREFIX + name for name in ("null", "bool", "int", "float", "str", "seq", "map"))
_CORE_TYPES = (
    ("null", r"~|null|Null|NULL|", ["", *"~nN"]),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:(?:0|[1-9][0-9]*)?\.[0-9]+|(?:0|[1-9][0-9]*)\.?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("merge", r"<<", "<"),
)


def parse_yaml(text: str) -> list[tuple[Any, list[int]]]:
    """Each document, with the lines on which its members begin (or its own line if it is not a list)."""
    _check_depth(text)
    loader = _create_loader()(text)
    documents: list[tuple[Any, list[int]]] = []
    try:
        while loader.check_node():
            node = loader.get_node()
            _measure_node(node, {})
            lines = [each.start_mark.line + 1 for each in _list_items(node)]
            documents.append((loader.construct_document(node), lines))
    finally:
        loader.dispose()
    return documents


def format_yaml(value: Any) -> str:
    """Format a value as YAML, so that any YAML reader gets the same value: texts like `1e3` and `no` are quoted."""
    return yaml.dump(value, Dumper=_create_dumper(), sort_keys=False, allow_unicode=True, width=120)


@cache
def _create_dumper() -> Any:
    dumper: Any = type("CoreDumper", (yaml.SafeDumper,), {})
    for name, pattern, first in _CORE_TYPES:
        dumper.add_implicit_resolver(_TAG_PREFIX + name, re.compile(f"(?:{pattern})$"), list(first))
    dumper.add_representer(str, _represent_text)
    return dumper


def _represent_text(dumper: Any, text: str) -> Any:
    """PyYAML writes the line separators of Unicode as they are, and reads them as spaces: they are escaped in double quotes."""
    style = '"' if any(separator in text for separator in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _check_depth(text: str) -> None:
    """Limit the nesting before composing: the C composer recurses and crashes on deep input; events do not."""
    depth = 0
    for event in yaml.parse(text, Loader=_create_loader()):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > codec.MAX_DEPTH:
                raise _create_yaml_error(event, f"is nested more than {codec.MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


@cache
def _create_loader() -> Any:
    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("CoreLoader", (base,), {"yaml_implicit_resolvers": {}})
    for name, pattern, first in _CORE_TYPES:
        loader.add_implicit_resolver(_TAG_PREFIX + name, re.compile(f"(?:{pattern})$"), list(first))
    return loader


def _list_items(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        members = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
        if is_case_list(members) and isinstance(members[CASES_KEY], yaml.SequenceNode):
            node = members[CASES_KEY]
    return node.value if isinstance(node, yaml.SequenceNode) else [node]


def _measure_node(node: Any, known: dict[Any, tuple[int, int]]) -> tuple[int, int]:
    """The number of values in a node, aliases included, and their depth. Raises an error for non-text keys and recursive aliases."""
    if (measured := known.get(node)) is not None:
        if not measured[0]:
            raise _create_yaml_error(node, "is an alias of a value that contains it")
        return measured
    if node.tag not in _ALLOWED_TAGS:
        raise _create_yaml_error(
            node, f"the tag {node.tag.replace(_TAG_PREFIX, '!!')} is not supported: JSON does not have this type"
        )
    if isinstance(node, yaml.ScalarNode):
        return 1, 0
    known[node] = 0, 0  # the mark of a node that is being measured: meeting it again means recursion
    if isinstance(node, yaml.MappingNode):
        _check_mapping_keys(node)
        inner = [_measure_node(value, known) for _, value in node.value]
    else:
        inner = [_measure_node(value, known) for value in node.value]
    size, depth = 1 + sum(size for size, _ in inner), 1 + max((depth for _, depth in inner), default=0)
    if size > MAX_NODES:
        raise _create_yaml_error(node, f"stands for more than {MAX_NODES} values")
    if depth > codec.MAX_DEPTH:  # by aliases of aliases
        raise _create_yaml_error(node, f"is nested more than {codec.MAX_DEPTH} levels deep")
    known[node] = size, depth
    return size, depth


def _check_mapping_keys(node: Any) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if key.tag == _MERGE_TAG:
            continue
        if key.tag != _STRING_TAG:
            raise _create_yaml_error(key, f"the key {getattr(key, 'value', '')!r} is not a text; put it in quotes")
        if key.value in seen:
            raise _create_yaml_error(key, f"the key {key.value!r} is there twice; remove one")
        seen.add(key.value)


def _create_yaml_error(place: Any, what: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=what, problem_mark=place.start_mark)
