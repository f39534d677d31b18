"""Formats texts, values and numbers for reports.

Control characters, escapes and marks that reorder text are escaped. Texts are cut first, so a reply of 5 MB costs no
more than one of 5 kB.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from viva.model import codec
from viva.model.record import TurnRecord

# C0 and C1 controls; marks that reorder or hide text; line separators; tag characters; lone surrogates.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff]"
)
_UNSAFE_IN_LINES = re.compile(_UNSAFE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_BREAK = re.compile(r"[ \t]*\r?\n\s*")
_NAME = re.compile(r"[A-Za-z_$][\w$]*\Z", re.ASCII)
_SENTENCE = re.compile(r"(?<=[.!?\u3002\uff1f\uff01\u061f])\s+|\n+")


def escape_controls(text: str) -> str:
    """Replaces every character that a terminal would not show as itself."""
    return text if text.isprintable() else _UNSAFE.sub(_escape_character, text)


def escape_multiline(text: str) -> str:
    """Like `escape_controls`, but line breaks and tabs stay."""
    return _UNSAFE_IN_LINES.sub(_escape_character, text.replace("\r\n", "\n"))


def fit_line(text: str, width: int) -> str:
    """The text in one line of at most `width` columns, cut with `…`."""
    if len(text) <= width and text.isascii() and text.isprintable():
        return text
    head = text[: 4 * width].strip()
    line = escape_controls(_BREAK.sub(" ⏎ ", head).replace("\t", " "))
    return shorten_line(line, width) if len(text) <= 4 * width else _cut_line(line, width - 1) + "…"


def wrap_text(text: str, width: int, max_lines: int) -> list[str]:
    """The text in at most `max_lines` lines of `width` columns, broken between words where possible."""
    if len(text) <= width and text.isascii() and text.isprintable():
        return [text]
    limit = 4 * width * max_lines
    is_cut = len(text) > limit
    lines: list[str] = []
    for source_line in text[:limit].replace("\r\n", "\n").split("\n"):
        rest = escape_controls(source_line.replace("\t", "    ").rstrip())
        while rest:
            piece, rest = _break_line(rest, width)
            lines.append(piece)
            if len(lines) > max_lines:
                break
    if len(lines) > max_lines or is_cut:
        lines = lines[:max_lines] or [""]
        lines[-1] = _cut_line(lines[-1], width - 1) + "…"
    return lines or [""]


def shorten_line(line: str, width: int) -> str:
    """Cuts a line without control characters to `width` columns."""
    return line if display_width(line) <= width else _cut_line(line, width - 1) + "…"


def shorten_id(text: str, width: int) -> str:
    """An id in one line of at most `width` columns. The middle is cut: ids that are paths differ at their ends."""
    if len(text) > 8 * width:
        text = text[: 4 * width] + text[-4 * width :]
    line = fit_line(text, 8 * (len(text) + 1))
    if display_width(line) <= width:
        return line
    head = _cut_line(line, (width - 1) // 2)
    return f"{head}…{_cut_line(line[::-1], width - 1 - display_width(head))[::-1]}"


def display_width(line: str) -> int:
    """The width of a line on a terminal."""
    return len(line) if line.isascii() else sum(map(_character_width, line))


def format_value(value: Any, width: int) -> str:
    """A value as short text (`{amount: 3500, type: "travel"}`), cut to `width` characters."""
    text = ""
    for piece in _iter_value_pieces(value, width):
        text += piece
        if len(text) > width:
            return escape_controls(text[: width - 1]) + "…"
    return escape_controls(text)


def find_question(text: str) -> str:
    """The last question of a reply or, without one, its last sentence."""
    sentences = [part.strip() for part in _SENTENCE.split(text[-2000:]) if part.strip()]
    questions = [sentence for sentence in sentences if sentence.endswith(("?", "\uff1f", "\u061f"))]
    return (questions or sentences or [""])[-1].rstrip(".")


def format_ms(ms: float) -> str:
    """`42ms`, `7.1s`, `2m 05s`, `1h 02m`."""
    if ms < 99.5:
        return f"{ms:.0f}ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f}s"
    whole = round(ms / 1000)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def format_turn_time(turn: TurnRecord) -> str:
    """The latency of a turn and, if its reply was streamed, the time until its first text."""
    first = "" if turn.first_token_ms is None else f", first token {format_ms(turn.first_token_ms)}"
    return format_ms(turn.duration_ms) + first


def format_count(number: int, noun: str) -> str:
    """`1 turn`, `3 turns`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_cost(cost_usd: float | None, unpriced_calls: int) -> str | None:
    """The known cost, and how many calls have no price. An unknown price is never shown as 0."""
    unpriced = f"{format_count(unpriced_calls, 'call')} without a price" if unpriced_calls else ""
    if cost_usd is None:
        return unpriced or None
    known = f"${cost_usd:,.2f}" if cost_usd >= 10 else f"${cost_usd:.4f}"
    if cost_usd < 0.001:
        known = format_rounded_cost(cost_usd)  # four digits would show the cost of one small call as 0
    return f"{known} + {unpriced}" if unpriced else known


def format_rounded_cost(cost_usd: float) -> str:
    """A cost for tables: `$12.35`, `$0.0046`; two digits that count."""
    if cost_usd >= 0.1:
        return f"${cost_usd:,.2f}"
    return "$0" if cost_usd <= 0 else f"${float(f'{cost_usd:.2g}'):.6f}".rstrip("0").rstrip(".")


def _escape_character(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _character_width(character: str) -> int:
    if unicodedata.east_asian_width(character) in "WF":
        return 2
    return 0 if unicodedata.category(character) in ("Mn", "Me", "Cf") else 1


def _cut_line(line: str, width: int) -> str:
    """The start of the line that fits."""
    if line.isascii():
        return line[:width]
    used = 0
    for at, character in enumerate(line):
        used += _character_width(character)
        if used > width:
            return line[:at]
    return line


def _break_line(line: str, width: int) -> tuple[str, str]:
    """The first piece that fits, and the rest."""
    if display_width(line) <= width:
        return line, ""
    piece = _cut_line(line, width) or line[0]
    space = line.rfind(" ", 0, len(piece) + 1)
    if space > len(piece) // 2:
        return line[:space].rstrip(), line[space + 1 :].lstrip()
    return piece, line[len(piece) :]


def _iter_value_pieces(value: Any, width: int) -> Iterator[str]:
    """The value in small pieces, so that the caller can stop early."""
    if isinstance(value, str):
        yield _quote_string(value[: width + 1])
    elif isinstance(value, Mapping):
        separator = "{"
        for key, inner in cast("Mapping[Any, Any]", value).items():
            name = str(key)[: width + 1]
            yield f"{separator}{name if _NAME.match(name) else _quote_string(name)}: "
            yield from _iter_value_pieces(inner, width)
            separator = ", "
        yield "{}" if separator == "{" else "}"
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        separator = "["
        for inner in cast("Sequence[Any]", value):
            yield separator
            yield from _iter_value_pieces(inner, width)
            separator = ", "
        yield "[]" if separator == "[" else "]"
    else:
        yield codec.compact_json(value)


def _quote_string(text: str) -> str:
    """A JSON string; lone surrogates are escaped."""
    return codec.compact_json(text.encode("utf-8", "backslashreplace").decode())
