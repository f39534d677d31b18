"""A file of recorded replies of every agent and helper, for replay at zero tokens.

JSON lines: a definition for each agent, an entry for each reply, and how long each trial took. An entry is found by who
was asked, in which conversation, and a digest of all that was sent in it so far, with secrets already struck out.
`taped` puts a cassette around agents.
"""

import difflib
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from viva.errors import BadInput, Role, RunStopped
from viva.model import codec
from viva.model.case import Key
from viva.model.message import ModelCall, Reply
from viva.model.talk import FileChange, FileImage

VERSION = 1
Missing = Literal["error", "live", "skip"]
Change = Callable[[bytes], bytes]
Place = tuple[Role, str, Key]
CUT_OFF = "cut off"
_DIFF_LINES = 40
_AT_ONCE = 64
"""So many replies at most wait to be written."""


class Header(Struct, frozen=True, tag_field="line", tag="cassette"):
    """The first line."""

    version: int
    viva: str


class Definition(Struct, frozen=True, tag_field="line", tag="agent"):
    """What an agent was when it was recorded: its settings, prompt and code."""

    agent: str
    definition: Any


class Entry(Struct, frozen=True, tag_field="line", tag="reply", omit_defaults=True):
    """One reply, or the fault that came instead.

    `turn` is that of the conversation, also for who helps with it; 0 is the opening of the session. Equal questions
    that were asked at once (votes) are told apart by `nth`, the order in which they were asked.
    """

    digest: str
    agent: str
    role: Role
    key: Key
    turn: int
    sent: Any = None
    reply: Reply | None = None
    fault: str | None = None
    said: str = ""
    calls: tuple[ModelCall, ...] = ()
    ms: float = 0.0
    nth: int = 0
    files: tuple[FileImage, ...] = ()
    """What it did to the files of its workspace in this turn, and what was told of that."""
    changes: tuple[FileChange, ...] = ()
    files_missing: str = ""
    """Why they are not here: then this turn cannot be replayed."""


class Took(Struct, frozen=True, tag_field="line", tag="trial"):
    """A trial has ended; how long it took, so that a replayed report says the same."""

    key: Key
    duration_ms: float


Line = Header | Definition | Entry | Took


class Hiding(Struct, frozen=True):
    """How secrets are struck out of JSON text: for a digest, and in what is kept. There the values of variables leave
    their names, and `restore` puts back what these are now.
    """

    strike: Change = bytes
    keep: Change = bytes
    restore: Change = bytes


class Recorder:
    """Appends to a cassette, whole lines at a time, so that parallel trials cannot tear each other's entries.

    What was said in a session is written when it closes: before its trial is journaled as ended.

    The file is touched when the first reply is there, so that a run which never starts destroys nothing. For a run that
    goes on, `ended` are its trials of which all that was recorded stays.
    """

    def __init__(self, path: Path, viva: str, hiding: Hiding) -> None:
        folder = path.parent
        if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise BadInput.saying(f"--record {path}: cannot be written")
        self._path = path
        self._hiding = hiding
        self.ended: frozenset[Key] | None = None
        self._file: int | None = None
        self._waiting: list[Line] = [Header(VERSION, viva)]
        self._defined: set[str] = set()
        self._asked: Counter[str] = Counter()
        self._unwritten: list[bytes] = []

    def define(self, agent: str, definition: Any) -> str:
        """Keeps what an agent is, once, and gives its digest."""
        if agent not in self._defined:
            self._defined.add(agent)
            self._write(Definition(agent, definition))
        return self.digest(definition)

    def digest(self, *parts: Any) -> str:
        return digest_of(parts, self._hiding.strike)

    def link(self, chain: str, sent: bytes) -> str:
        return _linked(chain, self._hiding.strike(sent))

    def count(self, digest: str) -> int:
        """How often exactly this was asked before."""
        self._asked[digest] += 1
        return self._asked[digest] - 1

    def keep(self, line: Entry | Took) -> None:
        self._open()
        if isinstance(line, Entry) and line.files:
            line = structs.replace(line, files=tuple(_changed(image, self._hiding.keep) for image in line.files))
        self._write(line)
        if len(self._unwritten) >= _AT_ONCE or (isinstance(line, Entry) and line.files):
            self.flush()

    def close(self) -> None:
        self._open()
        if self._file is not None:
            self.flush()
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        if self._file is not None:
            return
        try:
            waiting = [*self._waiting, *self._entries_of_ended()]
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC, 0o644)
        except OSError as wrong:
            raise RunStopped(f"cassette {self._path}: {wrong.strerror}") from wrong
        for line in waiting:
            self._write(line)
        self.flush()

    def _entries_of_ended(self) -> list[Entry]:
        """A trial that was cut off is held again, and what was made for the run is not: that stays, too."""
        if self.ended is None or not self._path.exists():
            return []
        entries = (line for line in read_cassette(self._path) if isinstance(line, Entry))
        return [entry for entry in entries if not entry.key.case or trial_of(entry.key) in self.ended]

    def _write(self, line: Line) -> None:
        if self._file is None:
            self._waiting.append(line)
            return
        self._unwritten.append(self._hiding.keep(codec.encode(line)) + b"\n")

    def flush(self) -> None:
        if self._file is None or not self._unwritten:
            return
        raw = b"".join(self._unwritten)
        self._unwritten.clear()
        try:
            written = os.write(self._file, raw)
        except OSError as wrong:
            raise RunStopped(f"cassette {self._path}: {wrong.strerror}") from wrong
        if written != len(raw):
            raise RunStopped(f"cassette {self._path}: no space left on device")


class Tape:
    """A cassette that is being played. Entries that are equal in all that was sent are used in the order of asking."""

    def __init__(self, path: Path, missing: Missing, hiding: Hiding) -> None:
        self.missing: Missing = missing
        self._hiding = hiding
        self._entries: dict[str, list[Entry]] = defaultdict(list)
        self._talks: dict[Place, list[Entry]] = defaultdict(list)
        self._definitions: dict[str, Any] = {}
        self._took: dict[Key, float] = {}
        self._first_misses: dict[tuple[str, str, int], str] = {}
        for line in read_cassette(path):
            match line:
                case Entry():
                    self._entries[line.digest].append(line)
                    self._talks[line.role, line.agent, line.key].append(line)
                case Definition():
                    self._definitions[line.agent] = line.definition
                case Took():
                    self._took[line.key] = line.duration_ms
                case Header():
                    pass
        for same in self._entries.values():
            same.sort(key=lambda entry: entry.nth)
            same.reverse()  # they are taken from the end

    def digest(self, *parts: Any) -> str:
        return digest_of(parts, self._hiding.strike)

    def link(self, chain: str, sent: bytes) -> str:
        return _linked(chain, self._hiding.strike(sent))

    def took_ms(self, key: Key) -> float | None:
        return self._took.get(key)

    def next(self, digest: str) -> Entry | None:
        left = self._entries.get(digest)
        return self._restored(left.pop()) if left else None

    def _restored(self, entry: Entry) -> Entry:
        """With the values of variables where their names were kept in their place: checks look for them."""
        raw = codec.encode(entry)
        known = self._hiding.restore(raw)
        if known is not raw:
            entry = codec.decode(known, type=Entry)
        return structs.replace(entry, files=tuple(_changed(image, self._hiding.restore) for image in entry.files))

    def miss(self, place: Place, turn: int, sent: bytes, definition: Any) -> str:
        """Why nothing fits. A trial that is tried again says what was found the first time."""
        key = place[2]
        trial = (key.suite, key.case, key.trial)
        if trial not in self._first_misses:
            self._first_misses[trial] = self._divergence(place, turn, sent, definition)
        return self._first_misses[trial]

    def _divergence(self, place: Place, turn: int, sent: bytes, definition: Any) -> str:
        """What the cassette had at this very place, as a diff."""
        role, name, key = place
        where = f"case {key.case!r}, trial {key.trial}, turn {turn}: the {role} {name!r}"
        had, now = self._definitions.get(name), self._plain(codec.encode(definition))
        if had is not None and codec.canonical(had) != codec.canonical(now):
            return f"{where} was defined otherwise (its prompt, settings or code changed)\n{diff(had, now)}"
        known = [entry for entry in self._talks.get(place, ()) if entry.turn == turn]
        if not known:
            return f"{where} was not asked when the cassette was recorded"
        what = "the criteria or the conversation" if role == "judge" else "what it was sent"
        return f"{where}: {what} changed\n{min((diff(entry.sent, self._plain(sent)) for entry in known), key=len)}"

    def _plain(self, raw: bytes) -> Any:
        return codec.decode(self._hiding.keep(raw))


def read_cassette(path: Path) -> Iterator[Line]:
    """The lines of a cassette; BadInput for a file that is none. A torn last line is left out."""
    decoder = codec.decoder(Line)
    number = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if number > 1 and not raw.endswith(b"\n"):
                    return
                try:
                    line = decoder.decode(raw)
                except (codec.DecodeError, codec.ValidationError) as wrong:
                    raise BadInput.saying(f"is no line of a cassette: {wrong}", str(path), number) from wrong
                if number == 1 and not isinstance(line, Header):
                    raise BadInput.saying("is no cassette: its first line is no header", str(path), 1)
                if isinstance(line, Header) and line.version > VERSION:
                    raise BadInput.saying(f"was recorded by a newer Viva ({line.viva})", str(path), number)
                yield line
    except OSError as wrong:
        raise BadInput.saying(f"cannot be read: {wrong.strerror}", str(path)) from wrong
    if not number:
        raise BadInput.saying("is no cassette: it is empty", str(path))


def trial_of(key: Key) -> Key:
    """The trial that an attempt belongs to."""
    return structs.replace(key, attempt=1)


def _linked(chain: str, sent: bytes) -> str:
    """The chain of all that was sent so far, one longer."""
    return blake2b(chain.encode() + sent, digest_size=12).hexdigest()


def digest_of(value: Any, strike: Change = bytes) -> str:
    """The same text for equal values, whatever secrets they hold."""
    return blake2b(strike(codec.canonical(value)), digest_size=12).hexdigest()


def _changed(image: FileImage, change: Change) -> FileImage:
    """A file without secrets, or with them again: its bytes go the way of all other text; what is no UTF-8 is read byte
    for byte.
    """
    if image.content is None:
        return image
    try:
        text, encoding = image.content.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = image.content.decode("latin-1"), "latin-1"
    raw = codec.encode(text)
    clean = change(raw)
    return image if clean == raw else structs.replace(image, content=codec.decode(clean, type=str).encode(encoding))


def rewrite(path: Path, lines: Iterable[Line]) -> None:
    """Puts other lines in the place of a cassette's: readers see the old ones or the new ones."""
    draft = path.with_name(f".viva-{secrets.token_hex(6)}.tmp")
    try:
        with draft.open("xb") as out:
            out.writelines(codec.encode(line) + b"\n" for line in lines)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def diff(had: Any, now: Any, before_name: str = "cassette", after_name: str = "now") -> str:
    """Two values as JSON, line by line."""
    before, after = (codec.pretty(codec.canonical(value)).decode().splitlines() for value in (had, now))
    lines = list(difflib.unified_diff(before, after, before_name, after_name, lineterm="", n=1))
    return "\n".join(lines[:_DIFF_LINES])
