"""An agent behind any JSON endpoint: a template makes the request, JSONPaths find the reply in the answer."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

from msgspec import Struct

from viva.agents.openai_messages import encode_steps
from viva.agents.reply_paths import ReplyPaths, extract_reply
from viva.errors import AgentFailed
from viva.llm.calls import Retry, describe_status, extract_error_message, find_header_secrets, is_busy, send_request
from viva.model import codec
from viva.model.case import Feature
from viva.model.message import Message, Reply
from viva.protocols import Request, Response, SessionContext
from viva.state.trial_state import reply_text, to_text
from viva.text.template import fill_variables, variables_in

REQUEST_VARIABLES = (
    "input", "messages", "session_id", "options", "metadata", "history", "data", "attachments", "fixtures", "workspace",
)  # fmt: skip
_BODY = {name: f"{{{{{name}}}}}" for name in ("messages", "input", "session_id", "options")}


class HttpAgent(Struct, frozen=True, kw_only=True):
    """How an endpoint is asked and read.

    `body`, `url` and `headers` may hold `{{variables}}`; a text of `body` that is one variable and nothing else becomes
    its value. Without a path for a part of the reply, the usual places are tried. `fixtures: forward` sends stubbed
    tools and memory along, in `{{fixtures}}` or under that key.
    """

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = {}
    body: Any = None
    content: str | None = None
    data: str | None = None
    tool_calls: str | None = None
    awaiting: str | None = None
    input_hint: str | None = None
    protocol_state: str | None = None
    session_id: str | None = None
    finish_reason: str | None = None
    usage: str | None = None
    timeout_s: float = 120.0
    retries: int = 4
    fixtures: Literal["forward"] | None = None
    max_bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for name in self._used():
            if name not in REQUEST_VARIABLES:
                raise ValueError(f"unknown variable {{{{{name}}}}}; there are {', '.join(REQUEST_VARIABLES)}")
        if self.fixtures and "fixtures" not in variables_in(self.build_template()):
            raise ValueError('fixtures = "forward" needs {{fixtures}} somewhere in the body')
        self.build_paths()

    @property
    def provides(self) -> frozenset[Feature]:
        used = self._used()
        features: list[Feature] = ["tool_stubs", "memory"] if self.fixtures else []
        if "workspace" in used or "options" in used:
            features.append("workspace")
        return frozenset(features)

    def open(self, context: SessionContext) -> "HttpSession":
        return HttpSession(self, context)

    def build_template(self) -> Any:
        """The body as it was written, or the usual one."""
        if self.body is None:
            body: Any = None if self.method.upper() == "GET" else _BODY
        else:
            body = self.body
        if self.fixtures and isinstance(body, Mapping) and "fixtures" not in variables_in(body):
            return {**body, "fixtures": "{{fixtures}}"}
        return body

    def build_paths(self) -> ReplyPaths:
        """Where the parts of the reply are; raises ValueError for a path that is none."""
        return ReplyPaths(
            content=self.content,
            data=self.data,
            tool_calls=self.tool_calls,
            awaiting_input=self.awaiting,
            input_hint=self.input_hint,
            protocol_state=self.protocol_state,
            session_id=self.session_id,
            finish_reason=self.finish_reason,
            usage=self.usage,
        )

    def _used(self) -> set[str]:
        return set(variables_in([self.url, self.headers, self.build_template()]))


class HttpSession:
    """One conversation. The session id that an answer names is sent from then on."""

    def __init__(self, agent: HttpAgent, context: SessionContext) -> None:
        self._agent = agent
        self._context = context
        self._template = agent.build_template()
        self._places = agent.build_paths()
        self._retry = Retry(
            "http agent", agent.retries, is_busy, only_unsent=True, secrets=find_header_secrets(agent.headers)
        )
        self._messages = [piece for message in context.history for piece in encode_steps(message)]
        self._session_id: Any = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        earlier = _joined(self._messages)
        self._messages += encode_steps(message)
        request = self._request(self._variables(message, options, earlier))
        answer = await send_request(self._context.http, request, self._retry, self._context.progress)
        reply, session_id = extract_reply(self._document(answer), self._places)
        self._session_id = self._session_id if session_id is None else session_id
        self._messages += encode_steps(Message("assistant", reply_text(reply), tool_calls=reply.tool_calls))
        for call in reply.calls:
            self._context.meter(call)
        return reply

    def _variables(self, message: Message, options: Mapping[str, Any], earlier: codec.Raw) -> dict[str, Any]:
        context = self._context
        return {
            "input": message.text,
            "messages": _joined(self._messages),
            "session_id": self._session_id or options.get("session_id") or context.key.session_id,
            "options": options,
            "metadata": options.get("metadata") or {},
            "history": earlier,
            "data": message.data,
            "attachments": message.attachments,
            "fixtures": context.fixtures,
            "workspace": context.workspace.path if context.workspace else None,
        }

    def _request(self, variables: Mapping[str, Any]) -> Request:
        agent = self._agent
        url, headers = agent.url, agent.headers
        if "{{" in url:
            url = str(fill_variables(url, {name: quote(to_text(value), safe="") for name, value in variables.items()}))
        if any("{{" in value for value in headers.values()):
            headers = {name: to_text(fill_variables(value, variables)) for name, value in headers.items()}
        body = b""
        if self._template is not None:
            body = codec.encode(fill_variables(self._template, variables))
            if not any(name.lower() == "content-type" for name in headers):
                headers = {"Content-Type": "application/json", **headers}
        return Request(url, body, headers, agent.method.upper(), agent.timeout_s, agent.max_bytes, never_resend=True)

    def _document(self, answer: Response) -> Any:
        if not 200 <= answer.status < 300:
            told = extract_error_message(answer.body, self._retry.secrets)
            raise AgentFailed(f"HTTP {answer.status}: {told}" if told else f"HTTP {describe_status(answer.status)}")
        try:
            return codec.decode(answer.body)
        except codec.DecodeError as wrong:
            told = extract_error_message(answer.body, self._retry.secrets)
            raise AgentFailed(f"the answer is no JSON: {told} ({wrong})" if told else "the answer is empty") from wrong


def _joined(messages: Sequence[bytes]) -> codec.Raw:
    return codec.Raw(b"[%b]" % b",".join(messages))
