"""What Python code says to an agent (a text, a message, a list of messages, attachments), and what it hears."""

import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from viva.agents.replies import parse_tool_calls
from viva.awaiting.detector import detect
from viva.errors import AgentFailed, BadInput
from viva.formats.attachments import Attachments
from viva.model import codec
from viva.model.case import UserMessage
from viva.model.message import Message, Part, Reply
from viva.model.turn import AwaitingReason, AwaitingState
from viva.schemas.positions import KeyPath
from viva.state.trial_state import reply_text
from viva.text.duration import parse_duration

MessageInput = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]
"""What can be said: a text, a message, or a list of messages of which the last is sent and the others were said before."""

AttachmentInput = str | Path | Mapping[str, Any]
"""A file, or an attachment as a case writes it: `{"type": "image", "source": "https://…"}`."""


class AgentReply(Reply, frozen=True):
    """A reply, and whether the agent now waits for the user.

    reply = await chat.say("What time is it?")
    reply.content, reply.data, reply.tool_calls     # what it said and did
    reply.awaiting, reply.awaiting_reason           # does it wait, and how we know
    """

    awaiting: bool = False
    awaiting_reason: AwaitingReason | None = None
    latency_ms: float = 0.0

    @property
    def text(self) -> str:
        """What text checks look at: the content or, where it is empty, the data as compact JSON."""
        return reply_text(self)


def build_agent_reply(reply: Reply, awaiting: AwaitingState | None = None, latency_ms: float = 0.0) -> AgentReply:
    known = awaiting or detect(reply)
    fields = {name: getattr(reply, name) for name in Reply.__struct_fields__}
    return AgentReply(**fields, awaiting=known.is_awaiting, awaiting_reason=known.reason, latency_ms=latency_ms)


def build_user_message(
    words: MessageInput,
    *,
    attachments: Sequence[AttachmentInput] = (),
    options: Mapping[str, Any] | None = None,
    timeout: str | float | None = None,
) -> UserMessage:
    """What is said, as a line of a conversation; what was said before stands in its history."""
    messages = parse_messages(words)
    if not messages or messages[-1].role != "user":
        raise BadInput.of("the last message has to be the user's: it is the one that is sent")
    *before, message = messages
    if attachments:
        parts = _parts([_attachment(each) for each in attachments])
        message = Message("user", (*Attachments("").to_parts(message.content), *parts), data=message.data)
    return UserMessage(message, options=options or {}, timeout_s=parse_timeout(timeout), history=tuple(before))


def parse_messages(words: MessageInput) -> list[Message]:
    """Messages, however they were written. BadInput says what cannot be one."""
    if isinstance(words, str):
        return [Message("user", words)]
    if isinstance(words, Message | Mapping):
        return [_message(words, 0)]
    return [_message(each, at) for at, each in enumerate(words)]


def parse_timeout(timeout: str | float | None) -> float | None:
    """A duration as files write it (`30s`), or a number of seconds."""
    if timeout is None:
        return None
    try:
        parsed = parse_duration(timeout)
    except ValueError as wrong:
        raise BadInput.of(str(wrong)) from wrong
    if not parsed:
        raise BadInput.of("a timeout must be more than nothing")
    return parsed


def _message(written: Message | Mapping[str, Any], at: int) -> Message:
    if isinstance(written, Message):
        return written
    try:
        fields: dict[str, Any] = {"role": "user", **written}
        calls = parse_tool_calls(fields.pop("tool_calls", None))
        content = fields.pop("content", None) or ""
        content = content if isinstance(content, str) else _parts(cast("Sequence[Mapping[str, Any]]", content))
        return codec.convert({**fields, "content": content, "tool_calls": calls}, Message)
    except (codec.ValidationError, AgentFailed, TypeError) as wrong:
        raise BadInput.of(f"messages[{at}] is no message: {wrong}") from wrong


def _attachment(attached: AttachmentInput) -> Mapping[str, Any]:
    if isinstance(attached, Mapping):
        return attached
    path = Path(attached).resolve()
    kind = (mimetypes.guess_type(path.name)[0] or "").partition("/")[0]
    return {"type": kind if kind in ("image", "audio") else "file", "source": f"file://{path}"}


def _parts(written: Sequence[Mapping[str, Any]]) -> tuple[Part, ...]:
    """Parts with their files read. The one who names them here is the author of the code: any file will do."""
    checked = [codec.to_builtins(part) for part in codec.convert(list(written), list[Part])]
    here = Path.cwd()
    return Attachments(str(here), (here.anchor,)).build_parts(checked, (), _refuse, read_files=True)


def _refuse(_at: KeyPath, what: str, _key: str | None) -> None:
    raise BadInput.of(what)
