"""Finds the line of a key path in JSON, YAML and TOML text, for messages."""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from viva.model import codec

KeyPath = tuple[str | int, ...]
"""The keys and indexes that lead to a value."""

_JSON_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*+"|[{}\[\],:]|[^\s{}\[\],:"]+')


def find_json_line(raw: bytes, path: KeyPath) -> int:
    """The line (from 1) of a value in JSON text, or of its nearest parent."""
    text = raw.decode("utf-8", "replace")
    return text.count("\n", 0, _find_json_offset(text, path)) + 1


def find_json_item_lines(raw: bytes, path: KeyPath) -> list[int]:
    """The lines of all items of an array in JSON text, in one pass."""
    text = raw.decode("utf-8", "replace")
    tokens = _JSON_TOKEN.finditer(text)
    first = next(tokens, None)
    opener = first.group() if first else ""
    for step in path:
        if (member := _find_json_member(tokens, opener, step)) is None:
            return []
        opener = member[1]
    lines: list[int] = []
    line, end = 1, 0
    for token in tokens:
        if (piece := token.group()) == "]":
            break
        if piece != ",":
            line, end = line + text.count("\n", end, token.start()), token.start()
            lines.append(line)
            _skip_json_value(tokens, piece)
    return lines


def _find_json_offset(text: str, path: KeyPath) -> int:
    """The offset of the value at `path` or, if it is not in the text, of its nearest parent that is."""
    tokens = _JSON_TOKEN.finditer(text)
    first = next(tokens, None)
    offset = first.start() if first else 0
    opener = first.group() if first else ""
    for step in path:
        member = _find_json_member(tokens, opener, step)
        if member is None:
            return offset
        offset, opener = member
    return offset


def _find_json_member(tokens: Any, opener: str, step: str | int) -> tuple[int, str] | None:
    """The offset of a member, and the first token of its value. This is the last token that is read from `tokens`."""
    if opener not in ("{", "["):
        return None
    index = 0
    for token in tokens:
        text = token.group()
        if text in ("}", "]"):
            return None
        if text == ",":
            continue
        if opener == "[":
            if index == step:
                return token.start(), text
            index += 1
            _skip_json_value(tokens, text)
            continue
        next(tokens, None)  # the colon
        value = next(tokens, None)
        if value is None:
            return None
        if _decode_json_key(text) == step:
            return token.start(), value.group()
        _skip_json_value(tokens, value.group())
    return None


def _skip_json_value(tokens: Any, opener: str) -> None:
    depth = 1 if opener in ("{", "[") else 0
    while depth:
        token = next(tokens, None)
        if token is None:
            return
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token.group(), 0)


def _decode_json_key(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def explain_json_error(raw: bytes, error: Exception) -> tuple[int, str]:
    """The line where JSON text is broken, and what is wrong there."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as decode_error:
        line = raw.count(b"\n", 0, decode_error.start) + 1
        return line, f"is not UTF-8 (byte 0x{raw[decode_error.start]:02x}); save the file as UTF-8"
    if "\x00" in text:
        return text.count("\n", 0, text.index("\x00")) + 1, "contains a NUL character; is this a text file?"
    if isinstance(error, codec.TooDeepError):
        return 1, f"is {error}"
    try:
        json.loads(text)
    except json.JSONDecodeError as decode_error:
        if decode_error.pos >= len(text.rstrip()):
            return 1, "is not JSON: the value that starts here does not end"
        return min(
            decode_error.lineno, text.count("\n") + 1
        ), f"is not JSON: {_lower_first_letter(decode_error.msg)} (column {decode_error.colno})"
    except (ValueError, RecursionError):  # such as a number of too many digits: `error` explains that
        pass
    return 1, f"is not JSON: {error}"


def _lower_first_letter(message: str) -> str:
    return message[0].lower() + message[1:]


def create_yaml_line_finder(text: str) -> Callable[..., int]:
    """A function that returns the line of a key path in the n-th document of YAML text. It parses the text once."""

    @cache
    def nodes() -> list[Any]:
        import yaml

        return list(yaml.compose_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))

    def find_line(position: int, *path: str | int) -> int:
        node: Any = nodes()[position]
        line = node.start_mark.line
        for step in path:
            member = _find_yaml_member(node, step)
            if member is None:
                break
            mark, node = member
            line = mark.line
        return int(line) + 1

    return find_line


def _find_yaml_member(node: Any, step: str | int) -> tuple[Any, Any] | None:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return key.start_mark, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        value = node.value[step]
        return value.start_mark, value
    return None


def find_toml_line(text: str, path: KeyPath) -> int:
    """The line of a key in TOML text, or of the last header or key on the way to it."""
    best, best_depth = 1, 0
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("["):
            table = _split_toml_key(bare.strip("[] \t"))
            here = table
        elif "=" in bare and not bare.startswith("#"):
            here = (*table, *_split_toml_key(bare.split("=", 1)[0]))
        else:
            continue
        steps = tuple(step for step in path if isinstance(step, str))
        if steps[: len(here)] == here and len(here) > best_depth:
            best, best_depth = number, len(here)
    return best


_TOML_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*""")


def _split_toml_key(dotted: str) -> tuple[str, ...]:
    return tuple(a or b or c for a, b, c in _TOML_KEY.findall(dotted))
