"""The answer against a file that was approved before. The file stands beside the suite and never leaves its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from msgspec import UNSET

from viva.checks.base import LocalCheck
from viva.checks.compare import is_same_json
from viva.checks.formatting import format_label, quote_value, truncate_text
from viva.errors import CheckError
from viva.model import codec
from viva.model.component import BuildContext
from viva.model.message import ToolCall
from viva.model.turn import PASSED, Verdict
from viva.record.atomic_files import replace_file
from viva.state.trial_state import CheckContext


class SnapshotFolder:
    """The folder where a suite's snapshots are kept, and whether they are to be written anew."""

    def __init__(self, folder: str, *, update: bool) -> None:
        self.folder = Path(folder)
        self.is_updating = update

    def resolve_path(self, path: str) -> Path:
        """Where a snapshot stands. Raises ValueError for a path that leaves the folder, also by a link."""
        if not path or Path(path).is_absolute() or ".." in Path(path).parts:
            raise ValueError(f"path {path!r} must be a file in the suite's folder, without `..`")
        home = self.folder.resolve()
        place = (home / path).resolve()
        if not place.is_relative_to(home) or place == home or place.is_dir():
            raise ValueError(f"path {path!r} must be a file in the suite's folder; it is {place}")
        return place


class Snapshot(LocalCheck, frozen=True, kw_only=True):
    """The reply (its text, or its data), or the tool calls (names and arguments), are those in the file at `path`."""

    path: str
    of: Literal["reply", "tool_calls"] = "reply"
    folder: SnapshotFolder  # no value in a file can be one, so it cannot be written there

    @classmethod
    def build(cls, fields: Mapping[str, Any], building: BuildContext) -> Self:
        shelf = SnapshotFolder(building.folder, update=building.update_snapshots)
        return super().build({"shelf": shelf, **fields}, building)

    def __post_init__(self) -> None:
        self.folder.resolve_path(self.path)

    @property
    def label(self) -> str:
        return format_label("snapshot", "of tool calls" if self.of == "tool_calls" else "", quote_value(self.path))

    def check(self, context: CheckContext) -> Verdict:
        try:
            place = self.folder.resolve_path(self.path)
            actual = self._actual(context)
            expected = self._approved(place, actual)
            if expected is not UNSET and is_same_json(expected, actual):
                return PASSED
            if self.folder.is_updating:
                _write(place, actual)
                return Verdict("passed", f"snapshot {self.path} was written")
        except (OSError, ValueError) as broken:
            raise CheckError(f"snapshot {self.path}: {broken}") from broken
        if expected is UNSET:
            raise CheckError(
                f"snapshot {self.path} is not there yet: run once with --update-snapshots, and read what it wrote",
                deterministic=True,
            )
        reason = f"differs from {self.path}: {_first_difference(expected, actual)}"
        return Verdict("failed", reason, expected=_kept(expected), actual=_kept(actual))

    def _actual(self, context: CheckContext) -> Any:
        if self.of == "tool_calls":
            return codec.to_plain([_shown(call) for call in context.tool_calls])
        reply = context.reply
        if context.text_scope == "reply" and not reply.content and isinstance(reply.data, Mapping | list | tuple):
            return context.json
        return _without_last_break(context.text)

    def _approved(self, place: Path, actual: Any) -> Any:
        """What the file holds: JSON where JSON is expected, so that its layout does not matter."""
        try:
            content = place.read_bytes()
        except FileNotFoundError:
            return UNSET
        if isinstance(actual, str):
            return _without_last_break(content.decode())
        try:
            return codec.decode(content)
        except codec.DecodeError:
            if self.folder.is_updating:
                return UNSET
            raise


def _shown(call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = codec.decode(arguments)
        except codec.DecodeError:
            pass  # no JSON: shown as the text that it is
    return {"name": call.name, "arguments": arguments}


def _write(place: Path, value: Any) -> None:
    """Whole or not at all: another process may be reading the same file."""
    content = value.encode() if isinstance(value, str) else codec.pretty_json(codec.canonical_bytes(value))
    place.parent.mkdir(parents=True, exist_ok=True)
    replace_file(place, content + b"\n")


def _without_last_break(text: str) -> str:
    """Editors end files with a line break; agents do so or not."""
    return text.replace("\r\n", "\n").removesuffix("\n")


def _first_difference(expected: Any, actual: Any) -> str:
    was, now = _lines(expected), _lines(actual)
    for number, (old, new) in enumerate(zip(was, now, strict=False), 1):
        if old != new:
            return f"line {number} was {quote_value(old)}, is {quote_value(new)}"
    return f"it had {len(was)} lines, there are {len(now)}"


def _lines(value: Any) -> list[str]:
    return (value if isinstance(value, str) else codec.pretty_json(codec.canonical_bytes(value)).decode()).split("\n")


def _kept(value: Any) -> Any:
    return truncate_text(value) if isinstance(value, str) else value
