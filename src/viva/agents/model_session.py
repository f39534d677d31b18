"""A conversation with a model of any provider: each message is encoded once, tools are run, every call is metered.

An `Endpoint` holds what differs between providers: `chat`, `anthropic` and `gemini_api` have one each.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar

from msgspec import Struct, structs

from viva.agents.agent_config import AgentStatus, inspect_url
from viva.agents.models import choose_connector, find_agent_class
from viva.agents.step_log import StepLog
from viva.agents.tools import Tool, Toolbox, add_missing_ids, lacks_result, split_at_tool_results
from viva.errors import AgentFailed, TrialFault, Unreachable
from viva.llm.calls import (
    RetryPolicy,
    describe_status,
    extract_error_message,
    find_header_secrets,
    read_stream,
    send_request,
)
from viva.llm.limits import ConnectorLimits, get_limits
from viva.llm.price import compute_cost
from viva.llm.transport import load_stream_client
from viva.model import codec
from viva.model.case import Feature
from viva.model.connector import API_KEY_HEADERS, Connector
from viva.model.ellipsis import cut_end
from viva.model.message import Message, ModelCall, Reply, ToolCall
from viva.protocols import Request, Response, SessionContext, WorkspaceFactory
from viva.state.trial_state import to_text

T = TypeVar("T")
OnText = Callable[[str], None]
"""Gets each piece of a streamed text as it arrives."""
_FEATURES: frozenset[Feature] = frozenset({"tool_stubs", "memory"})
_AGENT_FAULTS = frozenset({400, 413, 422})
_BYTES_PER_TOKEN = 4
_MAX_ERROR_CHARS = 300
_MAX_REST_S = 0.5


class Completion(Struct, gc=False):
    """One answer of a model. `message` is sent back with the next call, byte for byte; empty if there is nothing to send.

    Tokens read from and written to the provider's cache are part of the input tokens.
    """

    message: bytes
    content: str
    tool_calls: list[ToolCall]
    finish_reason: str | None
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class Endpoint(ABC):
    """A provider's API, through one connector. Everything that is the same for each call is computed once."""

    fixed_headers: ClassVar[Mapping[str, str]] = {}
    merged_field: ClassVar[str] = ""
    """A field of the request that the config extends instead of replacing it."""

    def __init__(self, agent: "ModelAgent", connector: Connector) -> None:
        self.connector = connector
        self.url = self.build_url(agent)
        self.headers = self._build_headers(agent)
        self.body_prefix = codec.encode(self._build_body(agent))[:-1]
        self.retry = RetryPolicy(connector.name, connector.retries, secrets=find_header_secrets(self.headers))

    @abstractmethod
    def build_url(self, agent: "ModelAgent") -> str: ...

    @abstractmethod
    def build_key_header(self, key: str) -> tuple[str, str]:
        """Name and value of the header with the key."""

    @abstractmethod
    def build_fields(self, agent: "ModelAgent") -> dict[str, Any]:
        """The request without its messages."""

    @abstractmethod
    def encode_system(self, system: str) -> tuple[bytes, list[bytes]]:
        """How the system prompt is sent: bytes that come before the list of messages in the request, or the first messages."""

    @abstractmethod
    def encode_message(self, message: Message) -> bytes:
        """One message. Its tool calls have no results yet."""

    @abstractmethod
    def encode_results(self, calls: Sequence[ToolCall]) -> list[bytes]:
        """The results of all tool calls of one message."""

    @abstractmethod
    def parse_completion(self, body: bytes) -> Completion:
        """The model's answer. Raises Unreachable for anything else: it is the provider's fault."""

    @abstractmethod
    async def parse_stream(self, chunks: AsyncIterator[bytes], on_text: OnText) -> Completion:
        """The model's answer, from server-sent events."""

    def accepts_system_messages(self) -> bool:
        """Can the history contain system messages? If not, they are added to the system prompt."""
        return False

    def is_key_rejected(self, answer: Response) -> bool:
        """Does the provider refuse the key or its account?"""
        return answer.status in (401, 403)

    def build_request(self, system: bytes, messages: list[bytes]) -> Request:
        body = b"%b%b%b]}" % (self.body_prefix, system, b",".join(messages))
        return Request(self.url, body, self.headers, "POST", self.connector.timeout_s)

    def build_fault(self, answer: Response) -> TrialFault:
        """The fault behind a status that is not a success. A request that the model cannot take is the agent's fault."""
        connector, is_rejected = self.connector, self.is_key_rejected(answer)
        message = f"{connector.name}: {describe_status(answer.status)}"
        if detail := extract_error_message(answer.body, self.retry.secrets):
            message += f": {detail}"
        if is_rejected and not connector.api_key and connector.key_source:
            message += f" ({connector.key_source} is not set)"
        is_agent_fault = answer.status in _AGENT_FAULTS and not is_rejected
        return AgentFailed(message) if is_agent_fault else Unreachable(message)

    def _build_headers(self, agent: "ModelAgent") -> dict[str, str]:
        config_names = {name.lower() for name in self.connector.headers}
        headers = {"Content-Type": "application/json", **self.fixed_headers}
        if agent.stream:
            headers["Accept"] = "text/event-stream"
        if self.connector.api_key and not config_names & API_KEY_HEADERS:
            name, value = self.build_key_header(self.connector.api_key.reveal())
            headers[name] = value
        own = {name: value for name, value in headers.items() if name.lower() not in config_names}
        return own | dict(self.connector.headers)

    def _build_body(self, agent: "ModelAgent") -> dict[str, Any]:
        fields = self.build_fields(agent)
        for extra in (self.connector.extra, agent.body):
            before, added = fields.get(self.merged_field), extra.get(self.merged_field)
            fields |= dict(extra)
            if isinstance(before, Mapping) and isinstance(added, Mapping):
                fields[self.merged_field] = {**before, **added}
        return fields


class ModelAgent(Struct, frozen=True, kw_only=True, dict=True):
    """A model with a system prompt and tools. `output` is the JSON Schema of its answers; `body` has more fields of each request."""

    connector: Connector
    system: str = ""
    tools: tuple[Tool, ...] = ()
    max_tool_rounds: int = 10
    stream: bool = False
    body: Mapping[str, Any] = {}
    output: Mapping[str, Any] | None = None

    endpoint_type: ClassVar[type[Endpoint]]

    @property
    def provides(self) -> frozenset[Feature]:
        return _FEATURES

    @property
    def user_code(self) -> list[Any]:
        return [tool.run for tool in self.tools if tool.run is not None]

    async def inspect(self, _workspaces: WorkspaceFactory) -> AgentStatus:
        return await inspect_url(self.connector.base_url)

    def open(self, context: SessionContext, system: str | None = None) -> AbstractAsyncContextManager["ModelSession"]:
        """A session. `system` replaces the agent's own system prompt."""
        if self.stream:
            load_stream_client()
        return nullcontext(ModelSession(self, context, self.system if system is None else system))

    def get_endpoint(self, connector: Connector) -> Endpoint:
        endpoint = self._endpoints.get(connector.name)
        if endpoint is None or endpoint.connector is not connector:
            is_same = (connector.provider, connector.api) == (self.connector.provider, self.connector.api)
            endpoint_type = self.endpoint_type if is_same else find_agent_class(connector).endpoint_type
            endpoint = self._endpoints[connector.name] = endpoint_type(self, connector)
        return endpoint

    @cached_property
    def _endpoints(self) -> dict[str, Endpoint]:
        return {}


class ModelSession:
    """One conversation. Messages are kept encoded; each request joins them."""

    def __init__(self, agent: ModelAgent, context: SessionContext, system: str) -> None:
        self._agent = agent
        self._context = context
        self._system = system
        self._toolbox = Toolbox(agent.tools, context.fixtures, context.progress)
        self._endpoint: Endpoint | None = None
        self._limits: dict[str, ConnectorLimits] = {}
        self._system_bytes = b""
        self._messages: list[bytes] = []
        self._open_calls: list[ToolCall] = []  # tool calls whose results the model does not have yet
        self._call_count = 0  # of the history
        self._texts: list[str] = []  # pieces of the answer that is being streamed
        self._started = 0.0
        self._first_token_ms: float | None = None
        self._was_used = False

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        context = self._context
        endpoint = self._choose_endpoint(choose_connector(options, self._agent.connector, context.connectors))
        if context.role != "agent":
            system = () if self._was_used else (Message("system", self._system),) if self._system else ()
            context.progress.sent_to_model = (*system, message)
        self._was_used = True
        self._add_message(endpoint, message)
        used: list[ToolCall] = []
        steps = StepLog()
        calls: list[ModelCall] = []
        content = ""
        self._started, self._first_token_ms = time.perf_counter(), None
        for _ in range(self._agent.max_tool_rounds + 1):
            self._add_tool_results(endpoint)
            began = steps.elapsed_ms()
            completion = await self._call_model(endpoint)
            calls.append(self._meter(endpoint.connector, completion))
            if used or completion.tool_calls:  # a single call is not a list of steps
                steps.add_model_call(calls[-1], began)
            if completion.message:
                self._messages.append(completion.message)
            content = completion.content or content
            if not completion.tool_calls:
                return Reply(
                    content,
                    tool_calls=tuple(used),
                    finish_reason=completion.finish_reason,
                    calls=tuple(calls),
                    first_token_ms=self._first_token_ms,
                    steps=steps.build() if used else (),
                )
            if len(calls) > self._agent.max_tool_rounds:
                break
            # One after another, in order: a tool may depend on the effects of another.
            for call in completion.tool_calls:
                context.progress.partial = Reply(content, tool_calls=(*used, call), calls=tuple(calls))
                began = steps.elapsed_ms()
                used.append(await self._toolbox.run_call(call))
                steps.add_tool_step(call.name, began)
                self._open_calls.append(used[-1])
            context.progress.partial = Reply(content, tool_calls=tuple(used), calls=tuple(calls))
            if any(map(lacks_result, self._open_calls)):
                return Reply(
                    content,
                    tool_calls=tuple(used),
                    finish_reason="tool_calls",
                    calls=tuple(calls),
                    steps=steps.build(),
                )
        raise AgentFailed(f"tool loop exceeded {self._agent.max_tool_rounds} rounds")

    def _choose_endpoint(self, connector: Connector) -> Endpoint:
        """The endpoint for this message. It must have the API of the first one, in whose form the history is encoded."""
        endpoint = self._agent.get_endpoint(connector)
        if self._endpoint is None:
            self._endpoint = endpoint
            history = self._context.history
            system = [_add_memory(self._system, self._context)]
            if not endpoint.accepts_system_messages():
                system += [message.text for message in history if message.role == "system"]
                history = [message for message in history if message.role != "system"]
            self._system_bytes, self._messages = endpoint.encode_system("\n\n".join(filter(None, system)))
            for message in history:
                self._add_message(endpoint, message)
        elif type(endpoint) is not type(self._endpoint):
            first = self._endpoint.connector
            raise Unreachable(
                f"connector {connector.name!r} ({connector.provider}) cannot take over a conversation that began "
                f"on {first.name!r} ({first.provider}); choose it for the whole case",
                deterministic=True,
            )
        return endpoint

    def _add_message(self, endpoint: Endpoint, message: Message) -> None:
        if message.role == "tool" and self._store_tool_result(message):
            return
        self._add_tool_results(endpoint)
        calls = add_missing_ids(message.tool_calls, self._call_count + 1)  # ids of a conversation must be unique
        self._call_count += len(calls)
        request, answered, text = split_at_tool_results(structs.replace(message, tool_calls=calls))
        self._messages.append(endpoint.encode_message(request))
        if answered:
            self._messages += endpoint.encode_results(answered)
        else:
            self._open_calls = list(request.tool_calls)
        if text is not None:
            self._messages.append(endpoint.encode_message(text))

    def _store_tool_result(self, message: Message) -> bool:
        """Stores the result of a tool call that comes as a separate message."""
        for at, call in enumerate(self._open_calls):
            if lacks_result(call) and (message.tool_call_id or message.name) in (call.id, call.name):
                self._open_calls[at] = structs.replace(call, result=message.text)
                return True
        return False

    def _add_tool_results(self, endpoint: Endpoint) -> None:
        """Adds a result for each open tool call: the API accepts no other message before them."""
        if self._open_calls:
            self._messages += endpoint.encode_results(self._open_calls)
            self._open_calls = []

    async def _call_model(self, endpoint: Endpoint) -> Completion:
        http, connector, progress = self._context.http, endpoint.connector, self._context.progress
        request = endpoint.build_request(self._system_bytes, self._messages)
        limiter = self._limits.get(connector.name) or self._limits.setdefault(
            connector.name, get_limits(http, connector)
        )
        estimate = len(request.body) / _BYTES_PER_TOKEN
        if self._agent.stream:
            parse = partial(self._parse_stream, endpoint)
            self._texts = []  # those of the last answer are no part of this one, even if this one never begins
            try:
                answer = await read_stream(
                    partial(http.stream, request), parse, endpoint.retry, progress, limiter=limiter, tokens=estimate
                )
            except BaseException:
                if self._texts:
                    until_now = structs.replace(progress.partial or Reply(), content="".join(self._texts))
                    progress.partial = structs.replace(until_now, first_token_ms=self._first_token_ms)
                raise
        else:
            answer = await send_request(http, request, endpoint.retry, progress, limiter=limiter, tokens=estimate)
        if isinstance(answer, Response):
            if not 200 <= answer.status < 300:
                raise endpoint.build_fault(answer)
            try:
                answer = endpoint.parse_completion(answer.body)
            except Unreachable as error:
                raise Unreachable(f"{connector.name}: {error.message}") from error
        limiter.correct_token_estimate(answer.input_tokens + answer.output_tokens - estimate)
        return answer

    async def _parse_stream(self, endpoint: Endpoint, chunks: AsyncIterator[bytes]) -> Completion:
        self._texts = []  # a second try starts from the beginning
        return await endpoint.parse_stream(chunks, self._on_text)

    def _on_text(self, text: str) -> None:
        self._texts.append(text)
        if self._first_token_ms is None and text:
            self._first_token_ms = self._context.progress.compute_elapsed_ms(self._started)

    def _meter(self, connector: Connector, completion: Completion) -> ModelCall:
        tokens = max(0, completion.input_tokens), max(0, completion.output_tokens), max(0, completion.cached_tokens)
        cost = compute_cost(connector, completion.model, *tokens, max(0, completion.cache_write_tokens))
        call = ModelCall(connector.model or completion.model, connector.provider, *tokens, cost)
        self._context.meter(call)
        return call


def _add_memory(text: str, context: SessionContext) -> str:
    """The system prompt with the memory of the fixtures."""
    if context.fixtures is None or not context.fixtures.memory:
        return text
    memory = "\n".join(f"- {to_text(entry)}" for entry in context.fixtures.memory)
    return f"{text}\n\nWhat you remember:\n{memory}".strip()


async def skip_rest(chunks: AsyncIterator[bytes]) -> None:
    """Reads what follows the last event of a stream, so that its connection can be used again. The answer is complete: how
    the connection ends does not matter, and one that stays open is not waited for.
    """
    with suppress(Unreachable, TimeoutError):
        async with asyncio.timeout(_MAX_REST_S):
            async for _ in chunks:
                pass


def decode_answer(decoder: codec.Decoder[T], body: bytes, kind: str) -> T:
    """Decodes a part of an answer. An invalid one, or one with an error, is the provider's fault."""
    try:
        answer = decoder.decode(body)
    except codec.ValidationError as wrong:
        raise Unreachable(f"the answer is not {kind}: {wrong}") from wrong
    except codec.DecodeError as wrong:
        raise Unreachable(f"the answer is not JSON: {wrong}") from wrong
    error: Any = getattr(answer, "error", None)
    if error:
        message = error.get("message", error) if isinstance(error, dict) else error
        raise Unreachable(f"it answered with an error: {cut_end(to_text(message), _MAX_ERROR_CHARS)}")
    return answer
