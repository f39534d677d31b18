"""The base of the stand-ins for model providers: scripted replies and failures over a real socket.

with GeminiServer(["Hello!", Say(tool_calls=[ToolCall("add", {"a": 1})]), Fail(503), When("again", text="bye")]) as server:
    ...                                  # connect the agent to server.url, or run a command with server.env
assert server.model_requests[0].text == "Hi"
"""

import re
import ssl
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from itertools import takewhile
from typing import Any, ClassVar, Literal

from msgspec import Struct, structs

from viva.model import codec
from viva.model.connector import Connector, Secret
from viva.model.message import Message, ToolCall
from viva.testing.http_server import HttpServer, ReceivedRequest, StubResponse, json_response

MODEL = "stand-in"
KEY = "test-key"
STREAM_HEADERS = {"Content-Type": "text/event-stream"}


class Say(Struct, frozen=True, kw_only=True):
    """A reply of the model; a streamed one is sent in small pieces.

    `finish_reason` uses OpenAI's names; each server translates it. `thought` is reasoning that the model wants back; its
    tokens are part of the output tokens. Cached and cache-write tokens are part of the input tokens. `extra` are further
    fields of the message. `delay_s`, `hold` and `cut` are those of `StubResponse`.
    """

    content: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str | None = None
    thought: str = ""
    input_tokens: int = 10
    output_tokens: int = 5
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    extra: Mapping[str, Any] = {}
    delay_s: float = 0.0
    hold: Literal["amid_body"] | bool = False
    cut: Literal["before", "after_headers", "amid_body"] | None = None

    @property
    def effective_finish_reason(self) -> str:
        """The finish reason or, without one, `tool_calls` or `stop`."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


class Fail(Struct, frozen=True):
    """An error of the provider, in its format."""

    status: int
    message: str = "scripted failure of the stand-in"
    headers: Mapping[str, str] = {}
    delay_s: float = 0.0


ScriptLine = str | Say | Fail | StubResponse


class When(Struct, frozen=True):
    """A reply for requests that match all conditions, at most `times` times.

    `text` and `system` are regular expressions, searched in the new messages (of the user or of tools) and in the system
    prompt; `^` and `$` match at lines. `tool` is a tool with a new result. `model` is the requested model, with `*` as
    wildcard.
    """

    reply: ScriptLine
    text: str | None = None
    system: str | None = None
    tool: str | None = None
    model: str | None = None
    times: int | None = None

    def matches(self, request: "ModelRequest") -> bool:
        """Do all conditions hold for this request?"""
        return (
            (self.model is None or fnmatchcase(request.model, self.model))
            and (self.tool is None or self.tool in request.tool_results)
            and (self.text is None or re.search(self.text, request.text, re.MULTILINE) is not None)
            and (self.system is None or re.search(self.system, request.system, re.MULTILINE) is not None)
        )


class ModelRequest(ReceivedRequest, frozen=True):
    """A request for a reply, with its content in the same form for all providers."""

    model: str
    stream: bool
    body_json: Mapping[str, Any]
    read_messages: Callable[[Any], Sequence[Message]]

    @property
    def json(self) -> Any:
        return self.body_json

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation with the system prompt first. Tool results are messages of the role `tool` with the tool's name."""
        return self.read_messages(self.json)

    @property
    def new_messages(self) -> Sequence[Message]:
        """The messages after the model's last reply."""
        messages = self.messages
        last = max((at for at, message in enumerate(messages) if message.role == "assistant"), default=-1)
        return [message for message in messages[last + 1 :] if message.role != "system"]

    @property
    def text(self) -> str:
        """The text of the new messages."""
        return "\n".join(message.text for message in self.new_messages)

    @property
    def tool_results(self) -> list[str]:
        """The names of tools with new results."""
        return [message.name or "" for message in self.new_messages if message.role == "tool"]

    @property
    def system(self) -> str:
        """The text of the system messages."""
        return "\n".join(message.text for message in self.messages if message.role == "system")


Script = str | Sequence[ScriptLine | When] | Callable[[ModelRequest], ScriptLine]


class RequestRejected(Exception):  # noqa: N818 -- not an error of Viva
    """A request that the provider rejects, with its status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ModelServer(HttpServer):
    """Replies from a script: one text for all requests, a list, or a function of the request.

    A line is a text, a `Say`, a `Fail`, or a `StubResponse` for HTTP details. Of a list the first unused line that matches
    is taken: a plain line matches once, a `When` by its conditions. An exhausted script and an invalid request give a 400 in
    the provider's format. `requests` holds all requests, `model_requests` those for a reply, `unknown_requests` those for
    unknown paths (404).
    """

    provider: ClassVar[str]
    call_id_prefix: ClassVar[str] = ""
    """The prefix of the provider's tool call ids; empty if it has none."""
    endpoints: ClassVar[str]
    """The supported endpoints, for the 404 message."""

    def __init__(
        self, script: Script = "ok", *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        super().__init__(self._respond, tls=tls, host=host, port=port)
        self.model_requests: list[ModelRequest] = []
        self.unknown_requests: list[ReceivedRequest] = []
        self._script = script
        self._use_counts: dict[int, int] = {}

    @property
    @abstractmethod
    def env(self) -> dict[str, str]:
        """Environment variables that connect a program of this provider to this server."""

    @property
    @abstractmethod
    def model_list(self) -> tuple[str, Any]:
        """The path of the list of models, and the list."""

    @abstractmethod
    def is_reply_path(self, path: str) -> bool:
        """Return whether this path requests a reply."""

    def check_headers(self, request: ReceivedRequest) -> None:
        """Raise RequestRejected if a required header is missing."""

    def answer_side_request(self, path: str, body: Mapping[str, Any]) -> Any | None:
        """Return the response to a request that does not use the script, for example a token count, or None."""
        return None

    def find_problem(self, request: ReceivedRequest, body: Mapping[str, Any]) -> str | None:
        """Return why the provider would reject a request for a reply, or None."""
        return None

    @abstractmethod
    def read_messages(self, body: Any) -> Sequence[Message]:
        """Return the messages of a request."""

    @abstractmethod
    def build_completion(self, say: Say, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response body. `body` is the request body plus `model` and the `turn` of the model."""

    @abstractmethod
    def build_stream(self, say: Say, body: Mapping[str, Any]) -> tuple[bytes, ...]:
        """Return the events of a streamed response."""

    @abstractmethod
    def build_error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> StubResponse:
        """Return an error in the provider's format."""

    def wants_stream(self, path: str, body: Mapping[str, Any]) -> bool:
        return bool(body.get("stream"))

    def find_model(self, path: str, body: Mapping[str, Any]) -> str:
        return body.get("model", MODEL)

    def connector(self, **fields: Any) -> Connector:
        """Return a connector to this server. `fields` override its defaults."""
        plain = Connector(
            name=MODEL,
            provider=self.provider,
            model=MODEL,
            base_url=self.url,
            api_key=Secret(KEY),
            timeout_s=30.0,
            retries=0,
        )
        return structs.replace(plain, **fields)

    def _respond(self, request: ReceivedRequest) -> StubResponse:
        try:
            return self._answer_request(request)
        except RequestRejected as refused:
            return self.build_error(refused.status, refused.message)

    def _answer_request(self, request: ReceivedRequest) -> StubResponse:
        path, (list_path, models) = request.path.partition("?")[0], self.model_list
        if request.method == "GET" and path.endswith(list_path):
            self.check_headers(request)
            return json_response(models)
        body = _decode_body(request) if request.method == "POST" else {}
        if body and (known := self.answer_side_request(path, body)) is not None:
            self.check_headers(request)
            return json_response(known)
        if request.method != "POST" or not self.is_reply_path(path):
            self.unknown_requests.append(request)
            raise RequestRejected(404, f"no endpoint {path}; this stand-in has {self.endpoints}")
        self.check_headers(request)
        try:
            problem = self.find_problem(request, body)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            problem = f"the request does not have the structure of this API: {error!r}"
        if problem:
            raise RequestRejected(400, problem)
        model_request = ModelRequest(
            **structs.asdict(request),
            model=self.find_model(path, body),
            stream=self.wants_stream(path, body),
            body_json=body,
            read_messages=self.read_messages,
        )
        self.model_requests.append(model_request)
        return self._build_response(self._choose_reply(model_request), model_request)

    def _build_response(self, line: ScriptLine, request: ModelRequest) -> StubResponse:
        if isinstance(line, StubResponse):
            return line
        if isinstance(line, Fail):
            return structs.replace(self.build_error(line.status, line.message, line.headers), delay_s=line.delay_s)
        before = [message for message in request.messages if message.role == "assistant"]
        say = self._add_call_ids(line, request.messages) if isinstance(line, Say) else Say(content=line)
        body = {"model": request.model, **request.json, "turn": len(before) + 1}
        if request.stream:
            response = StubResponse(chunks=self.build_stream(say, body), headers=STREAM_HEADERS)
        else:
            response = json_response(self.build_completion(say, body))
        # A response that does not stream is held from its start.
        hold = say.hold if request.stream else bool(say.hold)
        return structs.replace(response, delay_s=say.delay_s, hold=hold, cut=say.cut)

    def _add_call_ids(self, say: Say, messages: Sequence[Message]) -> Say:
        """Return the reply with an id for each tool call, unique in the conversation and among those that start differently."""
        if not self.call_id_prefix or not say.tool_calls:
            return say
        start = "\n".join(each.text for each in takewhile(lambda each: each.role != "assistant", messages))
        prefix = self.call_id_prefix + blake2b(start.encode(errors="replace"), digest_size=4).hexdigest()
        first = sum(len(message.tool_calls) for message in messages if message.role == "assistant") + 1
        named = [
            call if call.id else structs.replace(call, id=f"{prefix}_{number}")
            for number, call in enumerate(say.tool_calls, first)
        ]
        return structs.replace(say, tool_calls=named)

    def _choose_reply(self, request: ModelRequest) -> ScriptLine:
        if isinstance(self._script, str):
            return self._script
        if callable(self._script):
            return self._script(request)
        for at, entry in enumerate(self._script):
            rule = entry if isinstance(entry, When) else When(entry, times=1)
            used = self._use_counts.get(at, 0)
            if (rule.times is None or used < rule.times) and rule.matches(request):
                self._use_counts[at] = used + 1
                return rule.reply
        raise RequestRejected(
            400, f"the script has {len(self._script)} lines; none is left for request {len(self.model_requests)}"
        )


def _decode_body(request: ReceivedRequest) -> dict[str, Any]:
    try:
        return codec.decode(request.body, type=dict[str, Any])
    except codec.DecodeError as error:
        raise RequestRejected(400, f"the request is not a JSON object: {error}") from error


def split_text(text: str) -> list[str]:
    """Split a text into the pieces of a stream."""
    return [text[at : at + 7] for at in range(0, len(text), 7)]


def estimate_tokens(body: Any) -> int:
    """Return an approximate token count."""
    return max(1, len(codec.encode(body)) // 4)
