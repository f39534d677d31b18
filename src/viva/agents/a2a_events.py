"""Reads what an A2A agent answers, a message, a task or a stream of updates, into a reply.

Both forms are read: that of version 1.0 and that of 0.3, whose objects have a `kind`.
"""

import base64
import binascii
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from msgspec import Struct, structs

from viva.agents.json_objects import as_list, as_object
from viva.agents.streamed_reply import StreamedReply
from viva.errors import AgentFailed
from viva.model import codec
from viva.model.ellipsis import cut_end
from viva.model.message import Reply
from viva.model.progress import CallProgress

_KINDS = {
    "task": "task", "message": "message", "msg": "message", "statusUpdate": "status-update", "artifactUpdate": "artifact-update",
}  # fmt: skip
WAITING_STATES = frozenset({"input-required", "auth-required"})
FAILED_STATES = frozenset({"failed", "rejected", "canceled"})
END_STATES = FAILED_STATES | {"completed"}
_MAX_SHOWN = 300


class ArtifactFile(Struct, frozen=True):
    """A file that the agent made. `content` is None if it gives an address only."""

    name: str
    content: bytes | None


class ReportedArtifact(Struct):
    """What an artifact has held so far: its text, and the digests of its other parts."""

    text: str = ""
    others: tuple[bytes, ...] = ()


class TaskReader:
    """Reads the answer of one turn: a message, a task, or a stream of updates.

    `known_artifacts` are those of earlier turns, by task and id, which a task may report again. With `progress` the time until the
    first text is measured. `wraps_data`: the value of a data part is one level down, as in HTTP+JSON of version 0.3.
    """

    def __init__(
        self,
        known_artifacts: dict[tuple[str, str], ReportedArtifact],
        progress: CallProgress | None,
        *,
        wraps_data: bool,
    ) -> None:
        self.task_id = ""
        self.context_id = ""
        self.state = ""
        self.files: list[ArtifactFile] = []
        self._streamed = StreamedReply(progress)
        self._known_artifacts = known_artifacts
        self._wraps_data = wraps_data
        self._open_artifact = ("", "")
        self._artifacts: dict[tuple[str, str], ReportedArtifact] = {}  # those of this turn
        self._texts: set[str] = set()
        self._data: list[Any] = []
        self._status: Mapping[str, Any] = {}
        self._has_message = False

    @property
    def is_settled(self) -> bool:
        """Has the agent ended its turn: by a message, or by a task that ended or waits?"""
        return self._has_message or self.state in END_STATES or self.state in WAITING_STATES

    def add(self, value: Any) -> None:
        """Adds a message, a task or an update to the turn. Anything else is the agent's failure."""
        kind, fields = _read_kind_and_fields(value)
        match kind:
            case "message":
                self._store_ids(fields)
                self._has_message = True
                self._add_message(_list_parts(fields))
                self._streamed.end_message()
            case "task":
                self._store_ids(fields, fields.get("id"))
                for at, artifact in enumerate(as_list(fields.get("artifacts"))):
                    self._add_artifact(as_object(artifact), f"#{at}", is_whole=True)
                self._set_status(as_object(fields.get("status")))
            case "status-update":
                self._store_ids(fields)
                self._set_status(as_object(fields.get("status")))
            case "artifact-update":
                self._store_ids(fields)
                self._add_artifact(as_object(fields.get("artifact")), "", is_whole=fields.get("append") is not True)
            case _:
                raise AgentFailed(
                    f"it answered with {cut_end(codec.compact_json(value), 80)} instead of a message or a task"
                )

    def finish(self) -> Reply:
        """The reply at the end of the turn. A task that failed, was rejected or canceled is the agent's failure."""
        self._add_status_message()
        reply = self.build_reply()
        if self.state in FAILED_STATES:
            text = cut_end(reply.content.strip(), _MAX_SHOWN)
            raise AgentFailed(f"its task ended as {self.state}" + (f": {text}" if text else ""))
        return reply

    def build_reply(self) -> Reply:
        """The reply so far."""
        data = self._data[0] if len(self._data) == 1 else self._data or None
        hint = _join_text(_list_parts(as_object(self._status.get("message")))) if self.state in WAITING_STATES else None
        return structs.replace(
            self._streamed.build(), data=data, protocol_state=self.state or None, input_hint=hint or None
        )

    def _store_ids(self, fields: Mapping[str, Any], task_id: Any = None) -> None:
        task_id = task_id or fields.get("taskId")
        self.task_id = task_id if isinstance(task_id, str) and task_id else self.task_id
        context_id = fields.get("contextId")
        self.context_id = context_id if isinstance(context_id, str) and context_id else self.context_id

    def _set_status(self, status: Mapping[str, Any]) -> None:
        state = status.get("state")
        if isinstance(state, str):
            self.state = state.lower().replace("_", "-").removeprefix("task-state-")[:40]
            self._status = status

    def _add_status_message(self) -> None:
        """Adds the message of the task's last state to the reply. Messages of a working task only tell progress."""
        message = as_object(self._status.get("message"))
        parts = _list_parts(message)
        known = self._texts | {artifact.text for artifact in self._artifacts.values()}
        if self.state in ("working", "submitted") or _join_text(parts) in known:
            return
        self._streamed.end_message()
        self._add_message(parts)

    def _add_artifact(self, artifact: Mapping[str, Any], default_id: str, *, is_whole: bool) -> None:
        """Adds a new artifact, or the next piece of one. Of one that this turn reports again, only what is new is added;
        one that an earlier turn reported is skipped.
        """
        key = self.task_id, str(artifact.get("artifactId") or default_id)  # the id is unique within its task only
        parts = _list_parts(artifact)
        reported = ReportedArtifact(
            _join_text(parts, ""),
            tuple(blake2b(codec.encode(part), digest_size=12).digest() for part in parts if not _is_text(part)),
        )
        known = self._known_artifacts.get(key, ReportedArtifact())
        if is_whole and reported == known:
            return
        if is_whole and key in self._artifacts and _is_continued_by(known, reported):
            parts = _drop_known_parts(parts, known)
            is_whole = False
        elif not is_whole:
            reported = ReportedArtifact(known.text + reported.text, known.others + reported.others)
        self._known_artifacts[key] = self._artifacts[key] = reported
        if is_whole or key != self._open_artifact:
            self._streamed.end_message()
        self._open_artifact = key
        self._add_parts(parts, _join_text(parts, ""))  # its parts may be the pieces in which it was streamed

    def _add_message(self, parts: list[dict[str, Any]]) -> None:
        text = _join_text(parts)
        self._texts.add(text)
        self._add_parts(parts, text)

    def _add_parts(self, parts: list[dict[str, Any]], text: str) -> None:
        self._streamed.add_text(text)
        for part in parts:
            if _is_text(part):
                continue
            if "data" in part:
                self._data.append(as_object(part["data"]).get("data") if self._wraps_data else part["data"])
            elif (file := _read_file_part(part)) is not None:
                described, content = file
                self._data.append(described)
                self.files.append(ArtifactFile(described["name"], content))


def _read_kind_and_fields(value: Any) -> tuple[str, dict[str, Any]]:
    fields = as_object(value)
    if isinstance(kind := fields.get("kind"), str):
        return kind, fields
    for key, kind in _KINDS.items():
        if isinstance(fields.get(key), dict):
            return kind, fields[key]
    if isinstance(fields.get("status"), dict) and "id" in fields:  # the answer to a request for a task
        return "task", fields
    return "", fields


def _list_parts(holder: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The parts of a message or artifact. Messages of HTTP+JSON in version 0.3 call them `content`."""
    return [as_object(part) for part in as_list(holder.get("parts")) or as_list(holder.get("content"))]


def _is_text(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


def _is_continued_by(known: ReportedArtifact, reported: ReportedArtifact) -> bool:
    """Does the artifact begin with what is known of it? A task that is polled reports it as far as it has come."""
    return reported.text.startswith(known.text) and reported.others[: len(known.others)] == known.others


def _drop_known_parts(parts: list[dict[str, Any]], known: ReportedArtifact) -> list[dict[str, Any]]:
    others = [part for part in parts if not _is_text(part)][len(known.others) :]
    return [{"text": _join_text(parts, "")[len(known.text) :]}, *others]


def _join_text(parts: list[dict[str, Any]], separator: str = "\n") -> str:
    return separator.join(part["text"] for part in parts if _is_text(part))


def _read_file_part(part: Mapping[str, Any]) -> tuple[dict[str, Any], bytes | None] | None:
    """A description of a file part, and its bytes if it has them."""
    source = as_object(part.get("file")) or part
    url = next((source[key] for key in ("url", "uri", "fileWithUri") if isinstance(source.get(key), str)), None)
    raw = next((source[key] for key in ("raw", "bytes", "fileWithBytes") if isinstance(source.get(key), str)), None)
    if url is None and raw is None:
        return None
    name = source.get("filename") or source.get("name")
    media_type = source.get("mediaType") or source.get("mimeType")
    described: dict[str, Any] = {"name": name if isinstance(name, str) else ""}
    if isinstance(media_type, str):
        described["media_type"] = media_type
    if raw is None:
        return described | {"url": url}, None
    try:
        content = base64.b64decode(raw, validate=True)
        if "fileWithBytes" in source:  # the SDKs of version 0.3 encode the bytes twice
            content = base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AgentFailed(f"the file {cut_end(described['name'], 80)!r} of its reply is not base64") from error
    return described | {"bytes": len(content)}, content
