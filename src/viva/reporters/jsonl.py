"""`.jsonl`: one record a line, one line a trial, the same bytes as in the journal."""

from typing import BinaryIO

from viva.model.event import RunEnded
from viva.reporters.report import Report


class JsonlReport(Report):
    """Copies the records in input order."""

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        for raw in self._journal.raw_records():
            out.write(raw)
            out.write(b"\n")
