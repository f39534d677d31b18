"""The append-only log of a run. Reports, history and a resumed run are built from it.

It holds one JSON event per line, each written with a single append, so `kill -9` loses at most the trials in flight. A
partial last line is removed before anything is appended. The line of an ended trial holds its record byte for byte as
the JSONL report shows it. A journal has one writer at a time (see `locks`).
"""

import os
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

from msgspec import Meta, Struct

from viva.errors import BadInput, RunStopped
from viva.model import codec
from viva.model.event import JOURNAL_VERSION, AnyEvent, Event, RunStarted, TrialEnded
from viva.model.record import TrialRecord
from viva.record.atomic_files import append_atomically, find_last_line_end, truncate_partial_line
from viva.record.locks import WriterLock, open_exclusively
from viva.record.positions import RecordPositions
from viva.record.private_files import make_private_folder, open_private

_RECORD_FIELD = b'"record":'
_NOTE, _RUN_ENDED = b'{"event":"note"', b'{"event":"run_ended"'


class _EventIndex(Struct):
    """The part of an event that locates a trial, or says which earlier trials do not count."""

    event: str
    index: Annotated[int, Meta(ge=-1, le=2**63 - 1)] = -1
    discarded: tuple[int, ...] = ()


class _JournalHeader(Struct):
    """The part of the first event that has the version of the journal's format."""

    event: str
    journal_version: int = 1


class Journal:
    """Appends events to a file, and reads the records of ended trials in input order.

    It holds the writer lock from construction until `release_lock`. BadInput names the process that has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._lock: WriterLock | None = None
        self._positions = RecordPositions()
        try:
            make_private_folder(path.parent)
            self._lock = WriterLock(path)
            self._file = open_private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._end = truncate_partial_line(self._file)
            self._index_records()
        except OSError as error:
            self.close()
            raise self._write_error(error) from error
        except RunStopped:
            self.close()
            raise

    def append(self, *events: Event) -> None:
        """Write all events or none."""
        lines = [codec.encode(event) + b"\n" for event in events]
        try:
            append_atomically(self._file, b"".join(lines), self._end)
        except OSError as error:
            raise self._write_error(error) from error
        for event, line in zip(events, lines, strict=True):
            if isinstance(event, TrialEnded):
                self._add_position(event.index, line, self._end)
            self._end += len(line)

    def iterate_raw_records(self) -> Iterator[bytes]:
        """Yield the record of each ended trial as JSON, in input order; of a repeated trial the last one."""
        for offset, length in self._positions:
            yield self.read_raw_record(offset, length)

    def list_record_positions(self) -> list[tuple[int, int]]:
        """The offset and length of the record of each ended trial, in input order."""
        return list(self._positions)

    def read_raw_record(self, offset: int, length: int) -> bytes:
        """The record at a place of this file, as JSON."""
        return os.pread(self._file, length, offset)

    def records(self) -> Iterator[TrialRecord]:
        for raw in self.iterate_raw_records():
            yield codec.decode_own(raw, type=TrialRecord)

    def keep_only(self, indexes: Container[int]) -> None:
        """Ignore all other records of an earlier part of the run; these trials run again."""
        self._positions.keep_only(indexes)

    def __len__(self) -> int:
        return len(self._positions)

    def release_lock(self) -> None:
        """Let other processes write to the run. Its records can still be read here."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def abandon(self) -> None:
        """Release the lock of a run that did not end; the next command reports that it stopped unexpectedly."""
        if self._lock is not None:
            self._lock.abandon()
            self._lock = None

    def close(self) -> None:
        self.release_lock()
        self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self._close_file()  # the lock goes too; the run counts as stopped unexpectedly

    def _index_records(self) -> None:
        """Find the records of an earlier part of the same run."""
        with open(self._file, "rb", closefd=False) as file:
            try:
                _add_record_positions(file, self._positions)
            except ValueError as error:  # no JSON, or no record in it
                raise RunStopped(f"journal {self.path}: {error}") from error

    def _add_position(self, index: int, line: bytes, offset: int) -> None:
        start, length = locate_record(line)
        self._positions.add(index, offset + start, length)

    def _write_error(self, error: OSError) -> RunStopped:
        return RunStopped(f"journal {self.path}: {error.strerror or error}")


def _add_record_positions(file: BinaryIO, positions: RecordPositions) -> None:
    """Add the records of a journal. ValueError says which line cannot be read; an incomplete last line is ignored."""
    decoder = codec.Decoder[_EventIndex](_EventIndex, codec.OWN_MAX_DEPTH)
    offset = 0
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            return
        try:
            event = decoder.decode(line)
            if event.event == "trial_ended":
                start, length = locate_record(line)
                positions.add(event.index, offset + start, length)
            elif event.discarded:
                positions.discard(frozenset(event.discarded))
        except ValueError as error:
            raise ValueError(f"line {number} cannot be read: {error}") from error
        offset += len(line)


def read_records(path: Path) -> Iterator[TrialRecord]:
    """Read the records of a journal in input order, one at a time, also while it is written. BadInput if it is damaged."""
    positions = RecordPositions()
    try:
        with path.open("rb") as file:
            if (line := file.readline()).endswith(b"\n"):
                check_version(line, path)
            file.seek(0)
            _add_record_positions(file, positions)
            for offset, length in positions:
                yield codec.decode_own(os.pread(file.fileno(), length, offset), type=TrialRecord)
    except OSError as error:
        raise BadInput.of(f"cannot be read: {error.strerror}", str(path)) from error
    except ValueError as error:
        raise BadInput.of(str(error), str(path)) from error


def locate_record(line: bytes) -> tuple[int, int]:
    """Return the start and length of the record in the line of an ended trial, where it is the last field."""
    start = line.index(_RECORD_FIELD) + len(_RECORD_FIELD)
    return start, len(line) - start - 2


def has_run_ended(path: Path) -> bool | None:
    """Return whether the last event of a journal, apart from notes, is the end of the run. None if it has no event."""
    try:
        with path.open("rb") as file:
            descriptor = file.fileno()
            last = end = find_last_line_end(descriptor, os.fstat(descriptor).st_size)
            while end:
                start = find_last_line_end(descriptor, end - 1)
                head = os.pread(descriptor, 40, start)
                if not head.startswith(_NOTE):
                    return head.startswith(_RUN_ENDED)
                end = start
            return False if last else None
    except OSError:
        return None


def read_events(path: Path) -> Iterator[AnyEvent]:
    """Read the events of a journal. A partial last line is ignored; BadInput for a damaged line before it."""
    return (event for event, _, _ in read_events_with_positions(path))


def read_events_with_positions(path: Path) -> Iterator[tuple[AnyEvent, int, int]]:
    """Read the events of a journal, each with the offset and length of its line. See `read_events`."""
    decoder = codec.Decoder[AnyEvent](AnyEvent, codec.OWN_MAX_DEPTH)
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    if number == 1:
                        check_version(line, path)
                    event = decoder.decode(line)
                except codec.DecodeError as error:
                    raise BadInput.of(f"is not an event of a journal: {error}", str(path), number) from error
                yield event, offset, len(line)
                offset += len(line)
    except OSError as error:
        raise BadInput.of(f"cannot be read: {error.strerror}", str(path)) from error


def check_version(line: bytes, path: Path) -> None:
    """BadInput if another version of Viva wrote the journal in a format that this one does not read."""
    header = codec.decode_own(line, type=_JournalHeader)
    if header.event == "run_started" and header.journal_version != JOURNAL_VERSION:
        age = "a newer" if header.journal_version > JOURNAL_VERSION else "an older"
        raise BadInput.of(
            f"was written by {age} Viva, whose format this one cannot read; run the tests again", str(path)
        )


def take_next_run_number(home: Path) -> int:
    """Return the sequence number of a new run, independent of the clock.

    `.viva/sequence` holds the last number. If it is missing or damaged, the journals have it.
    """
    with open_exclusively(home / "sequence") as file:
        text = os.pread(file, 100, 0)
        if text.strip().isdigit():
            last = int(text)
        else:
            last = max(map(_read_run_number, home.glob("runs/*/journal.jsonl")), default=0)
        os.pwrite(file, b"%020d\n" % (last + 1), 0)  # a fixed length: a kill leaves the old number or the new one
        return last + 1


def _read_run_number(path: Path) -> int:
    try:
        with path.open("rb") as file:
            return codec.decode(file.readline(), type=RunStarted).number
    except (OSError, codec.DecodeError):
        return 0
