"""A cassette that is being played: finds the reply to what is sent, and says what has changed where there is none."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from msgspec import structs

from viva.errors import Role
from viva.model import codec
from viva.model.case import Key
from viva.model.connector import Connector, connector_settings
from viva.model.message import Message
from viva.record.cassette import (
    AgentDefinition,
    ConversationKey,
    MissingPolicy,
    RecordedReply,
    RecordedRequest,
    SecretFilter,
    SessionStart,
    TrialDuration,
    conversation_key,
    iter_replies,
    map_image_text,
    read_cassette,
)
from viva.record.drift import list_changes

_FORM = re.compile(rb"\*\*\*(\w+):\d+\*\*\*")
"""What a variable leaves behind where its value stood in another form: that depends on the value, and so does not count."""
_CHANGES = 6


class CassettePlayer:
    """A cassette that is being played. Entries that are equal in all that was sent are used in the order of asking."""

    def __init__(self, path: Path, missing: MissingPolicy, hiding: SecretFilter) -> None:
        self.missing_policy: MissingPolicy = missing
        self._hiding = hiding
        self._lines = list(read_cassette(path))
        self._recorded = {line.agent: line.definition for line in self._lines if isinstance(line, AgentDefinition)}
        self._present: dict[str, Any] = {}
        self._took = {line.key: line.duration_ms for line in self._lines if isinstance(line, TrialDuration)}
        self._states: dict[ConversationKey, list[RecordedReply]] = defaultdict(list)
        for session, entry in iter_replies(self._lines):
            self._states[conversation_key(session)].append(entry)
        self._attempts = {key for _, _, key in self._states}
        self._missed: dict[Key, str] = {}

    @cached_property
    def _entries(self) -> dict[str, list[RecordedReply]]:
        """By the chain of all that was sent: made at the first question, since agents may bring secrets of their own."""
        found: dict[str, list[RecordedReply]] = defaultdict(list)
        definitions: dict[str, Any] = {}
        chains: dict[int, str] = {}
        for line in self._lines:
            if isinstance(line, AgentDefinition):
                definitions[line.agent] = line.definition
            elif isinstance(line, RecordedReply):
                if (opened := line.new_session) is not None:
                    chains[line.session] = self.start_chain(
                        conversation_key(opened), definitions.get(opened.agent), opened.history
                    )
                if line.sent is not None:
                    chains[line.session] = self.extend_chain(chains[line.session], line.sent)
                found[chains[line.session]].append(line)
        for same in found.values():
            same.sort(key=lambda entry: entry.session, reverse=True)  # they are taken from the end
        return found

    def define_agent(self, agent: str, definition: Any) -> None:
        """What an agent is now."""
        self._present[agent] = definition

    def start_chain(self, place: ConversationKey, definition: Any, history: Sequence[Message]) -> str:
        """What the chain of all that is sent in a session begins with."""
        return self.extend_chain("", SessionStart(*place, definition, history))

    def extend_chain(self, chain: str, sent: RecordedRequest | SessionStart) -> str:
        """The chain, one longer. What a cassette holds and what is sent now give the same, whatever the secrets in them."""
        return blake2b(chain.encode() + codec.canonical_bytes(self._plain(sent)), digest_size=12).hexdigest()

    def trial_duration_ms(self, key: Key) -> float | None:
        return self._took.get(key)

    def may_retry(self, key: Key) -> bool:
        """May the trial be tried once more after this attempt? Only where it was when it was recorded, or may go on live."""
        if self.missing_policy == "live":
            return True
        return key not in self._missed and structs.replace(key, attempt=key.attempt + 1) in self._attempts

    def explain_live_call(self, key: Key) -> str | None:
        """Why the real agent was asked in this attempt, if it was."""
        return f"asked live: {self._missed[key]}" if self.missing_policy == "live" and key in self._missed else None

    def find_drift(self, connectors: Mapping[str, Connector]) -> list[str]:
        """What has changed since the recording: one line for each agent, and for each connector that a case asked for."""
        drifts = [self._agent_drift(name, self._recorded.get(name)) for name in self._present]
        found = [drift for drift in drifts if drift is not None]
        seen: set[bytes] = set()
        for line in self._lines:
            sent = line.sent if isinstance(line, RecordedReply) else None
            if sent is None or sent.connector is None or (known := codec.canonical_bytes(sent.connector)) in seen:
                continue
            seen.add(known)
            name = sent.options["connector"]
            now = connector_settings(name, connectors) or {}
            if changed := list_changes(self._settings(sent.connector), self._settings(now)):
                found.append(f"connector {name!r} has changed since the recording: {'; '.join(changed)}")
        return found

    def take_reply(self, digest: str) -> RecordedReply | None:
        left = self._entries.get(digest)
        return self._restored(left.pop()) if left else None

    def _restored(self, entry: RecordedReply) -> RecordedReply:
        """With the values of variables where their names were kept in their place: checks look for them."""
        entry = self._hiding.restore(entry)
        if entry.turn_files is not None:
            files = tuple(map_image_text(image, self._hiding.restore) for image in entry.turn_files.files)
            entry.turn_files = structs.replace(entry.turn_files, files=files)
        return entry

    def explain_miss(self, place: ConversationKey, turn: int, sent: RecordedRequest) -> str:
        """Why nothing fits: what has changed, with the recorded value and the present one."""
        key = place[2]
        said = f"case {key.case!r}, trial {key.trial}, turn {turn}: {self._divergence(place, turn, sent)}"
        self._missed.setdefault(key, said)
        return said

    def _divergence(self, place: ConversationKey, turn: int, sent: RecordedRequest) -> str:
        role, name, key = place
        known = self._states.get(place, ())
        if (drifted := self._agent_drift(name, self._definition_at(place), role)) is not None:
            return drifted
        here = [entry.sent for entry in known if entry.turn == turn and entry.sent is not None]
        if here:
            now = self._plain(sent)
            changed = min((list_changes(self._plain(had), now) for had in here), key=len)
            if changed:
                more = f" (and {len(changed) - _CHANGES} more)" if len(changed) > _CHANGES else ""
                return f"the {role} {name!r} was sent something else: {'; '.join(changed[:_CHANGES])}{more}"
            return f"the {role} {name!r} was asked this less often, or what was said before it has changed"
        if known:
            last = max(entry.turn for entry in known)
            return (
                f"the {role} {name!r} was not asked here when the cassette was recorded: that conversation ended after "
                f"turn {last}. What ends it has changed: a check, a checkpoint or a limit"
            )
        if key not in self._attempts:
            return "the cassette holds no such conversation"
        return f"the {role} {name!r} was not asked in this conversation when the cassette was recorded"

    def _definition_at(self, place: ConversationKey) -> Any:
        """What the agent was in this conversation: a run that was resumed by force may have had two."""
        definitions: dict[str, Any] = {}
        for line in self._lines:
            if isinstance(line, AgentDefinition):
                definitions[line.agent] = line.definition
            elif (
                isinstance(line, RecordedReply)
                and line.new_session is not None
                and conversation_key(line.new_session) == place
            ):
                return definitions.get(place[1])
        return self._recorded.get(place[1])

    def _agent_drift(self, name: str, recorded: Any, role: Role = "agent") -> str | None:
        """How an agent differs from what it was, if it does."""
        if name not in self._recorded:
            known = ", ".join(map(repr, self._recorded)) or "none"
            return f"the {role} {name!r} is not in the cassette, which has {known}"
        changed = list_changes(self._settings(recorded), self._settings(self._present.get(name)))
        return f"the {role} {name!r} has changed since the recording: {'; '.join(changed)}" if changed else None

    def _settings(self, value: Any) -> Any:
        """What an agent or a connector is, as a cassette holds it."""
        return self._plain(AgentDefinition("", value))["definition"]

    def _plain(self, value: RecordedRequest | SessionStart | AgentDefinition) -> Any:
        """As a cassette holds it, without secrets: equal for what was recorded and what is the same now."""
        raw = codec.encode(value)
        if not self._hiding.is_clean(raw):
            raw = codec.encode(self._hiding.hide(codec.decode_kept(raw, type=type(value))))
        return codec.decode_kept(_FORM.sub(rb"***\1***", raw))
