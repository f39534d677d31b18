"""`.json`: the run, its summary, and each case with its trials, one case a line; what repeats tell comes last."""

from typing import Any, BinaryIO

from viva.model import codec
from viva.model.event import RunEnded
from viva.reporters.repeats import RepeatFigures, compute_case_figures
from viva.reporters.report import CaseTrials, Report
from viva.stats.pass_rate import pass_rate, stability


class JsonReport(Report):
    """One JSON object for a whole run. Records are copied, not encoded again."""

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        out.write(b'{"run":' + codec.encode(self._run(ended)))
        out.write(b',\n"summary":' + codec.encode(ended.summary) + b',\n"cases":[')
        before = b"\n"
        repeats = RepeatFigures(self.rule)
        for case in self.cases():
            out.write(before + encode_case(case))
            repeats.add(case)
            before = b",\n"
        out.write(b"\n]")
        if repeats.has_repeats:
            out.write(b',\n"repeats":' + codec.encode(repeats.compute_figures()))
        out.write(b"}\n")

    def _run(self, ended: RunEnded) -> dict[str, Any]:
        run: dict[str, Any] = codec.to_builtins(self._started) if self._started else {"run": ended.run}
        run.pop("event", None)
        run |= {"ended": ended.at, "exit_code": ended.exit_code}
        return run | {
            key: said for key, said in (("stopped", ended.stopped), ("why", ended.stop_message)) if said is not None
        }


def encode_case(case: CaseTrials) -> bytes:
    """A case with its trials, and what they come to."""
    head, statuses = case.head, case.statuses
    return codec.encode(
        {
            "id": head.id,
            "name": head.name,
            "suite": head.suite,
            "status": case.status,
            "pass_rate": pass_rate(statuses),
            "class": stability(statuses),
            **compute_case_figures(case),
            "trials": [codec.Raw(raw) for raw in case.raw],
        }
    )
