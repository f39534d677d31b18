"""An agent behind any HTTP endpoint: a template makes the request, JSONPaths find the reply in the answer or its stream."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote, urljoin, urlsplit

from msgspec import UNSET, Meta, UnsetType, field, structs

from viva.agents.agent_config import (
    AgentSetup,
    AgentStatus,
    ConnectedConfig,
    Duration,
    NonEmpty,
    StringMap,
    inspect_url,
)
from viva.agents.http_streams import StreamFormat, StreamPaths, StreamReader
from viva.agents.openai_messages import encode_to_messages
from viva.agents.reply_paths import extract_reply
from viva.agents.streamed_reply import StreamedReply
from viva.errors import AgentFailed
from viva.llm.calls import (
    RetryPolicy,
    describe_status,
    extract_error_message,
    find_header_secrets,
    is_overload_status,
    read_stream,
    send_request,
)
from viva.llm.limits import get_limits
from viva.llm.target import find_url_problem
from viva.llm.transport import load_stream_client
from viva.model import codec
from viva.model.case import Feature
from viva.model.connector import Connector
from viva.model.message import Message, Reply
from viva.protocols import Request, Response, SessionContext, WorkspaceFactory
from viva.state.trial_state import get_reply_text, to_text
from viva.text import credentials
from viva.text.duration import parse_duration
from viva.text.json_path import compile_path
from viva.text.template import fill_variables, list_variables

REQUEST_VARIABLES = (
    "input", "messages", "session_id", "options", "metadata", "history", "data", "attachments", "fixtures", "workspace",
    "mcp_url",
)  # fmt: skip
_DEFAULT_BODY = {name: f"{{{{{name}}}}}" for name in ("messages", "input", "session_id", "options")}
_PATH_FIELDS = (
    "content", "data", "tool_calls", "awaiting", "input_hint", "protocol_state", "session_id", "finish_reason", "usage",
)  # fmt: skip

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class HttpAgent(ConnectedConfig, frozen=True, kw_only=True):
    """An endpoint: how it is called, and where the reply is in its answer.

    `body`, `url` and `headers` may hold `{{variables}}`; a string of `body` that is one variable and nothing else becomes
    its value. Without a JSONPath for a part of the reply, the usual places are tried.
    """

    is_adaptive: ClassVar[bool] = True

    use: NonEmpty | UnsetType = UNSET
    """A reference: http://... or https://..."""
    url: str = ""
    """The endpoint."""
    method: Literal["POST", "PUT", "GET", "PATCH"] = "POST"
    """The HTTP method."""
    headers: StringMap = field(default_factory=dict[str, str])
    """A value $NAME is taken from the environment."""
    body: Any = None
    """A template: "{{messages}}", "{{input}}", "{{session_id}}", "{{options}}" are filled in."""
    content: str | UnsetType = UNSET
    """JSONPath of the text in the answer."""
    data: str | UnsetType = UNSET
    """JSONPath of the data in the answer."""
    tool_calls: str | UnsetType = UNSET
    """JSONPath of the tool calls in the answer."""
    awaiting: str | UnsetType = UNSET
    """JSONPath of the awaiting flag in the answer."""
    input_hint: str | UnsetType = UNSET
    """JSONPath of the input hint in the answer."""
    protocol_state: str | UnsetType = UNSET
    """JSONPath of the protocol's own state, such as input-required."""
    session_id: str | UnsetType = UNSET
    """JSONPath of the session id in the answer."""
    finish_reason: str | UnsetType = UNSET
    """JSONPath of the finish reason in the answer."""
    usage: str | UnsetType = UNSET
    """JSONPath of the usage in the answer."""
    answer: Literal["json", "text"] = "json"
    """What it answers: `json`, or `text`, which is the reply as it is."""
    stream: StreamFormat | UnsetType = UNSET
    """It streams its answer: as server-sent events (`sse`), as `json_lines`, or as plain `text`."""
    delta: str | UnsetType = UNSET
    """JSONPath of a piece of text in an event of the stream. The other paths are looked up in each event too."""
    delta_when: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Only events with these values have a piece of text: {"$.type" = "text-delta"}."""
    done: str | UnsetType = UNSET
    """JSONPath in an event that ends the stream: it finds a value other than false, null and "". Default: $.done, [DONE], or the end of the answer."""
    done_when: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """An event with these values ends the stream: {"$.type" = "finish"}."""
    redirects: Annotated[int, Meta(ge=0, le=20)] = 0
    """Follow up to this many redirects. Another origin gets no credentials."""
    timeout: Duration = "120s"
    """Time limit of one answer; of a stream, the longest pause between two pieces."""
    retries: Annotated[int, Meta(ge=0)] = 4
    """Number of retries of a call that failed for a transient reason."""
    fixtures: Literal["forward"] | UnsetType = UNSET
    """Send stubbed tools and memory along, in {{fixtures}} or under that key."""
    mcp_stub: bool = False
    """Serve the `fixtures.tools` of a case to it as an MCP server, whose address is in {{mcp_url}}."""

    @classmethod
    def parse_reference(cls, reference: str) -> dict[str, Any] | None:
        return {"url": reference} if reference.startswith(("http://", "https://")) else None

    def build(self, setup: AgentSetup) -> "HttpAgent":
        if not self.url:
            raise setup.error("is missing `url`")
        url = setup.expand(self.url, "url")
        headers = {name: setup.expand(value, "headers") for name, value in self.headers.items()}
        if problem := find_url_problem(fill_variables(url, dict.fromkeys(list_variables(url), "x"))):
            raise setup.error(f"`url` {problem}", "url")
        setup.add_secrets((*credentials.find_header_credentials(headers), *credentials.find_url_credentials(url)))
        return structs.replace(self, url=url, headers=headers)

    async def inspect(self, _workspaces: WorkspaceFactory) -> AgentStatus:
        return await inspect_url(self.url)

    def __post_init__(self) -> None:
        for name in self._used_variables:
            if name not in REQUEST_VARIABLES:
                raise ValueError(f"unknown variable {{{{{name}}}}}; there are {', '.join(REQUEST_VARIABLES)}")
        if self.fixtures and "fixtures" not in list_variables(self.body_template):
            raise ValueError('fixtures = "forward" needs {{fixtures}} somewhere in the body')
        if self.mcp_stub and "mcp_url" not in self._used_variables:
            raise ValueError("mcp_stub needs {{mcp_url}} somewhere in the body, the headers or the url")
        parse_duration(self.timeout)
        if self.stream is UNSET and (stream_fields := self._stream_fields):
            raise ValueError(f'{", ".join(stream_fields)} needs `stream = "sse"` or "json_lines"')
        if self.stream == "text" and (stream_fields := [*self._stream_fields, *self.reply_paths]):
            raise ValueError(f"a stream of plain text cannot contain {', '.join(stream_fields)}")
        if self.answer == "text" and self.stream is not UNSET:
            raise ValueError('`answer = "text"` is for an answer that is not streamed; write `stream = "text"` alone')
        if self.answer == "text" and self.reply_paths:
            raise ValueError(f"an answer of plain text cannot contain {', '.join(self.reply_paths)}")
        for name, path in self.pick_set_fields(*_PATH_FIELDS, "delta", "done").items():
            _check_json_path(name, path)
        for name, conditions in (("delta_when", self.delta_when), ("done_when", self.done_when)):
            for path in conditions:
                _check_json_path(name, path)

    @property
    def provides(self) -> frozenset[Feature]:
        used = self._used_variables
        features: list[Feature] = ["tool_stubs", "memory"] if self.fixtures else []
        if "workspace" in used or "options" in used:
            features.append("workspace")
        return frozenset(features)

    def open(self, context: SessionContext) -> AbstractAsyncContextManager["HttpSession"]:
        if self.stream is not UNSET:
            load_stream_client()
        return nullcontext(HttpSession(self, context))

    @property
    def body_template(self) -> Any:
        body = self.body
        if body is None:
            body = None if self.method == "GET" else _DEFAULT_BODY
        if self.fixtures and isinstance(body, Mapping) and "fixtures" not in list_variables(body):
            return {**body, "fixtures": "{{fixtures}}"}
        return body

    @property
    def reply_paths(self) -> dict[str, str]:
        """The JSONPaths that the config gives, by part of the reply."""
        return {
            name.replace("awaiting", "awaiting_input"): path
            for name, path in self.pick_set_fields(*_PATH_FIELDS).items()
        }

    @property
    def stream_paths(self) -> StreamPaths:
        paths = self.pick_set_fields("delta", "done")
        return StreamPaths(**paths, delta_when=self.delta_when, done_when=self.done_when, parts=self.reply_paths)

    @property
    def _stream_fields(self) -> list[str]:
        tables = {"delta_when": self.delta_when, "done_when": self.done_when}
        return [*self.pick_set_fields("delta", "done"), *(name for name, value in tables.items() if value)]

    @property
    def _used_variables(self) -> set[str]:
        return set(list_variables([self.url, self.headers, self.body_template]))


class HttpSession:
    """One conversation. It sends the session id that the last answer named."""

    def __init__(self, agent: HttpAgent, context: SessionContext) -> None:
        self._agent = agent
        self._context = context
        self._template = agent.body_template
        self._paths = agent.reply_paths
        self._timeout_s = parse_duration(agent.timeout)
        secrets = find_header_secrets(agent.headers)
        self._retry = RetryPolicy("http agent", agent.retries, is_overload_status, only_unsent=True, secrets=secrets)
        self._limits = get_limits(context.http, Connector(name=self._retry.name))
        self._messages = [encoded for message in context.history for encoded in encode_to_messages(message)]
        self._session_id: Any = None

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        history = _join_messages(self._messages)
        self._messages += encode_to_messages(message)
        request = self._build_request(self._build_variables(message, options, history))
        reply, session_id = await self._call(request)
        self._session_id = self._session_id if session_id is None else session_id
        self._messages += encode_to_messages(Message("assistant", get_reply_text(reply), tool_calls=reply.tool_calls))
        for call in reply.calls:
            self._context.meter(call)
        return reply

    async def _call(self, request: Request) -> tuple[Reply, Any]:
        """The reply and the session id that the answer names."""
        context, left = self._context, self._agent.redirects
        while True:
            if self._agent.stream is UNSET:
                answer = await send_request(context.http, request, self._retry, context.progress, limiter=self._limits)
            else:
                answer = await self._read_stream(request, self._agent.stream)
            if not isinstance(answer, Response):
                return answer
            following = _follow_redirect(request, answer) if left else None
            if following is None:
                return self._read_answer(answer)
            request, left = following, left - 1

    async def _read_stream(self, request: Request, kind: StreamFormat) -> tuple[Reply, Any] | Response:
        """The reply and session id of a streamed answer; the answer itself if its status is not a success."""
        http, progress = self._context.http, self._context.progress
        streamed = StreamedReply(progress)
        reader = StreamReader(kind, self._agent.stream_paths, streamed, self._retry.secrets)
        try:
            answer = await read_stream(
                partial(http.stream, request), reader.read, self._retry, progress, limiter=self._limits
            )
        except BaseException:
            if (until_now := streamed.build()) != Reply():
                progress.partial = until_now
            raise
        return answer if isinstance(answer, Response) else (answer, reader.session_id)

    def _read_answer(self, answer: Response) -> tuple[Reply, Any]:
        if self._agent.answer == "json":
            return extract_reply(self._decode_json(answer), self._paths)
        self._check_status(answer)
        if not answer.body:
            raise AgentFailed("answer is empty")
        return Reply(answer.body.decode(errors="replace")), None

    def _build_variables(self, message: Message, options: Mapping[str, Any], history: codec.Raw) -> dict[str, Any]:
        context = self._context
        return {
            "input": message.text,
            "messages": _join_messages(self._messages),
            "session_id": self._session_id or options.get("session_id") or context.key.session_id,
            "options": options,
            "metadata": options.get("metadata") or {},
            "history": history,
            "data": message.data,
            "attachments": message.attachments,
            "fixtures": context.fixtures,
            "workspace": context.workspace.path if context.workspace else None,
            "mcp_url": context.mcp_url or None,
        }

    def _build_request(self, variables: Mapping[str, Any]) -> Request:
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
        return Request(url, body, headers, agent.method, self._timeout_s, never_resend=True)

    def _check_status(self, answer: Response) -> None:
        if 200 <= answer.status < 300:
            return
        detail = extract_error_message(answer.body, self._retry.secrets)
        message = f"HTTP {answer.status}: {detail}" if detail else f"HTTP {describe_status(answer.status)}"
        if answer.status in _REDIRECTS and (place := answer.headers.get("location")):
            limit = "more than `redirects` allows" if self._agent.redirects else "set `redirects` to follow it"
            message = f"HTTP {describe_status(answer.status)} to {credentials.mask_url_credentials(place)}: {limit}"
        raise AgentFailed(message)

    def _decode_json(self, answer: Response) -> Any:
        self._check_status(answer)
        try:
            return codec.decode(answer.body)
        except codec.DecodeError as error:
            detail = extract_error_message(answer.body, self._retry.secrets)
            if not detail:
                raise AgentFailed("answer is empty") from error
            kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
            hint = f"; set `{_SETTINGS[kind]}` to take it" if kind in _SETTINGS else ""
            raise AgentFailed(f"answer is not JSON ({error}){hint}: {detail}") from error


def _check_json_path(name: str, path: str) -> None:
    try:
        compile_path(path)
    except ValueError as error:
        raise ValueError(f"`{name}`: {error}") from error


_SETTINGS = {
    "text/event-stream": 'stream = "sse"',
    "application/x-ndjson": 'stream = "json_lines"',
    "application/jsonl": 'stream = "json_lines"',
    "text/plain": 'answer = "text"',
}
"""What the config must say to take an answer of this type."""


def _follow_redirect(request: Request, answer: Response) -> Request | None:
    """The request to the place of a redirect, as browsers send it; None if the answer is not a redirect."""
    place = answer.headers.get("location")
    if answer.status not in _REDIRECTS or not place:
        return None
    try:
        url = urljoin(request.url, place)
        before, after = urlsplit(request.url), urlsplit(url)
        is_same_origin = (before.scheme, before.netloc) == (after.scheme, after.netloc)
    except ValueError as error:
        raise AgentFailed(f"HTTP {describe_status(answer.status)} to an address that is not valid: {error}") from error
    headers = dict(request.headers)
    if not is_same_origin:
        headers = {name: value for name, value in headers.items() if not _is_credential(name, value)}
    # Only 303 makes a GET of every method; 301 and 302 of POST alone.
    if answer.status in (307, 308) or request.method == "GET" or (answer.status != 303 and request.method != "POST"):
        return structs.replace(request, url=url, headers=headers)
    headers = {name: value for name, value in headers.items() if name.lower() != "content-type"}
    return structs.replace(request, url=url, headers=headers, method="GET", body=b"")


def _is_credential(name: str, value: str) -> bool:
    return credentials.is_sensitive_name(name) or any(credentials.find_header_credentials({name: value}))


def _join_messages(messages: Sequence[bytes]) -> codec.Raw:
    return codec.Raw(b"[%b]" % b",".join(messages))
