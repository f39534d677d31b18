"""Agents that speak AG-UI, the Agent User Interaction Protocol: `agui:https://host/agent`.

    -n agui:http://localhost:8000/        or in viva.toml: type = "agui", url = "http://localhost:8000/"

Each turn is a run: a POST with all messages and the shared state, answered by a stream of events. An interrupt is the
protocol state `input-required`; the next message resumes it. The run's result, else the state that it changed, is the
reply's data. Written for the protocol of ag-ui-protocol 0.1 to 1.0.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from viva.agents.agent_config import AgentSetup, AgentStatus, inspect_url
from viva.agents.agui_events import RunReader
from viva.agents.attachments import get_inline_data, guess_media_type
from viva.agents.openai_messages import encode_arguments
from viva.agents.remote_config import RemoteConfig, RemoteEndpoint
from viva.agents.tools import format_result, lacks_result
from viva.errors import AgentFailed
from viva.llm.calls import extract_error_message, read_stream
from viva.llm.sse import SseParser
from viva.llm.transport import load_stream_client
from viva.model import codec
from viva.model.case import Feature
from viva.model.message import Attachment, Audio, Image, Message, Reply, Text
from viva.protocols import Request, Response, SessionContext, WorkspaceFactory
from viva.state.trial_state import get_reply_text

PREFIX = "agui:"
_SHOWN = 80
_HEAD_BYTES = 4000


class AguiConfig(RemoteConfig, frozen=True, kw_only=True):
    """An agent that speaks AG-UI, the Agent User Interaction Protocol."""

    state: Mapping[str, Any] | UnsetType = UNSET
    """The shared state at the start of a conversation."""
    forwarded_props: Mapping[str, Any] = {}
    """Properties that every run gets."""

    @classmethod
    def parse_reference(cls, reference: str) -> dict[str, Any]:
        return {"url": reference.removeprefix(PREFIX)}

    def build(self, setup: AgentSetup) -> "AguiAgent":
        state = None if self.state is UNSET else self.state
        return AguiAgent(endpoint=self.build_endpoint(setup), state=state, forwarded_props=self.forwarded_props)


class AguiAgent(Struct, frozen=True, kw_only=True):
    """An AG-UI endpoint."""

    endpoint: RemoteEndpoint
    state: Any = None
    forwarded_props: Mapping[str, Any] = {}

    @property
    def provides(self) -> frozenset[Feature]:
        return frozenset()

    async def inspect(self, _workspaces: WorkspaceFactory) -> AgentStatus:
        return await inspect_url(self.endpoint.url)

    def open(self, context: SessionContext) -> AbstractAsyncContextManager["AguiSession"]:
        load_stream_client()
        return nullcontext(AguiSession(self, context))


class AguiSession:
    """One conversation, which is a thread of the protocol. Each message is a run."""

    def __init__(self, agent: AguiAgent, context: SessionContext) -> None:
        self._agent, self._context = agent, context
        self._retry = agent.endpoint.build_retry("AG-UI agent")
        self._messages: list[Any] = []
        self._state = codec.to_plain(agent.state)
        self._interrupts: list[str] = []
        self._runs = 0
        for message in context.history:
            self._add_message(message)

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        thread = str(options.get("session_id") or self._context.key.session_id)
        self._runs += 1
        self._add_message(message)
        body: dict[str, Any] = {
            "threadId": thread,
            "runId": f"{thread}-{self._runs}",
            "state": {} if self._state is None else self._state,
            "messages": self._messages,
            "tools": [],
            "context": [],
            "forwardedProps": self._agent.forwarded_props,
        }
        if self._interrupts:
            payload = message.text if message.data is None else message.data
            body["resume"] = [
                {"interruptId": each, "status": "resolved", "payload": payload} for each in self._interrupts
            ]
        reader = RunReader(self._context.progress, self._state)
        try:
            reply = await self._post_run(body, reader)
        except BaseException:
            with suppress(AgentFailed):
                if (until_now := reader.build_reply()) != Reply():
                    self._context.progress.partial = until_now
            raise
        finally:
            for call in reader.usage:
                self._context.meter(call)
        self._state, self._interrupts = reader.copy_state(), reader.interrupts
        if reader.messages is not None:
            self._messages = reader.messages
        else:
            self._add_message(Message("assistant", get_reply_text(reply), tool_calls=reply.tool_calls))
        return reply

    async def _post_run(self, body: Mapping[str, Any], reader: RunReader) -> Reply:
        endpoint = self._agent.endpoint
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream", **endpoint.headers}
        request = Request(endpoint.url, codec.encode(body), headers, "POST", endpoint.timeout_s, never_resend=True)

        head = b""

        async def parse(chunks: AsyncIterator[bytes]) -> None:
            nonlocal head
            events = SseParser()
            async for chunk in chunks:
                head += chunk[: _HEAD_BYTES - len(head)]
                for data in events.feed_data(chunk):
                    reader.add(data)
                if reader.is_finished:
                    return
            for data in events.feed_eof():
                reader.add(data)

        progress = self._context.progress
        answer = await read_stream(partial(self._context.http.stream, request), parse, self._retry, progress)
        if isinstance(answer, Response):
            raise endpoint.build_fault(answer)
        if not reader.has_events:
            shown = extract_error_message(head, self._retry.secrets, _SHOWN)
            raise AgentFailed(f"its answer has no events of AG-UI: {shown}" if shown else "its answer is empty")
        if not reader.is_finished:
            raise AgentFailed("the stream ended without RUN_FINISHED")
        return reader.build_reply()

    def _add_message(self, message: Message) -> None:
        """Adds a message in the protocol's form; results of tool calls are messages of their own."""
        number = len(self._messages) + 1
        encoded: dict[str, Any] = {"id": f"viva-{number}", "role": message.role, "content": _encode_content(message)}
        if message.role == "tool":
            encoded["toolCallId"] = message.tool_call_id or message.name or ""
        if message.tool_calls:
            encoded["toolCalls"] = [
                {
                    "id": call.id or f"call-{number}-{at}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": encode_arguments(call)},
                }
                for at, call in enumerate(message.tool_calls)
            ]
        self._messages.append(encoded)
        for at, call in enumerate(message.tool_calls):
            if not lacks_result(call):
                result = {
                    "role": "tool",
                    "toolCallId": call.id or f"call-{number}-{at}",
                    "content": format_result(call),
                }
                self._messages.append({"id": f"viva-{len(self._messages) + 1}", **result})


def _encode_content(message: Message) -> Any:
    if isinstance(message.content, str):
        return message.content
    return [
        {"type": "text", "text": part.text} if isinstance(part, Text) else _encode_attachment(part)
        for part in message.content
    ]


def _encode_attachment(part: Attachment) -> dict[str, Any]:
    kind = "image" if isinstance(part, Image) else "audio" if isinstance(part, Audio) else "document"
    if (data := get_inline_data(part)) is None:
        return {"type": kind, "source": {"type": "url", "value": part.url}}
    return {"type": kind, "source": {"type": "data", "value": data, "mimeType": guess_media_type(part)}}
