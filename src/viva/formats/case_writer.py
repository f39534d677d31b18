"""Writes a finished conversation as a static native case, so that it can be run again."""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from msgspec import structs

from viva.errors import BadInput, Problem
from viva.formats import native
from viva.formats.documents import StreamedDocuments, wrap_values
from viva.formats.load_options import TIMEOUT_S, LoadOptions
from viva.model import codec
from viva.model.case import Case, Fixtures, ToolStub, UserMessage
from viva.model.message import Message, Part, Text
from viva.record.atomic_files import append_atomically
from viva.state.trial_state import TrialState
from viva.text.template import escape_message

_KEPT = (
    "name",
    "description",
    "tags",
    "options",
    "metadata",
    "before",
    "after",
    "timeout",
    "turn_timeout",
    "on_missing_input",
    "workspace",
    "final_assertions",
)
"""Fields that a static case copies from the original case."""


def save_conversation(
    file: Path, state: TrialState, messages: Sequence[UserMessage], options: LoadOptions, root: Path
) -> str:
    """Appends the talk to a `.jsonl` file and returns the new case's id. `said` are its lines as they were written,
    in a suite whose place is known from the folder `root`.

    Raises BadInput, and writes nothing, if the new case would not load from there.
    """
    if file.suffix != ".jsonl":
        raise BadInput.of("is no .jsonl file", str(file))
    value = build_static_case(state.case, messages, state.case.id, root, file.parent)
    native.load(wrap_values([value], str(file)), str(file), file.parent, options)
    return append_case(file, value)


def append_case(file: Path, value: Mapping[str, Any]) -> str:
    """Append a case to a `.jsonl` file and return its id. If the id is taken, a similar one is used."""
    taken = _ids_in(file)
    case_id = next(name for name in _names(value["id"]) if name not in taken)
    try:
        _append(file, codec.encode({**value, "id": case_id}) + b"\n")
    except OSError as wrong:
        raise BadInput.of(f"cannot be written: {wrong.strerror}", str(file)) from wrong
    return case_id


def build_static_case(
    case: Case, messages: Sequence[UserMessage], case_id: str, root: Path, folder: Path, *, is_filled: bool = False
) -> dict[str, Any]:
    """What was said, as a case for a file in `folder`. With `filled`, the lines are what was really said, not what the
    case has written for it.
    """
    place = _Place((root / case.origin.file).parent if case.origin is not None else root, folder)
    native = "id" in case.definition
    kept = {key: case.definition[key] for key in _KEPT if key in case.definition} if native else _told(case)
    if case.fixtures is not None:
        kept["fixtures"] = _fixtures(case.fixtures)
    spoken = [_as_template(line) if is_filled or not native or line.source in _SPOKEN else line for line in messages]
    turns = [_turn(line, place) for line in spoken]
    if turns and case.history:
        turns[0]["input"] = [place.message(message) for message in (*case.history, spoken[0].message)]
    return {"id": case_id, **kept, "turns": turns}


_SPOKEN = frozenset({"simulated", "interactive"})
"""Sources whose messages are literal: `{{` in them does not start a variable."""


def _as_template(line: UserMessage) -> UserMessage:
    return structs.replace(line, message=escape_message(line.message))


def _told(case: Case) -> dict[str, Any]:
    """The case fields of another format, written as native ones."""
    limits, spec = case.limits, case.workspace
    told = {
        "name": case.name,
        "description": case.description,
        "tags": case.tags,
        "options": case.options,
        "metadata": case.metadata,
        "timeout": limits.timeout_s if limits.timeout_s != TIMEOUT_S else None,
        "turn_timeout": limits.turn_timeout_s,
        "on_missing_input": case.on_missing_input,
        "workspace": {"kind": spec.kind, "link_paths": spec.link_paths} if spec else None,
        "final_assertions": [assertion.definition for assertion in case.final_assertions],
    }
    return {key: value for key, value in told.items() if value}


def _fixtures(fixtures: Fixtures) -> dict[str, Any]:
    tools = [{"tool": each.tool, "response": each.response} | _failing(each) for each in fixtures.tools]
    return ({"tools": tools} if fixtures.stub_all_tools else {}) | (
        {"memory": fixtures.memory} if fixtures.memory else {}
    )


def _failing(stub: ToolStub) -> dict[str, Any]:
    return {} if stub.error is None else {"error": stub.error}


def _turn(line: UserMessage, place: "_Place") -> dict[str, Any]:
    content = line.message.content
    written = {
        "input": content if isinstance(content, str) else {"content": place.parts(content)},
        "assertions": [assertion.definition for assertion in line.assertions],
        "options": line.options,
        "set": line.variables,
        "turn_timeout": line.timeout_s,
    }
    return {key: value for key, value in written.items() if value or key == "input"}


class _Place:
    """Writes messages for a file in one folder that were loaded beside another."""

    def __init__(self, home: Path, folder: Path) -> None:
        self._home = home.resolve()
        self._folder = folder.resolve()

    def message(self, message: Message) -> dict[str, Any]:
        content = message.content if isinstance(message.content, str) else self.parts(message.content)
        written = {"role": message.role, "content": content, "name": message.name, "tool_call_id": message.tool_call_id}
        return {key: value for key, value in written.items() if value is not None}

    def parts(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        return [self._part(part) for part in parts]

    def _part(self, part: Part) -> dict[str, Any]:
        """Attachment bytes are not written; a `file://` source is made relative to the new file."""
        written = {key: value for key, value in codec.to_builtins(part).items() if key != "url"}
        if not isinstance(part, Text) and part.source.startswith("file://"):
            found = self._home / unquote(part.source.removeprefix("file://"))
            written["source"] = "file://" + quote(Path(os.path.relpath(found, self._folder)).as_posix())
        return written


def _names(base: str) -> Iterator[str]:
    yield base
    yield from (f"{base}-{number}" for number in count(2))


def _ids_in(file: Path) -> set[str]:
    if not file.exists():
        return set()
    problems: list[Problem] = []
    ids = {document.value.get("id") for document in StreamedDocuments(file, str(file)).read_valid(problems)}
    if problems:
        raise BadInput(*problems)
    return ids


def _append(file: Path, line: bytes) -> None:
    with file.open("ab+", buffering=0) as stream:
        end = stream.seek(0, os.SEEK_END)
        if end and os.pread(stream.fileno(), 1, end - 1) != b"\n":
            line = b"\n" + line
        append_atomically(stream.fileno(), line, end)
