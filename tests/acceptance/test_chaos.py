"""Agents, models, judges and simulated users that misbehave in every way, against every kind of them.

Each time the run ends by itself, the other cases of the run pass, each trial has an outcome with the right fault, the run
can be resumed and replayed, the exit code is 1, and nothing is said about a bug in Viva. CLI agents have tests of their own.
"""

import json
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

import bubblewrap
from project import Ended, InProcessProject, Project, contains
from viva.testing import (
    AnthropicServer,
    GeminiServer,
    HttpServer,
    OpenAIServer,
    ReceivedRequest,
    StubResponse,
    json_response,
)
from viva.testing.model_server import ModelServer

Outcome = tuple[str, str | None]
PASSED: Outcome = ("passed", None)
AGENT: Outcome = ("failed", "agent")
INFRA: Outcome = ("error", "infra")
JUDGE: Outcome = ("error", "judge")
SIMULATOR: Outcome = ("error", "simulator")
UNDETERMINED: Outcome = ("error", "undetermined")
GOOD = ("good one", "good two")
TLS = Path(__file__).parents[1] / "contract" / "tls"
JSON = {"Content-Type": "application/json"}
MEGABYTE = b"x" * 2**20


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Project:
    monkeypatch.setenv("CHAOS_KEY", "k-chaos-0123456789")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("viva.llm.calls._FIRST_PAUSE_S", 0.0)  # tries follow each other at once
    return InProcessProject(tmp_path, capsys)


# What goes wrong


def raw(*pieces: bytes, head: str = "") -> StubResponse:
    lines = ["HTTP/1.1 200 OK", "Content-Type: application/json", head]
    return StubResponse(raw=("\r\n".join([*lines, "", ""]).encode(), *pieces), close="silent")


def misbehave(how: str, valid: bytes) -> StubResponse:
    """An answer that goes wrong in that way; `valid` is one that would be right, with an `é` in it."""
    half = valid[: len(valid) // 2]
    latin1 = valid.decode().encode("latin-1")
    match how:
        case "latin-1":
            return StubResponse(body=latin1, headers=JSON)
        case "latin-1 by name":
            return StubResponse(body=latin1, headers={"Content-Type": "application/json; charset=ISO-8859-1"})
        case "utf-16 without a name":
            return StubResponse(body=valid.decode().encode("utf-16"), headers=JSON)
        case "opening brackets":
            return StubResponse(body=b"[" * 100_000, headers=JSON)
        case "deep but closed":
            return StubResponse(body=valid.replace(b"{", b'{"data":' + b"[" * 500 + b"]" * 500 + b",", 1), headers=JSON)
        case "brackets in an error":
            return StubResponse(status=400, body=b"[" * 100_000, headers=JSON)
        case "latin-1 in an error":
            return StubResponse(status=422, body='{"error": {"message": "gelöscht"}}'.encode("latin-1"), headers=JSON)
        case "a number of 5,000 digits":
            return StubResponse(body=b"9" * 5000, headers=JSON)
        case "half a surrogate":
            return StubResponse(body=valid.replace("é".encode(), rb"\ud800"), headers=JSON)
        case "flood":
            return raw(*[b"%x\r\n%b\r\n" % (len(MEGABYTE), MEGABYTE)] * 66, head="Transfer-Encoding: chunked")
        case "a promise of too much":
            return raw(half, head="Content-Length: 1000000000000")
        case "a length of 5,000 digits":
            return raw(valid, head=f"Content-Length: {'9' * 5000}")
        case "two lengths":
            return raw(valid, head="Content-Length: 3\r\nContent-Length: 4")
        case "too short a length":
            return raw(valid, head=f"Content-Length: {len(half)}")
        case "too long a length":
            return raw(valid, head=f"Content-Length: {len(valid) + 9}")
        case "half an answer":
            return StubResponse(body=valid, headers=JSON, cut="amid_body")
        case "headers only":
            return StubResponse(body=valid, headers=JSON, cut="after_headers")
        case "no answer":
            return StubResponse(cut="before")
        case "a drip that never ends":
            return StubResponse(chunks=(half, valid), headers=JSON, hold="amid_body")
        case "no HTTP":
            return StubResponse(raw=(b"\x00\xff" * 100,), close="silent")
        case "gzip that is none":
            return StubResponse(body=valid, headers={**JSON, "Content-Encoding": "gzip"})
        case _:
            raise AssertionError(how)


DRIP = "a drip that never ends"
# Of an agent under test that is an endpoint, and of a model behind an agent: who is to blame (N17).
BYTES: dict[str, tuple[Outcome, Outcome]] = {
    "latin-1": (AGENT, INFRA),
    "latin-1 by name": (PASSED, PASSED),
    "utf-16 without a name": (AGENT, INFRA),
    "opening brackets": (AGENT, INFRA),
    "deep but closed": (AGENT, INFRA),
    "brackets in an error": (AGENT, AGENT),
    "latin-1 in an error": (AGENT, AGENT),
    "a number of 5,000 digits": (AGENT, INFRA),
    "half a surrogate": (AGENT, INFRA),
    "flood": (INFRA, INFRA),
    "a promise of too much": (INFRA, INFRA),
    "a length of 5,000 digits": (INFRA, INFRA),
    "two lengths": (INFRA, INFRA),
    "too short a length": (AGENT, INFRA),
    "too long a length": (INFRA, INFRA),
    "half an answer": (INFRA, INFRA),
    "headers only": (INFRA, INFRA),
    "no answer": (INFRA, INFRA),
    DRIP: (AGENT, AGENT),
    "no HTTP": (INFRA, INFRA),
    "gzip that is none": (INFRA, INFRA),
}
# A stream of events is UTF-8, and some have ended when their last event is there.
OTHERWISE: dict[str, dict[str, Outcome]] = {
    "agui": {"latin-1 by name": AGENT, "too long a length": PASSED},
    "http stream": {"latin-1 by name": AGENT, "too long a length": PASSED},
    "openai stream": {"latin-1 by name": INFRA, "too long a length": PASSED},
    "responses stream": {"latin-1 by name": INFRA, "too long a length": PASSED},
    "anthropic stream": {"latin-1 by name": INFRA, "too long a length": PASSED},
    "gemini stream": {"latin-1 by name": INFRA},
}
"""What differs at one kind of agent."""
ANSWERING = ("http", "a2a", "openai", "responses", "anthropic", "gemini", "prompt")
STREAMING = ("agui", "http stream", "openai stream", "responses stream", "anthropic stream", "gemini stream")


def completion(kind: str, text: str) -> dict[str, Any]:
    """A right answer, in the words of that kind of agent."""
    match kind:
        case "openai":
            return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]}
        case "anthropic":
            return {"type": "message", "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
        case "gemini":
            return {"candidates": [{"content": {"parts": [{"text": text}]}, "finishReason": "STOP"}]}
        case "responses":
            said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
            return {"status": "completed", "output": [said]}
        case "a2a":
            return {"jsonrpc": "2.0", "id": 1, "result": {"message": {"role": "agent", "parts": [{"text": text}]}}}
        case _:
            return {"content": text}


def stream(kind: str, text: str) -> bytes:
    """A right answer as a stream of events, in the words of that kind of agent."""
    events: list[dict[str, Any]] = {
        "agui": [{"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": text}, {"type": "RUN_FINISHED"}],
        "openai": [{"choices": [{"delta": {"content": text}}]}, {"choices": [{"delta": {}, "finish_reason": "stop"}]}],
        "anthropic": [
            {"type": "message_start", "message": {"type": "message", "content": []}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
            {"type": "message_stop"},
        ],
        "gemini": [completion("gemini", text)],
        "responses": [
            {"type": "response.output_text.delta", "delta": text},
            {"type": "response.completed", "response": completion("responses", text)},
        ],
        "http": [{"delta": text}, {"done": True}],
    }[kind]
    lines = [json.dumps(each, ensure_ascii=False).encode() for each in events]
    return b"".join(b"data: %b\n\n" % line for line in [*lines, *([b"[DONE]"] if kind == "openai" else [])])


def answers(kind: str, say: str = "fine é", *, streams: bool = False) -> Callable[[ReceivedRequest], StubResponse]:
    """Answers rightly, unless the request names one of the ways to misbehave: MIS<how>."""

    def answer(received: ReceivedRequest) -> StubResponse:
        said = received.body.decode()
        asked = re.findall("MIS<(.*?)>", said)
        if received.path.endswith("agent-card.json"):
            service = {"url": "/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
            return json_response({"name": "bot", "supportedInterfaces": [service]})
        valid = stream(kind, say) if streams else json.dumps(completion(kind, say), ensure_ascii=False).encode()
        return (
            misbehave(asked[-1], valid) if asked and asked[-1] != "nothing" else StubResponse(body=valid, headers=JSON)
        )

    return answer


@contextmanager
def serving(kind: str, say: str = "fine é") -> Generator[tuple[HttpServer, str]]:
    """A server of that kind, and the config of an agent `bot` behind it."""
    stand_ins: dict[str, type[ModelServer]] = {"openai": OpenAIServer, "anthropic": AnthropicServer, "gemini": GeminiServer}  # fmt: skip
    kind, streams = kind.removesuffix(" stream"), kind.endswith(" stream")
    if kind in ("http", "a2a", "agui"):
        with HttpServer(answers(kind, say, streams=streams or kind == "agui")) as server:
            config = f'[agents.bot]\ntype = "{kind}"\nurl = "{server.url}"\nretries = 0\n'
            yield server, config + ('stream = "sse"\ndelta = "$.delta"\n' if streams else "")
        return
    agent = f'type = "chat"\nstream = {json.dumps(streams)}'
    api = f'api = "{kind}"\n' if kind == "responses" else ""
    if kind == "prompt":
        kind, agent = "openai", 'type = "prompt"\nprompt = "brief.txt"'
    provider = stand_ins["openai" if kind == "responses" else kind]
    answer = answers(kind, say, streams=streams)

    def script(asked: Any) -> StubResponse:
        return answer(server.requests[-1])

    with provider(script) as server:
        connector = f'{api}provider = "{server.provider}"\nbase_url = "{server.url}"\nmodel = "m"\n'
        connector += 'api_key_env = "CHAOS_KEY"\nretries = 0\n'
        yield server, f'[connectors.model]\n{connector}[agents.bot]\n{agent}\nconnector = "model"\n'


def outcomes(project: Project) -> dict[str, Outcome]:
    return {record["id"]: (record["status"], record.get("fault")) for record in project.records()}


def check_ended(ended: Ended) -> None:
    assert ended.code == 1, ended
    assert "Traceback" not in ended.err, ended
    assert "bug in Viva" not in ended.err, ended


def check_run(project: Project, expected: Mapping[str, Outcome], agent: str = "bot", *flags: str) -> None:
    """A run with that outcome, recorded; then what is left of it when it was cut off, resumed; then replayed."""
    run = ("test", "-i", "suite.jsonl", "-n", agent, "--parallel", "4", "--retry-faults", "0", *flags)
    reports = ("-o", "report.jsonl", "-o", "report.html", "-o", "report.xml", "-o", "report.md")
    check_ended(project.viva(*run, "--record", "tape", *reports))
    assert outcomes(project) == expected
    for record in project.records():
        assert record["status"] == "passed" or record.get("error") or record["assertion_errors"]
    cut_off_run(project)
    check_ended(project.viva("test", "--resume", "latest"))
    assert outcomes(project) == expected
    check_ended(project.viva(*run, "--replay", "tape", *reports))
    assert outcomes(project) == expected


def cut_off_run(project: Project) -> None:
    """As if the process had been killed after half of the trials."""
    journal = project.find_journal()
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: len(lines) // 2]))


def suite(project: Project, bad: Iterable[str], **fields: Any) -> None:
    cases = [
        {"id": name, "input": f"MIS<{name}>", "assertions": [contains("fine")], **fields, **({"turn_timeout": "1s"} if name == DRIP else {})}
        for name in bad
    ]  # fmt: skip
    good = [{"id": name, "input": "MIS<nothing>", "assertions": [contains("fine")], **fields} for name in GOOD]
    project.suite(good[0], *cases, good[1])


# The agent under test


@pytest.mark.parametrize("kind", [*ANSWERING, *STREAMING])
def test_no_bytes_of_an_endpoint_end_the_run(project: Project, kind: str):  # N17
    project.write("brief.txt", "Be brief.")
    with serving(kind) as (_, config):
        project.write("viva.toml", config)
        # What follows a stream that is too long is read as a part of it, or as another answer: that depends on the network.
        ways = [name for name in BYTES if kind not in STREAMING or name != "too short a length"]
        suite(project, ways)
        is_endpoint = kind.startswith(("http", "a2a", "agui"))
        expected = {name: BYTES[name][0 if is_endpoint else 1] for name in ways}
        check_run(project, {**expected, **OTHERWISE.get(kind, {}), **dict.fromkeys(GOOD, PASSED)})


PYTHON = """
import asyncio, sys
from collections.abc import Mapping
from viva import Reply, ToolCall

class Text(str):
    def __str__(self): raise ValueError("no text")

class Unshowable(Exception):
    def __str__(self): raise ValueError("no words")
    __repr__ = __str__

class Odd:
    def __eq__(self, other): raise ValueError("no equal")
    def __hash__(self): raise ValueError("no hash")
    def __str__(self): raise ValueError("no text")
    __repr__ = __str__

class OddDict(dict):
    def get(self, *given): raise ValueError("no get")
    def __contains__(self, key): raise ValueError("no contains")

class OddMapping(Mapping):
    def __getitem__(self, key): raise RuntimeError("no item")
    def __iter__(self): raise RuntimeError("no iter")
    def __len__(self): raise RuntimeError("no len")

class Base(BaseException): pass

class Interrupting(Exception):
    def __str__(self): raise KeyboardInterrupt
    __repr__ = __str__

class InterruptingDict(dict):
    def get(self, *given): raise KeyboardInterrupt

class LeavingDict(dict):
    def get(self, *given): raise SystemExit(0)

def from_itself():
    error = ValueError("again")
    raise error from error

def in_a_circle_of_causes():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    raise one

def in_a_circle_of_contexts():
    one, two = ValueError("one"), ValueError("two")
    one.__context__, two.__context__ = two, one
    raise one

def a_group_of_itself():
    inner = ValueError("inner")
    group = ExceptionGroup("all", [inner])
    inner.__cause__ = group
    raise group

def a_base_exception(): raise Base("no Exception")
def an_exit(): raise SystemExit(3)
def an_interrupt(): raise KeyboardInterrupt
def interrupting_words(): raise Interrupting
def no_words(): raise Unshowable
def surrogate_words(): raise ValueError("half \\ud800")
def surrogate_print():
    print("half \\ud800")
    raise ValueError("printed")
def too_deep_a_call(): return too_deep_a_call()

def deep(levels):
    value = 1
    for _ in range(levels): value = [value]
    return value

circle = {}
circle["circle"] = circle

def a_circle(): return {"content": "x", "data": circle}
def deep_data(): return {"content": "x", "data": deep(100_000)}
def data_of_500_levels(): return {"content": "x", "data": deep(500)}
def deep_arguments(): return {"content": "x", "tool_calls": [{"name": "f", "arguments": deep(500)}]}
def an_endless_number(): return {"content": "x", "data": 10 ** 5000}
def not_a_number(): return {"content": "x", "tool_calls": [{"name": "f", "arguments": {"a": float("nan")}}]}
def surrogate_data(): return {"content": "x", "data": ["\\ud800"]}
def surrogate_key(): return {"content": "x", "data": {"\\ud800": 1}}
def odd_dict(): return OddDict(content="x")
def odd_mapping(): return OddMapping()
def interrupting_dict(): return InterruptingDict(content="x")
def leaving_dict(): return LeavingDict(content="x")
def odd_key(): return {"content": "x", "data": {("a", "b"): {1: 2}}, "tool_calls": 5}
def endless_usage(): return {"content": "x", "usage": {"input_tokens": 10 ** 400, "cost_usd": 10 ** 400}}
def usage_of_nan(): return {"content": "x", "usage": {"input_tokens": float("nan")}}
def a_reply_of_numbers(): return Reply(content=5, finish_reason=7)
def a_reply_of_objects(): return Reply(finish_reason=Odd(), tool_calls=5)
def surrogate_reply(): return Reply("\\ud800")
def a_generator(): yield "x"
def a_class(): return Reply

# What passes for a reply all the same
def odd_text(): return Text("fine é")
def odd_object(): return {"content": "fine é", "data": {"odd": Odd(), "bytes": b"\\xff"}}
def a_flood(): return "fine é" + "x" * 5_000_000
def a_null(): return "fine é \\0 \\x1b[2J"

def agent(messages):
    how = messages[-1]["content"][4:-1]
    return "fine é" if how == "nothing" else globals()[how]()

async def async_agent(messages):
    await asyncio.sleep(0)
    return agent(messages)

def stream_agent(messages):
    yield "fine é"
    yield {"content": ""} if "<nothing>" in messages[-1]["content"] else agent(messages)
"""
MISFITS = re.findall(r"^def (\w+)\(\)", PYTHON, re.MULTILINE)
FINE = {"odd_text", "odd_object", "a_flood", "a_null"}
FINE_IN_A_STREAM = {"endless_usage", "usage_of_nan"}


@pytest.mark.parametrize(
    ("function", "flags"),
    [("agent", ()), ("async_agent", ()), ("stream_agent", ()), ("async_agent", ("--workers", "2"))],
)
def test_no_object_or_exception_of_a_python_agent_ends_the_run(
    project: Project, function: str, flags: tuple[str, ...]
):  # N17
    project.write("agent.py", PYTHON)
    suite(project, MISFITS)
    fine = {*FINE, *(FINE_IN_A_STREAM if function == "stream_agent" else ())}
    expected = {name: PASSED if name in fine else AGENT for name in MISFITS}
    check_run(project, {**expected, **dict.fromkeys(GOOD, PASSED)}, f"python:./agent.py:{function}", *flags)


PLUGIN = """
from contextlib import asynccontextmanager
from msgspec import Struct
import viva

@viva.plugins.register("agent", "hostile")
class Hostile(Struct, frozen=True):
    provides = frozenset()

    @asynccontextmanager
    async def open(self, context):
        yield self

    async def send(self, message, options):
        how = message.text[4:-1]
        return Reply("fine é") if how == "nothing" else globals()[how]()
"""


def test_nothing_that_an_agent_of_a_plugin_raises_or_returns_ends_the_run(project: Project):  # N17
    project.write("agent.py", PYTHON + PLUGIN)
    project.write("viva.toml", 'plugins = ["agent"]\n[agents.bot]\ntype = "hostile"\n')
    suite(project, MISFITS)
    check_run(project, {**dict.fromkeys(MISFITS, AGENT), **dict.fromkeys(GOOD, PASSED)})


def test_a_plugin_whose_session_cannot_be_opened_or_closed_fails_its_trials(project: Project):  # N17
    for place in ("        yield self\n        1 / 0", "        1 / 0\n        yield self"):
        project.write("agent.py", "from viva import Reply\n" + PLUGIN.replace("        yield self", place))
        project.write("viva.toml", 'plugins = ["agent"]\n[agents.bot]\ntype = "hostile"\n')
        suite(project, ())
        check_ended(project.viva("test", "-i", "suite.jsonl", "-n", "bot", "-o", "report.jsonl", "--retry-faults", "0"))
        assert outcomes(project) == dict.fromkeys(GOOD, AGENT)


LEAVING = """
import asyncio, sys

async def in_a_task(error):
    raise error

def interrupt():
    raise KeyboardInterrupt

async def agent(messages):
    how = messages[-1]["content"][4:-1]
    if how == "a task": asyncio.create_task(in_a_task(SystemExit(0)))
    if how == "an interrupting task": asyncio.create_task(in_a_task(KeyboardInterrupt()))
    if how == "a callback": asyncio.get_running_loop().call_soon(sys.exit, 0)
    if how == "an interrupting callback": asyncio.get_running_loop().call_soon(interrupt)
    if how == "the loop": asyncio.get_running_loop().stop()
    await asyncio.sleep(0.01)
    return "fine"
"""


def test_an_agent_that_leaves_from_the_event_loop_does_not_end_the_run(project: Project):
    """It would end with the exit code of the agent: 0, as if all had passed; or as if somebody had pressed Ctrl-C."""
    project.write("agent.py", LEAVING)
    suite(project, ("a task", "an interrupting task", "a callback", "an interrupting callback", "the loop"))
    assert project.test("-o", "report.jsonl", "--parallel", "1").code == 0
    assert list(outcomes(project).values()) == [PASSED] * 7


def test_an_agent_that_cancels_all_tasks_interrupts_the_run(project: Project):
    cancel = "[task.cancel() for task in asyncio.all_tasks()]; await asyncio.sleep(9)"
    project.write("agent.py", f"import asyncio\nasync def agent(messages):\n    {cancel}\n")
    suite(project, ())
    ended = project.test("-o", "report.jsonl")
    assert ended.code == 2, ended
    assert "Traceback" not in ended.err, ended


@pytest.mark.parametrize("line", ["import sys; sys.exit(0)", "raise type('Base', (BaseException,), {})('gone')"])
def test_code_that_leaves_when_it_is_imported_is_bad_input(project: Project, line: str):
    """And no run that passed: `sys.exit(0)` would be one."""
    project.write("leaves.py", f"{line}\n")
    suite(project, ())
    for flags in (
        ("-n", "python:./leaves.py:agent"),
        ("-n", "python:leaves:agent"),
        ("-i", "scripts:leaves"),
        ("--before", "leaves:f"),
    ):
        ended = project.test(*flags)
        assert ended.code == 4, ended
        assert "does not import" in ended.err, ended
    project.write("viva.toml", 'plugins = ["leaves"]\n')
    assert project.test().code == 4


def test_a_scripted_agent_that_breaks_leaves_the_others_alone(project: Project):
    project.write(
        "viva.toml",
        '[agents.bot]\ntype = "scripted"\n'
        'replies = [{ when = "nothing", content = "fine" }, { when = "breaks", error = "half \\\\ud800" },'
        ' { when = "deep", content = "' + "[" * 100_000 + '" }, { when = "hangs", delay = "10m" }]\n',
    )
    suite(project, ("breaks", "none"))
    json_path = {"type": "json_path", "path": "$.a"}
    project.suite(
        *(json.loads(line) for line in (project.folder / "suite.jsonl").read_text().splitlines()),
        {"id": "deep", "input": "deep", "assertions": [json_path]},
        {"id": "hangs", "input": "hangs", "assertions": [contains("x")], "timeout": "1s"},
    )
    broken = ("breaks", "none", "deep", "hangs")
    check_run(project, {**dict.fromkeys(broken, AGENT), **dict.fromkeys(GOOD, PASSED)})


HOSTED = ("no run", "a list", "no JSON", "brackets", "no object", "an odd sequence", "odd usage", "odd outputs", "deep outputs", "cut off")  # fmt: skip


def hosted(received: ReceivedRequest) -> StubResponse:
    """An OpenWOP host whose runs are named by what was said: it answers rightly, or misbehaves as it is told."""
    if received.path.endswith("/cancel"):
        return json_response({})
    if received.method == "POST":
        how = re.findall("MIS<(.*?)>", received.body.decode())[-1]
        odd = {
            "no run": StubResponse(body=b"{}"),
            "a list": StubResponse(body=b"[1]"),
            "no JSON": StubResponse(body=b"\xff"),
        }
        return odd.get(how) or json_response({"runId": how.replace(" ", "-")}, 201)
    how = received.path.split("/")[3].replace("-", " ")
    usage = {"type": "provider.usage", "sequence": 1, "payload": {"inputTokens": "many", "outputTokens": 10**300}}
    ended: dict[str, Any] = {"type": "run.completed", "sequence": 9, "payload": {"outputs": {"output": "fine é"}}}
    sent: list[bytes] = {
        "brackets": [b"[" * 100_000],
        "no object": [b"[1]"],
        "an odd sequence": [b'{"type": "run.completed", "sequence": "9"}'],
        "odd usage": [json.dumps(usage).encode()],
        "odd outputs": [b'{"type": "run.completed", "sequence": 1, "payload": {"outputs": [1]}}'],
        "deep outputs": [b'{"type":"run.completed","sequence":1,"payload":{"outputs":{"output":' + b"[" * 500 + b"]" * 500 + b"}}}"],
    }.get(how, [])  # fmt: skip
    lines = [*sent, json.dumps(ended).encode()]
    chunks = tuple(b"data: %b\n\n" % line for line in lines)
    return StubResponse(chunks=chunks, headers={"Content-Type": "text/event-stream"}, cut="amid_body" if how == "cut off" else None)  # fmt: skip


def test_nothing_that_an_openwop_host_sends_ends_the_run(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("viva.agents.openwop_client.MAX_STREAM_FAILURES", 1)
    with HttpServer(hosted) as server:
        project.write("viva.toml", f'[agents.bot]\nuse = "openwop:{server.url}#core.bot"\n')
        suite(project, HOSTED)
        expected = dict.fromkeys(HOSTED, INFRA) | {"odd usage": PASSED, "odd outputs": AGENT}
        check_run(project, {**expected, **dict.fromkeys(GOOD, PASSED)})


# Connections


class Resetting:
    """A server that reads a request and resets the connection."""

    def __enter__(self) -> Self:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            connection.recv(65536)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()


def agents_at(project: Project, url: str) -> None:
    """An agent of each kind at that address."""
    config = f'[agents.openwop]\nuse = "openwop:{url}#core.bot"\n'
    for kind in ("http", "a2a", "agui"):
        config += f'[agents.{kind}]\ntype = "{kind}"\nurl = "{url}"\nretries = 0\n'
    config += f'[agents."http stream"]\ntype = "http"\nurl = "{url}"\nretries = 0\nstream = "sse"\n'
    project.write("brief.txt", "Be brief.")
    config += '[agents.prompt]\ntype = "prompt"\nprompt = "brief.txt"\nconnector = "openai"\n'
    for kind in ("openai", "responses", "anthropic", "gemini"):
        provider = 'openai"\napi = "responses' if kind == "responses" else kind
        config += f'[connectors.{kind}]\nprovider = "{provider}"\nbase_url = "{url}"\nmodel = "m"\napi_key_env = "CHAOS_KEY"\nretries = 0\n'
        config += f'[agents.{kind}]\ntype = "chat"\nconnector = "{kind}"\n'
        config += f'[agents."{kind} stream"]\ntype = "chat"\nconnector = "{kind}"\nstream = true\n'
    project.write("viva.toml", config)


KINDS = (*ANSWERING, *STREAMING, "openwop")


@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_connection_is_not_a_failure_of_the_agent(project: Project, kind: str):  # N17
    with Resetting() as server:
        agents_at(project, server.url)
        suite(project, ("reset",))
        check_run(project, dict.fromkeys(("reset", *GOOD), INFRA), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unsigned_certificate_is_explained(project: Project, kind: str):  # N17
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem")
    with HttpServer(lambda _: StubResponse(body=b"{}"), tls=context) as server:
        agents_at(project, server.url)
        suite(project, ("self-signed",))
        check_run(project, dict.fromkeys(("self-signed", *GOOD), INFRA), kind)
        assert not server.requests
        assert all("certificate" in record["error"] for record in project.records())


# Helpers


def test_no_bytes_of_a_judge_end_the_run(project: Project):  # N17, N29
    ways = [name for name in BYTES if name not in ("flood", DRIP)]
    verdict = json.dumps({"passed": True, "reason": "so é"}, ensure_ascii=False)
    for kind in ("http", "openai"):
        with serving(kind, verdict) as (_, config):
            project.write("viva.toml", config)
            cases = [
                {"id": name, "input": "hello", "assertions": [{"type": "agent", "use": "bot", "criteria": f"MIS<{name}>"}]}
                for name in (*ways, "nothing")
            ]  # fmt: skip
            project.suite(*cases)
            expected = {name: PASSED if BYTES[name][0] == PASSED else JUDGE for name in ways}
            check_run(project, {**expected, "nothing": PASSED}, "python:./agent.py:agent")
        shutil.rmtree(project.folder / ".viva")
        (project.folder / "tape").unlink()


VERDICTS = {
    "a score of 400 digits": '{"passed": true, "score": ' + "9" * 400 + "}",
    "an infinite score": '{"passed": true, "score": 1e999}',
    "suggestions that are a number": '{"passed": true, "reason": {"a": [1]}, "suggestions": 5}',
    "evidence of another kind": '{"passed": true, "evidence": [[{"turn": {}}]]}',
    "a quote of another kind": '{"passed": true, "evidence": [{"turn": [1], "quote": 7}]}',
    "a deep reason": '{"passed": true, "reason": ' + "[" * 500 + "]" * 500 + "}",
    "half a surrogate": '{"passed": true, "reason": "\\ud800"}',
    "brackets": "[" * 100_000,
    "nothing at all": "",
    "a list": "[true]",
}
USABLE = {"suggestions that are a number"}
"""What a judge may say all the same."""


def test_no_verdict_of_a_judge_ends_the_run(project: Project):  # N29
    project.write("verdicts.json", json.dumps(VERDICTS))
    project.write(
        "agent.py",
        "import json\nfrom pathlib import Path\n"
        "def agent(messages): return messages[-1]['content']\n"
        "def judge(messages, options):\n"
        "    return json.loads(Path('verdicts.json').read_text()).get(options['metadata']['test_id'], '{\"passed\": true}')\n",
    )
    project.write("viva.toml", '[agents.judge]\nuse = "python:./agent.py:judge"\n')
    judged = {"type": "agent", "use": "judge", "criteria": "it holds"}
    project.suite(*({"id": name, "input": "hi", "assertions": [judged]} for name in (*VERDICTS, *GOOD)))
    expected = {name: PASSED if name in USABLE else JUDGE for name in VERDICTS}
    check_run(project, {**expected, **dict.fromkeys(GOOD, PASSED)}, "python:./agent.py:agent")


SAID = {
    "brackets": '{"input": ' + "[" * 100_000,
    "deep": '{"input": ' + "[" * 500 + "]" * 500 + "}",
    "half a surrogate": '{"input": "\\ud800"}',
    "a number": '{"input": 5}',
    "an odd goal": '{"input": "x", "goal_achieved": [1]}',
    "nothing at all": "",
}


def test_nothing_that_a_simulated_user_says_ends_the_run(project: Project):  # N17, N29
    project.write("said.json", json.dumps(SAID))
    project.write(
        "agent.py",
        "import json\nfrom pathlib import Path\n"
        "def agent(messages): return 'fine'\n"
        "def user(messages, options):\n"
        "    return json.loads(Path('said.json').read_text()).get(options['metadata']['test_id'], 'hello')\n",
    )
    project.write("viva.toml", '[agents.user]\nuse = "python:./agent.py:user"\n')
    case = {"simulator": {"use": "user"}, "checkpoints": [{"id": "c", "assertion": contains("fine")}]}
    project.suite(*({"id": name, **case} for name in (*SAID, *GOOD)))
    check_run(project, dict.fromkeys(SAID, SIMULATOR) | dict.fromkeys(GOOD, PASSED), "python:./agent.py:agent")


def test_no_bytes_of_a_simulated_user_end_the_run(project: Project):  # N17, N29
    ways = [name for name in BYTES if name not in ("flood", DRIP)]
    with serving("http", "hello é") as (_, config):
        project.write("viva.toml", config)
        project.suite(
            *(
                {
                    "id": name,
                    "simulator": {"use": "bot", "options": {"metadata": {"goal": f"MIS<{name}>"}}},
                    "checkpoints": [{"id": "c", "assertion": contains("hello")}],
                }
                for name in (*ways, "nothing")
            )
        )
        expected = {name: PASSED if BYTES[name][0] == PASSED else SIMULATOR for name in ways}
        check_run(project, {**expected, "nothing": PASSED}, "python:./agent.py:agent")


CHECKS = """
class Odd:
    def __str__(self): raise ValueError("no text")
    __repr__ = __str__
class Base(BaseException): pass

circle = []
circle.append(circle)

def from_itself(output):
    error = ValueError("again")
    raise error from error
def a_base_exception(output): raise Base("x")
def an_interrupt(output): raise KeyboardInterrupt
def an_odd_reason(output): return {"passed": False, "reason": Odd()}
def surrogate_words(output): raise ValueError("\\ud800")
def surrogate_reason(output): return {"passed": False, "reason": "\\ud800"}
def an_endless_score(output): return {"passed": True, "score": 10 ** 400}
def not_a_score(output): return {"passed": True, "score": float("nan")}
def an_odd_answer(output): return circle
def fine(output): return True
"""


def test_nothing_that_a_script_of_the_users_returns_ends_the_run(project: Project):  # N24
    project.write("checks.py", CHECKS)
    names = re.findall(r"^def (\w+)\(", CHECKS, re.MULTILINE)
    checks = {name: [{"type": "script", "use": f"scripts:checks.{name}"}] for name in names}
    project.suite(*({"id": name, "input": "hi", "assertions": checks[name]} for name in names))
    check_run(project, dict.fromkeys(names, JUDGE) | {"fine": PASSED}, "python:./agent.py:agent")


SCRIPT_TESTS = """
circle = {}
circle["circle"] = circle

class Odd:
    def __str__(self): raise ValueError("no text")
    __repr__ = __str__

def test_fine(t, ctx): t.assert_.Contains(ctx.call("bot", "x").content, "fine")
def test_surrogate_message(t, ctx): ctx.call("bot", "half \\ud800")
def test_surrogate_history(t, ctx): ctx.call("bot", [{"role": "assistant", "content": "\\ud800"}, {"content": "x"}])
def test_surrogate_option(t, ctx): ctx.call("bot", "x", {"a": "\\ud800"})
def test_endless_option(t, ctx): ctx.call("bot", "x", {"a": circle})
def test_odd_message(t, ctx): ctx.call("bot", Odd())
def test_odd_log(t, ctx): t.log(Odd())
def test_surrogate_error(t, ctx): t.error("half \\ud800")
def test_surrogate_end(t, ctx): t.fatal("half \\ud800")
def test_surrogate_value(t, ctx): t.assert_.Contains("half \\ud800", "fine")
def test_surrogate_log(t, ctx):
    t.log("half \\ud800")
    t.assert_.Contains(ctx.call("bot", "x").content, "fine")
"""


def test_nothing_that_a_script_test_says_ends_the_run(project: Project):  # 12.9
    project.write("script_tests.py", SCRIPT_TESTS)
    project.write("agent.py", "def agent(messages): return 'fine'\n")
    project.write("viva.toml", '[agents.bot]\nuse = "python:./agent.py:agent"\n')
    run = ("test", "-i", "scripts:script_tests", "-n", "bot", "-o", "report.jsonl", "--retry-faults", "0")
    check_ended(project.viva(*run))
    passed = {"test_fine", "test_surrogate_log"}
    failed = {"test_surrogate_error", "test_surrogate_end", "test_surrogate_value"}
    statuses = {record["id"].rpartition("::")[2]: record["status"] for record in project.records()}
    assert statuses == {
        name: "passed" if name in passed else "failed" if name in failed else "error"
        for name in re.findall(r"^def (\w+)\(", SCRIPT_TESTS, re.MULTILINE)
    }


@pytest.mark.parametrize("value", ["'half \\ud800'", "circle", "{'a': '\\ud800'}"])
def test_no_value_that_a_hook_returns_ends_the_run(project: Project, value: str):  # 12.9
    project.write("agent.py", "def agent(messages): return 'fine'\n")
    project.write(
        "hooks.py",
        f"circle = {{}}\ncircle['circle'] = circle\ndef before(ctx, case):\n    return {{'value': {value}}}\n",
    )
    said = {"a text": "say {{value}}", "a value": "{{value}}", "nothing": "hello"}
    project.suite(
        *(
            {"id": name, "input": text, "before": "hooks:before", "assertions": [contains("fine")]}
            for name, text in said.items()
        )
    )
    check_ended(project.viva("test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent", "-o", "report.jsonl"))
    assert outcomes(project) == {"a text": UNDETERMINED, "a value": UNDETERMINED, "nothing": PASSED}


def test_a_value_that_cannot_be_sent_to_workers_stops_the_run_in_words(project: Project):  # 12.9
    project.write("agent.py", "def agent(messages): return 'fine'\n")
    project.write("hooks.py", "def before(ctx, cases):\n    value = {}\n    value['value'] = value\n    return value\n")
    suite(project, ())
    ended = project.viva(
        "test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent", "--workers", "1", "--before", "hooks:before"
    )
    check_ended(ended)
    assert "--before returned a value that cannot be sent to workers" in ended.out + ended.err


# Clocks and disks


CLOCK = """
import datetime, time
real = time.time
late = [0.0]
time.time = lambda: real() + late[0]

def agent(messages):
    late[0] = {"back": -10 * 365 * 86400.0, "on": 10 * 365 * 86400.0}.get(messages[-1]["content"][4:-1], 0.0)
    return "fine"
"""


def test_a_clock_that_jumps_breaks_nothing(project: Project, monkeypatch: pytest.MonkeyPatch):
    """By ten years, back and forth, while conversations are held: every wait is by a clock that does not jump."""
    monkeypatch.setattr(time, "time", time.time)  # the agent replaces it: put back afterwards
    project.write("agent.py", CLOCK)
    suite(project, ("back", "on", "back again", "on again"), timeout="60s")
    run = ("test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent", "-o", "report.jsonl")
    assert project.viva(*run).code == 0
    assert set(outcomes(project).values()) == {PASSED}
    assert all(0 <= record["duration_ms"] < 60_000 for record in project.records())
    cut_off_run(project)
    assert project.viva("test", "--resume", "latest").code == 0
    assert set(outcomes(project).values()) == {PASSED}


HOSTILE = """
import os, shutil, time
from pathlib import Path

def fills():
    with open("filled", "wb") as file:
        try:
            while True:
                file.write(b"x" * 65536)
        except OSError:
            pass

def forks():
    if os.fork() == 0:
        return "fine, says the child"

def forks_and_raises():
    if os.fork() == 0:
        raise ValueError("so says the child")

def forks_many():
    for _ in range(5):
        os.fork()

def deletes():
    shutil.rmtree(Path.cwd(), ignore_errors=True)

def agent(messages):
    how = messages[-1]["content"]
    if how in globals() and not Path("/mnt/done").exists():
        Path("/mnt/done").touch()
        globals()[how]()
    return "fine"

async def async_agent(messages):
    return agent(messages)
"""


def in_sandbox(folder: Path, *commands: str) -> tuple[Ended, list[str], list[dict[str, Any]]]:
    """Runs commands on a file system of 4 MB of their own; what they said, their exit codes, and the last report."""
    project = Project(folder)
    project.write("agent.py", HOSTILE)
    said = "\n".join(f"{command}; echo code=$?" for command in commands)
    script = (
        f'cp /mnt/files/* /mnt/small && cd /mnt/small && viva() {{ "{sys.executable}" -m viva "$@"; }}\n{said}\n'
        "left() { ls -l /proc/[0-9]*/exe 2>/dev/null | grep -c /python; }\n"
        "for _ in $(seq 100); do [ $(left) -eq 0 ] && break; sleep 0.1; done\n"
        "echo left=$(left); cat /mnt/small/report.jsonl"
    )
    command = [
        str(shutil.which("bwrap")), "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--unshare-pid", "--die-with-parent",
        "--size", str(4 * 2**20), "--tmpfs", "/mnt", "--ro-bind", str(folder), "/mnt/files", "--dir", "/mnt/small",
        "--setenv", "TMPDIR", "/mnt", "--setenv", "HOME", "/mnt", "--setenv", "PYTHONDONTWRITEBYTECODE", "1",
        "bash", "-c", script,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    ended = Ended(done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, ended
    return ended, re.findall(r"code=(\d+)", done.stdout), records


def hostile_suite(folder: Path, how: str) -> None:
    said = ("hi", "hi", how, "hi", "hi")
    Project(folder).suite(
        *({"id": f"c{n}", "input": text, "assertions": [contains("fine")]} for n, text in enumerate(said))
    )


RUN = "viva test -i suite.jsonl -o report.jsonl --parallel 1 -n python:./agent.py:"


@pytest.mark.parametrize("function", ["agent", "async_agent"])
def test_a_full_disk_stops_the_run_in_words_and_it_can_be_resumed(tmp_path: Path, function: str):
    """The agent fills it. What had ended before is kept."""
    if not bubblewrap.works():
        return  # said at the end of the run: NOT RUN
    hostile_suite(tmp_path, "fills")
    resume = "viva test --resume latest -o report.jsonl"
    ended, codes, records = in_sandbox(tmp_path, RUN + function, "rm filled", resume)
    assert "no space left on device" in (ended.out + ended.err).lower(), ended
    assert codes == ["1", "0", "0"], ended
    assert [record["status"] for record in records] == ["passed"] * 5


@pytest.mark.parametrize("function", ["agent", "async_agent"])
@pytest.mark.parametrize("how", ["forks", "forks_and_raises", "forks_many"])
def test_a_process_that_an_agent_forks_does_not_go_on_with_the_run(tmp_path: Path, how: str, function: str):
    if not bubblewrap.works():
        return  # said at the end of the run: NOT RUN
    hostile_suite(tmp_path, how)
    ended, codes, records = in_sandbox(tmp_path, RUN + function)
    assert codes == ["0"], ended
    assert [record["id"] for record in records] == ["c0", "c1", "c2", "c3", "c4"]
    assert "left=0" in ended.out, ended


@pytest.mark.parametrize("function", ["agent", "async_agent"])
def test_an_agent_that_deletes_the_project_ends_the_run_in_words(tmp_path: Path, function: str):
    if not bubblewrap.works():
        return  # said at the end of the run: NOT RUN
    hostile_suite(tmp_path, "deletes")
    ended, codes, _ = in_sandbox(tmp_path, RUN + function)
    assert codes == ["1"], ended
    assert "bug in Viva" not in ended.err, ended
