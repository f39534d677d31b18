"""The reports of a run: files by their ending, and what an agent as reporter (`--reporter`) writes instead."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import structs

from viva import catalog
from viva.engine.helpers import HelperPool, helper_time_limit
from viva.errors import VivaError
from viva.formats.openwop.summary import EvalSummaryReport
from viva.model import codec
from viva.model.event import Event, RunEnded, RunSummary
from viva.model.message import Reply
from viva.protocols import Sink
from viva.record.atomic_files import replace_file
from viva.record.journal import Journal
from viva.stats.pass_rule import PassRule


class ReportFiles:
    """All report files of a run. A Sink that hears of everything but the end, and writes when it is told to.

    They are written before the run's end is journaled, because a report that is lost changes the exit code.
    """

    def __init__(self, outputs: Sequence[Path], journal: Journal, eval_summary: Path | None = None) -> None:
        self._sinks: dict[Path, Sink] = {}
        self._lost: dict[Path, str] = {}
        for path in outputs:
            # Where only an agent knows the kind, Markdown stands in until that has written.
            reporter = catalog.find_component("reporter", path.suffix) or catalog.find_component("reporter", ".md")
            if reporter is not None:
                self._sinks[path] = reporter(path, journal)
        if eval_summary is not None:
            self._sinks[eval_summary] = EvalSummaryReport(eval_summary, journal)
        self.live = any(sink.live for sink in self._sinks.values())

    def receive(self, events: Sequence[Event]) -> None:
        told = [event for event in events if not isinstance(event, RunEnded)]
        for path, sink in self._sinks.items():
            if path not in self._lost and told:
                self._tell(path, sink, told)

    def write_files(self, ended: RunEnded, texts: Mapping[Path, str] | None = None) -> RunEnded:
        """Writes all files, and gives the end as it is then: with what was lost, and the exit code that follows.

        `texts` are written as they are, in the place of the built-in reports. If a report is lost, the others are written
        again, so that they say so.
        """
        self._write_all(ended, texts or {})
        if self._lost:
            ended = self._with_losses(ended)
            self._write_all(ended, texts or {})
            ended = self._with_losses(ended)
        return ended

    def _write_all(self, ended: RunEnded, texts: Mapping[Path, str]) -> None:
        for path, sink in self._sinks.items():
            if path in self._lost:
                continue
            if path not in texts:
                self._tell(path, sink, (ended,))
                continue
            try:
                replace_file(path, texts[path].encode())
            except OSError as wrong:
                self._lost[path] = wrong.strerror or str(wrong)

    def _tell(self, path: Path, sink: Sink, events: Sequence[Event]) -> None:
        try:
            sink.receive(events)
        except OSError as wrong:
            self._lost[path] = wrong.strerror or str(wrong)
        except VivaError as wrong:
            self._lost[path] = str(wrong)
        except Exception as raised:  # a reporter, perhaps of a plugin, is never worth the run
            self._lost[path] = f"{type(sink).__name__} raised {type(raised).__name__}: {raised}"

    def _with_losses(self, ended: RunEnded) -> RunEnded:
        lost = tuple(f"{path}: {why}" for path, why in self._lost.items())
        summary = structs.replace(ended.summary, lost_reports=lost)
        return structs.replace(ended, summary=summary, exit_code=ended.exit_code or 1)


async def ask_reporter(
    helper_pool: HelperPool,
    reporter: str,
    journal: Journal,
    rule: PassRule,
    summary: RunSummary,
    form: str,
    timeout_s: float,
) -> str:
    """The agent's words for a report in that form. Raises HelperFailed if it breaks, or takes longer than that."""
    from viva.reporters.json import encode_case  # few runs have such a reporter
    from viva.reporters.report import group_by_case

    cases = [codec.Raw(encode_case(case)) for case in group_by_case(journal, rule)]
    body = codec.encode({"summary": summary, "cases": cases, "format": form}).decode()
    about = {"metadata": {"format": form}}
    async with helper_time_limit("reporter", timeout_s), helper_pool.open("reporter", reporter, None, about) as session:
        return await session.ask(body, _words)


def _words(reply: Reply) -> str:
    if not reply.content.strip():
        raise ValueError("it is empty")
    return reply.content
