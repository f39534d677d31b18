"""Keeps secrets out of everything that is kept or shown, in whatever form they may stand there."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from viva.model import codec

R = TypeVar("R", bound=Struct)
SHOWN = b"***"
SHORTEST = 6
"""Shorter values are too common to be told from ordinary text."""
LINE = 12
"""So long a line of a value is a secret of its own: differences of files, and texts that were cut, show single lines."""
_CUT = "…".encode()


class _Struck(Struct, frozen=True):
    """A form of a secret, as text and in JSON, and what a cassette keeps in its place."""

    text: bytes
    raw: bytes
    mark: bytes


class Redactor:
    """Replaces secret values. A record is decoded again only if one was really in it.

    On a cassette the values of `variables` leave their names behind, so that a replay can put back what they are by then.
    """

    def __init__(self, secrets: Iterable[str] = (), variables: Mapping[str, str] | None = None) -> None:
        self._secrets: set[str] = set()
        self._variables: dict[str, str] = {}
        self._struck: list[_Struck] = []
        self._marks: dict[bytes, bytes] = {}
        self.learn(secrets, variables)

    def learn(self, secrets: Iterable[str], variables: Mapping[str, str] | None = None) -> None:
        """More of them may become known while agents are built."""
        self._variables |= variables or {}
        self._secrets |= {*secrets, *self._variables.values()}
        names = {value: name for name, value in self._variables.items()}
        found: dict[str, _Struck] = {}
        for value in sorted(self._secrets):
            if len(value) < SHORTEST:
                continue
            for at, form in enumerate(_forms(value)):
                mark = f"***{names[value]}{f':{at}' if at else ''}***" if value in names else SHOWN.decode()
                each = _Struck(form.encode(), codec.encode(form)[1:-1], mark.encode())
                found.setdefault(form, each)
                if value in names:
                    self._marks[each.mark] = each.raw
        self._struck = sorted(found.values(), key=lambda each: len(each.text), reverse=True)

    def __bool__(self) -> bool:
        return bool(self._struck)

    def text(self, text: str) -> str:
        if not self._struck:
            return text
        said = text.encode(errors="surrogatepass")
        for each in self._struck:
            said = _without(said, each.text, SHOWN)
        return said.decode(errors="surrogatepass")

    def raw(self, raw: bytes) -> bytes:
        """JSON text without them."""
        for each in self._struck:
            raw = _without(raw, each.raw, SHOWN)
        return raw

    def taped(self, raw: bytes) -> bytes:
        """JSON text for a cassette: with the names of variables where their values were."""
        for each in self._struck:
            raw = _without(raw, each.raw, each.mark)
        return raw

    def restored(self, raw: bytes) -> bytes:
        """What `taped` made, with the values that the variables have now."""
        if SHOWN in raw:
            for mark, value in self._marks.items():
                raw = raw.replace(mark, value)
        return raw

    def record(self, record: R) -> R:
        before = codec.encode(record)
        after = self.raw(before)
        return record if after is before else codec.decode(after, type=type(record))


def _forms(value: str) -> Iterator[str]:
    """A value as it is, within JSON and within JSON that is itself a text, on one line of a report, and each line of it
    that is long enough.
    """
    yield value
    for one in (_within_json(value), _within_json(value, ascii_only=True)):
        yield one
        yield _within_json(one)
    yield "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
    yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= LINE)


def _within_json(text: str, *, ascii_only: bool = False) -> str:
    encoded = codec.encode(text)[1:-1].decode()
    return "".join(map(_escaped, encoded)) if ascii_only and not encoded.isascii() else encoded


def _escaped(character: str) -> str:
    r"""In ASCII: `\u00fc`, or two of these."""
    if character.isascii():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _without(text: bytes, form: bytes, shown: bytes) -> bytes:
    """The text without the form; nor with its beginning, where that was cut short and an ellipsis says so."""
    head = form[:SHORTEST]
    at, done, pieces = text.find(head), 0, list[bytes]()
    while at >= 0:
        end = at + (len(form) if text.startswith(form, at) else _alike(text[at : at + len(form)], form))
        if end - at == len(form) or text.startswith(_CUT, end):
            pieces += [text[done:at], shown]
            done = end
            at = text.find(head, end)
        else:
            at = text.find(head, at + 1)
    return b"".join([*pieces, text[done:]]) if pieces else text


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes they have in common at their beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
