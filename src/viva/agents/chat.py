"""An agent that is a model behind any OpenAI-compatible `/chat/completions`, with a system prompt and local tools."""

from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from viva.agents.completions import Completion, completion_in, streamed_completion
from viva.agents.openai_messages import NOT_RUN, encoded, is_open, tool_message, tool_text, with_ids
from viva.agents.tools import Tool, Toolbox
from viva.errors import AgentFailed, Unreachable
from viva.llm.calls import Retry, post, read, secrets_in, short_text, status_line
from viva.llm.limits import limiter_for
from viva.llm.price import cost_usd
from viva.model import codec
from viva.model.case import Feature
from viva.model.connector import Connector
from viva.model.message import Message, ModelCall, Reply, ToolCall
from viva.model.talk import shown
from viva.protocols import Request, Response, SessionContext

__all__ = ["ChatAgent", "Tool"]

_OPENAI = "https://api.openai.com/v1"
_PATH = "/chat/completions"
_FEATURES: frozenset[Feature] = frozenset({"tool_stubs", "memory"})
_ITS_FAULT = frozenset({400, 413, 422})
_BYTES_A_TOKEN = 4


class ChatAgent(Struct, frozen=True, kw_only=True, dict=True):
    """A model and how it is asked. `body` holds more fields of each request, such as `response_format`."""

    connector: Connector
    system: str = ""
    tools: tuple[Tool, ...] = ()
    max_tool_rounds: int = 10
    stream: bool = False
    body: Mapping[str, Any] = {}

    @property
    def provides(self) -> frozenset[Feature]:
        return _FEATURES

    def open(self, context: SessionContext) -> "ChatSession":
        return ChatSession(self, context)

    def endpoint(self, connector: Connector) -> "_Endpoint":
        """All that is the same for each call through a connector, worked out once."""
        known = self._endpoints.get(connector.name)
        if known is None or known.connector is not connector:
            known = self._endpoints[connector.name] = _Endpoint(self, connector)
        return known

    @cached_property
    def _endpoints(self) -> "dict[str, _Endpoint]":
        return {}


class _Endpoint:
    """Address, headers and the constant part of the request."""

    def __init__(self, agent: ChatAgent, connector: Connector) -> None:
        self.connector = connector
        self.url = _url(connector)
        self.headers = {"Content-Type": "application/json", **connector.headers}
        if connector.api_key and not any(name.lower() == "authorization" for name in connector.headers):
            self.headers["Authorization"] = f"Bearer {connector.api_key.reveal()}"
        if agent.stream:
            self.headers["Accept"] = "text/event-stream"
        self.opening = codec.encode(_fields(agent, connector, self.url))[:-1] + b',"messages":['
        self.retry = Retry(connector.name, connector.retries, secrets=secrets_in(self.headers))

    def request(self, messages: list[bytes]) -> Request:
        body = b"%b%b]}" % (self.opening, b",".join(messages))
        return Request(self.url, body, self.headers, "POST", self.connector.timeout_s)

    def refused(self, answer: Response) -> Exception:
        """Why a status that is no success ends the trial: a request that the model cannot take is the agent's own fault."""
        connector = self.connector
        what = f"{connector.name}: {status_line(answer.status)}"
        if detail := short_text(answer.body, self.retry.secrets):
            what += f": {detail}"
        if answer.status == 401 and not connector.api_key and connector.key_from:
            what += f" ({connector.key_from} is not set)"
        return AgentFailed(what) if answer.status in _ITS_FAULT else Unreachable(what)


def _url(connector: Connector) -> str:
    base, mark, query = (connector.base_url or _OPENAI).partition("?")
    base = base.rstrip("/")
    return (base if base.endswith(_PATH) else base + _PATH) + mark + query


def _fields(agent: ChatAgent, connector: Connector, url: str) -> dict[str, Any]:
    # OpenAI's newer models refuse the old name, which is the only one that other servers know.
    longest = (
        "max_completion_tokens"
        if url.startswith("https://api.openai.com/") or ".openai.azure.com/" in url
        else "max_tokens"
    )
    known = {"temperature": connector.temperature, "seed": connector.seed, longest: connector.max_tokens}
    fields: dict[str, Any] = {"model": connector.model} | {
        name: value for name, value in known.items() if value is not None
    }
    if agent.tools:
        fields["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in agent.tools
        ]
    if agent.stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return fields | dict(connector.extra) | dict(agent.body)


class ChatSession:
    """One conversation. Messages are kept as they are sent, each encoded once."""

    def __init__(self, agent: ChatAgent, context: SessionContext) -> None:
        self._agent = agent
        self._context = context
        self._toolbox = Toolbox(agent.tools, context.fixtures)
        self._messages: list[bytes] = []
        self._open_calls: list[ToolCall] = []
        if system := _system(agent.system, context):
            self._messages.append(codec.encode({"role": "system", "content": system}))
        for message in context.history:
            self._hear(message)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        endpoint = self._agent.endpoint(self._connector(options))
        self._hear(message)
        used: list[ToolCall] = []
        calls: list[ModelCall] = []
        content = ""
        for _ in range(self._agent.max_tool_rounds + 1):
            said = await self._ask(endpoint)
            calls.append(self._metered(endpoint.connector, said))
            self._messages.append(said.message)
            content = said.content or content
            if not said.tool_calls:
                return Reply(content, tool_calls=tuple(used), finish_reason=said.finish_reason, calls=tuple(calls))
            if len(calls) > self._agent.max_tool_rounds:
                break
            used += await self._use_tools(said.tool_calls)
            if self._open_calls:
                return Reply(content, tool_calls=tuple(used), finish_reason="tool_calls", calls=tuple(calls))
        raise AgentFailed(f"tool loop exceeded {self._agent.max_tool_rounds} rounds")

    def _connector(self, options: Mapping[str, Any]) -> Connector:
        own, wanted = self._agent.connector, options.get("connector")
        if wanted is None or wanted == own.name:
            return own
        other = self._context.connectors.get(wanted)
        if other is None:
            raise Unreachable(
                f"there is no connector {wanted!r}; known: {', '.join(self._context.connectors) or 'none'}"
            )
        return other

    def _hear(self, message: Message) -> None:
        """Adds a message. Before anyone else speaks, each call of a tool needs a result, if only that there is none."""
        if message.role == "tool":
            self._open_calls = [call for call in self._open_calls if call.id != message.tool_call_id]
        elif self._open_calls:
            self._messages += [tool_message(call.id, NOT_RUN) for call in self._open_calls]
            self._open_calls = []
        self._messages += encoded(message)
        if message.tool_calls and all(map(is_open, message.tool_calls)):
            self._open_calls = with_ids(message.tool_calls)

    async def _ask(self, endpoint: "_Endpoint") -> Completion:
        http, connector = self._context.http, endpoint.connector
        request = endpoint.request(self._messages)
        limiter = limiter_for(http, connector)
        guess = len(request.body) / _BYTES_A_TOKEN
        if self._agent.stream:
            answer = await read(http, request, streamed_completion, endpoint.retry, limiter=limiter, tokens=guess)
        else:
            answer = await post(http, request, endpoint.retry, limiter=limiter, tokens=guess)
        if isinstance(answer, Response):
            if not 200 <= answer.status < 300:
                raise endpoint.refused(answer)
            try:
                answer = completion_in(answer.body)
            except Unreachable as wrong:
                raise Unreachable(f"{connector.name}: {wrong.said}") from wrong
        if limiter is not None:
            limiter.settle(answer.input_tokens + answer.output_tokens - guess)
        return answer

    def _metered(self, connector: Connector, said: Completion) -> ModelCall:
        tokens = said.input_tokens, said.output_tokens, said.cached_tokens
        call = ModelCall(
            connector.model or said.model, connector.provider, *tokens, cost_usd(connector, said.model, *tokens)
        )
        self._context.meter(call)
        return call

    async def _use_tools(self, wanted: list[ToolCall]) -> list[ToolCall]:
        """Runs tools one after another, in the order asked for: what they do may build on each other."""
        used = [await self._toolbox.use(call) for call in wanted]
        self._open_calls = [call for call in used if is_open(call)]
        self._messages += [tool_message(call.id, tool_text(call)) for call in used if not is_open(call)]
        return used


def _system(text: str, context: SessionContext) -> str:
    """The system prompt with what the agent is to remember."""
    if context.fixtures is None or not context.fixtures.memory:
        return text
    memory = "\n".join(f"- {shown(entry)}" for entry in context.fixtures.memory)
    return f"{text}\n\nWhat you remember:\n{memory}".strip()
