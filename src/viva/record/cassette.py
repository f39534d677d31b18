"""A file of recorded replies of every agent and helper, for replay at zero tokens.

JSON lines: a definition for each agent, an entry for each reply, and how long each trial took. An entry is found by who
was asked, in which conversation, and a digest of all that was sent in it so far, with secrets already struck out. That
digest is made when a cassette is read: recording is to cost next to nothing. `taped` puts a cassette around agents.
"""

import difflib
import os
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct, structs

from viva.errors import BadInput, Role, RunStopped
from viva.model import codec
from viva.model.case import Key
from viva.model.event import Event, TrialEnded
from viva.model.message import Message, ModelCall, Reply
from viva.model.talk import FileChange, FileImage
from viva.record.private import open_private

VERSION = 2
Missing = Literal["error", "live", "skip"]
T = TypeVar("T")
Place = tuple[Role, str, Key]
CUT_OFF = "cut off"
_FORM = re.compile(rb"\*\*\*(\w+):\d+\*\*\*")
"""What a variable leaves behind where its value stood in another form: that depends on the value, and so does not count."""
_DIFF_LINES = 40


class Header(Struct, frozen=True, tag_field="line", tag="cassette"):
    """The first line."""

    version: int
    viva: str


class Definition(Struct, frozen=True, tag_field="line", tag="agent"):
    """What an agent was when the replies after this line were recorded: its settings, prompt and code."""

    agent: str
    definition: Any


class Session(Struct, frozen=True, omit_defaults=True):
    """A conversation with one agent."""

    agent: str
    role: Role
    key: Key
    history: tuple[Message, ...] = ()


class Sent(Struct, omit_defaults=True, gc=False):
    """What an agent was given: all of it counts."""

    message: Any
    options: Any
    fixtures: Any = None
    conversation: Any = None


class Opening(Struct):
    """What a session begins with: who is asked, in which conversation, and what had been said before."""

    role: Role
    agent: str
    key: Key
    definition: Any
    history: Any


class Made(Struct, frozen=True, omit_defaults=True):
    """What an agent did to the files of its workspace in one turn, and what was told of that."""

    files: tuple[FileImage, ...] = ()
    changes: tuple[FileChange, ...] = ()
    missing: str = ""
    """Why they are not here: then this turn cannot be replayed."""


class Entry(Struct, tag_field="line", tag="reply", omit_defaults=True, gc=False):
    """One reply, or the fault that came instead; those of a session stand in the order of asking.

    Sessions are numbered in the order in which they were opened: that tells equal questions apart (votes). The first
    reply of each says more about it. `turn` is that of the case, also for who helps with it.
    """

    session: int
    turn: int
    ms: float = 0.0
    opened: Session | None = None
    sent: Sent | None = None
    """None: the session could not be opened."""
    reply: Reply | None = None
    calls: tuple[ModelCall, ...] | None = None
    """What was paid for it. None: the calls that the reply names."""
    fault: str | None = None
    said: str = ""
    """What the fault says; for a call that was cut off, the provider failure that it was being retried for."""
    partial: Reply | None = None
    """What the agent had said and done when it failed."""
    stderr: str = ""
    """The end of what it had printed by then."""
    made: Made | None = None

    @property
    def model_calls(self) -> tuple[ModelCall, ...]:
        return self.calls if self.calls is not None else self.reply.calls if self.reply is not None else ()


class Took(Struct, frozen=True, tag_field="line", tag="trial"):
    """A trial has ended; how long it took, so that a replayed report says the same."""

    key: Key
    duration_ms: float


Line = Header | Definition | Entry | Took


class Hiding(Protocol):
    """How secrets are struck out of what is kept: values of variables leave their names, and `restore` puts back what these
    are now. Only texts change.
    """

    def is_clean(self, raw: bytes) -> bool:
        """Does this JSON surely hold no secret?"""
        ...

    def hide(self, value: T) -> T: ...

    def restore(self, value: T) -> T: ...


class Recorder:
    """Appends to a cassette, whole lines at a time: at the latest when a trial ends, before its journal says so.

    The file is touched when the first reply is there, so that a run which never starts destroys nothing.
    """

    def __init__(self, path: Path, viva: str, hiding: Hiding) -> None:
        folder = path.parent
        if not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise BadInput.saying(f"--record {path}: cannot be written")
        self._path = path
        self._hiding = hiding
        self._file: int | None = None
        self._begin = os.O_TRUNC
        self._due: list[Line] = [Header(VERSION, viva)]  # not yet written
        self.keep = self._due.append
        self._defined: set[str] = set()
        self.sessions = count(1)

    def define(self, agent: str, definition: Any) -> None:
        """Keeps what an agent is, once."""
        if agent not in self._defined:
            self._defined.add(agent)
            self.keep(Definition(agent, codec.frozen(definition)))

    def go_on(self, ended: Container[Key]) -> None:
        """The run goes on: of its `ended` trials all that was recorded stays. A trial that was cut off is held again."""
        if not self._path.exists():
            return
        lines = list(read_cassette(self._path))
        try:
            rewrite(self._path, without(lines, lambda key: trial_of(key) not in ended))
        except OSError as wrong:
            raise RunStopped(f"cassette {self._path}: {wrong.strerror}") from wrong
        del self._due[0]  # the header is there already
        self._begin = 0
        self.sessions = count(1 + max((line.session for line in lines if isinstance(line, Entry)), default=0))

    def without_secrets(self, images: Iterable[FileImage]) -> tuple[FileImage, ...]:
        return tuple(_changed(image, self._hiding.hide) for image in images)

    def append(self, *events: Event) -> None:
        """As a ledger: what was recorded of a trial is on its way to the disk before its journal says that it ended."""
        ended = [event for event in events if isinstance(event, TrialEnded)]
        for event in ended:
            self.keep(Took(event.key, event.record.duration_ms))
        if ended:
            self.flush()

    def flush(self) -> None:
        try:
            if self._file is None:
                self._file = open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | self._begin)
            raw = codec.encode_lines(self._due)
            if not self._hiding.is_clean(raw):
                raw = codec.encode_lines([self._hiding.hide(line) for line in self._due])
            written = os.write(self._file, raw)
        except OSError as wrong:
            raise RunStopped(f"cassette {self._path}: {wrong.strerror}") from wrong
        if written != len(raw):
            raise RunStopped(f"cassette {self._path}: no space left on device")
        self._due.clear()

    def close(self) -> None:
        if self._due:
            self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Tape:
    """A cassette that is being played. Entries that are equal in all that was sent are used in the order of asking."""

    def __init__(self, path: Path, missing: Missing, hiding: Hiding) -> None:
        self.missing: Missing = missing
        self._hiding = hiding
        self._lines = list(read_cassette(path))
        self._definitions = {line.agent: line.definition for line in self._lines if isinstance(line, Definition)}
        self._took = {line.key: line.duration_ms for line in self._lines if isinstance(line, Took)}
        self._talks: dict[Place, list[Entry]] = defaultdict(list)
        for session, entry in replies(self._lines):
            self._talks[_place(session)].append(entry)
        self._first_misses: dict[tuple[str, str, int], str] = {}

    @cached_property
    def _entries(self) -> dict[str, list[Entry]]:
        """By the chain of all that was sent: made at the first question, since agents may bring secrets of their own."""
        found: dict[str, list[Entry]] = defaultdict(list)
        definitions: dict[str, Any] = {}
        chains: dict[int, str] = {}
        for line in self._lines:
            if isinstance(line, Definition):
                definitions[line.agent] = line.definition
            elif isinstance(line, Entry):
                if (opened := line.opened) is not None:
                    chains[line.session] = self.opening(_place(opened), definitions.get(opened.agent), opened.history)
                if line.sent is not None:
                    chains[line.session] = self.link(chains[line.session], line.sent)
                found[chains[line.session]].append(line)
        for same in found.values():
            same.sort(key=lambda entry: entry.session, reverse=True)  # they are taken from the end
        return found

    def opening(self, place: Place, definition: Any, history: Sequence[Message]) -> str:
        """What the chain of all that is sent in a session begins with."""
        return self.link("", Opening(*place, definition, history))

    def link(self, chain: str, sent: Sent | Opening) -> str:
        """The chain, one longer. What a cassette holds and what is sent now give the same, whatever the secrets in them."""
        kept = _FORM.sub(rb"***\1***", codec.encode(self._plain(sent)))
        return blake2b(chain.encode() + codec.canonical(codec.decode_kept(kept)), digest_size=12).hexdigest()

    def took_ms(self, key: Key) -> float | None:
        return self._took.get(key)

    def next(self, digest: str) -> Entry | None:
        left = self._entries.get(digest)
        return self._restored(left.pop()) if left else None

    def _restored(self, entry: Entry) -> Entry:
        """With the values of variables where their names were kept in their place: checks look for them."""
        entry = self._hiding.restore(entry)
        if entry.made is not None:
            files = tuple(_changed(image, self._hiding.restore) for image in entry.made.files)
            entry.made = structs.replace(entry.made, files=files)
        return entry

    def miss(self, place: Place, turn: int, sent: Sent, definition: Any) -> str:
        """Why nothing fits. A trial that is tried again says what was found the first time."""
        key = place[2]
        trial = (key.suite, key.case, key.trial)
        if trial not in self._first_misses:
            self._first_misses[trial] = self._divergence(place, turn, sent, definition)
        return self._first_misses[trial]

    def _divergence(self, place: Place, turn: int, sent: Sent, definition: Any) -> str:
        """What the cassette had at this very place, as a diff."""
        role, name, key = place
        where = f"case {key.case!r}, trial {key.trial}, turn {turn}: the {role} {name!r}"
        had, now = self._definitions.get(name), self._plain(Definition(name, definition)).definition
        if had is not None and codec.canonical(had) != codec.canonical(now):
            return f"{where} was defined otherwise (its prompt, settings or code changed)\n{diff(had, now)}"
        known = [entry for entry in self._talks.get(place, ()) if entry.turn == turn]
        if not known:
            return f"{where} was not asked when the cassette was recorded"
        what = "the criteria or the conversation" if role == "judge" else "what it was sent"
        return f"{where}: {what} changed\n{min((diff(entry.sent, self._plain(sent)) for entry in known), key=len)}"

    def _plain(self, value: T) -> T:
        """With plain values in it: so that what a cassette holds and what is sent now are rewritten alike."""
        raw = codec.encode(value)
        return value if self._hiding.is_clean(raw) else self._hiding.hide(codec.decode_kept(raw, type=type(value)))


def read_cassette(path: Path) -> Iterator[Line]:
    """The lines of a cassette; BadInput for a file that is none. A torn last line is left out."""
    decoder = codec.Decoder[Line](Line, codec.KEPT_DEPTH)
    opened: set[int] = set()
    number = 0
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if number > 1 and not raw.endswith(b"\n"):
                    return
                try:
                    line = decoder.decode(raw)
                except codec.DecodeError as wrong:
                    raise BadInput.saying(f"is no line of a cassette: {wrong}", str(path), number) from wrong
                if number == 1 and not isinstance(line, Header):
                    raise BadInput.saying("is no cassette: its first line is no header", str(path), 1)
                if isinstance(line, Header) and line.version != VERSION:
                    age = "a newer" if line.version > VERSION else "an older"
                    raise BadInput.saying(
                        f"was recorded by {age} Viva ({line.viva}): record it again", str(path), number
                    )
                if isinstance(line, Entry) and line.opened is not None:
                    opened.add(line.session)
                elif isinstance(line, Entry) and line.session not in opened:
                    raise BadInput.saying(
                        f"is a reply of session {line.session}, which nobody opened", str(path), number
                    )
                yield line
    except OSError as wrong:
        raise BadInput.saying(f"cannot be read: {wrong.strerror}", str(path)) from wrong
    if not number:
        raise BadInput.saying("is no cassette: it is empty", str(path))


def replies(lines: Iterable[Line]) -> Iterator[tuple[Session, Entry]]:
    """Each reply with its session."""
    sessions: dict[int, Session] = {}
    for line in lines:
        if isinstance(line, Entry):
            session = sessions[line.session] = line.opened or sessions[line.session]
            yield session, line


def without(lines: Iterable[Line], goes: Callable[[Key], bool]) -> Iterator[Line]:
    """The lines less those of trials that go. Cases that were made for the run belong to no trial: they stay."""
    gone: set[int] = set()
    for line in lines:
        if isinstance(line, Entry) and line.opened is not None and line.opened.key.case and goes(line.opened.key):
            gone.add(line.session)
        if not (isinstance(line, Entry) and line.session in gone) and not (isinstance(line, Took) and goes(line.key)):
            yield line


def _place(session: Session) -> Place:
    return session.role, session.agent, session.key


def trial_of(key: Key) -> Key:
    """The trial that an attempt belongs to."""
    return structs.replace(key, attempt=1)


def digest_of(value: Any) -> str:
    """The same text for equal values."""
    return blake2b(codec.canonical(value), digest_size=12).hexdigest()


def _changed(image: FileImage, change: Callable[[str], str]) -> FileImage:
    """A file without secrets, or with them again: its bytes go the way of all other text, also where they are no UTF-8."""
    if image.content is None:
        return image
    text = image.content.decode(errors="surrogateescape")
    clean = change(text)
    return image if clean is text else structs.replace(image, content=clean.encode(errors="surrogateescape"))


def rewrite(path: Path, lines: Iterable[Line]) -> None:
    """Puts other lines in the place of a cassette's: readers see the old ones or the new ones."""
    draft = path.with_name(f".viva-{secrets.token_hex(6)}.tmp")
    try:
        with os.fdopen(open_private(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as out:
            out.writelines(codec.encode(line) + b"\n" for line in lines)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def diff(had: Any, now: Any, before_name: str = "cassette", after_name: str = "now") -> str:
    """Two values as JSON, line by line."""
    before, after = (codec.pretty(codec.canonical(value)).decode().splitlines() for value in (had, now))
    lines = list(difflib.unified_diff(before, after, before_name, after_name, lineterm="", n=1))
    return "\n".join(lines[:_DIFF_LINES])
