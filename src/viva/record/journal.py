"""The append-only log of a run: the truth that reports, history and a resumed run are made from.

One JSON object a line, written with a single append as trials end, so `kill -9` loses at most the trials in flight.
A torn last line is cut off before anything is appended. A trial's line holds its record byte for byte as the JSONL
report shows it.
"""

import fcntl
import os
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from viva.errors import BadInput, RunStopped
from viva.model import codec
from viva.model.event import AnyEvent, Event, TrialEnded
from viva.model.record import TrialRecord
from viva.record.private import make_private_folder, open_private

_RECORD = b'"record":'


class _Indexed(Struct):
    """As much of a line as is needed to find it again."""

    event: str
    index: int = -1


class Journal:
    """Appends events to a file and finds the records of ended trials again, in input order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._places: dict[int, tuple[int, int]] = {}  # index in the input -> where its record stands
        try:
            make_private_folder(path.parent)
            self._file = open_private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._say_that_it_is_in_use()
            self._end = self._cut_torn_tail()
            self._restore()
        except OSError as broken:
            raise RunStopped(f"journal {path}: {broken.strerror or broken}") from broken

    def append(self, *events: Event) -> None:
        """Writes events, all or none. What has been appended is on its way to the disk when this returns."""
        lines = [codec.encode(event) + b"\n" for event in events]
        raw = b"".join(lines)
        try:
            written = os.write(self._file, raw)
            if written != len(raw):
                os.ftruncate(self._file, self._end)  # no torn line for the next one to stick to
                raise RunStopped(f"journal {self.path}: no space left on device")
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

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()

    def _restore(self) -> None:
        """Where the records of an earlier part of the same run stand."""
        if not self._end:
            return
        decoder = codec.Decoder[_Indexed](_Indexed, codec.KEPT_DEPTH)
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
        start, length = trial_record_in(line)
        self._places[index] = (at + start, length)

    def _say_that_it_is_in_use(self) -> None:
        """A lock that ends with the process, however that ends: `in_use` tells a run that goes on from one that was killed."""
        with suppress(OSError):  # a file system without locks: then nobody can tell
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def _cut_torn_tail(self) -> int:
        size = os.fstat(self._file).st_size
        end = size
        while end:
            block = os.pread(self._file, min(end, 65536), max(0, end - 65536))
            newline = block.rfind(b"\n")
            if newline >= 0:
                end = end - len(block) + newline + 1
                break
            end -= len(block)
        if end != size:
            os.ftruncate(self._file, end)
        return end


def trial_record_in(line: bytes) -> tuple[int, int]:
    """Where the record stands in the line of a trial's end, and how long it is: it is the last thing there."""
    start = line.index(_RECORD) + len(_RECORD)
    return start, len(line) - start - 2


def in_use(path: Path) -> bool:
    """Does some process hold this journal open to write to it?"""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


def read_events(path: Path) -> Iterator[AnyEvent]:
    """The events of a journal in order. A torn last line is left out; a broken line before it is an error."""
    decoder = codec.Decoder[AnyEvent](AnyEvent, codec.KEPT_DEPTH)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield decoder.decode(line)
                except codec.DecodeError as wrong:
                    raise BadInput.saying(f"is no event: {wrong}", str(path), number) from wrong
    except OSError as wrong:
        raise BadInput.saying(f"cannot be read: {wrong.strerror}", str(path)) from wrong
