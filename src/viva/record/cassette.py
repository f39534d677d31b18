"""A file of recorded replies of every agent and helper, for replay at zero tokens.

JSON lines: a definition for each agent, an entry for each reply, and how long each trial took. An entry is found by who
was asked, in which conversation, and a digest of all that was sent in it so far, with secrets already struck out. That
digest is made when a cassette is read: recording is to cost next to nothing. `tape` finds entries again, `taped` puts
a cassette around agents.
"""

import difflib
import os
from collections.abc import Callable, Container, Iterable, Iterator
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
from viva.model.tracebacks import Traceback
from viva.model.turn import FileChange, FileImage
from viva.record.atomic_files import append_atomically, open_replacement, truncate_partial_line
from viva.record.private_files import open_private

VERSION = 3
MissingPolicy = Literal["error", "live", "skip"]
T = TypeVar("T")
ConversationKey = tuple[Role, str, Key]
CUT_OFF = "cut off"
_DIFF_LINES = 40


class CassetteHeader(Struct, frozen=True, tag_field="line", tag="cassette"):
    """The first line."""

    version: int
    viva: str


class AgentDefinition(Struct, frozen=True, tag_field="line", tag="agent"):
    """What an agent was when the replies after this line were recorded: its settings, prompt and code."""

    agent: str
    definition: Any


class RecordedSession(Struct, frozen=True, omit_defaults=True):
    """A conversation with one agent."""

    agent: str
    role: Role
    key: Key
    history: tuple[Message, ...] = ()


class RecordedRequest(Struct, omit_defaults=True, gc=False):
    """What an agent was given: all of it counts."""

    message: Any
    options: Any
    fixtures: Any = None
    conversation: Any = None
    connector: Any = None
    """What the connector is that the case asked for by name; an agent's own is part of its definition."""


class SessionStart(Struct):
    """What a session begins with: who is asked, in which conversation, and what had been said before."""

    role: Role
    agent: str
    key: Key
    definition: Any
    history: Any


class TurnFiles(Struct, frozen=True, omit_defaults=True):
    """What an agent did to the files of its workspace in one turn, and what was told of that."""

    files: tuple[FileImage, ...] = ()
    changes: tuple[FileChange, ...] = ()
    omitted_reason: str = ""
    """Why they are not here: then this turn cannot be replayed."""


class RecordedReply(Struct, tag_field="line", tag="reply", omit_defaults=True, gc=False):
    """One reply, or the fault that came instead; those of a session stand in the order of asking.

    Sessions are numbered in the order in which they were opened: that tells equal questions apart (votes). The first
    reply of each says more about it. `turn` is that of the case, also for who helps with it.
    """

    session: int
    turn: int
    ms: float = 0.0
    new_session: RecordedSession | None = None
    sent: RecordedRequest | None = None
    """None: the session could not be opened."""
    reply: Reply | None = None
    calls: tuple[ModelCall, ...] | None = None
    """What was paid for it. None: the calls that the reply names."""
    fault: str | None = None
    fault_message: str = ""
    """What the fault says; for a call that was cut off, the provider failure that it was being retried for."""
    partial: Reply | None = None
    """What the agent had said and done when it failed."""
    stderr: str = ""
    """The end of what it had printed by then."""
    tracebacks: tuple[Traceback, ...] = ()
    """Errors in the user's own Python during the call."""
    warnings: tuple[str, ...] = ()
    """What was to be said of the call."""
    turn_files: TurnFiles | None = None

    @property
    def model_calls(self) -> tuple[ModelCall, ...]:
        return self.calls if self.calls is not None else self.reply.calls if self.reply is not None else ()


class TrialDuration(Struct, frozen=True, tag_field="line", tag="trial"):
    """A trial has ended; how long it took, so that a replayed report says the same."""

    key: Key
    duration_ms: float


CassetteLine = CassetteHeader | AgentDefinition | RecordedReply | TrialDuration


class SecretFilter(Protocol):
    """How secrets are struck out of what is kept: values of variables leave their names, and `restore` puts back what these
    are now. Only texts change.
    """

    def is_clean(self, raw: bytes) -> bool:
        """Does this JSON surely hold no secret?"""
        ...

    def hide(self, value: T) -> T: ...

    def restore(self, value: T) -> T: ...


_BEGINNING = b'{"line":"cassette"'


def _may_be_replaced(path: Path) -> bool:
    """Is there nothing at this path that is not a cassette?"""
    if not path.is_file():  # what else stands there is not replaced but written to, and may refuse
        return True
    try:
        with path.open("rb") as file:
            head = file.read(len(_BEGINNING))
    except OSError:  # it is not there; or why it cannot be written is said elsewhere
        return True
    return head.startswith(_BEGINNING) or _BEGINNING.startswith(head.strip())  # one that was killed may be short


class Recorder:
    """Appends to a cassette, whole lines at a time: at the latest when a trial ends, before its journal says so.

    The file is touched when the first reply is there, so that a run which never starts destroys nothing.
    """

    def __init__(self, path: Path, viva: str, hiding: SecretFilter) -> None:
        folder = path.parent
        if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise BadInput.of(f"--record {path}: cannot be written")
        if not _may_be_replaced(path):
            raise BadInput.of(f"--record {path}: is no cassette, and would be overwritten; choose another file")
        self._path = path
        self._hiding = hiding
        self._file: int | None = None
        self._end = 0
        self._is_broken = False
        self._begin = os.O_TRUNC
        self._due: list[CassetteLine] = [CassetteHeader(VERSION, viva)]  # not yet written
        self.add_line = self._due.append
        self._defined: set[str] = set()
        self.session_numbers = count(1)

    def define_agent(self, agent: str, definition: Any) -> None:
        """Keeps what an agent is, once."""
        if agent not in self._defined:
            self._defined.add(agent)
            self.add_line(AgentDefinition(agent, codec.to_raw(definition)))

    def resume(self, ended: Container[Key]) -> None:
        """The run goes on: of its `ended` trials all that was recorded stays. A trial that was cut off is held again."""
        if not self._path.exists():
            return
        try:
            file = os.open(self._path, os.O_RDWR)
            try:
                if not truncate_partial_line(file):  # killed before its first line was written: it begins anew
                    return
            finally:
                os.close(file)
            lines = list(read_cassette(self._path))
            rewrite_cassette(self._path, remove_trials(lines, lambda key: trial_key(key) not in ended))
        except OSError as wrong:
            raise RunStopped(f"cassette {self._path}: {wrong.strerror}") from wrong
        del self._due[0]  # the header is there already
        self._begin = 0
        self.session_numbers = count(
            1 + max((line.session for line in lines if isinstance(line, RecordedReply)), default=0)
        )

    def hide_secrets(self, images: Iterable[FileImage]) -> tuple[FileImage, ...]:
        return tuple(map_image_text(image, self._hiding.hide) for image in images)

    def append(self, *events: Event) -> None:
        """As a ledger: what was recorded of a trial is on its way to the disk before its journal says that it ended."""
        ended = [event for event in events if isinstance(event, TrialEnded)]
        for event in ended:
            self.add_line(TrialDuration(event.key, event.record.duration_ms))
        if ended:
            self.flush()

    def flush(self) -> None:
        """Writes what is due, all of it or nothing. After a failure nothing more is written: lines need those before them."""
        if not self._due or self._is_broken:
            return
        raw = codec.encode_lines(self._due)
        if not self._hiding.is_clean(raw):
            raw = codec.encode_lines([self._hiding.hide(line) for line in self._due])
        self._due.clear()
        try:
            if self._file is None:
                self._file = open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | self._begin)
                self._end = truncate_partial_line(self._file)
            append_atomically(self._file, raw, self._end)
            self._end += len(raw)
        except OSError as wrong:
            self._is_broken = True
            raise RunStopped(f"cassette {self._path}: {wrong.strerror}") from wrong

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read_cassette(path: Path) -> Iterator[CassetteLine]:
    """The lines of a cassette; BadInput for a file that is none. A torn last line is left out."""
    decoder = codec.Decoder[CassetteLine](CassetteLine, codec.OWN_MAX_DEPTH)
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
                    raise BadInput.of(f"is no line of a cassette: {wrong}", str(path), number) from wrong
                if number == 1 and not isinstance(line, CassetteHeader):
                    raise BadInput.of("is no cassette: its first line is no header", str(path), 1)
                if isinstance(line, CassetteHeader) and line.version != VERSION:
                    age = "a newer" if line.version > VERSION else "an older"
                    raise BadInput.of(f"was recorded by {age} Viva ({line.viva}): record it again", str(path), number)
                if isinstance(line, RecordedReply) and line.new_session is not None:
                    opened.add(line.session)
                elif isinstance(line, RecordedReply) and line.session not in opened:
                    raise BadInput.of(f"is a reply of session {line.session}, which nobody opened", str(path), number)
                yield line
    except OSError as wrong:
        raise BadInput.of(f"cannot be read: {wrong.strerror}", str(path)) from wrong
    if not number:
        raise BadInput.of("is no cassette: it is empty", str(path))


def iter_replies(lines: Iterable[CassetteLine]) -> Iterator[tuple[RecordedSession, RecordedReply]]:
    """Each reply with its session."""
    sessions: dict[int, RecordedSession] = {}
    for line in lines:
        if isinstance(line, RecordedReply):
            session = sessions[line.session] = line.new_session or sessions[line.session]
            yield session, line


def remove_trials(lines: Iterable[CassetteLine], goes: Callable[[Key], bool]) -> Iterator[CassetteLine]:
    """The lines less those of trials that go. Cases that were made for the run belong to no trial: they stay."""
    gone: set[int] = set()
    for line in lines:
        if (
            isinstance(line, RecordedReply)
            and line.new_session is not None
            and line.new_session.key.case
            and goes(line.new_session.key)
        ):
            gone.add(line.session)
        if not (isinstance(line, RecordedReply) and line.session in gone) and not (
            isinstance(line, TrialDuration) and goes(line.key)
        ):
            yield line


def conversation_key(session: RecordedSession) -> ConversationKey:
    return session.role, session.agent, session.key


def trial_key(key: Key) -> Key:
    """The trial that an attempt belongs to."""
    return structs.replace(key, attempt=1)


def compute_digest(value: Any) -> str:
    """The same text for equal values."""
    return blake2b(codec.canonical_bytes(value), digest_size=12).hexdigest()


def map_image_text(image: FileImage, change: Callable[[str], str]) -> FileImage:
    """A file without secrets, or with them again: its bytes go the way of all other text, also where they are no UTF-8."""
    if image.content is None:
        return image
    text = image.content.decode(errors="surrogateescape")
    clean = change(text)
    return image if clean is text else structs.replace(image, content=clean.encode(errors="surrogateescape"))


def rewrite_cassette(path: Path, lines: Iterable[CassetteLine]) -> None:
    """Puts other lines in the place of a cassette's: readers see the old ones or the new ones."""
    with open_replacement(
        path, durable=True, private=True
    ) as out:  # what was recorded cannot be made again for nothing
        out.writelines(codec.encode(line) + b"\n" for line in lines)


def diff_json(old: Any, new: Any, old_name: str = "cassette", new_name: str = "now") -> str:
    """Two values as JSON, line by line."""
    before, after = (codec.pretty_json(codec.canonical_bytes(value)).decode().splitlines() for value in (old, new))
    lines = list(difflib.unified_diff(before, after, old_name, new_name, lineterm="", n=1))
    return "\n".join(lines[:_DIFF_LINES])
