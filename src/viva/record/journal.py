"""The append-only log of a run: the truth that reports, history and a resumed run are made from.

One JSON object a line, written with a single append as trials end, so `kill -9` loses at most the trials in flight.
A torn last line is cut off before anything is appended. A trial's line holds its record byte for byte as the JSONL
report shows it. A journal has one writer at a time (see `locks`).
"""

import os
from collections.abc import Container, Iterator
from pathlib import Path

from msgspec import Struct

from viva.errors import BadInput, RunStopped
from viva.model import codec
from viva.model.event import AnyEvent, Event, RunStarted, TrialEnded
from viva.model.record import TrialRecord
from viva.record.atomic_files import append_atomically, find_last_line_end, truncate_partial_line
from viva.record.locks import WriterLock, exclusive_lock
from viva.record.private_files import make_private_folder, open_private

_RECORD = b'"record":'
_NOTE, _RUN_ENDED = b'{"event":"note"', b'{"event":"run_ended"'


class _Indexed(Struct):
    """As much of a line as is needed to find it again."""

    event: str
    index: int = -1


class Journal:
    """Appends events to a file and finds the records of ended trials again, in input order.

    From construction until `end` no other process can open it: BadInput names the one that has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._lock: WriterLock | None = None
        self._places: dict[int, tuple[int, int]] = {}  # index in the input -> where its record stands
        try:
            make_private_folder(path.parent)
            self._lock = WriterLock(path)
            self._file = open_private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._end = truncate_partial_line(self._file)
            self._restore()
        except OSError as broken:
            self.close()
            raise RunStopped(f"journal {path}: {broken.strerror or broken}") from broken
        except RunStopped:
            self.close()
            raise

    def append(self, *events: Event) -> None:
        """Writes events, all or none. What has been appended is on its way to the disk when this returns."""
        lines = [codec.encode(event) + b"\n" for event in events]
        raw = b"".join(lines)
        try:
            append_atomically(self._file, raw, self._end)
        except OSError as broken:
            raise RunStopped(f"journal {self.path}: {broken.strerror or broken}") from broken
        for event, line in zip(events, lines, strict=True):
            if isinstance(event, TrialEnded):
                self._remember(event.index, line, self._end)
            self._end += len(line)

    def raw_records(self) -> Iterator[bytes]:
        """Each ended trial's record as JSON, in input order; a trial run again shows its last attempt."""
        for index in sorted(self._places):
            at, length = self._places[index]
            yield os.pread(self._file, length, at)

    def records(self) -> Iterator[TrialRecord]:
        for raw in self.raw_records():
            yield codec.decode_kept(raw, type=TrialRecord)

    def keep_only(self, indexes: Container[int]) -> None:
        """Shows only these of the records of an earlier part of the run; the others will be made again."""
        self._places = {index: place for index, place in self._places.items() if index in indexes}

    def __len__(self) -> int:
        return len(self._places)

    def release_lock(self) -> None:
        """The run has ended: others may write to it. Its records can still be read here."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def abandon(self) -> None:
        """The run was given up before its end: others may write to it, and the next command says that it was cut off."""
        if self._lock is not None:
            self._lock.abandon()
            self._lock = None

    def close(self) -> None:
        """Ends the run, and closes the file."""
        self.release_lock()
        self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self._close_file()  # the lock goes too; a run that nobody has ended counts as cut off

    def _restore(self) -> None:
        """Where the records of an earlier part of the same run stand."""
        if not self._end:
            return
        decoder = codec.Decoder[_Indexed](_Indexed, codec.OWN_MAX_DEPTH)
        at = 0
        with open(self._file, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):
                try:
                    indexed = decoder.decode(line)
                    if indexed.event == "trial_ended":
                        self._remember(indexed.index, line, at)
                except ValueError as broken:  # no JSON, or no record in it
                    raise RunStopped(f"journal {self.path}: line {number} cannot be read: {broken}") from broken
                at += len(line)

    def _remember(self, index: int, line: bytes, at: int) -> None:
        start, length = locate_record(line)
        self._places[index] = (at + start, length)


def locate_record(line: bytes) -> tuple[int, int]:
    """Where the record stands in the line of a trial's end, and how long it is: it is the last thing there."""
    start = line.index(_RECORD) + len(_RECORD)
    return start, len(line) - start - 2


def has_ended(path: Path) -> bool | None:
    """Is the end of the run the last thing that its journal tells, notes aside? None: it has not even begun."""
    try:
        with path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            whole = end = find_last_line_end(file.fileno(), end)
            while end:
                start = find_last_line_end(file.fileno(), end - 1)
                head = os.pread(file.fileno(), 40, start)
                if not head.startswith(_NOTE):
                    return head.startswith(_RUN_ENDED)
                end = start
            return False if whole else None
    except OSError:
        return None


def read_events(path: Path) -> Iterator[AnyEvent]:
    """The events of a journal in order. A torn last line is left out; a broken line before it is an error."""
    decoder = codec.Decoder[AnyEvent](AnyEvent, codec.OWN_MAX_DEPTH)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield decoder.decode(line)
                except codec.DecodeError as wrong:
                    raise BadInput.of(f"is no event: {wrong}", str(path), number) from wrong
    except OSError as wrong:
        raise BadInput.of(f"cannot be read: {wrong.strerror}", str(path)) from wrong


def next_run_number(home: Path) -> int:
    """The number of a new run: one more than that of the run before, whatever the clock says.

    `.viva/sequence` holds the last one. Where it is lost or damaged, the runs themselves know.
    """
    with exclusive_lock(home / "sequence") as file:
        text = os.pread(file, 100, 0)
        last = (
            int(text) if text.strip().isdigit() else max(map(_number_of, home.glob("runs/*/journal.jsonl")), default=0)
        )
        os.pwrite(
            file, b"%020d\n" % (last + 1), 0
        )  # always of the same length: a kill leaves the old one or the new one
        return last + 1


def _number_of(path: Path) -> int:
    try:
        with path.open("rb") as file:
            started = codec.decode(file.readline(), type=RunStarted)
    except (OSError, codec.DecodeError, codec.ValidationError):
        return 0
    return started.number
