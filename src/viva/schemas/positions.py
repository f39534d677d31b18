"""On which line a place in a file stands. Asked only when there is something to complain about."""

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from viva.model import codec

KeyPath = tuple[str | int, ...]

_VALUE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*+"|[{}\[\],:]|[^\s{}\[\],:"]+')


def find_json_line(raw: bytes, place: KeyPath) -> int:
    """The 1-based line of a member in JSON text; that of its nearest parent where it is not there."""
    text = raw.decode("utf-8", "replace")
    return text.count("\n", 0, _offset(text, place)) + 1


def find_json_item_lines(raw: bytes, place: KeyPath) -> list[int]:
    """The lines of all items of an array in JSON text, in one pass."""
    text = raw.decode("utf-8", "replace")
    tokens = _VALUE.finditer(text)
    first = next(tokens, None)
    opener = first.group() if first else ""
    for step in place:
        if (at := _member(tokens, opener, step)) is None:
            return []
        opener = at[1]
    lines: list[int] = []
    line, seen = 1, 0
    for token in tokens:
        if (piece := token.group()) == "]":
            break
        if piece != ",":
            line, seen = line + text.count("\n", seen, token.start()), token.start()
            lines.append(line)
            _skip(tokens, piece)
    return lines


def _offset(text: str, place: KeyPath) -> int:
    """Walks along `place`, skipping what lies beside it."""
    tokens = _VALUE.finditer(text)
    first = next(tokens, None)
    found = first.start() if first else 0
    opener = first.group() if first else ""
    for step in place:
        at = _member(tokens, opener, step)
        if at is None:
            return found
        found, opener = at
    return found


def _member(tokens: Any, opener: str, step: str | int) -> tuple[int, str] | None:
    """The place of one member and how its value begins; the tokens then stand right behind that."""
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
            _skip(tokens, text)
            continue
        next(tokens, None)  # the colon
        value = next(tokens, None)
        if value is None:
            return None
        if _unquoted(text) == step:
            return token.start(), value.group()
        _skip(tokens, value.group())
    return None


def _skip(tokens: Any, opener: str) -> None:
    depth = 1 if opener in ("{", "[") else 0
    while depth:
        token = next(tokens, None)
        if token is None:
            return
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(token.group(), 0)


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text


def explain_json_error(raw: bytes, error: Exception) -> tuple[int, str]:
    """Where JSON text breaks, and in which way, in words that help."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as broken:
        return raw.count(
            b"\n", 0, broken.start
        ) + 1, f"is not UTF-8 (byte 0x{raw[broken.start]:02x}); save the file as UTF-8"
    if "\x00" in text:
        return text.count("\n", 0, text.index("\x00")) + 1, "holds a NUL character; is this a text file?"
    if isinstance(error, codec.TooDeepError):
        return 1, f"is {error}"
    try:
        json.loads(text)
    except json.JSONDecodeError as broken:
        if broken.pos >= len(text.rstrip()):
            return 1, "is not JSON: what begins here has no end"
        return min(broken.lineno, text.count("\n") + 1), f"is not JSON: {_plain(broken.msg)} (column {broken.colno})"
    except (ValueError, RecursionError):  # a number of too many digits, say: `wrong` has its own words for that
        pass
    return 1, f"is not JSON: {error}"


def _plain(message: str) -> str:
    return message[0].lower() + message[1:]


def yaml_line_finder(text: str) -> Callable[..., int]:
    """A function from a document's position in YAML text and a place in it to its line. The text is read again, once."""

    @cache
    def nodes() -> list[Any]:
        import yaml

        return list(yaml.compose_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))

    def line_of(position: int, *place: str | int) -> int:
        node: Any = nodes()[position]
        line = node.start_mark.line
        for step in place:
            found = _yaml_member(node, step)
            if found is None:
                break
            mark, node = found
            line = mark.line
        return int(line) + 1

    return line_of


def _yaml_member(node: Any, step: str | int) -> tuple[Any, Any] | None:
    import yaml

    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return key.start_mark, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        value = node.value[step]
        return value.start_mark, value
    return None


def find_toml_line(text: str, place: KeyPath) -> int:
    """The line of a key in TOML text: the last header or key that leads towards `place`."""
    best, best_depth = 1, 0
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("["):
            table = _toml_keys(bare.strip("[] \t"))
            here = table
        elif "=" in bare and not bare.startswith("#"):
            here = (*table, *_toml_keys(bare.split("=", 1)[0]))
        else:
            continue
        steps = tuple(step for step in place if isinstance(step, str))
        if steps[: len(here)] == here and len(here) > best_depth:
            best, best_depth = number, len(here)
    return best


_TOML_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w-]+))\s*""")


def _toml_keys(dotted: str) -> tuple[str, ...]:
    return tuple(a or b or c for a, b, c in _TOML_KEY.findall(dotted))
