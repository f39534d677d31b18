"""A stand-in for an OpenAI-compatible model server: scripted replies over a real socket, with every fault a provider has.

with OpenAIServer(["Hello!", Say(tool_calls=[ToolCall("add", {"a": 1, "b": 2})]), "3"]) as server:
    agent = ChatAgent(connector=server.connector())
    ...
assert server.requests[0].json["messages"][0]["content"] == "Hi"
"""

import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from viva.model import codec
from viva.model.connector import Connector, Secret
from viva.model.message import ToolCall
from viva.testing.http_server import Answer, HttpServer, Received, json_answer

MODEL = "stand-in"


class Say(Struct, frozen=True, kw_only=True):
    """A reply of the model; asked to stream, it comes in small pieces. `extra` are more fields of its message."""

    content: str | None = None
    tool_calls: Sequence[ToolCall] = ()
    finish_reason: str | None = None
    input_tokens: int = 10
    output_tokens: int = 5
    cached_tokens: int = 0
    extra: Mapping[str, Any] = {}


Line = str | Say | Answer
Script = str | Sequence[Line] | Callable[[Received], Line]


class OpenAIServer(HttpServer):
    """Answers `/v1/chat/completions` from a script: one text for ever, a list in order, or a function of the request.

    A line of the script is a text, a `Say`, or an `Answer` for what only HTTP can say: `error(429, ...)`, a dropped
    connection, half a body. `requests` holds what came; a list that is used up answers 400.
    """

    def __init__(self, script: Script = "ok", *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._respond, tls=tls)
        self._script = script
        self._said = 0

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return f"{self.origin}/v1"

    def connector(self, **fields: Any) -> Connector:
        """A connector to this server; fields given here come on top."""
        plain = Connector(
            name=MODEL, model=MODEL, base_url=self.url, api_key=Secret("test-key"), timeout_s=30.0, retries=0
        )
        return structs.replace(plain, **fields)

    def _respond(self, received: Received) -> Answer:
        path = received.path.partition("?")[0]
        if received.method == "GET" and path.endswith("/models"):
            return json_answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        if received.method != "POST" or not path.endswith("/chat/completions"):
            return error(404, f"there is nothing at {path}")
        line = self._line(received)
        if isinstance(line, Answer):
            return line
        say = Say(content=line) if isinstance(line, str) else line
        asked = received.json
        return (
            Answer(chunks=stream(say, asked), headers=_STREAM)
            if asked.get("stream")
            else json_answer(completion(say, asked))
        )

    def _line(self, received: Received) -> Line:
        self._said += 1
        if isinstance(self._script, str):
            return self._script
        if callable(self._script):
            return self._script(received)
        if self._said > len(self._script):
            return error(400, f"the script has {len(self._script)} lines, and this is request {self._said}")
        return self._script[self._said - 1]


_STREAM = {"Content-Type": "text/event-stream"}


def error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Answer:
    """An error as OpenAI words it."""
    return json_answer({"error": {"message": message, "type": "stand_in_error"}}, status, headers)


def completion(say: Say, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer to a request that does not stream."""
    message: dict[str, Any] = {"role": "assistant", "content": say.content, **say.extra}
    if say.tool_calls:
        message["tool_calls"] = [_tool_call(index, call) for index, call in enumerate(say.tool_calls)]
    choice = {"index": 0, "message": message, "finish_reason": _finish(say), "logprobs": None}
    return _envelope("chat.completion", asked) | {"choices": [choice], "usage": _usage(say)}


def stream(say: Say, asked: Mapping[str, Any]) -> tuple[bytes, ...]:
    """The events of a streamed answer: a role, the content in pieces, tool calls in pieces, the end, perhaps usage."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if say.content is not None else None}]
    deltas += [{"content": piece} for piece in _pieces(say.content or "")]
    deltas += [{name: value} for name, value in say.extra.items()]
    for index, call in enumerate(say.tool_calls):
        whole = _tool_call(index, call)
        arguments = whole["function"]["arguments"]
        deltas.append({"tool_calls": [whole | {"index": index, "function": whole["function"] | {"arguments": ""}}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _pieces(arguments)]
    envelope = _envelope("chat.completion.chunk", asked)
    events: list[Any] = [
        envelope | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    events.append(envelope | {"choices": [{"index": 0, "delta": {}, "finish_reason": _finish(say)}]})
    if (asked.get("stream_options") or {}).get("include_usage"):
        events.append(envelope | {"choices": [], "usage": _usage(say)})
    return (*(b"data: %b\n\n" % codec.encode(event) for event in events), b"data: [DONE]\n\n")


def _pieces(text: str) -> list[str]:
    return [text[at : at + 7] for at in range(0, len(text), 7)]


def _tool_call(index: int, call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments if isinstance(call.arguments, str) else codec.compact(call.arguments or {})
    return {
        "id": call.id or f"call_{index + 1}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def _finish(say: Say) -> str:
    return say.finish_reason or ("tool_calls" if say.tool_calls else "stop")


def _usage(say: Say) -> dict[str, Any]:
    return {
        "prompt_tokens": say.input_tokens,
        "completion_tokens": say.output_tokens,
        "total_tokens": say.input_tokens + say.output_tokens,
        "prompt_tokens_details": {"cached_tokens": say.cached_tokens},
    }


def _envelope(kind: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": asked.get("model", MODEL)}
