"""An agent with scripted replies and no model: for docs, demos and tests.

A reply is a text or a dict: `content`, `data`, `tool_calls`, `awaiting_input`, `input_hint`, `finish_reason`, `usage`,
`error` (the agent fails), `delay` (wait first), `when` (a pattern: the reply whenever the user's text matches).
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import Any, ClassVar

from msgspec import UNSET, Struct, UnsetType

from viva.agents.agent_config import AgentSetup, ConnectedConfig, NonEmpty
from viva.agents.replies import REPLY_KEYS, parse_reply
from viva.errors import AgentFailed, CheckError, with_article
from viva.model.case import Feature
from viva.model.ellipsis import cut_end
from viva.model.message import Message, Reply
from viva.protocols import SessionContext
from viva.text.duration import parse_duration
from viva.text.pattern import compile_pattern, has_pattern_match

_CONTROL_KEYS = frozenset({"error", "delay", "when"})
_KNOWN_KEYS = (*_CONTROL_KEYS, *REPLY_KEYS, "role")


class ScriptedConfig(ConnectedConfig, frozen=True, kw_only=True):
    """Replies from a script, without a model."""

    file_fields = ("file",)

    use: NonEmpty | UnsetType = UNSET
    """A reference: scripted:FILE."""
    replies: tuple[str | Mapping[str, Any], ...] = ()
    """What it replies, in order."""
    file: str | UnsetType = UNSET
    """A JSON, JSONL or YAML file of replies."""
    repeat: bool = False
    """Repeat the last reply when the script is at its end."""

    @classmethod
    def parse_reference(cls, reference: str) -> dict[str, Any]:
        return {"file": reference.removeprefix("scripted:")}

    def build(self, setup: AgentSetup) -> "ScriptedAgent":
        replies: list[Any] = list(self.replies)
        if self.file is not UNSET:
            path = setup.folder / self.file
            if not path.is_file():
                raise setup.error(f"there is no file {path}", "file")
            replies += setup.read_documents(path)
        return ScriptedAgent(tuple(replies), self.repeat)


class ScriptedAgent(Struct, frozen=True):
    """Replies in order, from the first in each session. With `repeat` the last reply repeats."""

    replies: tuple[str | Mapping[str, Any], ...] = ()
    repeat: bool = False

    may_repeat: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for number, reply in enumerate(self.replies, 1):
            if not isinstance(reply, str | Mapping):
                raise ValueError(
                    f"reply {number} is {with_article(type(reply).__name__)}; write a text, or a table with `content`"
                )
            if isinstance(reply, Mapping):
                _refuse_typos(number, reply)
                parse_duration(reply.get("delay", 0))
                compile_pattern(str(reply.get("when", "")))

    @property
    def provides(self) -> frozenset[Feature]:
        return frozenset()

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["ScriptedSession"]:
        yield ScriptedSession(self, context)


def _refuse_typos(number: int, reply: Mapping[str, Any]) -> None:
    """Refuses likely typos. A reply without `content` may be a helper's answer with its own keys."""
    for key in reply:
        if key in _KNOWN_KEYS:
            continue
        # Stricter than a suggestion: `reason` of a judge is not a typo of `finish_reason`.
        near = get_close_matches(key, _KNOWN_KEYS, 1, 0.8)
        if near or "content" in reply:
            raise ValueError(
                f"reply {number} has the unknown key {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")
            )


class ScriptedSession:
    """One conversation, from the start of the script."""

    def __init__(self, agent: ScriptedAgent, context: SessionContext) -> None:
        self._context = context
        self._repeat = agent.repeat
        self._conditional = [reply for reply in agent.replies if isinstance(reply, Mapping) and "when" in reply]
        self._in_order = [reply for reply in agent.replies if not (isinstance(reply, Mapping) and "when" in reply)]
        self._position = 0

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        try:
            reply = self._choose_reply(message.text)
        except CheckError as error:
            raise AgentFailed(str(error)) from error
        if isinstance(reply, str):
            return Reply(reply)
        if "delay" in reply:
            await asyncio.sleep(parse_duration(reply["delay"]))
        if reply.get("error"):
            raise AgentFailed(str(reply["error"]))
        fields = {key: value for key, value in reply.items() if key not in _CONTROL_KEYS}
        if self._context.role != "agent" and "content" not in fields:
            return Reply(data=fields)
        parsed = parse_reply(fields or {"content": ""})
        for call in parsed.calls:
            self._context.meter(call)
        return parsed

    def _choose_reply(self, text: str) -> str | Mapping[str, Any]:
        for reply in self._conditional:
            if has_pattern_match(str(reply["when"]), text):
                return reply
        if self._position < len(self._in_order):
            self._position += 1
            return self._in_order[self._position - 1]
        if self._repeat and self._in_order:
            return self._in_order[-1]
        raise AgentFailed(f"the script has {len(self._in_order)} replies and none is left for {cut_end(text, 60)!r}")
