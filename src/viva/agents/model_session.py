"""A conversation with a model, whoever serves it: each message is encoded once, tools are run, every call is metered.

What differs between providers is told by an `Endpoint`: `chat`, `anthropic` and `gemini_api` have one each.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from msgspec import Struct, structs

from viva.agents.agent_config import AgentStatus, inspect_url
from viva.agents.models import choose_connector, find_model_class
from viva.agents.tools import Tool, Toolbox, lacks_result, split_steps
from viva.errors import AgentFailed, TrialFault, Unreachable
from viva.llm.calls import Retry, describe_status, extract_error_message, find_header_secrets, read_stream, send_request
from viva.llm.limits import get_limits
from viva.llm.price import compute_cost
from viva.model import codec
from viva.model.case import Feature
from viva.model.connector import KEY_HEADERS, Connector
from viva.model.message import Message, ModelCall, Reply, ToolCall
from viva.protocols import Request, Response, SessionContext, WorkspaceFactory
from viva.state.trial_state import to_text

T = TypeVar("T")
_FEATURES: frozenset[Feature] = frozenset({"tool_stubs", "memory"})
_ITS_FAULT = frozenset({400, 413, 422})
_BYTES_A_TOKEN = 4
_SHORT = 300


class Completion(Struct, gc=False):
    """One answer of a model. `message` goes back to it with the next call, just as it came; empty if there is nothing to go back.

    Cached and written tokens (read from the provider's cache, put into it) are among the input tokens.
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
    """A provider's API, through one connector: all that is the same for each call is worked out once."""

    fixed_headers: ClassVar[Mapping[str, str]] = {}
    merged_field: ClassVar[str] = ""
    """A field of the request whose own fields are added to by the config, not replaced."""

    def __init__(self, agent: "ModelAgent", connector: Connector) -> None:
        self.connector = connector
        self.url = self.build_url(agent)
        self.headers = self._headers(agent)
        self.body_prefix = codec.encode(self._body(agent))[:-1]
        self.retry = Retry(connector.name, connector.retries, secrets=find_header_secrets(self.headers))

    @abstractmethod
    def build_url(self, agent: "ModelAgent") -> str:
        """Where requests go."""

    @abstractmethod
    def key_header(self, key: str) -> tuple[str, str]:
        """How the key is sent."""

    @abstractmethod
    def build_fields(self, agent: "ModelAgent") -> dict[str, Any]:
        """The request, less what is said in it."""

    @abstractmethod
    def encode_system(self, system: str) -> tuple[bytes, list[bytes]]:
        """The bytes between these fields and the list of messages, and the messages that come before all others."""

    @abstractmethod
    def encode_message(self, message: Message) -> bytes:
        """One message. Tools that it asks for have no results yet."""

    @abstractmethod
    def encode_results(self, calls: Sequence[ToolCall]) -> list[bytes]:
        """What came of all the tools that one message asked for."""

    @abstractmethod
    def parse_completion(self, body: bytes) -> Completion:
        """The model's answer; anything else is the provider's fault: Unreachable."""

    @abstractmethod
    async def parse_stream(self, chunks: AsyncIterator[bytes]) -> Completion:
        """The same from server-sent events."""

    def accepts_system_messages(self) -> bool:
        """May a message of the history be the system's? Where not, it joins the system prompt."""
        return False

    def is_key_rejected(self, answer: Response) -> bool:
        """Is it the key, or the account behind it, that is refused?"""
        return answer.status in (401, 403)

    def build_request(self, lead: bytes, messages: list[bytes]) -> Request:
        body = b"%b%b%b]}" % (self.body_prefix, lead, b",".join(messages))
        return Request(self.url, body, self.headers, "POST", self.connector.timeout_s)

    def build_fault(self, answer: Response) -> TrialFault:
        """Why a status that is no success ends the trial: a request that the model cannot take is the agent's own fault."""
        connector, locked_out = self.connector, self.is_key_rejected(answer)
        what = f"{connector.name}: {describe_status(answer.status)}"
        if detail := extract_error_message(answer.body, self.retry.secrets):
            what += f": {detail}"
        if locked_out and not connector.api_key and connector.key_source:
            what += f" ({connector.key_source} is not set)"
        return AgentFailed(what) if answer.status in _ITS_FAULT and not locked_out else Unreachable(what)

    def _headers(self, agent: "ModelAgent") -> dict[str, str]:
        own = {name.lower() for name in self.connector.headers}
        ours = {"Content-Type": "application/json", **self.fixed_headers}
        if agent.stream:
            ours["Accept"] = "text/event-stream"
        if self.connector.api_key and not own & KEY_HEADERS:
            name, value = self.key_header(self.connector.api_key.reveal())
            ours[name] = value
        return {name: value for name, value in ours.items() if name.lower() not in own} | dict(self.connector.headers)

    def _body(self, agent: "ModelAgent") -> dict[str, Any]:
        fields = self.build_fields(agent)
        for more in (self.connector.extra, agent.body):
            ours, theirs = fields.get(self.merged_field), more.get(self.merged_field)
            fields |= dict(more)
            if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
                fields[self.merged_field] = {**ours, **theirs}
        return fields


class ModelAgent(Struct, frozen=True, kw_only=True, dict=True):
    """A model and how it is asked. `output` is the JSON Schema of its answers; `body` holds more fields of each request."""

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
        """A session; with `system`, on another system prompt than the agent's own."""
        return nullcontext(ModelSession(self, context, self.system if system is None else system))

    def get_endpoint(self, connector: Connector) -> Endpoint:
        known = self._endpoints.get(connector.name)
        if known is None or known.connector is not connector:
            same = connector.provider == self.connector.provider
            endpoint_type = self.endpoint_type if same else find_model_class(connector).endpoint_type
            known = self._endpoints[connector.name] = endpoint_type(self, connector)
        return known

    @cached_property
    def _endpoints(self) -> dict[str, Endpoint]:
        return {}


class ModelSession:
    """One conversation. Messages are kept as they are sent; the request is joined from them."""

    def __init__(self, agent: ModelAgent, context: SessionContext, system: str) -> None:
        self._agent = agent
        self._context = context
        self._system = system
        self._toolbox = Toolbox(agent.tools, context.fixtures, context.progress)
        self._endpoint: Endpoint | None = None
        self._lead = b""
        self._messages: list[bytes] = []
        self._due: list[ToolCall] = []  # calls of tools of which the model has still to be told what came of them

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        context = self._context
        endpoint = self._reached(choose_connector(options, self._agent.connector, context.connectors))
        self._hear(endpoint, message)
        used: list[ToolCall] = []
        calls: list[ModelCall] = []
        content = ""
        for _ in range(self._agent.max_tool_rounds + 1):
            self._tell_results(endpoint)
            said = await self._ask(endpoint)
            calls.append(self._metered(endpoint.connector, said))
            if said.message:
                self._messages.append(said.message)
            content = said.content or content
            if not said.tool_calls:
                return Reply(content, tool_calls=tuple(used), finish_reason=said.finish_reason, calls=tuple(calls))
            if len(calls) > self._agent.max_tool_rounds:
                break
            # One after another, in the order asked for: what tools do may build on each other.
            for call in said.tool_calls:
                context.progress.partial = Reply(content, tool_calls=(*used, call), calls=tuple(calls))
                used.append(await self._toolbox.run_call(call))
                self._due.append(used[-1])
            context.progress.partial = Reply(content, tool_calls=tuple(used), calls=tuple(calls))
            if any(map(lacks_result, self._due)):
                return Reply(content, tool_calls=tuple(used), finish_reason="tool_calls", calls=tuple(calls))
        raise AgentFailed(f"tool loop exceeded {self._agent.max_tool_rounds} rounds")

    def _reached(self, connector: Connector) -> Endpoint:
        """Where this message goes. The first one decides on the API, and what was said before is put into its form."""
        endpoint = self._agent.get_endpoint(connector)
        if self._endpoint is None:
            self._endpoint = endpoint
            history = self._context.history
            system = [_with_memory(self._system, self._context)]
            if not endpoint.accepts_system_messages():
                system += [message.text for message in history if message.role == "system"]
                history = [message for message in history if message.role != "system"]
            self._lead, self._messages = endpoint.encode_system("\n\n".join(filter(None, system)))
            for message in history:
                self._hear(endpoint, message)
        elif type(endpoint) is not type(self._endpoint):
            began = self._endpoint.connector
            raise Unreachable(
                f"connector {connector.name!r} ({connector.provider}) cannot take over a conversation that began "
                f"on {began.name!r} ({began.provider}); choose it for the whole case"
            )
        return endpoint

    def _hear(self, endpoint: Endpoint, message: Message) -> None:
        if message.role == "tool" and self._is_due(message):
            return
        self._tell_results(endpoint)
        asking, used, saying = split_steps(message)
        self._messages.append(endpoint.encode_message(asking))
        if used:
            self._messages += endpoint.encode_results(used)
        else:
            self._due = list(asking.tool_calls)
        if saying is not None:
            self._messages.append(endpoint.encode_message(saying))

    def _is_due(self, message: Message) -> bool:
        """Keeps the result of a tool that is told as a message of its own."""
        for at, call in enumerate(self._due):
            if lacks_result(call) and (message.tool_call_id or message.name) in (call.id, call.name):
                self._due[at] = structs.replace(call, result=message.text)
                return True
        return False

    def _tell_results(self, endpoint: Endpoint) -> None:
        """Before anyone else speaks, each call of a tool needs a result, if only that there is none."""
        if self._due:
            self._messages += endpoint.encode_results(self._due)
            self._due = []

    async def _ask(self, endpoint: Endpoint) -> Completion:
        http, connector, progress = self._context.http, endpoint.connector, self._context.progress
        request = endpoint.build_request(self._lead, self._messages)
        limiter = get_limits(http, connector)
        guess = len(request.body) / _BYTES_A_TOKEN
        if self._agent.stream:
            answer = await read_stream(
                http, request, endpoint.parse_stream, endpoint.retry, progress, limiter=limiter, tokens=guess
            )
        else:
            answer = await send_request(http, request, endpoint.retry, progress, limiter=limiter, tokens=guess)
        if isinstance(answer, Response):
            if not 200 <= answer.status < 300:
                raise endpoint.build_fault(answer)
            try:
                answer = endpoint.parse_completion(answer.body)
            except Unreachable as wrong:
                raise Unreachable(f"{connector.name}: {wrong.message}") from wrong
        if limiter is not None:
            limiter.adjust(answer.input_tokens + answer.output_tokens - guess)
        return answer

    def _metered(self, connector: Connector, said: Completion) -> ModelCall:
        tokens = max(0, said.input_tokens), max(0, said.output_tokens), max(0, said.cached_tokens)
        cost = compute_cost(connector, said.model, *tokens, max(0, said.cache_write_tokens))
        call = ModelCall(connector.model or said.model, connector.provider, *tokens, cost)
        self._context.meter(call)
        return call


def _with_memory(text: str, context: SessionContext) -> str:
    """The system prompt with what the agent is to remember."""
    if context.fixtures is None or not context.fixtures.memory:
        return text
    memory = "\n".join(f"- {to_text(entry)}" for entry in context.fixtures.memory)
    return f"{text}\n\nWhat you remember:\n{memory}".strip()


def decode_answer(decoder: codec.Decoder[T], body: bytes, kind: str) -> T:
    """A part of an answer. One that cannot be read, or tells of an error, is the provider's fault."""
    try:
        answer = decoder.decode(body)
    except codec.ValidationError as wrong:
        raise Unreachable(f"the answer is no {kind}: {wrong}") from wrong
    except codec.DecodeError as wrong:
        raise Unreachable(f"the answer is no JSON: {wrong}") from wrong
    error: Any = getattr(answer, "error", None)
    if error:
        said = error.get("message", error) if isinstance(error, dict) else error
        raise Unreachable(f"it answered with an error: {to_text(said)[:_SHORT]}")
    return answer
