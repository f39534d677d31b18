"""Cassettes: files of recorded replies of every agent and helper, for replay without model calls.

A cassette is JSON lines: a header, the definition of each agent, each reply, and the duration of each trial. A reply is
found by role, agent, conversation and a digest of everything sent so far, without secrets. The digest is computed when a
cassette is read, so recording stays cheap. `player` finds replies, `cassette_agents` wraps agents.
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
from viva.model.event import Event, TrialEnded, TrialRetried
from viva.model.message import Message, ModelCall, Reply
from viva.model.turn import FileChange, RecordedFile, Traceback
from viva.record.atomic_files import append_atomically, open_replacement, truncate_partial_line
from viva.record.private_files import open_private

CASSETTE_VERSION = 5
FIRST_VERSION_WITH_AGENT_KEYS = 5
"""The version since which keys name the agent under test. Before, a run had one."""
_READABLE_VERSIONS = (4, CASSETTE_VERSION)
MissingPolicy = Literal["error", "live", "skip"]
T = TypeVar("T")
ConversationKey = tuple[Role, str, Key]
"""Role, agent and trial attempt."""
CUT_OFF_FAULT = "cut off"
"""The `fault` of a reply that a time limit cut off."""
_MAX_DIFF_LINES = 40
_HEADER_START = b'{"line":"cassette"'


class CassetteHeader(Struct, frozen=True, tag_field="line", tag="cassette"):
    """The first line of a cassette."""

    version: int
    viva: str


class AgentDefinition(Struct, frozen=True, tag_field="line", tag="agent"):
    """The settings, prompt and code of an agent, for the replies after this line."""

    agent: str
    definition: Any


class RecordedSession(Struct, frozen=True, omit_defaults=True):
    """A conversation with one agent."""

    agent: str
    role: Role
    key: Key
    history: tuple[Message, ...] = ()


class RecordedRequest(Struct, omit_defaults=True, gc=False):
    """A message to an agent, with everything else that the agent got with it."""

    message: Any
    options: Any
    fixtures: Any = None
    conversation: Any = None
    connector: Any = None
    """The settings of the connector that the case names; an agent's own connector is part of its definition."""


class SessionStart(Struct):
    """The values from which the first digest of a session is computed."""

    role: Role
    agent: str
    key: Key
    definition: Any
    history: Any


class TurnFiles(Struct, frozen=True, omit_defaults=True):
    """The files that an agent changed in one turn, with their whole content, and the changes as the report shows them."""

    files: tuple[RecordedFile, ...] = ()
    changes: tuple[FileChange, ...] = ()
    omitted_reason: str = ""
    """Why the files are not recorded; the turn cannot be replayed then."""


class RecordedReply(Struct, tag_field="line", tag="reply", omit_defaults=True, gc=False):
    """One reply, or the fault that was raised instead. Replies of a session are in the order of the requests.

    Sessions are numbered in the order in which they were opened, which tells equal requests apart (votes). `turn` is the
    turn of the case, for helpers too.
    """

    session: int
    turn: int
    ms: float = 0.0
    new_session: RecordedSession | None = None
    """Set in the first reply of a session."""
    sent: RecordedRequest | None = None
    """None if the session could not be opened."""
    reply: Reply | None = None
    calls: tuple[ModelCall, ...] | None = None
    """The model calls that were charged; None if they are the calls of the reply."""
    fault: str | None = None
    fault_message: str = ""
    """For a call that was cut off: the provider failure that was being retried."""
    partial: Reply | None = None
    """The reply until the agent failed."""
    stderr: str = ""
    """The end of its standard error."""
    tracebacks: tuple[Traceback, ...] = ()
    """Errors in the user's own Python during the call."""
    warnings: tuple[str, ...] = ()
    prompt: tuple[Message, ...] = ()
    """The messages to the model of a judge, for reports."""
    turn_files: TurnFiles | None = None

    @property
    def model_calls(self) -> tuple[ModelCall, ...]:
        return self.calls if self.calls is not None else self.reply.calls if self.reply is not None else ()


class TrialDuration(Struct, frozen=True, tag_field="line", tag="trial"):
    """The duration of an ended trial, so that a replayed report shows the same."""

    key: Key
    duration_ms: float


CassetteLine = CassetteHeader | AgentDefinition | RecordedReply | TrialDuration


class SecretFilter(Protocol):
    """Removes secrets from values; only texts change. Values of variables are replaced by their names."""

    def is_clean(self, raw: bytes) -> bool:
        """Return whether this JSON holds no secret."""
        ...

    def hide_secrets(self, value: T) -> T: ...

    def restore_secrets(self, value: T) -> T:
        """Replace the names of variables by their current values."""
        ...


class CassetteLineCollector:
    """Collects the lines of a cassette. A worker sends those of each ended trial to its coordinator, which writes them."""

    def __init__(self, secrets: SecretFilter) -> None:
        self._secrets = secrets
        self._pending: list[CassetteLine] = []
        self.add_line = self._pending.append
        self._cut_off: dict[Key, list[RecordedReply]] = {}
        self._defined_agents: set[str] = set()
        self.session_numbers = count(1)

    def add_agent_definition(self, agent: str, definition: Any) -> None:
        """Record the definition of an agent, once."""
        if agent not in self._defined_agents:
            self._defined_agents.add(agent)
            self.add_line(AgentDefinition(agent, codec.to_raw(definition)))

    def add_cut_off_line(self, line: RecordedReply, key: Key) -> None:
        """Record a call that was cut off, once its attempt has ended: a run that stops cancels trials, which then have no outcome."""
        if key.case:
            self._cut_off.setdefault(key, []).append(line)
        else:  # it belongs to no trial, so a time limit has cut it off
            self.add_line(line)

    def _release_cut_off_lines(self, key: Key) -> None:
        for line in self._cut_off.pop(key, ()):
            self.add_line(line)

    def hide_secrets_in_files(self, images: Iterable[RecordedFile]) -> tuple[RecordedFile, ...]:
        return tuple(change_file_text(image, self._secrets.hide_secrets) for image in images)

    def flush(self) -> None:
        """Does nothing here: only a recorder writes."""

    def pop_trial_lines(self, key: Key) -> tuple[CassetteLine, ...]:
        """Remove and return the lines of one attempt, and the definitions of agents so far. Secrets are hidden."""
        self._release_cut_off_lines(key)
        sessions = {session for line in self._pending if (session := _find_opened_session(line, key)) is not None}
        taken = [line for line in self._pending if isinstance(line, AgentDefinition) or _get_session(line) in sessions]
        self._pending[:] = [
            line
            for line in self._pending
            if not isinstance(line, AgentDefinition) and _get_session(line) not in sessions
        ]
        return tuple(self._secrets.hide_secrets(line) for line in taken)

    def add_trial_lines(self, lines: Iterable[CassetteLine]) -> None:
        """Add the lines that a worker collected. Its sessions get numbers of this cassette, in the order in which they were opened."""
        lines = tuple(lines)
        opened = sorted({line.session for line in lines if isinstance(line, RecordedReply)})
        numbers = {session: next(self.session_numbers) for session in opened}
        for line in lines:
            if isinstance(line, AgentDefinition):
                self.add_agent_definition(line.agent, line.definition)
            elif isinstance(line, RecordedReply):
                line.session = numbers[line.session]
                self.add_line(line)


def _get_session(line: CassetteLine) -> int | None:
    return line.session if isinstance(line, RecordedReply) else None


def _find_opened_session(line: CassetteLine, key: Key) -> int | None:
    """The session that the line opens, if it belongs to this attempt."""
    if isinstance(line, RecordedReply) and line.new_session is not None and line.new_session.key == key:
        return line.session
    return None


class CassetteRecorder(CassetteLineCollector):
    """Writes a cassette in complete lines. Those of a trial are written before the journal says that the trial has ended.

    The file is opened at the first write, so a run that never starts destroys no cassette.
    """

    def __init__(self, path: Path, viva: str, secrets: SecretFilter) -> None:
        folder = path.parent
        if path.is_dir() or not folder.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise BadInput.of(f"--record {path}: cannot be written; choose a file in an existing, writable folder")
        if path.is_fifo():
            raise BadInput.of(f"--record {path}: is a pipe, which keeps nothing; choose a file")
        if not _may_overwrite(path):
            raise BadInput.of(f"--record {path}: is not a cassette and would be overwritten; choose another file")
        super().__init__(secrets)
        self._path = path
        self._file: int | None = None
        self._end = 0
        self._is_broken = False
        self._open_flag = os.O_TRUNC
        self.add_line(CassetteHeader(CASSETTE_VERSION, viva))

    def continue_recording(self, ended: Container[Key]) -> None:
        """Continue the cassette of an earlier run: keep the replies of its `ended` trials, drop those of all others."""
        if not self._path.exists():
            return
        try:
            file = os.open(self._path, os.O_RDWR)
            try:
                if not truncate_partial_line(file):  # killed before its first line was written
                    return
            finally:
                os.close(file)
            lines = list(read_cassette(self._path))
            rewrite_cassette(self._path, remove_trials(lines, lambda key: get_trial_key(key) not in ended))
        except OSError as error:
            raise self._write_error(error) from error
        del self._pending[0]  # the file has a header
        self._open_flag = 0
        last = max((line.session for line in lines if isinstance(line, RecordedReply)), default=0)
        self.session_numbers = count(last + 1)

    def append(self, *events: Event) -> None:
        """Write the replies of a trial when it ends: an event store that comes before the journal."""
        for event in events:
            if isinstance(event, TrialEnded | TrialRetried):
                self._release_cut_off_lines(event.key)
        ended = [event for event in events if isinstance(event, TrialEnded)]
        for event in ended:
            self.add_line(TrialDuration(event.key, event.record.duration_ms))
        if ended:
            self.flush()

    def flush(self) -> None:
        """Write all pending lines or none. After a failure nothing more is written, because lines depend on earlier ones."""
        if not self._pending or self._is_broken:
            return
        raw = codec.encode_lines(self._pending)
        if not self._secrets.is_clean(raw):
            raw = codec.encode_lines([self._secrets.hide_secrets(line) for line in self._pending])
        self._pending.clear()
        try:
            if self._file is None:
                self._file = open_private(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | self._open_flag)
                self._end = truncate_partial_line(self._file)
            append_atomically(self._file, raw, self._end)
            self._end += len(raw)
        except OSError as error:
            self._is_broken = True
            raise self._write_error(error) from error

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write_error(self, error: OSError) -> RunStopped:
        return RunStopped(f"cassette {self._path}: {error.strerror}")


def _may_overwrite(path: Path) -> bool:
    """Return whether `path` is free, is a cassette, or is not a regular file (which is written to, not replaced)."""
    if not path.is_file():
        return True
    try:
        with path.open("rb") as file:
            head = file.read(len(_HEADER_START))
    except OSError:  # opening it for writing reports the reason
        return True
    return head.startswith(_HEADER_START) or _HEADER_START.startswith(
        head.strip()
    )  # a killed run may leave a short one


def read_cassette(path: Path) -> Iterator[CassetteLine]:
    """Read the lines of a cassette. A partial last line is ignored; BadInput for a file that is not a cassette."""
    decoder = codec.Decoder[CassetteLine](CassetteLine, codec.OWN_MAX_DEPTH)
    sessions: set[int] = set()
    number = 0
    try:
        with open(_open_without_waiting(path), "rb") as file:
            for number, raw in enumerate(file, 1):
                if number > 1 and not raw.endswith(b"\n"):
                    return
                try:
                    line = decoder.decode(raw)
                    _check_line(line, number, sessions)
                except codec.DecodeError as error:
                    raise BadInput.of(f"is not a line of a cassette: {error}", str(path), number) from error
                except ValueError as error:
                    raise BadInput.of(str(error), str(path), number) from error
                yield line
    except OSError as error:
        raise BadInput.of(f"cannot be read: {error.strerror}", str(path)) from error
    if not number:
        raise BadInput.of("is not a cassette: the file is empty", str(path))


def _open_without_waiting(path: Path) -> int:
    """Open a file for reading. A named pipe that has no writer is empty: waiting for one would block everything."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(file, True)
    return file


def _check_line(line: CassetteLine, number: int, sessions: set[int]) -> None:
    if number == 1 and not isinstance(line, CassetteHeader):
        raise ValueError("is not a cassette: the first line is not a header")
    if isinstance(line, CassetteHeader) and line.version not in _READABLE_VERSIONS:
        age = "a newer" if line.version > CASSETTE_VERSION else "an older"
        raise ValueError(f"was recorded by {age} Viva ({line.viva}); record it again")
    if isinstance(line, RecordedReply):
        if line.new_session is not None:
            sessions.add(line.session)
        elif line.session not in sessions:
            raise ValueError(f"is a reply of session {line.session}, which no earlier line opens")


def iterate_replies(lines: Iterable[CassetteLine]) -> Iterator[tuple[RecordedSession, RecordedReply]]:
    """Yield each reply with its session."""
    sessions: dict[int, RecordedSession] = {}
    for line in lines:
        if isinstance(line, RecordedReply):
            session = sessions[line.session] = line.new_session or sessions[line.session]
            yield session, line


def remove_trials(lines: Iterable[CassetteLine], should_remove: Callable[[Key], bool]) -> Iterator[CassetteLine]:
    """Yield all lines except those of removed trials. Replies of the case generator belong to no trial and stay."""
    removed: set[int] = set()
    for line in lines:
        if isinstance(line, RecordedReply):
            if (session := line.new_session) is not None and session.key.case and should_remove(session.key):
                removed.add(line.session)
            if line.session in removed:
                continue
        elif isinstance(line, TrialDuration) and should_remove(line.key):
            continue
        yield line


def get_conversation_key(session: RecordedSession) -> ConversationKey:
    return session.role, session.agent, session.key


def get_trial_key(key: Key) -> Key:
    """Return the key of the trial that an attempt belongs to."""
    return structs.replace(key, attempt=1)


def compute_digest(value: Any) -> str:
    """Return the same text for equal values."""
    return blake2b(codec.encode_canonically(value), digest_size=12).hexdigest()


def change_file_text(image: RecordedFile, change: Callable[[str], str]) -> RecordedFile:
    """Apply `change` to the content of a file, even where it is not UTF-8."""
    if image.content is None:
        return image
    text = image.content.decode(errors="surrogateescape")
    changed = change(text)
    return image if changed is text else structs.replace(image, content=changed.encode(errors="surrogateescape"))


def rewrite_cassette(path: Path, lines: Iterable[CassetteLine]) -> None:
    """Replace the lines of a cassette. Readers see the old lines or the new ones."""
    with open_replacement(path, durable=True, private=True) as out:  # a recording cannot be repeated for free
        out.writelines(codec.encode(line) + b"\n" for line in lines)


def diff_json(old: Any, new: Any) -> str:
    """Return a line diff of two values as JSON."""
    before, after = (codec.pretty_json(codec.encode_canonically(value)).decode().splitlines() for value in (old, new))
    return "\n".join(list(difflib.unified_diff(before, after, "old", "new", lineterm="", n=1))[:_MAX_DIFF_LINES])
