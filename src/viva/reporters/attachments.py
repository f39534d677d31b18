"""Pictures and recordings that were sent to an agent, read again for a page that shows them.

Records name an attachment by its source only. A `file://` source is looked for beside the suite, as it was when the case
was loaded; what lies elsewhere, is too large, or is neither picture nor sound, stays a name.
"""

import base64
import mimetypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from viva.model import codec
from viva.reporters.commands import split_source

MAX_ATTACHMENT_BYTES = 2 * 1024 * 1024
_SHOWN = ("image/", "audio/")
_SIGN = b'"attachments":['


class _Turn(Struct):
    attachments: list[dict[str, Any]] | None = None


class _Attaching(Struct):
    turns: list[_Turn]
    source: str | None = None


def load_attachments(records: Sequence[bytes], root: Path) -> dict[str, str]:
    """The data: address of each source that can be shown. Most records attach nothing, and are not even decoded."""
    return dict(
        found for raw in records if _SIGN in raw for found in _found(codec.decode_kept(raw, type=_Attaching), root)
    )


def _found(record: _Attaching, root: Path) -> Iterator[tuple[str, str]]:
    suite, _ = split_source(record.source)
    for attachment in (each for turn in record.turns for each in turn.attachments or ()):
        source = str(attachment.get("source", ""))
        if source.startswith("file://") and suite is not None:
            media_type = str(attachment.get("media_type") or mimetypes.guess_type(source)[0] or "")
            path = _confined(source, (root / suite).parent)
            if path is not None and media_type.startswith(_SHOWN):
                yield source, f"data:{media_type};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def _confined(source: str, folder: Path) -> Path | None:
    """The file, if it is inside the folder and small enough."""
    try:
        path = (folder / unquote(source.removeprefix("file://"))).resolve()
        inside = (
            path.is_relative_to(folder.resolve()) and path.is_file() and path.stat().st_size <= MAX_ATTACHMENT_BYTES
        )
    except (OSError, ValueError):  # a name that no file can have
        return None
    return path if inside else None
