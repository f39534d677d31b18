"""What stand-ins for model providers share: a script of replies over a real socket, with every fault a provider has.

with GeminiServer(["Hello!", Say(tool_calls=[ToolCall("add", {"a": 1})]), Fail(503), When("again", said="bye")]) as server:
    ...                                  # point the agent at server.url, or give a command server.env
assert server.asked[0].text == "Hi"
"""

import re
import ssl
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
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
    """A reply of the model; asked to stream, it comes in small pieces.

    `finish_reason` is OpenAI's word for it; each server says it in its own. `thought` is what a model wants back as it
    came; its tokens are among the output tokens. Cached and written tokens are among the input tokens. `extra` are more
    fields of the message. `delay_s`, `hold` and `cut` are those of `Answer`: a slow, a stuck and a dropped reply.
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
    def finish(self) -> str:
        """The finish reason, as given or as it follows."""
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


class Fail(Struct, frozen=True):
    """An error of the provider, in its own words."""

    status: int
    message: str = "the stand-in was told to fail"
    headers: Mapping[str, str] = {}
    delay_s: float = 0.0


ScriptLine = str | Say | Fail | StubResponse


class When(Struct, frozen=True):
    """A line for the requests that it fits, as often as they come or `times` times.

    `said` and `system` are regular expressions, searched in what is new (the user's words, or results of tools) and in
    the system prompt, with `^` and `$` at the ends of lines; `tool` is a tool whose result is new; `model` is the model
    asked for, with `*` for any letters.
    """

    reply: ScriptLine
    text: str | None = None
    system: str | None = None
    tool: str | None = None
    model: str | None = None
    times: int | None = None

    def matches(self, request: "ModelRequest") -> bool:
        """Is this a request that the line is for?"""
        return (
            (self.model is None or fnmatchcase(request.model, self.model))
            and (self.tool is None or self.tool in request.tool_results)
            and (self.text is None or re.search(self.text, request.text, re.MULTILINE) is not None)
            and (self.system is None or re.search(self.system, request.system, re.MULTILINE) is not None)
        )


class ModelRequest(ReceivedRequest, frozen=True):
    """A request for a reply: as it arrived, and what it says in words that are the same for all providers."""

    model: str
    stream: bool
    body_json: Mapping[str, Any]
    read_messages: Callable[[Any], Sequence[Message]]

    @property
    def json(self) -> Any:
        """The body of the request."""
        return self.body_json

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation, the system prompt first; a tool's result is a message of the role `tool` with its name."""
        return self.read_messages(self.json)

    @property
    def new_messages(self) -> Sequence[Message]:
        """What came after the model's last reply."""
        messages = self.messages
        last = max((at for at, message in enumerate(messages) if message.role == "assistant"), default=-1)
        return [message for message in messages[last + 1 :] if message.role != "system"]

    @property
    def text(self) -> str:
        """The text of what is new."""
        return "\n".join(message.text for message in self.new_messages)

    @property
    def tool_results(self) -> list[str]:
        """The names of the tools whose results are new."""
        return [message.name or "" for message in self.new_messages if message.role == "tool"]

    @property
    def system(self) -> str:
        """The system prompt."""
        return "\n".join(message.text for message in self.messages if message.role == "system")


Script = str | Sequence[ScriptLine | When] | Callable[[ModelRequest], ScriptLine]


class RequestRejected(Exception):  # noqa: N818 -- what the provider does
    """A request that the provider would not take: the status, and what it would say."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ModelServer(HttpServer):
    """Answers from a script: one text for ever, a list, or a function of the request.

    A line is a text, a `Say`, a `Fail`, or an `Answer` for what only HTTP can say. Of a list the first line answers that
    is not used up and that fits: a plain line fits always, and once; a `When` as it says. When none is left, that is a
    400, and so is, in the provider's words, a request that the provider would not take. `requests` holds all that came,
    `asked` what asked for a reply from the script, `unknown` what nothing here answers (404).
    """

    provider: ClassVar[str]
    call_id_prefix: ClassVar[str] = ""
    """How the provider's ids of tool calls begin, if it gives any."""
    endpoints: ClassVar[str]
    """What can be asked, for whoever asked for something else."""

    def __init__(
        self, script: Script = "ok", *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        super().__init__(self._respond, tls=tls, host=host, port=port)
        self.model_requests: list[ModelRequest] = []
        self.unknown_requests: list[ReceivedRequest] = []
        self._script = script
        self._used: dict[int, int] = {}

    @property
    @abstractmethod
    def env(self) -> dict[str, str]:
        """The environment in which a program that speaks to this provider speaks to this server."""

    @property
    @abstractmethod
    def model_list(self) -> tuple[str, Any]:
        """Where the list of models is, and the list."""

    @abstractmethod
    def is_reply_path(self, path: str) -> bool:
        """Is this where a reply is asked for?"""

    def check_headers(self, received: ReceivedRequest) -> None:
        """Raises Refused for a request that comes without what every request has to bring."""

    def answer_side_request(self, path: str, asked: Mapping[str, Any]) -> Any | None:
        """The answer to what needs no script: tokens are counted, a tool's own small questions are answered."""
        return None

    def find_problem(self, received: ReceivedRequest, asked: Mapping[str, Any]) -> str | None:
        """What the provider would not take in a request for a reply."""
        return None

    @abstractmethod
    def read_messages(self, asked: Any) -> Sequence[Message]:
        """What a request says."""

    @abstractmethod
    def build_completion(self, say: Say, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer; `asked` is the request, with the `model` and which `turn` of the model's this is."""

    @abstractmethod
    def build_stream(self, say: Say, asked: Mapping[str, Any]) -> tuple[bytes, ...]:
        """The events of an answer that is streamed."""

    @abstractmethod
    def build_error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> StubResponse:
        """An error as the provider words it."""

    def wants_stream(self, path: str, asked: Mapping[str, Any]) -> bool:
        return bool(asked.get("stream"))

    def find_model(self, path: str, asked: Mapping[str, Any]) -> str:
        return asked.get("model", MODEL)

    def connector(self, **fields: Any) -> Connector:
        """A connector to this server; fields given here come on top."""
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

    def _respond(self, received: ReceivedRequest) -> StubResponse:
        try:
            return self._reply(received)
        except RequestRejected as refused:
            return self.build_error(refused.status, refused.message)

    def _reply(self, received: ReceivedRequest) -> StubResponse:
        path, (listed, models) = received.path.partition("?")[0], self.model_list
        if received.method == "GET" and path.endswith(listed):
            self.check_headers(received)
            return json_response(models)
        body = _body(received) if received.method == "POST" else {}
        if body and (known := self.answer_side_request(path, body)) is not None:
            self.check_headers(received)
            return json_response(known)
        if received.method != "POST" or not self.is_reply_path(path):
            self.unknown_requests.append(received)
            raise RequestRejected(404, f"there is nothing at {path}; this stand-in answers {self.endpoints}")
        self.check_headers(received)
        try:
            problem = self.find_problem(received, body)
        except (AttributeError, IndexError, KeyError, TypeError) as wrong:
            problem = f"the request has not the shape that this API wants: {wrong!r}"
        if problem:
            raise RequestRejected(400, problem)
        asked = ModelRequest(
            **structs.asdict(received),
            model=self.find_model(path, body),
            stream=self.wants_stream(path, body),
            body_json=body,
            read_messages=self.read_messages,
        )
        self.model_requests.append(asked)
        return self._answer(self._line(asked), asked)

    def _answer(self, line: ScriptLine, asked: ModelRequest) -> StubResponse:
        if isinstance(line, StubResponse):
            return line
        if isinstance(line, Fail):
            return structs.replace(self.build_error(line.status, line.message, line.headers), delay_s=line.delay_s)
        before = [message for message in asked.messages if message.role == "assistant"]
        say = self._named(line, before) if isinstance(line, Say) else Say(content=line)
        body = {"model": asked.model, **asked.json, "turn": len(before) + 1}
        if asked.stream:
            answer = StubResponse(chunks=self.build_stream(say, body), headers=STREAM_HEADERS)
        else:
            answer = json_response(self.build_completion(say, body))
        # Half of an answer that does not stream is of no use to anyone: such a one is held from its beginning.
        hold = say.hold if asked.stream else bool(say.hold)
        return structs.replace(answer, delay_s=say.delay_s, hold=hold, cut=say.cut)

    def _named(self, say: Say, before: Sequence[Message]) -> Say:
        """The reply with an id for each tool call, as no other in its conversation has it."""
        if not self.call_id_prefix or not say.tool_calls:
            return say
        first = sum(len(message.tool_calls) for message in before) + 1
        named = [
            call if call.id else structs.replace(call, id=f"{self.call_id_prefix}{number}")
            for number, call in enumerate(say.tool_calls, first)
        ]
        return structs.replace(say, tool_calls=named)

    def _line(self, asked: ModelRequest) -> ScriptLine:
        if isinstance(self._script, str):
            return self._script
        if callable(self._script):
            return self._script(asked)
        for at, entry in enumerate(self._script):
            rule = entry if isinstance(entry, When) else When(entry, times=1)
            used = self._used.get(at, 0)
            if (rule.times is None or used < rule.times) and rule.matches(asked):
                self._used[at] = used + 1
                return rule.reply
        raise RequestRejected(
            400, f"the script has {len(self._script)} lines, and this is request {len(self.model_requests)}"
        )


def _body(received: ReceivedRequest) -> dict[str, Any]:
    try:
        return codec.decode(received.body, type=dict[str, Any])
    except codec.DecodeError as wrong:
        raise RequestRejected(400, f"the request holds no JSON object: {wrong}") from wrong


def split_text(text: str) -> list[str]:
    """A text as it is streamed."""
    return [text[at : at + 7] for at in range(0, len(text), 7)]


def estimate_tokens(asked: Any) -> int:
    """About as many tokens as a request has."""
    return max(1, len(codec.encode(asked)) // 4)
