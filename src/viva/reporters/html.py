"""`.html`: one file that opens offline: the page, the overview of the run, and all records.

Records are deflated in pieces of a few cases, and the page inflates a piece when a case is opened: a report of thousands
of cases opens at once. Texts of agents reach the page as data; its content security policy allows nothing else to run.
"""

import base64
import mimetypes
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

from msgspec import Struct

from viva.model import codec
from viva.model.event import RunEnded
from viva.model.record import TrialRecord
from viva.record.labels import read_labels, select_current_labels
from viva.reporters.commands import build_rerun_command, split_source
from viva.reporters.page import encode_overview, escape_for_script, load_page
from viva.reporters.repeats import compute_case_statistics
from viva.reporters.report import CaseTrials, Report
from viva.stats.agreement import summarize_labels

MAX_ATTACHMENT_BYTES = 2 * 1024 * 1024
_CHUNK_BYTES = 128 * 1024
_ONLINE_POLICY, _OFFLINE_POLICY = b"connect-src 'self'", b"connect-src 'none'"
_SHOWN_TYPES = ("image/", "audio/")
_ATTACHMENTS_KEY = b'"attachments":['


class HtmlReport(Report):
    """Writes the HTML report. It reads the journal twice: for the overview, and for the records."""

    def write(self, out: BinaryIO, ended: RunEnded) -> None:
        page = load_page()
        out.write(page.head.replace(_ONLINE_POLICY, _OFFLINE_POLICY))
        out.write(b'<script type="application/json" id="viva-overview">')
        out.writelines(map(escape_for_script, encode_overview(self._started, ended, enumerate(self.cases()))))
        out.write(b"</script>\n")
        if labels := select_current_labels(read_labels(self._journal.path)):
            summary = codec.encode(summarize_labels(labels))
            out.write(b'<script type="application/json" id="viva-labels">%s</script>\n' % escape_for_script(summary))
        out.write(page.middle)
        for first, piece in self._iter_record_chunks():
            packed = base64.b64encode(zlib.compress(piece, 6))
            out.write(b'<script type="text/plain" class="viva-records" data-first="%d">%s</script>\n' % (first, packed))
        out.write(page.tail)

    def _iter_record_chunks(self) -> Iterator[tuple[int, bytes]]:
        """JSON arrays of a few cases each, with the index of the first case."""
        settings = self._started.settings if self._started else {}
        first, cases, size = 0, list[bytes](), 0
        for index, case in enumerate(self.cases()):
            cases.append(encode_case_trials(case, Path(), settings))
            size += len(cases[-1])
            if size >= _CHUNK_BYTES:
                yield first, b"[" + b",".join(cases) + b"]"
                first, cases, size = index + 1, [], 0
        if cases:
            yield first, b"[" + b",".join(cases) + b"]"


def encode_case_trials(case: CaseTrials, root: Path, settings: Mapping[str, Any]) -> bytes:
    """The records of a case, its rerun command, the figures of its repeats, and its attachments; their paths are relative
    to `root`.
    """
    data: dict[str, Any] = {"trials": [codec.Raw(raw) for raw in case.raw]}
    command = build_rerun_command(codec.decode_own(case.raw[0], type=TrialRecord), settings)
    if command is not None:
        data["command"] = command
    if figures := compute_case_statistics(case):
        data["figures"] = figures
    if attachments := load_attachments(case.raw, root):
        data["attachments"] = attachments
    return codec.encode(data)


class _Turn(Struct):
    attachments: list[dict[str, Any]] | None = None


class _Record(Struct):
    turns: list[_Turn]
    source: str | None = None


def load_attachments(records: Sequence[bytes], root: Path) -> dict[str, str]:
    """The data: URLs of images and audio that were sent to an agent, by source.

    Records hold only the source. A `file://` source is read again from the folder of the suite; files elsewhere, large
    files and other types are left out. Records without attachments are not decoded.
    """
    with_attachments = (codec.decode_own(raw, type=_Record) for raw in records if _ATTACHMENTS_KEY in raw)
    return dict(item for record in with_attachments for item in _load_record_attachments(record, root))


def _load_record_attachments(record: _Record, root: Path) -> Iterator[tuple[str, str]]:
    suite, _ = split_source(record.source)
    for attachment in (item for turn in record.turns for item in turn.attachments or ()):
        source = str(attachment.get("source", ""))
        if source.startswith("file://") and suite is not None:
            media_type = str(attachment.get("media_type") or mimetypes.guess_type(source)[0] or "")
            path = _find_file_inside(source, (root / suite).parent)
            # The name decides too: the journal of another machine may call any file an image.
            own_type = mimetypes.guess_type(path.name)[0] or "" if path is not None else ""
            if path is not None and media_type.startswith(_SHOWN_TYPES) and own_type.startswith(_SHOWN_TYPES):
                yield source, f"data:{media_type};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def _find_file_inside(source: str, folder: Path) -> Path | None:
    """The path of a `file://` source; None if it is outside the folder, too large, or no file."""
    try:
        path = (folder / unquote(source.removeprefix("file://"))).resolve()
        is_inside = path.is_relative_to(folder.resolve()) and path.is_file()
        return path if is_inside and path.stat().st_size <= MAX_ATTACHMENT_BYTES else None
    except (OSError, ValueError):  # not a valid file name
        return None
