"""Writes the reports of a run: built-in reports by file extension, or texts of an agent (`--reporter`)."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, structs

from viva import catalog
from viva.concurrency.threads import ThreadAbandoned
from viva.engine.helpers import HelperPool, limit_helper_time
from viva.errors import BadInput, VivaError, is_ctrl_c
from viva.model import codec
from viva.model.event import Event, RunEnded, RunSummary
from viva.model.message import Reply
from viva.protocols import Sink
from viva.record.atomic_files import replace_file
from viva.record.journal import Journal
from viva.stats.pass_rule import PassRule


class ReportFiles:
    """All report files of a run. As a Sink it passes events to the reports, except RunEnded: `write_files` does that.

    The files are written before RunEnded is journaled, because a report that cannot be written changes the exit code.
    """

    def __init__(self, outputs: Sequence[Path], journal: Journal, eval_summary: Path | None) -> None:
        self._sinks: dict[Path, Sink] = {}
        self._lost: dict[Path, str] = {}
        for path in outputs:
            # Markdown is the fallback for an extension that only the agent of --reporter knows.
            reporter = catalog.find_component("reporter", path.suffix) or catalog.find_component("reporter", ".md")
            if reporter is not None:
                self._sinks[path] = reporter(path, journal)
        if eval_summary is not None:
            from viva.formats.openwop.summary import EvalSummaryReport

            self._sinks[eval_summary] = EvalSummaryReport(eval_summary, journal)
        self.live = any(sink.live for sink in self._sinks.values())
        self.are_requested = bool(self._sinks)

    def receive(self, events: Sequence[Event]) -> None:
        without_end = [event for event in events if not isinstance(event, RunEnded)]
        for path, sink in self._sinks.items():
            if path not in self._lost and without_end:
                self._send_events(path, sink, without_end)

    def write_files(self, ended: RunEnded, texts: Mapping[Path, str] | None = None) -> RunEnded:
        """Write all files. Returns the end event with the reports that could not be written, and the exit code.

        `texts` replace built-in reports. If a report is lost, the others are written again, because they list it.
        """
        self._write_all(ended, texts or {})
        if self._lost:
            ended = self._add_lost_reports(ended)
            self._write_all(ended, texts or {})
            ended = self._add_lost_reports(ended)
        return ended

    def _write_all(self, ended: RunEnded, texts: Mapping[Path, str]) -> None:
        for path, sink in self._sinks.items():
            if path in self._lost:
                continue
            if path not in texts:
                self._send_events(path, sink, (ended,))
                continue
            try:
                replace_file(path, texts[path].encode())
            except OSError as error:
                self._lost[path] = error.strerror or str(error)

    def _send_events(self, path: Path, sink: Sink, events: Sequence[Event]) -> None:
        try:
            sink.receive(events)
        except OSError as error:
            self._lost[path] = error.strerror or str(error)
        except VivaError as error:
            self._lost[path] = str(error)
        except ThreadAbandoned:
            raise
        except BaseException as error:  # a reporter may belong to a plugin; its bug must not stop the run
            if is_ctrl_c(error):
                raise
            self._lost[path] = f"{type(sink).__name__} raised {type(error).__name__}: {error}"

    def _add_lost_reports(self, ended: RunEnded) -> RunEnded:
        lost = tuple(f"{path}: {reason}" for path, reason in self._lost.items())
        summary = structs.replace(ended.summary, lost_reports=lost)
        return structs.replace(ended, summary=summary, exit_code=1 if ended.exit_code in (0, 5) else ended.exit_code)


class AgentReporter(Struct, frozen=True):
    """An agent that writes reports of a run from its journal, with `timeout_s` for each."""

    helpers: HelperPool
    agent: str
    journal: Journal
    pass_rule: PassRule
    timeout_s: float

    async def write_report(self, summary: RunSummary, report_format: str) -> str:
        """The report in that format. Raises HelperFailed if the agent fails or takes too long."""
        from viva.reporters.json import encode_case  # imported only for runs with a reporter agent
        from viva.reporters.report import group_by_case

        cases = [codec.Raw(encode_case(case)) for case in group_by_case(self.journal, self.pass_rule)]
        body = codec.encode({"summary": summary, "cases": cases, "format": report_format}).decode()
        options = {"metadata": {"format": report_format}}
        session = self.helpers.open("reporter", self.agent, None, options)
        async with limit_helper_time("reporter", self.timeout_s), session as reporter:
            return await reporter.ask(body, _require_report_text)


def _require_report_text(reply: Reply) -> str:
    if not reply.content.strip():
        raise ValueError("the report is empty")
    return reply.content


def check_report_extension(path: Path) -> None:
    """Raises BadInput if no report has the extension of the file."""
    if catalog.find_component("reporter", path.suffix) is None:
        known = ", ".join(catalog.list_components("reporter"))
        raise BadInput.of(f"-o {path}: unknown report format; use one of the extensions {known}")


def check_output_files(files: Iterable[tuple[str, Path]]) -> None:
    """Raises BadInput for a file that cannot be written, and for a file that two flags name. `files` are pairs of flag and path."""
    flags: dict[Path, str] = {}
    for flag, path in files:
        check_output_writable(flag, path)
        if (other := flags.setdefault(path.resolve(), flag)) != flag:
            raise BadInput.of(f"{flag} {path}: {other} writes that file too")


def check_output_writable(flag: str, path: Path) -> None:
    """Raises BadInput if the file that a flag names cannot be written."""
    if not path.parent.is_dir():
        raise BadInput.of(f"{flag} {path}: there is no folder {path.parent}")
    folder = path.resolve().parent  # the target's folder if the path is a link
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise BadInput.of(f"{flag} {path}: cannot be written")
    if path.exists() and not path.is_file():
        raise BadInput.of(f"{flag} {path}: not a regular file; a report would replace it")
    import tempfile  # slow to import

    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise BadInput.of(f"{flag} {path}: cannot be written: {error.strerror}") from error
