"""Checks and reads the files that a case names: attachments, and the `link_paths` of its workspace.

Loading a suite checks that the files exist. Attachments are read when the case runs.
"""

import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote

from msgspec import Struct

from viva.formats.assertions import ReportProblem
from viva.model.message import Audio, Content, File, Image, Part, Text
from viva.schemas.positions import KeyPath

MAX_BYTES = 32 * 1024 * 1024
_PART_TYPES: dict[str, type[Image | Audio | File]] = {"image": Image, "audio": Audio, "file": File}


class Attachments(Struct, frozen=True):
    """Builds the attachments of messages. `file://` sources must be in the folder of the suite or below an allowed root."""

    folder: str
    roots: tuple[str, ...] = ()

    def build_parts(
        self, items: Sequence[dict[str, Any]], path: KeyPath, report: ReportProblem, *, read_files: bool
    ) -> tuple[Part, ...]:
        """The parts of a message. With `read_files`, files become `data:` URLs; otherwise only their existence is checked."""
        return tuple(self._build_part(item, (*path, i), report, read_files) for i, item in enumerate(items))

    def convert_to_parts(self, content: Content) -> tuple[Part, ...]:
        """The content of a message as parts; a text becomes one text part."""
        return (Text(content),) if isinstance(content, str) else content

    def _build_part(self, definition: dict[str, Any], at: KeyPath, report: ReportProblem, read: bool) -> Part:
        if definition["type"] == "text":
            return Text(definition["text"])
        source = str(definition["source"])
        kind = _PART_TYPES[definition["type"]]
        name, media_type = definition.get("name"), definition.get("media_type")
        if not source.startswith("file://"):
            return kind(source, name, media_type, source)
        path = self._find_file(source, at, report)
        if path is None or not read:
            return kind(source, name, media_type)
        media_type = media_type or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        encoded = base64.b64encode(path.read_bytes()).decode("ascii")
        return kind(source, name or path.name, media_type, f"data:{media_type};base64,{encoded}")

    def _find_file(self, source: str, at: KeyPath, report: ReportProblem) -> Path | None:
        path = (Path(self.folder) / unquote(source.removeprefix("file://"))).resolve()
        allowed = [Path(root).resolve() for root in (self.folder, *self.roots)]
        if not any(path.is_relative_to(root) for root in allowed):
            report(
                at,
                f"{source} leaves the suite's folder; move the file there, or allow its folder with `attachment_roots` in viva.toml",
                "source",
            )
        elif not path.is_file():
            report(at, f"{source}: there is no file {path}", "source")
        elif path.stat().st_size > MAX_BYTES:
            report(at, f"{source} is {path.stat().st_size // 2**20} MB; at most {MAX_BYTES // 2**20} MB", "source")
        else:
            return path
        return None


def explain_bad_link(path: str, root: str) -> str | None:
    """The reason why a path of the working folder cannot be linked; None if it can be."""
    parts = PurePath(path).parts
    if not path.strip() or "\0" in path:
        return f"{path!r} names nothing"
    if PurePath(path).is_absolute():
        return f"{path!r} is absolute; give a path relative to the working folder"
    if ".." in parts:
        return f"{path!r} leaves the working folder"
    host = Path(root, path)
    try:
        if host.exists():
            real, inside = host.resolve(), Path(root).resolve()
            if not real.is_relative_to(inside):
                return f"{path!r} leads outside the working folder, to {real}; name a path that stays inside"
            return None
        if host.is_symlink():
            return f"{path!r} is a broken symbolic link"
    except (OSError, UnicodeError) as error:  # too long, not allowed, or no name at all
        return f"{path!r} cannot be read: {error}"
    return f"there is no {path!r} in the working folder {root}"
