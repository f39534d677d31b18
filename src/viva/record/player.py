"""Replay of a cassette: finds the recorded reply to a request, or explains what has changed since the recording."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from os.path import commonprefix
from pathlib import Path
from typing import Any, cast

from msgspec import structs

from viva.errors import Role
from viva.model import codec
from viva.model.case import Key
from viva.model.connector import Connector, find_answer_settings
from viva.model.ellipsis import cut_end
from viva.model.message import Message
from viva.record.cassette import (
    FIRST_VERSION_WITH_AGENT_KEYS,
    AgentDefinition,
    CassetteHeader,
    ConversationKey,
    MissingPolicy,
    RecordedReply,
    RecordedRequest,
    SecretFilter,
    SessionStart,
    TrialDuration,
    change_file_text,
    get_conversation_key,
    iterate_replies,
    read_cassette,
)

FILES_KEY = "files"
"""The key of an agent definition that holds a digest per source file."""
_MARK_OF_ENCODED_VALUE = re.compile(rb"\*\*\*(\w+):\d+\*\*\*")
"""A variable's name in place of an encoded form of its value. Which form it was depends on the value, so it is ignored."""
_MAX_CHANGES = 6
_MAX_VALUE_LENGTH = 80
_ABSENT = object()


class CassettePlayer:
    """A loaded cassette. Replies to equal requests are used in the order in which they were recorded."""

    def __init__(self, path: Path, missing_policy: MissingPolicy, secrets: SecretFilter) -> None:
        self.missing_policy: MissingPolicy = missing_policy
        self._secrets = secrets
        self._lines = list(read_cassette(path))
        versions = [line.version for line in self._lines if isinstance(line, CassetteHeader)]
        self._do_keys_name_agents = versions[0] >= FIRST_VERSION_WITH_AGENT_KEYS
        self._recorded_definitions = {
            line.agent: line.definition for line in self._lines if isinstance(line, AgentDefinition)
        }
        self._current_definitions: dict[str, Any] = {}
        self._durations = {line.key: line.duration_ms for line in self._lines if isinstance(line, TrialDuration)}
        self._conversations: dict[ConversationKey, list[RecordedReply]] = defaultdict(list)
        for session, reply in iterate_replies(self._lines):
            self._conversations[get_conversation_key(session)].append(reply)
        self._attempts = {key for _, _, key in self._conversations}
        self._misses: dict[Key, str] = {}

    @cached_property
    def _replies(self) -> dict[str, list[RecordedReply]]:
        """Replies by digest chain. Built at the first request, because agents may add secrets of their own before."""
        replies: dict[str, list[RecordedReply]] = defaultdict(list)
        definitions: dict[str, Any] = {}
        chains: dict[int, str] = {}
        for line in self._lines:
            if isinstance(line, AgentDefinition):
                definitions[line.agent] = line.definition
            elif isinstance(line, RecordedReply):
                if (session := line.new_session) is not None:
                    definition = definitions.get(session.agent)
                    chains[line.session] = self.start_digest_chain(
                        get_conversation_key(session), definition, session.history
                    )
                if line.sent is not None:
                    chains[line.session] = self.extend_digest_chain(chains[line.session], line.sent)
                replies[chains[line.session]].append(line)
        for equal in replies.values():
            equal.sort(key=lambda reply: reply.session, reverse=True)  # taken from the end
        return replies

    def set_current_definition(self, agent: str, definition: Any) -> None:
        """Set the current definition of an agent."""
        self._current_definitions[agent] = definition

    def start_digest_chain(self, conversation: ConversationKey, definition: Any, history: Sequence[Message]) -> str:
        """Return the digest that a session starts with."""
        return self.extend_digest_chain("", SessionStart(*conversation, definition, history))

    def extend_digest_chain(self, chain: str, sent: RecordedRequest | SessionStart) -> str:
        """Return the digest after one more request. Secrets do not change it."""
        return blake2b(
            chain.encode() + codec.encode_canonically(self._convert_to_recorded_form(sent)), digest_size=12
        ).hexdigest()

    def convert_to_recorded_key(self, key: Key) -> Key:
        """Return the key of an attempt as the cassette has it."""
        return key if self._do_keys_name_agents else structs.replace(key, agent="")

    def get_recorded_duration_ms(self, key: Key) -> float | None:
        return self._durations.get(self.convert_to_recorded_key(key))

    def may_retry(self, key: Key) -> bool:
        """Return whether a further attempt was recorded, or may call the real agent."""
        if self.missing_policy == "live":
            return True
        key = self.convert_to_recorded_key(key)
        return key not in self._misses and structs.replace(key, attempt=key.attempt + 1) in self._attempts

    def explain_live_call(self, key: Key) -> str | None:
        """Return why the real agent was called in this attempt; None if it was not."""
        reason = self._misses.get(self.convert_to_recorded_key(key)) if self.missing_policy == "live" else None
        return f"called live: {reason}" if reason is not None else None

    def find_drift(self, connectors: Mapping[str, Connector]) -> list[str]:
        """Return one line per agent, and per connector named by a case, that changed since the recording."""
        drifts = [self._explain_drift(name, self._recorded_definitions.get(name)) for name in self._current_definitions]
        changes = [drift for drift in drifts if drift is not None]
        compared: set[bytes] = set()
        for line in self._lines:
            sent = line.sent if isinstance(line, RecordedReply) else None
            if sent is None or sent.connector is None or (raw := codec.encode_canonically(sent.connector)) in compared:
                continue
            compared.add(raw)
            name = sent.options["connector"]
            current = find_answer_settings(name, connectors) or {}
            if changed := describe_changes(
                self._to_recorded_definition(sent.connector), self._to_recorded_definition(current)
            ):
                changes.append(f"connector {name!r} has changed since the recording: {'; '.join(changed)}")
        return changes

    def pop_reply(self, chain: str) -> RecordedReply | None:
        """Return the next unused reply to a request, with the current values of variables."""
        if not (replies := self._replies.get(chain)):
            return None
        reply = self._secrets.restore_secrets(replies.pop())
        if reply.turn_files is not None:
            files = tuple(change_file_text(image, self._secrets.restore_secrets) for image in reply.turn_files.files)
            reply.turn_files = structs.replace(reply.turn_files, files=files)
        return reply

    def explain_miss(self, conversation: ConversationKey, turn: int, sent: RecordedRequest) -> str:
        """Return why no reply fits a request: what changed, with the recorded and the current value."""
        key = conversation[2]
        reason = f"case {key.case!r}, trial {key.trial}, turn {turn}: {self._explain_change(conversation, turn, sent)}"
        self._misses.setdefault(key, reason)
        return reason

    def _explain_change(self, conversation: ConversationKey, turn: int, sent: RecordedRequest) -> str:
        role, name, key = conversation
        replies = self._conversations.get(conversation, ())
        if (drift := self._explain_drift(name, self._find_definition(conversation), role)) is not None:
            return drift
        requests = [reply.sent for reply in replies if reply.turn == turn and reply.sent is not None]
        if requests:
            current = self._convert_to_recorded_form(sent)
            changes = min(
                (describe_changes(self._convert_to_recorded_form(request), current) for request in requests), key=len
            )
            if changes:
                more = f" (and {len(changes) - _MAX_CHANGES} more)" if len(changes) > _MAX_CHANGES else ""
                return f"the request to the {role} {name!r} has changed: {'; '.join(changes[:_MAX_CHANGES])}{more}"
            return (
                f"the {role} {name!r} got this request fewer times in the recording, or an earlier message has changed"
            )
        if replies:
            last = max(reply.turn for reply in replies)
            return (
                f"the recorded conversation with the {role} {name!r} ended after turn {last}. "
                "A check, a checkpoint or a limit that ends it has changed"
            )
        if key not in self._attempts:
            return "the cassette does not have this conversation"
        return f"the {role} {name!r} was not called in this conversation of the recording"

    def _find_definition(self, conversation: ConversationKey) -> Any:
        """Return the definition of the agent in a conversation. After `--resume --force` a cassette may have two."""
        definitions: dict[str, Any] = {}
        for line in self._lines:
            if isinstance(line, AgentDefinition):
                definitions[line.agent] = line.definition
            elif isinstance(line, RecordedReply) and (session := line.new_session) is not None:
                opened = get_conversation_key(session)
                if opened == conversation:
                    return definitions.get(conversation[1])
        return self._recorded_definitions.get(conversation[1])

    def _explain_drift(self, name: str, recorded: Any, role: Role = "agent") -> str | None:
        if name not in self._recorded_definitions:
            known = ", ".join(map(repr, self._recorded_definitions)) or "none"
            return f"the {role} {name!r} is not in the cassette, which has {known}"
        changes = describe_changes(
            self._to_recorded_definition(recorded), self._to_recorded_definition(self._current_definitions.get(name))
        )
        return f"the {role} {name!r} has changed since the recording: {'; '.join(changes)}" if changes else None

    def _to_recorded_definition(self, value: Any) -> Any:
        return self._convert_to_recorded_form(AgentDefinition("", value))["definition"]

    def _convert_to_recorded_form(self, value: RecordedRequest | SessionStart | AgentDefinition) -> Any:
        """Return a value as a cassette holds it, without secrets, so that equal values compare equal."""
        raw = codec.encode(value)
        if not self._secrets.is_clean(raw):
            raw = codec.encode(self._secrets.hide_secrets(codec.decode_own(raw, type=type(value))))
        return codec.decode_own(_MARK_OF_ENCODED_VALUE.sub(rb"***\1***", raw))


def describe_changes(recorded: Any, current: Any, path: str = "") -> list[str]:
    """Return every difference between two JSON values: `model: "a" when recorded, "b" now`."""
    return list(_iterate_changes(recorded, current, path))


def _iterate_changes(recorded: Any, current: Any, path: str) -> Iterator[str]:
    if isinstance(recorded, Mapping) and isinstance(current, Mapping):
        before, after = cast("Mapping[str, Any]", recorded), cast("Mapping[str, Any]", current)
        for key in dict.fromkeys([*before, *after]):
            values = before.get(key, _ABSENT), after.get(key, _ABSENT)
            if key == FILES_KEY and not path:
                yield from _iterate_file_changes(*values)
            else:
                yield from _iterate_changes(*values, f"{path}.{key}" if path else str(key))
    elif isinstance(recorded, list) and isinstance(current, list):
        old, new = cast("list[Any]", recorded), cast("list[Any]", current)
        for at in range(max(len(old), len(new))):
            values = old[at] if at < len(old) else _ABSENT, new[at] if at < len(new) else _ABSENT
            yield from _iterate_changes(*values, f"{path}[{at}]")
    elif _ABSENT in (recorded, current) or codec.encode_canonically(recorded) != codec.encode_canonically(current):
        was, now = _format_value(recorded, current), _format_value(current, recorded)
        yield f"{path or 'definition'}: {was} when recorded, {now} now"


def _iterate_file_changes(recorded: Any, current: Any) -> Iterator[str]:
    before, after = (
        cast("Mapping[str, str]", files) if isinstance(files, Mapping) else {} for files in (recorded, current)
    )
    for path in dict.fromkeys([*before, *after]):
        if path not in before:
            yield f"file {path} is new"
        elif path not in after:
            yield f"file {path} is gone"
        elif before[path] != after[path]:
            yield f"file {path} changed"


def _format_value(value: Any, other: Any) -> str:
    """Return `value` as JSON, cut to the part that differs from `other`."""
    if value is _ABSENT:
        return "not set"
    if not isinstance(value, str):
        text = codec.compact_json(value)
        return cut_end(text, _MAX_VALUE_LENGTH)
    start = 0
    if isinstance(other, str) and len(value) > _MAX_VALUE_LENGTH:
        prefix = commonprefix([value, other])  # noqa: RUF071 -- character by character is the point
        start = max(0, len(prefix) - 20)
    end = start + _MAX_VALUE_LENGTH
    return codec.compact_json(("…" if start else "") + value[start:end] + ("…" if end < len(value) else ""))
