"""JSON output: `.json` (one object for a run), `.jsonl` (one record per line) and `--json` (one event per line)."""

from collections.abc import Sequence
from typing import Any, BinaryIO, TextIO

from viva.model import codec
from viva.model.event import Event, RunEnded
from viva.reporters.matrix import build_run_matrix
from viva.reporters.repeats import RepeatStatistics, compute_case_statistics
from viva.reporters.report import CaseTrials, Report
from viva.stats.pass_rate import pass_rate, stability


class JsonReport(Report):
    """The run, its summary, each case with its trials on one line, and statistics of repeats. Records are copied."""

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        out.write(b'{"run":' + codec.encode(self._describe_run(ended)))
        out.write(b',\n"summary":' + codec.encode(ended.summary) + b',\n"cases":[')
        separator = b"\n"
        repeats = RepeatStatistics(self.rule)
        for case in self.cases():
            out.write(separator + encode_case(case))
            repeats.add(case)
            separator = b",\n"
        out.write(b"\n]")
        if repeats.has_repeats and not self._has_several_agents:  # the matrix has those of each agent
            out.write(b',\n"repeats":' + codec.encode(repeats.compute_statistics()))
        if (matrix := build_run_matrix(self._started, self.cases())) is not None:
            out.write(b',\n"matrix":' + codec.encode(matrix))
        out.write(b"}\n")

    def _describe_run(self, ended: RunEnded) -> dict[str, Any]:
        run: dict[str, Any] = codec.to_builtins(self._started) if self._started else {"run": ended.run}
        for key in ("event", "journal_version"):
            run.pop(key, None)
        run |= {"ended": ended.at, "exit_code": ended.exit_code}
        stop = {"stopped": ended.stopped, "stop_message": ended.stop_message}
        return run | {key: value for key, value in stop.items() if value is not None}


def encode_case(case: CaseTrials) -> bytes:
    """A case with its status, statistics and trials."""
    head, statuses = case.head, case.statuses
    return codec.encode(
        {
            "id": head.id,
            "name": head.name,
            "suite": head.suite,
            **({"agent": head.agent} if head.agent else {}),
            "status": case.status,
            "pass_rate": pass_rate(statuses),
            "class": stability(statuses),
            **compute_case_statistics(case),
            "trials": [codec.Raw(raw) for raw in case.raw],
        }
    )


class JsonlReport(Report):
    """The records of the journal in input order, byte for byte."""

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        for raw in self._journal.iterate_raw_records():
            out.write(raw)
            out.write(b"\n")


class JsonEventReporter:
    """Writes each event as it happens. Uses the bytes of a text stream: JSON is UTF-8 in any terminal."""

    live = True

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bytes: BinaryIO | None = getattr(stream, "buffer", None)

    def receive(self, events: Sequence[Event]) -> None:
        lines = b"".join(codec.encode(event) + b"\n" for event in events)
        if self._bytes is None:
            self._stream.write(lines.decode())
        else:
            self._stream.flush()
            self._bytes.write(lines)
        self._stream.flush()
