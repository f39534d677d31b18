"""A check of the reply against a file that was approved before. The file is beside the suite and never leaves its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from msgspec import UNSET

from viva.checks.base_check import LocalCheck, NonEmptyText
from viva.checks.compare import is_same_json
from viva.checks.formatting import cut_to_verdict_length, format_label, quote_value
from viva.errors import CheckError
from viva.model import codec
from viva.model.component import BuildContext
from viva.model.message import ToolCall
from viva.model.turn import PASSED, Verdict
from viva.record.atomic_files import replace_file
from viva.state.trial_state import CheckContext


class SnapshotFolder:
    """The folder of a suite's snapshots, and whether they are updated."""

    def __init__(self, path: str, *, is_updating: bool) -> None:
        self.path = Path(path)
        self.is_updating = is_updating

    def resolve_path(self, path: str) -> Path:
        """The file of a snapshot. Raises ValueError for a path that leaves the folder, also by a link."""
        if not path or Path(path).is_absolute() or ".." in Path(path).parts:
            raise ValueError(f"path {path!r} must be a file in the suite's folder, without `..`")
        folder = self.path.resolve()
        file = (folder / path).resolve()
        if not file.is_relative_to(folder) or file == folder or file.is_dir():
            raise ValueError(f"path {path!r} must be a file in the suite's folder; it is {file}")
        return file


class Snapshot(LocalCheck, frozen=True, kw_only=True):
    """The reply, or its tool calls, are the same as in a file. `--update-snapshots` writes the file."""

    path: NonEmptyText
    """The file, relative to the suite's folder."""
    of: Literal["reply", "tool_calls"] = "reply"
    """What is compared: the reply's text or data, or the names and arguments of its tool calls."""
    folder: SnapshotFolder  # not a JSON value, so it cannot be written in a file

    @classmethod
    def build(cls, fields: Mapping[str, Any], context: BuildContext) -> Self:
        folder = SnapshotFolder(context.folder, is_updating=context.update_snapshots)
        return super().build({"folder": folder, **fields}, context)

    def __post_init__(self) -> None:
        self.folder.resolve_path(self.path)

    @property
    def label(self) -> str:
        return format_label("snapshot", "of tool calls" if self.of == "tool_calls" else "", quote_value(self.path))

    def check(self, context: CheckContext) -> Verdict:
        try:
            file = self.folder.resolve_path(self.path)
            actual = self._get_compared_value(context)
            expected = self._read_expected(file, actual)
            if expected is not UNSET and is_same_json(expected, actual):
                return PASSED
            if self.folder.is_updating:
                _write_snapshot(file, actual)
                return Verdict("passed", f"snapshot {self.path} was written")
        except (OSError, ValueError) as error:
            raise CheckError(f"snapshot {self.path}: {error}") from error
        if expected is UNSET:
            raise CheckError(
                f"snapshot {self.path} does not exist yet: run once with --update-snapshots, and read what it wrote",
                deterministic=True,
            )
        reason = f"differs from {self.path}: {_describe_difference(expected, actual)}"
        return Verdict("failed", reason, expected=_truncate_value(expected), actual=_truncate_value(actual))

    def _get_compared_value(self, context: CheckContext) -> Any:
        if self.of == "tool_calls":
            return codec.to_plain([_describe_call(call) for call in context.tool_calls])
        reply = context.reply
        if context.text_scope == "reply" and not reply.content and isinstance(reply.data, Mapping | list | tuple):
            return context.json
        return _strip_last_line_break(context.text)

    def _read_expected(self, file: Path, actual: Any) -> Any:
        """The content of the file: as JSON where JSON is compared, so that its layout does not matter."""
        try:
            content = file.read_bytes()
        except FileNotFoundError:
            return UNSET
        if isinstance(actual, str):
            return _strip_last_line_break(content.decode())
        try:
            return codec.decode(content)
        except codec.DecodeError:
            if self.folder.is_updating:
                return UNSET
            raise


def _describe_call(call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments
    if isinstance(arguments, str):
        try:
            arguments = codec.decode(arguments)
        except codec.DecodeError:
            pass  # not JSON: compared as text
    return {"name": call.name, "arguments": arguments}


def _write_snapshot(file: Path, value: Any) -> None:
    """Replaces the whole file at once, because another process may be reading it."""
    content = value.encode() if isinstance(value, str) else codec.pretty_json(codec.encode_canonically(value))
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, content + b"\n")


def _strip_last_line_break(text: str) -> str:
    """Editors end files with a line break; agents may or may not."""
    return text.replace("\r\n", "\n").removesuffix("\n")


def _describe_difference(expected: Any, actual: Any) -> str:
    """The first line that differs."""
    old_lines, new_lines = _split_lines(expected), _split_lines(actual)
    for number, (old, new) in enumerate(zip(old_lines, new_lines, strict=False), 1):
        if old != new:
            return f"line {number} was {quote_value(old)}, is {quote_value(new)}"
    return f"it had {len(old_lines)} lines, there are {len(new_lines)}"


def _split_lines(value: Any) -> list[str]:
    text = value if isinstance(value, str) else codec.pretty_json(codec.encode_canonically(value)).decode()
    return text.split("\n")


def _truncate_value(value: Any) -> Any:
    return cut_to_verdict_length(value) if isinstance(value, str) else value
