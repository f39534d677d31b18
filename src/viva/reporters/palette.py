"""Marks and colours of the console. Plain ANSI by hand: no library is worth its import for five colours."""

from typing import Literal

from viva.model.record import Status

Style = Literal["green", "red", "yellow", "cyan", "dim", "bold"]

INFO_MARK = "\N{INFORMATION SOURCE}"
WARNING_MARK = "⚠"
STATUS_MARKS: dict[Status, str] = {"passed": "✓", "failed": "✗", "error": "!", "skipped": "○"}
_CODES: dict[Style, str] = {"green": "32", "red": "31", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}
_STYLES: dict[Status, Style] = {"passed": "green", "failed": "red", "error": "yellow", "skipped": "cyan"}

# One ASCII character for each sign of ours, so that lines keep their width where the terminal knows no Unicode.
_ASCII = str.maketrans("✓✗○►├│└─═→…·⏎" + WARNING_MARK + INFO_MARK, "+xo>||`-=>~-/!i")


class Palette:
    """Paints text, or leaves it as it is."""

    def __init__(self, colour: bool) -> None:
        self._colour = colour
        self.marks: dict[Status, str] = {
            status: self.style_status(status, mark) for status, mark in STATUS_MARKS.items()
        }

    def __call__(self, style: Style, text: str) -> str:
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self._colour else text

    def style_status(self, status: Status, text: str) -> str:
        return self(_STYLES[status], text)


def fit_encoding(text: str, encoding: str) -> str:
    """The text as a stream of that encoding can write it, with ASCII marks."""
    return text.translate(_ASCII).encode(encoding, "backslashreplace").decode(encoding)
