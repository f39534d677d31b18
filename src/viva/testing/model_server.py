"""What stand-ins for model providers share: a script of replies over a real socket, with every fault a provider has."""

import ssl
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct, structs

from viva.model.connector import Connector, Secret
from viva.model.message import ToolCall
from viva.testing.http_server import Answer, HttpServer, Received, json_answer

MODEL = "stand-in"
STREAM = {"Content-Type": "text/event-stream"}


class Say(Struct, frozen=True, kw_only=True):
    """A reply of the model; asked to stream, it comes in small pieces.

    `finish_reason` is OpenAI's word for it; each server says it in its own. `thought` is what a model wants back as it
    came; its tokens are among the output tokens. Cached and written tokens are among the input tokens. `extra` are more
    fields of the message.
    """

    content: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str | None = None
    thought: str = ""
    input_tokens: int = 10
    output_tokens: int = 5
    thought_tokens: int = 0
    cached_tokens: int = 0
    written_tokens: int = 0
    extra: Mapping[str, Any] = {}

    @property
    def finish(self) -> str:
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


Line = str | Say | Answer
Script = str | Sequence[Line] | Callable[[Received], Line]


class Refused(Exception):  # noqa: N818 -- what the provider does
    """A request that the provider would not take: the status, and what it would say."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class ModelServer(HttpServer):
    """Answers from a script: one text for ever, a list in order, or a function of the request.

    A line of the script is a text, a `Say`, or an `Answer` for what only HTTP can say: an error, a dropped connection,
    half a body. `requests` holds what came; a list that is used up answers 400, and so does, in the provider's words, a
    request that the provider would not take.
    """

    provider: ClassVar[str]

    def __init__(self, script: Script = "ok", *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._respond, tls=tls)
        self._script = script
        self._said = 0

    @property
    @abstractmethod
    def models(self) -> tuple[str, Any]:
        """Where the list of models is, and the list."""

    @abstractmethod
    def is_asked(self, path: str) -> bool:
        """Is this where a reply is asked for?"""

    def check(self, received: Received) -> None:
        """Raises Refused for a request that comes without what every request has to bring."""

    def problem(self, asked: Mapping[str, Any]) -> str | None:
        """What the provider would not take in a request for a reply."""
        return None

    @abstractmethod
    def completion(self, say: Say, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The whole answer."""

    @abstractmethod
    def stream(self, say: Say, asked: Mapping[str, Any]) -> tuple[bytes, ...]:
        """The events of an answer that is streamed."""

    @abstractmethod
    def error(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> Answer:
        """An error as the provider words it."""

    def wants_stream(self, received: Received, asked: Mapping[str, Any]) -> bool:
        return bool(asked.get("stream"))

    def connector(self, **fields: Any) -> Connector:
        """A connector to this server; fields given here come on top."""
        plain = Connector(
            name=MODEL,
            provider=self.provider,
            model=MODEL,
            base_url=self.url,
            api_key=Secret("test-key"),
            timeout_s=30.0,
            retries=0,
        )
        return structs.replace(plain, **fields)

    def _respond(self, received: Received) -> Answer:
        try:
            return self._reply(received)
        except Refused as refused:
            return self.error(refused.status, refused.message)

    def _reply(self, received: Received) -> Answer:
        self.check(received)
        path, (listed, models) = received.path.partition("?")[0], self.models
        if received.method == "GET" and path.endswith(listed):
            return json_answer(models)
        if received.method != "POST" or not self.is_asked(path):
            raise Refused(404, f"there is nothing at {path}")
        asked = received.json
        if problem := self.problem(asked):
            raise Refused(400, problem)
        line = self._line(received)
        if isinstance(line, Answer):
            return line
        say = Say(content=line) if isinstance(line, str) else line
        if self.wants_stream(received, asked):
            return Answer(chunks=self.stream(say, asked), headers=STREAM)
        return json_answer(self.completion(say, asked))

    def _line(self, received: Received) -> Line:
        self._said += 1
        if isinstance(self._script, str):
            return self._script
        if callable(self._script):
            return self._script(received)
        if self._said > len(self._script):
            raise Refused(400, f"the script has {len(self._script)} lines, and this is request {self._said}")
        return self._script[self._said - 1]


def pieces(text: str) -> list[str]:
    """A text as it is streamed."""
    return [text[at : at + 7] for at in range(0, len(text), 7)]
