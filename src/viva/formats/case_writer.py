"""Writes a conversation as a native case with fixed turns, so that it can be run again."""

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
from viva.formats.load_options import DEFAULT_TIMEOUT_S, LoadOptions
from viva.model import codec
from viva.model.case import Case, Fixtures, ToolStub, UserMessage
from viva.model.message import Message, Part, Text
from viva.record.atomic_files import append_atomically
from viva.state.trial_state import TrialState
from viva.text.template import escape_template_in_message

_COPIED_FIELDS = (
    "name", "description", "tags", "options", "metadata", "before", "after", "timeout", "turn_timeout",
    "on_missing_input", "workspace", "final_assertions",
)  # fmt: skip
"""Fields that a static case copies from the original case."""


def save_conversation(
    file: Path, state: TrialState, messages: Sequence[UserMessage], options: LoadOptions, root: Path
) -> str:
    """Appends a conversation as a case to a `.jsonl` file and returns the id of the case.

    `messages` are those of the user, as the suite has them; paths in the suite are relative to `root`. Raises BadInput, and
    writes nothing, if the new case would not load.
    """
    if file.suffix != ".jsonl":
        raise BadInput.of("conversations are saved in .jsonl files; choose a name that ends in .jsonl", str(file))
    value = build_static_case(state.case, messages, state.case.id, root, file.parent)
    native.load(wrap_values([value], str(file)), str(file), file.parent, options)
    return append_case(file, value)


def append_case(file: Path, value: Mapping[str, Any]) -> str:
    """Append a case to a `.jsonl` file and return its id. If the id is taken, a similar one is used."""
    taken = _read_case_ids(file)
    case_id = next(each for each in _iterate_candidate_ids(value["id"]) if each not in taken)
    try:
        _append_line(file, codec.encode({**value, "id": case_id}) + b"\n")
    except OSError as error:
        raise BadInput.of(f"cannot be written: {error.strerror}", str(file)) from error
    return case_id


def build_static_case(
    case: Case, messages: Sequence[UserMessage], case_id: str, root: Path, folder: Path, *, is_filled: bool = False
) -> dict[str, Any]:
    """The conversation as a case for a file in `folder`. With `is_filled` the messages have no variables: `{{` is text."""
    writer = _MessageEncoder((root / case.origin.file).parent if case.origin is not None else root, folder)
    native = "id" in case.definition
    fields = (
        {key: case.definition[key] for key in _COPIED_FIELDS if key in case.definition}
        if native
        else _convert_to_native_fields(case)
    )
    if case.fixtures is not None:
        fields["fixtures"] = _encode_fixtures(case.fixtures)
    templates = [
        _escape_variables(each) if is_filled or not native or each.source in _LITERAL_SOURCES else each
        for each in messages
    ]
    turns = [_encode_turn(each, writer) for each in templates]
    if turns and case.history:
        turns[0]["input"] = [writer.encode_message(message) for message in (*case.history, templates[0].message)]
    return {"id": case_id, **fields, "turns": turns}


_LITERAL_SOURCES = frozenset({"simulated", "interactive"})
"""Sources whose messages are literal: `{{` in them does not start a variable."""


def _escape_variables(message: UserMessage) -> UserMessage:
    return structs.replace(message, message=escape_template_in_message(message.message))


def _convert_to_native_fields(case: Case) -> dict[str, Any]:
    """Converts a case of another format to the fields of a native case."""
    limits, spec = case.limits, case.workspace
    fields = {
        "name": case.name,
        "description": case.description,
        "tags": case.tags,
        "options": case.options,
        "metadata": case.metadata,
        "timeout": limits.timeout_s if limits.timeout_s != DEFAULT_TIMEOUT_S else None,
        "turn_timeout": limits.turn_timeout_s,
        "on_missing_input": case.on_missing_input,
        "workspace": {"kind": spec.kind, "link_paths": spec.link_paths} if spec else None,
        "final_assertions": [assertion.definition for assertion in case.final_assertions],
    }
    return {key: value for key, value in fields.items() if value}


def _encode_fixtures(fixtures: Fixtures) -> dict[str, Any]:
    tools = [{"tool": each.tool, "response": each.response} | _encode_error(each) for each in fixtures.tools]
    return ({"tools": tools} if fixtures.stub_all_tools else {}) | (
        {"memory": fixtures.memory} if fixtures.memory else {}
    )


def _encode_error(stub: ToolStub) -> dict[str, Any]:
    return {} if stub.error is None else {"error": stub.error}


def _encode_turn(user_message: UserMessage, encoder: "_MessageEncoder") -> dict[str, Any]:
    content = user_message.message.content
    fields = {
        "input": content if isinstance(content, str) else {"content": encoder.encode_parts(content)},
        "assertions": [assertion.definition for assertion in user_message.assertions],
        "options": user_message.options,
        "set": user_message.variables,
        "turn_timeout": user_message.timeout_s,
    }
    return {key: value for key, value in fields.items() if value or key == "input"}


class _MessageEncoder:
    """Encodes messages for a file in `folder`; they were loaded from a file in `source_folder`."""

    def __init__(self, source_folder: Path, folder: Path) -> None:
        self._source_folder = source_folder.resolve()
        self._folder = folder.resolve()

    def encode_message(self, message: Message) -> dict[str, Any]:
        content = message.content if isinstance(message.content, str) else self.encode_parts(message.content)
        fields = {"role": message.role, "content": content, "name": message.name, "tool_call_id": message.tool_call_id}
        return {key: value for key, value in fields.items() if value is not None}

    def encode_parts(self, parts: Sequence[Part]) -> list[dict[str, Any]]:
        return [self._encode_part(part) for part in parts]

    def _encode_part(self, part: Part) -> dict[str, Any]:
        """Attachment bytes are not written; a `file://` source is made relative to the new file."""
        fields = {key: value for key, value in codec.to_builtins(part).items() if key != "url"}
        if not isinstance(part, Text) and part.source.startswith("file://"):
            path = self._source_folder / unquote(part.source.removeprefix("file://"))
            fields["source"] = "file://" + quote(Path(os.path.relpath(path, self._folder)).as_posix())
        return fields


def _iterate_candidate_ids(base: str) -> Iterator[str]:
    yield base
    yield from (f"{base}-{number}" for number in count(2))


def _read_case_ids(file: Path) -> set[str]:
    if not file.exists():
        return set()
    problems: list[Problem] = []
    ids = {document.value.get("id") for document in StreamedDocuments(file, str(file)).read_valid(problems)}
    if problems:
        raise BadInput(*problems)
    return ids


def _append_line(file: Path, line: bytes) -> None:
    with file.open("ab+", buffering=0) as stream:
        end = stream.seek(0, os.SEEK_END)
        if end and os.pread(stream.fileno(), 1, end - 1) != b"\n":
            line = b"\n" + line
        append_atomically(stream.fileno(), line, end)
