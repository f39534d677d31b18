"""`.html`: one file that opens anywhere, offline: the page, the run's overview, and all records packed in small pieces.

Records are deflated and unpacked by the page when somebody opens a case, so that a report of many thousand cases opens
at once. All that agents said reaches the page as data; the page's own policy lets nothing else run.
"""

import base64
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from viva.model import codec
from viva.model.event import RunEnded
from viva.model.record import TrialRecord
from viva.reporters.attachments import load_attachments
from viva.reporters.commands import build_rerun_command
from viva.reporters.page import build_overview, encode_for_script, load_page
from viva.reporters.report import CaseTrials, Report

_PIECE_BYTES = 128 * 1024
_ASKING, _OFFLINE = b"connect-src 'self'", b"connect-src 'none'"


class HtmlReport(Report):
    """Goes through the journal twice: once for the overview, once for the records."""

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        built = load_page()
        out.write(built.head.replace(_ASKING, _OFFLINE))
        out.write(b'<script type="application/json" id="viva-overview">')
        out.write(encode_for_script(build_overview(self._started, ended, self.cases())))
        out.write(b"</script>\n")
        out.write(built.middle)
        for first, piece in self._pieces():
            packed = base64.b64encode(zlib.compress(piece, 6))
            out.write(b'<script type="text/plain" class="viva-records" data-first="%d">%s</script>\n' % (first, packed))
        out.write(built.tail)

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        """JSON arrays of a few cases each, with the index of the first one."""
        first, gathered, size = 0, list[bytes](), 0
        for index, case in enumerate(self.cases()):
            gathered.append(encode_case_trials(case, Path(), self._started.settings if self._started else {}))
            size += len(gathered[-1])
            if size >= _PIECE_BYTES:
                yield first, b"[" + b",".join(gathered) + b"]"
                first, gathered, size = index + 1, [], 0
        if gathered:
            yield first, b"[" + b",".join(gathered) + b"]"


def encode_case_trials(case: CaseTrials, root: Path, settings: Mapping[str, Any]) -> bytes:
    """A case's records as they are, the command that runs it again as the run with these `settings` did, and the pictures
    and recordings that were sent in it; paths in them start at `root`.
    """
    said: dict[str, Any] = {"trials": [codec.Raw(raw) for raw in case.raw]}
    if (command := build_rerun_command(codec.decode_kept(case.raw[0], type=TrialRecord), settings)) is not None:
        said["command"] = command
    if attached := load_attachments(case.raw, root):
        said["attachments"] = attached
    return codec.encode(said)
