"""What agents, users and tools said, made safe to show and short enough to read.

Control characters, escapes and text-reordering marks become visible signs. Texts are cut before anything else is done
with them, so a reply of 5 MB costs no more than one of 5 kB.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from viva.model import codec

# C0 and C1 controls; marks that reorder or hide text; line separators; tag characters; lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)
_UNSAFE_IN_LINES = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_BREAK = re.compile(r"[ \t]*\r?\n\s*")
_NAME = re.compile(r"[A-Za-z_$][\w$]*\Z", re.ASCII)
_SENTENCE = re.compile(r"(?<=[.!?\u3002\uff1f\uff01\u061f])\s+|\n+")


def escape_controls(text: str) -> str:
    """The text with every character that a terminal or a reader would not see as itself spelled out."""
    return text if text.isprintable() else _UNSAFE.sub(_sign, text)


def escape_multiline(text: str) -> str:
    """The same for text of several lines: line breaks and tabs stay."""
    return _UNSAFE_IN_LINES.sub(_sign, text.replace("\r\n", "\n"))


def fit_line(text: str, room: int) -> str:
    """The text in one line of at most `room` columns; `…` says that there is more."""
    if len(text) <= room and text.isascii() and text.isprintable():
        return text
    head = text[: 4 * room].strip()
    line = escape_controls(_BREAK.sub(" ⏎ ", head).replace("\t", " "))
    return shorten_line(line, room) if len(text) <= 4 * room else _cut(line, room - 1) + "…"


def wrap_text(text: str, room: int, max_lines: int) -> list[str]:
    """The text in at most `most` lines of `room` columns each, broken between words where there are some."""
    if len(text) <= room and text.isascii() and text.isprintable():
        return [text]
    limit = 4 * room * max_lines
    more = len(text) > limit
    lines: list[str] = []
    for written in text[:limit].replace("\r\n", "\n").split("\n"):
        rest = escape_controls(written.replace("\t", "    ").rstrip())
        while rest:
            piece, rest = _broken(rest, room)
            lines.append(piece)
            if len(lines) > max_lines:
                break
    if len(lines) > max_lines or more:
        lines = lines[:max_lines] or [""]
        lines[-1] = _cut(lines[-1], room - 1) + "…"
    return lines or [""]


def shorten_line(line: str, room: int) -> str:
    """A visible line, cut to `room` columns."""
    return line if display_width(line) <= room else _cut(line, room - 1) + "…"


def shorten_id(text: str, room: int) -> str:
    """An id in one line of at most `room` columns. Its middle is left out: ids that are paths differ at their ends."""
    if len(text) > 8 * room:
        text = text[: 4 * room] + text[-4 * room :]
    line = fit_line(text, 8 * (len(text) + 1))
    if display_width(line) <= room:
        return line
    head = _cut(line, (room - 1) // 2)
    return f"{head}…{_cut(line[::-1], room - 1 - display_width(head))[::-1]}"


def display_width(line: str) -> int:
    """How wide a visible line is on a terminal."""
    return len(line) if line.isascii() else sum(map(_width, line))


def format_value(value: Any, room: int) -> str:
    """A value the way a person would write it (`{amount: 3500, type: "travel"}`), visible and cut to `room` characters."""
    text = ""
    for piece in _pieces(value, room):
        text += piece
        if len(text) > room:
            return escape_controls(text[: room - 1]) + "…"
    return escape_controls(text)


def find_question(text: str) -> str:
    """What an agent that waits has asked: its last question or, without one, its last sentence."""
    sentences = [part.strip() for part in _SENTENCE.split(text[-2000:]) if part.strip()]
    asked = [sentence for sentence in sentences if sentence.endswith(("?", "\uff1f", "\u061f"))]
    return (asked or sentences or [""])[-1].rstrip(".")


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _width(character: str) -> int:
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 0 if unicodedata.category(character) in ("Mn", "Me", "Cf") else 1


def _cut(line: str, room: int) -> str:
    """As much of the line as fits."""
    if line.isascii():
        return line[:room]
    used = 0
    for at, character in enumerate(line):
        used += _width(character)
        if used > room:
            return line[:at]
    return line


def _broken(line: str, room: int) -> tuple[str, str]:
    """A first piece that fits, and the rest."""
    if display_width(line) <= room:
        return line, ""
    piece = _cut(line, room) or line[0]
    space = line.rfind(" ", 0, len(piece) + 1)
    if space > len(piece) // 2:
        return line[:space].rstrip(), line[space + 1 :].lstrip()
    return piece, line[len(piece) :]


def _pieces(value: Any, room: int) -> Iterator[str]:
    """The value in small pieces, so that whoever has enough can stop asking."""
    if isinstance(value, str):
        yield _quoted(value[: room + 1])
    elif isinstance(value, Mapping):
        before = "{"
        for key, inner in cast("Mapping[Any, Any]", value).items():
            name = str(key)[: room + 1]
            yield f"{before}{name if _NAME.match(name) else _quoted(name)}: "
            yield from _pieces(inner, room)
            before = ", "
        yield "{}" if before == "{" else "}"
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        before = "["
        for inner in cast("Sequence[Any]", value):
            yield before
            yield from _pieces(inner, room)
            before = ", "
        yield "[]" if before == "[" else "]"
    else:
        yield codec.compact_json(value)


def _quoted(text: str) -> str:
    """As a JSON string; what UTF-8 cannot hold is spelled out."""
    return codec.compact_json(text.encode("utf-8", "backslashreplace").decode())
