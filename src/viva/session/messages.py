"""Messages that Python code sends to an agent (a text, messages, attachments), and the replies it gets."""

import mimetypes
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from viva.agents.replies import parse_tool_calls
from viva.awaiting.detector import detect_awaiting
from viva.errors import AgentFailed, BadInput
from viva.formats.case_files import Attachments
from viva.model import codec
from viva.model.case import UserMessage
from viva.model.message import Message, Part, Reply
from viva.model.tracebacks import format_error
from viva.model.turn import AwaitingReason, AwaitingState
from viva.schemas.positions import KeyPath
from viva.state.trial_state import get_reply_text
from viva.text.duration import parse_duration

MessageInput = str | Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]]
"""A text, a message, or a list of messages: the last is sent, the others are the history."""

AttachmentInput = str | Path | Mapping[str, Any]
"""A file, or an attachment as in a suite: `{"type": "image", "source": "https://…"}`."""


class AgentReply(Reply, frozen=True):
    """A reply, and whether the agent waits for the user.

    reply = await chat.say("What time is it?")
    reply.content, reply.data, reply.tool_calls     # content and tool calls
    reply.awaiting, reply.awaiting_reason           # does it wait, and how Viva knows
    """

    awaiting: bool = False
    awaiting_reason: AwaitingReason | None = None
    latency_ms: float = 0.0

    @property
    def text(self) -> str:
        """The text that checks see: the content or, if that is empty, the data as compact JSON."""
        return get_reply_text(self)


def build_agent_reply(reply: Reply, awaiting: AwaitingState | None = None, latency_ms: float = 0.0) -> AgentReply:
    state = awaiting or detect_awaiting(reply)
    fields = {name: getattr(reply, name) for name in Reply.__struct_fields__}
    return AgentReply(**fields, awaiting=state.is_awaiting, awaiting_reason=state.reason, latency_ms=latency_ms)


def build_user_message(
    message_input: MessageInput,
    *,
    attachments: Sequence[AttachmentInput] = (),
    options: Mapping[str, Any] | None,
    timeout: str | float | None,
) -> UserMessage:
    """The UserMessage to send: the last message of the input with the attachments; earlier messages become its history."""
    messages = parse_messages(message_input)
    if not messages or messages[-1].role != "user":
        raise BadInput.of("the last message must be a user message: it is the one that is sent")
    *history, message = messages
    if attachments:
        parts = _parse_parts([_parse_attachment(each) for each in attachments])
        message = Message("user", (*Attachments("").convert_to_parts(message.content), *parts), data=message.data)
    _check_is_json((message, history, options))
    return UserMessage(message, options=options or {}, timeout_s=parse_timeout(timeout), history=tuple(history))


def _check_is_json(value: Any) -> None:
    """Raises BadInput for what no journal can hold: half of a surrogate pair, for example from a reply that the code has decoded."""
    try:
        codec.encode(value)
    except (ValueError, RecursionError) as error:
        raise BadInput.of(f"the message is not valid JSON: {format_error(error)}") from error


def parse_messages(message_input: MessageInput) -> list[Message]:
    """The messages of a text, a message or a list of messages. Raises BadInput for anything else."""
    if isinstance(message_input, str):
        return [Message("user", message_input)]
    if isinstance(message_input, Message | Mapping):
        return [_parse_message(message_input, 0)]
    if not isinstance(message_input, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] -- the caller may not check types
        raise BadInput.of(f"{message_input!r} is not a message: give a text, a message or a list of messages")
    return [_parse_message(each, index) for index, each in enumerate(message_input)]


def parse_timeout(timeout: str | float | None) -> float | None:
    """A timeout in seconds, from a duration as in suite files (`30s`) or a number of seconds."""
    if timeout is None:
        return None
    try:
        seconds = parse_duration(timeout)
    except ValueError as error:
        raise BadInput.of(str(error)) from error
    if not seconds:
        raise BadInput.of("a timeout must be greater than 0")
    return seconds


def _parse_message(message: Message | Mapping[str, Any], index: int) -> Message:
    if isinstance(message, Message):
        return message
    try:
        fields: dict[str, Any] = {"role": "user", **message}
        calls = parse_tool_calls(fields.pop("tool_calls", None))
        content = fields.pop("content", None) or ""
        content = content if isinstance(content, str) else _parse_parts(cast("Sequence[Mapping[str, Any]]", content))
        return codec.convert({**fields, "content": content, "tool_calls": calls}, Message)
    except (codec.ValidationError, AgentFailed, TypeError) as error:
        raise BadInput.of(f"messages[{index}] is not a message: {error}") from error


def _parse_attachment(attachment: AttachmentInput) -> Mapping[str, Any]:
    if isinstance(attachment, Mapping):
        return attachment
    path = Path(attachment).resolve()
    kind = (mimetypes.guess_type(path.name)[0] or "").partition("/")[0]
    return {"type": kind if kind in ("image", "audio") else "file", "source": f"file://{path}"}


def _parse_parts(parts: Sequence[Mapping[str, Any]]) -> tuple[Part, ...]:
    """The parts of a message, with their files read. Any file is allowed, because Python code names it and not a suite."""
    checked = [codec.to_builtins(part) for part in codec.convert(list(parts), list[Part])]
    folder = Path.cwd()
    return Attachments(str(folder), (folder.anchor,)).build_parts(checked, (), _raise_problem, read_files=True)


def _raise_problem(_path: KeyPath, message: str, _key: str | None) -> None:
    raise BadInput.of(message)
