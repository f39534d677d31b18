"""No bytes of an agent, a model, a helper, a host or a kept file can end a run: what comes of them is a value or a fault
with a sentence, and the value can be checked, encoded and kept. `make soak` tries many more of them.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Struct

from terminals import CAPTURES, collect_turn
from viva.agents.a2a_card import read_card
from viva.agents.a2a_events import TaskReader
from viva.agents.acp_updates import parse_update, parse_usage
from viva.agents.agui import AguiAgent
from viva.agents.anthropic import AnthropicAgent
from viva.agents.chat import ChatAgent
from viva.agents.cli.claude import CLAUDE
from viva.agents.cli.codex import CODEX
from viva.agents.cli.command import LineRule, build_command_spec
from viva.agents.cli.events import CliTurn
from viva.agents.cli.gemini import GEMINI
from viva.agents.cli.opencode import OPENCODE
from viva.agents.cli.qwen import QWEN
from viva.agents.cli.spec import CliSpec, parse_events
from viva.agents.gemini_api import GeminiAgent
from viva.agents.http import HttpAgent
from viva.agents.json_rpc import JsonRpcConnection
from viva.agents.mcp_stub import McpStub
from viva.agents.model_session import ModelAgent
from viva.agents.openwop import OpenwopAgent, OpenwopSession
from viva.agents.openwop_client import HostClient
from viva.agents.remote_config import RemoteEndpoint
from viva.agents.responses import ResponsesAgent
from viva.agents.tools import Tool, Toolbox
from viva.awaiting.detector import detect_awaiting
from viva.checks.compare import is_same_json
from viva.checks.json import JsonSchema
from viva.checks.judge import _JudgeReplyParser
from viva.engine.records import build_turn_record
from viva.errors import BadInput, RunStopped, TrialFault
from viva.formats.documents import open_documents
from viva.host.errors import ApiError
from viva.host.requests import parse_json
from viva.llm.calls import convert_to_utf8, extract_error_message
from viva.llm.sse import SseParser
from viva.model import codec
from viva.model.case import Key, ToolStub, UserMessage
from viva.model.connector import Connector
from viva.model.event import Note
from viva.model.message import Message, ModelCall, Reply, ToolCall
from viva.model.progress import CallProgress
from viva.model.turn import Turn
from viva.protocols import Agent, Request, Response, SessionContext
from viva.record.cassette import read_cassette
from viva.record.journal import Journal, read_events
from viva.session.case_generation import parse_cases
from viva.state.trial_state import CheckContext, TrialState, to_text
from viva.text.embedded_json import find_json, parse_whole_json
from viva.text.json_path import find_values_at
from viva.users.simulator import SimulatorReplyValidator, parse_simulator_reply

HOLE = "@hole@"
DEEP = codec.MAX_DEPTH + 50
tokens = st.sampled_from(
    [
        b"null", b"true", b"0", b"-1", b"1.5", b"1e999", b"NaN", b"Infinity", b"9" * 400, b"9" * 5000, b"-" + b"9" * 30,
        b'""', b'"x"', b'"0"', b'"\\u0000"', b'"\\ud800"', b'"\x00"', b'"caf\xe9"', b"\xff", b"\xef\xbb\xbf{}", b"[]", b"{}", b"[null]",
        b'[{"text":7}]', b'{"message":{"message":1}}', b'{"a":{"b":[1,{"c":null}]}}', b'{"text":[]}', b'[["a"]]',
        b"[" * DEEP + b"]" * DEEP, b'{"error":' * DEEP + b"1" + b"}" * DEEP, b"[" * 100_000, b'{"a":' * 100_000,
    ]
)  # fmt: skip
encodings = st.sampled_from(["utf-8", "latin-1", "utf-16", "utf-8-sig", "cp037"])


def places(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where something else could stand in a message."""
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [at, *(place for key, below in inner for place in places(below, (*at, key)))]


def with_hole(value: Any, place: tuple[str | int, ...]) -> Any:
    if not place:
        return HOLE
    value = deepcopy(value)
    holder = value
    for step in place[:-1]:
        holder = holder[step]
    holder[place[-1]] = HOLE
    return value


@st.composite
def foreign(draw, messages: list[Any]) -> bytes:
    """Bytes of any kind; a valid message with something else in one place; one that was cut, spliced or encoded otherwise."""
    kind = draw(st.sampled_from(["binary", "token", "other", "other", "other", "spliced", "encoded"]))
    if kind == "binary":
        return draw(st.binary(max_size=60))
    if kind == "token":
        return draw(tokens)
    message = draw(st.sampled_from(messages))
    raw = message if isinstance(message, bytes) else json.dumps(message).encode()
    if kind == "other" and not isinstance(message, bytes):
        holed = with_hole(message, draw(st.sampled_from(places(message))))
        return json.dumps(holed).encode().replace(json.dumps(HOLE).encode(), draw(tokens))
    if kind == "encoded":
        return raw.decode(errors="replace").replace("e", "é").encode(draw(encodings), "replace")
    at, until = sorted(draw(st.tuples(st.integers(0, len(raw)), st.integers(0, len(raw)))))
    return raw[:at] + draw(st.binary(max_size=8)) + raw[until:]


def check_value(value: Any) -> None:
    """What decoding gave can go everywhere: through checks, records, other agents and reports."""
    assert is_same_json(codec.to_plain(value), value)
    assert deepcopy(value) == value
    assert not codec.has_nan_or_infinity(value)
    assert repr(value)
    to_text(value).encode()
    codec.pretty_json(codec.encode_canonically(value))
    find_values_at("$..x", value)
    JsonSchema(schema={"type": "object", "additionalProperties": {"type": "string"}}).describe_errors(value)
    wrapped = codec.encode({"event": {"record": {"turns": [{"reply": {"data": value}}]}}})
    assert codec.decode_own(wrapped)


def check_reply(reply: Reply) -> None:
    detect_awaiting(reply)
    check_value(codec.to_builtins(reply))
    turn = Turn(1, UserMessage(Message("user", "?")))
    turn.reply = reply
    record = codec.encode(build_turn_record(turn))
    assert "NaN" in reply.content or b"NaN" not in record
    check_calls(reply.calls)


def check_calls(calls: tuple[ModelCall, ...]) -> None:
    for call in calls:
        assert min(call.input_tokens, call.output_tokens, call.cached_tokens, call.cost_usd or 0.0) >= 0
        assert call.input_tokens + call.output_tokens < 2**60  # the index keeps them in 64 bits
        codec.to_plain(call)


def check_fault(fault: Exception) -> None:
    assert str(fault).strip()
    str(fault).encode()


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never has to wait."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    work.close()
    raise AssertionError("it waits")


class Canned(Struct, eq=False, weakref=True):
    """A transport that answers everything with the same bytes."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = {}

    async def request(self, request: Request) -> Response:
        return Response(self.status, self.headers, self.body)

    @asynccontextmanager
    async def stream(self, request: Request) -> AsyncGenerator["_Streaming"]:
        yield _Streaming(self.status, self.headers, self.body)

    async def close(self) -> None:
        return None


class _Streaming(Struct):
    status: int
    headers: Mapping[str, str]
    body: bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        half = len(self.body) // 2
        yield self.body[:half]
        yield self.body[half:]


def say(agent: Agent, http: Canned) -> None:
    metered: list[ModelCall] = []

    async def hold_conversation() -> Reply:
        async with agent.open(SessionContext(key=Key("s", "c"), meter=metered.append, http=http)) as session:
            await session.send(Message("user", "first"), {})
            return await session.send(Message("user", "second"), {})

    try:
        check_reply(asyncio.run(hold_conversation()))
    except TrialFault as fault:
        check_fault(fault)
    check_calls(tuple(metered))


COMPLETION = {
    "choices": [
        {
            "message": {
                "role": "assistant",
                "content": [{"type": "text", "text": "Hello"}],
                "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": '{"a":1}'}}],
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}},
    "model": "gpt-5",
    "error": None,
}
PLAIN_COMPLETION = {"choices": [{"message": {"role": "assistant", "content": "Hi"}}], "usage": {"prompt_tokens": 1}}
DELTA = {
    "choices": [{"delta": {"content": "He", "tool_calls": [{"index": 0, "function": {"name": "add", "arguments": "{}"}}]}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3},
}  # fmt: skip
ANTHROPIC = {
    "type": "message",
    "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": ""}, {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}}],
    "stop_reason": "end_turn",
    "model": "claude",
    "usage": {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 4},
}  # fmt: skip
ANTHROPIC_EVENTS = [
    {"type": "message_start", "message": {"model": "claude", "usage": {"input_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "H", "citations": []}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "i"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "citation": {"a": 1}}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "1", "name": "add", "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a":1}'}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
]  # fmt: skip
GEMINI_ANSWER = {
    "candidates": [{"content": {"parts": [{"text": "Hi"}, {"text": ""}, {"functionCall": {"name": "add", "args": {"a": 1}, "id": "1"}}]}, "finishReason": "STOP"}],
    "promptFeedback": {"blockReason": None},
    "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2, "cachedContentTokenCount": 3},
    "modelVersion": "gemini",
}  # fmt: skip
HTTP = [
    {
        "content": "Hello", "data": {"a": [1]}, "tool_calls": [{"name": "add", "arguments": '{"a": 1}', "result": 2, "error": None}], "awaiting_input": True,
        "done": False, "input_hint": "name", "session_id": "s", "finish_reason": "stop", "usage": {"input_tokens": 1, "output_tokens": 2, "cost_usd": 0.1},
    },
    {"choices": [{"message": {"content": [{"type": "text", "text": "a"}], "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}}], "usage": [{"prompt_tokens": 1}]},
    {"error": {"message": "no", "detail": [{"msg": "x"}]}, "output": "text"},
]  # fmt: skip
UPDATES = [
    {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "Hi"}},
    {"sessionUpdate": "tool_call", "toolCallId": "write__1", "title": "write", "kind": "edit", "rawInput": {"a": 1}, "status": "completed", "rawOutput": {"exit_code": 1, "output": "x"}, "locations": [{"path": "a"}], "_meta": {"x": {"toolName": "t"}}},
    {"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "failed", "content": [{"type": "content", "content": {"type": "text", "text": "x"}}, {"type": "diff", "path": "p", "newText": "n"}]},
    {"usage": {"inputTokens": 1, "outputTokens": 2, "cachedReadTokens": 1}},
    {"_meta": {"quota": {"model_usage": [{"model": "gemini-x", "token_count": {"input_tokens": 1, "output_tokens": 2}}]}}},
]  # fmt: skip
RPC = [
    {"jsonrpc": "2.0", "id": 1, "result": {"stopReason": "end_turn"}},
    {"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": "no", "data": {"details": "x"}}},
    {"jsonrpc": "2.0", "id": 5, "method": "session/request_permission", "params": {"toolCall": {}, "options": [{"kind": "allow_once", "optionId": "1"}]}},
    {"jsonrpc": "2.0", "method": "session/update", "params": {"update": UPDATES[0]}},
]  # fmt: skip
RESPONSE: Any = {
    "output": [
        {"type": "reasoning", "summary": []},
        {"type": "message", "content": [{"type": "output_text", "text": "Hi"}, {"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "name": "add", "arguments": '{"a":1}', "call_id": "1"},
    ],
    "status": "completed", "incomplete_details": {"reason": "x"}, "model": "gpt-5", "error": None,
    "usage": {"input_tokens": 3, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 1}},
}  # fmt: skip
RESPONSE_EVENTS = [
    {"type": "response.output_text.delta", "delta": "Hi"},
    {"type": "response.output_item.done", "item": RESPONSE["output"][1]},
    {"type": "response.completed", "response": RESPONSE},
]
AGUI_EVENTS = [
    {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
    {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "Hi"},
    {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "add"},
    {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": '{"a": 1}'},
    {"type": "TOOL_CALL_RESULT", "toolCallId": "c", "content": [{"type": "text", "text": "2"}]},
    {"type": "STATE_SNAPSHOT", "snapshot": {"a": {"b": [1]}}},
    {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/a/b/-", "value": 2}, {"op": "copy", "from": "/a", "path": "/c"}]},
    {"type": "MESSAGES_SNAPSHOT", "messages": [{"id": "1", "role": "user", "content": "x"}]},
    {"type": "RUN_FINISHED", "outcome": {"type": "interrupt", "interrupts": [{"id": "i", "message": "ok?", "toolCallId": "c"}], "pendingToolCallIds": ["c"]}, "usage": [{"inputTokens": 1, "model": "m"}], "result": {"a": 1}},
]  # fmt: skip
A2A_PARTS = [
    {"text": "Hi"},
    {"data": {"a": 1}},
    {"raw": "aGk=", "filename": "a", "mediaType": "text/plain"},
    {"url": "http://x"},
]
A2A_EVENTS = [
    {"task": {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}, "artifacts": [{"artifactId": "a", "parts": A2A_PARTS}]}},
    {"artifactUpdate": {"taskId": "t", "artifact": {"artifactId": "b", "parts": A2A_PARTS}, "append": True}},
    {"kind": "status-update", "taskId": "t", "status": {"state": "input-required", "message": {"parts": [{"kind": "file", "file": {"bytes": "aGk="}}]}}},
    {"message": {"contextId": "c", "parts": A2A_PARTS}},
]  # fmt: skip
A2A_CARD = {
    "supportedInterfaces": [{"url": "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    "url": "http://x", "additionalInterfaces": [{"url": "u", "transport": "HTTP+JSON"}], "capabilities": {"streaming": True},
    "securitySchemes": {"k": {"apiKeySecurityScheme": {"name": "X", "location": "query"}}}, "securityRequirements": [{"schemes": {"k": {"list": []}}}],
}  # fmt: skip
HOST = [
    {"type": "provider.usage", "sequence": 1, "payload": {"model": "m", "provider": "p", "inputTokens": 1, "outputTokens": 2, "costEstimateUsd": 0.1, "currency": "USD"}},
    {"type": "agent.toolReturned", "sequence": 2, "payload": {"toolName": "t", "status": "ok"}},
    {"type": "run.failed", "sequence": 3, "payload": {"error": {"message": "no"}}},
    {"type": "run.completed", "sequence": 4, "payload": {"outputs": {"output": {"a": 1}, "outcome": "ok"}}},
]  # fmt: skip
STARTED = {"runId": "r1", "error": "x", "message": "no", "details": {"field": "agentId"}}
VERDICT = {"passed": True, "reason": "so", "score": 0.5, "evidence": [{"turn": 1, "quote": "Hello"}], "suggestions": ["a"]}  # fmt: skip
SPOKEN = {"input": "Hi", "goal_achieved": False, "reasoning": "r", "facts": {"order": "W-1"}}
CASES = {"cases": [{"id": "a", "input": "Hi", "assertions": [{"type": "contains", "value": "x"}]}]}
CONNECTOR = Connector(name="model", provider="openai", base_url="http://127.0.0.1:1", model="m", retries=0)


def streamed(events: list[Any], raw: bytes) -> bytes:
    """The events of a stream, the last of them or one amid them garbled."""
    lines = [json.dumps(event).encode() for event in events]
    return b"".join(b"data: %b\n\n" % line for line in [*lines[:2], raw.replace(b"\n", b" "), *lines[2:]])


def model(agent: type[ModelAgent], raw: bytes, *events: Any, status: int = 200) -> None:
    tools = (Tool("add", run=lambda **given: given),)
    body = streamed([*events], raw) if events else raw
    speaker = agent(connector=CONNECTOR, tools=tools, stream=bool(events), max_tool_rounds=1)
    say(speaker, Canned(body, status))


def decode_any(raw: bytes) -> None:
    try:
        check_value(codec.decode(raw))
    except codec.DecodeError as wrong:
        check_fault(wrong)


def decode_text(raw: bytes) -> None:
    for text in (raw.decode(errors="replace"), raw.decode(errors="surrogateescape"), f"So: {raw.decode('latin-1')} ."):
        for value in (parse_whole_json(text), find_json(text)):
            if value is not UNSET:
                check_value(value)


def error_text(raw: bytes) -> None:
    for charset in ("", "latin-1", "utf-16", "utf-7", "idna", "base64", "nonsense", "'utf-8'"):
        answer = convert_to_utf8(Response(500, {"content-type": f"application/json; charset={charset}"}, raw))
        assert len(extract_error_message(answer.body, ("secret",)).encode()) < 2000


def http_agent(raw: bytes) -> None:
    say(HttpAgent(url="http://x/"), Canned(raw))
    say(HttpAgent(url="http://x/", content="$..content", tool_calls="$..tool_calls", usage="$.usage"), Canned(raw))
    say(HttpAgent(url="http://x/", retries=0), Canned(raw, 429, {"retry-after": raw[:30].decode("latin-1")}))
    say(HttpAgent(url="http://x/"), Canned(raw, headers={"content-type": "text/plain; charset=latin-1"}))


def http_stream(raw: bytes) -> None:
    paths: dict[str, Any] = {
        "delta": "$..content",
        "done": "$.done",
        "tool_calls": "$..tool_calls",
        "content": "$.output",
    }
    kinds: list[dict[str, Any]] = [{"stream": kind} for kind in ("sse", "json_lines", "text")]
    kinds.append({"stream": "sse", **paths})
    for fields in kinds:
        agent = HttpAgent(url="http://x/", retries=0, **fields)
        say(agent, Canned(streamed([DELTA, DELTA], raw)))
        say(agent, Canned(raw))


def agui_agent(raw: bytes) -> None:
    agent = AguiAgent(endpoint=RemoteEndpoint(url="http://x/", retries=0), state={"a": {"b": []}})
    say(agent, Canned(streamed(AGUI_EVENTS, raw)))
    say(
        agent,
        Canned(b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in AGUI_EVENTS[:-1]) + b"data: " + raw),
    )


def a2a_events(raw: bytes) -> None:
    try:
        value = codec.decode(raw)
    except codec.DecodeError:
        return
    for wraps_data in (False, True):
        reader = TaskReader({}, CallProgress(), wraps_data=wraps_data)
        try:
            for event in (*A2A_EVENTS[:1], value):
                reader.add(event)
            check_reply(reader.finish())
        except TrialFault as fault:
            check_fault(fault)
        check_reply(reader.build_reply())


def mcp_stub(raw: bytes) -> None:
    stub = McpStub([ToolStub("lookup", {"a": 1})])
    if (answer := stub.answer(raw)) is not None:
        check_value(codec.decode(answer))
    for call in stub.calls:
        check_value(codec.to_builtins(call))


def a2a_card(raw: bytes) -> None:
    try:
        read_card(codec.decode(raw), "http://x/card.json", {"X": "1"})
    except codec.DecodeError:
        return
    except TrialFault as fault:
        check_fault(fault)


class _Impatient(OpenwopAgent, frozen=True, kw_only=True):
    """Takes up a broken stream without a pause."""

    @asynccontextmanager
    async def open(  # pyright: ignore[reportIncompatibleMethodOverride] -- any session will do
        self, context: SessionContext
    ) -> AsyncGenerator[OpenwopSession]:
        async def no_pause(_seconds: float) -> None:
            return None

        session: Any = OpenwopSession(self, context)
        session._host = HostClient(url=self.url, token=None, http=context.http, retries=0, sleep=no_pause)
        yield session


def openwop_agent(raw: bytes) -> None:
    class Host(Canned):
        async def request(self, request: Request) -> Response:
            return Response(self.status, self.headers, codec.encode(STARTED))

    agent = _Impatient(url="http://x", agent="a", token=None)
    say(agent, Host(streamed(HOST, raw)))
    say(agent, Canned(raw, 201))
    say(agent, Canned(raw, 400))


def acp_updates(raw: bytes) -> None:
    try:
        value = codec.decode(raw)
    except codec.DecodeError:
        return
    turn = CliTurn()
    for event in (*parse_update(value), *parse_usage(value)):
        turn.add_event(event)
    check_reply(turn.build_reply())


class _Peer:
    """A process that prints these lines."""

    def __init__(self, *lines: bytes) -> None:
        self._lines = lines

    async def lines(self) -> AsyncIterator[bytes]:
        for line in self._lines:
            yield line

    async def send(self, data: bytes) -> None:
        codec.decode(data)


def acp_wire(raw: bytes) -> None:
    async def asked(method: str, params: Any) -> Any:
        return {"method": method, "params": params}

    async def listen() -> None:
        peer: Any = _Peer(*(json.dumps(line).encode() for line in RPC), raw)
        await JsonRpcConnection(peer, asked, lambda _method, params: check_value(params), lambda line: None).listen()

    finished(listen())


def cli(dialect: CliSpec) -> Callable[[bytes], None]:
    def check(raw: bytes) -> None:
        try:
            turn = collect_turn(event for line in raw.split(b"\n") for event in parse_events(dialect, line) or ())
        except TrialFault as fault:
            return check_fault(fault)
        return check_reply(turn.build_reply())

    return check


RULE = LineRule(text="$.text", tool="$.name", arguments="$.arguments", result="$.result", usage="$.usage", awaiting="$.waits", error="$.error", end=True)  # fmt: skip
COMMAND = build_command_spec(("x",), (), (), "jsonl", (RULE,))
PRINTED = {"text": "Hi", "name": "t", "arguments": '{"a": 1}', "result": {"r": 1}, "usage": {"input_tokens": 1}, "waits": "x", "error": ""}  # fmt: skip


def kept(read_file: Callable[[Path], Any], head: bytes = b"") -> Callable[[bytes], None]:
    def check(raw: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "kept.jsonl")
            path.write_bytes(head + raw + b"\n")
            try:
                read_file(path)
            except (BadInput, RunStopped) as wrong:
                check_fault(wrong)

    return check


def journal(path: Path) -> None:
    journal = Journal(path)
    try:
        list(journal.iterate_raw_records())
    finally:
        journal.close()


def suite(suffix: str) -> Callable[[bytes], None]:
    def load(path: Path) -> None:
        path = path.rename(path.with_suffix(suffix))
        problems: list[Any] = []
        for document in open_documents(path, path.name).read_valid(problems):
            if not codec.has_nan_or_infinity(document.value):  # which YAML can say
                check_value(document.value)
        for problem in problems:
            assert str(problem).strip()

    return kept(load)


def evidence() -> CheckContext:
    turn = Turn(1, UserMessage(Message("user", "Hi")))
    turn.reply = Reply("Hello")
    unused: Any = None
    case: Any = SimpleNamespace(history=(), metadata={})
    state = TrialState(case, Key("s", "c"), unused, unused)
    state.turns.append(turn)
    return CheckContext(state, turn)


def helper(parse: Callable[[Reply], Any]) -> Callable[[bytes], None]:
    def check(raw: bytes) -> None:
        replies = [Reply(raw.decode(errors="replace"))]
        try:
            replies.append(Reply(data=codec.decode(raw)))
        except codec.DecodeError:
            pass
        for reply in replies:
            try:
                codec.encode(parse(reply))
            except ValueError as unusable:
                check_fault(unusable)

    return check


def spoken(reply: Reply) -> Any:
    found = parse_simulator_reply(reply)
    SimulatorReplyValidator(evidence().state, {"order": "W-1"}).parse(reply)
    return found


def generated(reply: Reply) -> Any:
    return parse_cases(find_json(reply.content) if reply.data is None else reply.data)


def tool_arguments(raw: bytes) -> None:
    for given_ in (raw.decode(errors="replace"), raw.decode("latin-1")):
        call = finished(Toolbox((Tool("add"),), None, CallProgress()).run_call(ToolCall("add", given_)))
        check_value(codec.to_builtins(call))


def host_body(raw: bytes) -> None:
    try:
        check_value(parse_json(raw))
    except ApiError as refused:
        check_fault(refused)


def event_stream(raw: bytes) -> None:
    events = SseParser(100_000)
    try:
        for at in range(0, len(raw), 7):
            events.feed_data(raw[at : at + 7])
        events.feed_eof()
    except TrialFault as fault:
        check_fault(fault)


def captured(name: str) -> list[Any]:
    lines = [line for path in sorted((CAPTURES / name).glob("*.jsonl")) for line in path.read_bytes().split(b"\n")]
    short = {}
    for line in lines:
        if line.startswith(b'{"') and line.endswith(b"}") and len(line) < 3000:
            value = json.loads(line)
            short.setdefault(str(value.get("type")), value)
    return list(short.values())


CASSETTE = b'{"type":"header","version":1,"viva":"1"}\n'
DECODERS: dict[str, tuple[list[Any], Callable[[bytes], None]]] = {
    "codec": ([COMPLETION], decode_any),
    "JSON in text": ([VERDICT, b'text ```json\n{"a": 1}\n``` more [1] {"b": [2]}'], decode_text),
    "error bodies": ([{"error": {"message": "no"}}, {"detail": "x"}, b"<html><b>no</b></html>"], error_text),
    "http": (HTTP, http_agent),
    "chat": ([COMPLETION, PLAIN_COMPLETION], lambda raw: model(ChatAgent, raw)),
    "chat, an error": ([{"error": {"message": "no"}}], lambda raw: model(ChatAgent, raw, status=400)),
    "chat, streamed": ([DELTA], lambda raw: model(ChatAgent, raw, DELTA)),
    "anthropic": ([ANTHROPIC], lambda raw: model(AnthropicAgent, raw)),
    "anthropic, streamed": (ANTHROPIC_EVENTS, lambda raw: model(AnthropicAgent, raw, *ANTHROPIC_EVENTS)),
    "gemini": ([GEMINI_ANSWER], lambda raw: model(GeminiAgent, raw)),
    "gemini, streamed": ([GEMINI_ANSWER], lambda raw: model(GeminiAgent, raw, GEMINI_ANSWER)),
    "responses": ([RESPONSE], lambda raw: model(ResponsesAgent, raw)),
    "responses, streamed": (RESPONSE_EVENTS, lambda raw: model(ResponsesAgent, raw, *RESPONSE_EVENTS)),
    "http, streamed": ([*HTTP, DELTA], http_stream),
    "agui": (AGUI_EVENTS, agui_agent),
    "a2a": (A2A_EVENTS, a2a_events),
    "mcp": ([{"id": 1, "method": "tools/call", "params": {"name": "lookup", "arguments": {"a": 1}}}, [{"id": 2, "method": "initialize"}]], mcp_stub),
    "a2a card": ([A2A_CARD], a2a_card),
    "openwop": ([*HOST, STARTED], openwop_agent),
    "acp updates": (UPDATES, acp_updates),
    "acp wire": (RPC, acp_wire),
    "event stream": ([b"data: a\r\n\r\ndata: b\n\n: c\n"], event_stream),
    "command": ([PRINTED], cli(COMMAND)),
    **{each.name: (captured(each.name), cli(each)) for each in (GEMINI, CLAUDE, CODEX, QWEN, OPENCODE)},
    "journal": ([codec.encode(Note("a", "warning"))], kept(lambda path: list(read_events(path)))),
    "journal, resumed": ([{"event": "trial_ended", "index": 1, "record": {}}], kept(journal)),
    "cassette": ([b'{"type":"definition","agent":"a"}'], kept(lambda path: list(read_cassette(path)), CASSETTE)),
    "judge": ([VERDICT], helper(lambda reply: _JudgeReplyParser(evidence(), "paid", 0.5, must_quote=True).parse(reply))),
    "judge without quotes": ([VERDICT], helper(lambda reply: _JudgeReplyParser(evidence(), "paid", None, must_quote=False).parse(reply))),
    "simulator": ([SPOKEN], helper(spoken)),
    "generator": ([CASES], helper(generated)),
    "tool arguments": ([{"a": 1}], tool_arguments),
    "suite.json": ([CASES, CASES["cases"]], suite(".json")),
    "suite.jsonl": ([CASES["cases"][0]], suite(".jsonl")),
    "suite.yaml": ([CASES, b"- id: a\n  input: b\n", b'- "\\ud800"\n'], suite(".yaml")),
    "host body": ([{"mode": "eval", "inputs": {"a": 1}}], host_body),
}  # fmt: skip
each_decoder = pytest.mark.parametrize("name", DECODERS)


@each_decoder
def test_foreign_bytes_are_a_value_or_a_fault(name: str):  # N17
    check_bytes(name, 60)


@pytest.mark.soak
@each_decoder
def test_many_more_foreign_bytes_are_a_value_or_a_fault(name: str):
    check_bytes(name, 2000)


def check_bytes(name: str, examples: int) -> None:
    messages, check = DECODERS[name]
    for message in messages:  # chance alone seldom finds the one place that takes a value of any depth
        for place in [] if isinstance(message, bytes) else places(message):
            holed = json.dumps(with_hole(message, place)).encode()
            check(holed.replace(json.dumps(HOLE).encode(), b"[" * DEEP + b"]" * DEEP))

    @settings(max_examples=examples)
    @given(foreign(messages))
    def attempt(raw: bytes) -> None:
        check(raw)

    attempt()
