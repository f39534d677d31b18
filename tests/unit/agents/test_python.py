"""Agents that are Python code: how they are found, what they are given, what they may return."""

import asyncio
import importlib
import sqlite3
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import pytest

from viva.agents.python import PythonAgent, import_target
from viva.errors import AgentFailed, BadInput, Role, Unreachable
from viva.llm.transport import HttpTransport
from viva.model.case import Fixtures, Key, ToolStub
from viva.model.message import Message, ModelCall, Reply, Step, ToolCall
from viva.protocols import SessionContext

OPTIONS = {"session_id": "s-1", "metadata": {"k": "v"}}


def hold_conversation(
    target: Any, *output: str, options: Mapping[str, Any] = OPTIONS, role: Role = "agent", **context: Any
) -> list[Reply]:
    """What an agent answers to one line after another, in one session."""
    metered: list[ModelCall] = context.pop("metered", [])

    async def scenario() -> list[Reply]:
        opened = SessionContext(key=Key("s", "c"), role=role, meter=metered.append, http=HttpTransport(), **context)
        async with PythonAgent(target).open(opened) as session:
            return [await session.send(Message("user", line), options) for line in output]

    return asyncio.run(scenario())


def texts(target: Any, *output: str, **context: Any) -> list[str]:
    return [reply.content for reply in hold_conversation(target, *output, **context)]


class Counter:
    """One object for each session: it counts its own turns."""

    def __init__(self) -> None:
        self.turns = 0

    def reply(self, messages: list[Any]) -> str:
        self.turns += 1
        return f"turn {self.turns} of {len(messages)}"


class AsyncCounter(Counter):
    async def reply(self, messages: list[Any]) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0)
        return super().reply(messages)


class Called:
    """An object that is called itself."""

    async def __call__(self, messages: list[Any]) -> str:
        return f"called with {messages[-1]['content']}"


def make_counter() -> Counter:
    return Counter()


async def make_counter_later() -> Counter:
    return Counter()


@pytest.mark.parametrize("target", [Counter, AsyncCounter, make_counter, make_counter_later])
def test_a_class_or_factory_gives_one_session_a_case(target: Any):
    assert texts(target, "a", "b") == ["turn 1 of 1", "turn 2 of 3"]  # N19
    assert texts(target, "c") == ["turn 1 of 1"]


def test_an_object_is_shared_by_all_sessions():
    counter = Counter()
    texts(counter, "a")
    assert texts(counter, "b") == ["turn 2 of 1"]


async def async_function(messages: list[Any], options: dict[str, Any]) -> str:
    return f"{messages[-1]['content']} in {options['session_id']}"


@pytest.mark.parametrize(
    ("target", "output"),
    [
        (lambda messages: messages[-1]["content"], "hi"),
        (lambda m: m[-1]["content"], "hi"),
        (lambda messages, options: options["metadata"]["k"], "v"),
        (lambda x, y: y["metadata"]["k"], "v"),
        (lambda options, messages: messages[-1]["content"] + options["session_id"], "his-1"),
        (lambda messages, *, metadata: metadata["k"], "v"),
        (lambda messages, session_id: session_id, "s-1"),
        (lambda messages, temperature=0.5: str(temperature), "0.5"),
        (lambda *args: f"{len(args)} given", "1 given"),
        (lambda messages, **rest: f"{len(rest)} more", "0 more"),
        (async_function, "hi in s-1"),
        (Called(), "called with hi"),
    ],
)
def test_arguments_come_by_name_or_in_order(target: Any, output: str):
    assert texts(target, "hi") == [output]


def test_a_sync_agent_runs_elsewhere_and_always_in_the_same_thread():
    """An SQLite connection that the agent opens when it is made works in every turn, and when it is closed."""
    threads: list[int] = []

    class EventStore:
        def __init__(self) -> None:
            self.db = sqlite3.connect(":memory:")
            self.db.execute("create table entries (text)")

        def reply(self, messages: list[Any]) -> str:
            threads.append(threading.get_ident())
            self.db.execute("insert into entries values (?)", (messages[-1]["content"],))
            return str(self.db.execute("select count(*) from entries").fetchone()[0])

        def close(self) -> None:
            threads.append(threading.get_ident())
            self.db.close()

    assert texts(EventStore, "a", "b", "c") == ["1", "2", "3"]
    assert len(set(threads)) == 1
    assert len(threads) == 4
    assert threading.get_ident() not in threads


def test_an_async_agent_runs_on_the_loop():
    loops: list[Any] = []

    class OnLoop:
        def __init__(self) -> None:
            loops.append(asyncio.get_running_loop())

        async def reply(self, messages: list[Any]) -> str:
            loops.append(asyncio.get_running_loop())
            return "x"

        async def aclose(self) -> None:
            loops.append(asyncio.get_running_loop())

    hold_conversation(OnLoop, "a")
    assert len(loops) == 3
    assert len(set(map(id, loops))) == 1


def test_what_was_returned_becomes_a_reply():
    whole = {
        "content": "c",
        "data": {"a": {1, 2}, "when": Path("x")},
        "tool_calls": [
            {"id": "1", "name": "t", "arguments": {"x": 1}, "result": [1]},
            {"function": {"name": "u", "arguments": '{"y": 2}'}, "error": "no"},
        ],
        "awaiting_input": True,
        "input_hint": "h",
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "cost_usd": 0.5, "model": "m"},
    }
    metered: list[ModelCall] = []
    (reply,) = hold_conversation(lambda messages: whole, "x", metered=metered)
    assert (reply.content, reply.declared_state, reply.input_hint, reply.finish_reason) == (
        "c",
        "awaiting",
        "h",
        "stop",
    )
    assert reply.data == {"a": [1, 2], "when": "x"}
    first, second = reply.tool_calls
    assert first == ToolCall("t", {"x": 1}, "1", [1])
    assert (second.name, second.arguments, second.error) == ("u", {"y": 2}, "no")
    assert metered == [ModelCall("m", "", 7, 3, 0, 0.5)]


CACHED = {"cache_read_input_tokens": 100_000, "cache_creation_input_tokens": 2_000, "model": "claude-sonnet-4-5"}


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 10, "output_tokens": 5, **CACHED},
        {"prompt_tokens": 102_010, "completion_tokens": 5, **CACHED},  # of a gateway in OpenAI's form
    ],
)
def test_tokens_of_anthropics_cache_are_input_tokens_with_their_own_price(usage: dict[str, Any]):  # N25
    metered: list[ModelCall] = []
    hold_conversation(lambda messages: {"content": "x", "usage": usage}, "x", metered=metered)
    (call,) = metered
    assert (call.input_tokens, call.output_tokens, call.cached_tokens) == (102_010, 5, 100_000)
    assert call.cost_usd == pytest.approx((10 * 3 + 100_000 * 0.3 + 2_000 * 3.75 + 5 * 15) / 1e6)


def test_unknown_cached_tokens_change_nothing():
    usage = {"input_tokens": 10, "output_tokens": 5, **dict.fromkeys(CACHED)}
    (reply,) = hold_conversation(lambda messages: {"content": "x", "usage": usage}, "x")
    assert reply.calls == (ModelCall("", "", 10, 5),)


@pytest.mark.parametrize(
    ("returned", "declared"),
    [({"awaiting_input": True}, "awaiting"), ({"awaiting_input": False}, "done"), ({"done": True}, "done"), ({}, None)],
)
def test_what_it_says_about_waiting_is_its_own_word(returned: dict[str, Any], declared: str | None):
    (reply,) = hold_conversation(lambda messages: {"content": "x", **returned}, "x")
    assert reply.declared_state == declared  # N22


def test_a_tool_call_may_say_how_long_it_took():
    def agent(messages: list[Any]) -> Any:
        calls = [{"name": "a", "duration_ms": 40}, {"name": "b"}, {"name": "c", "start_ms": 90.5, "duration_ms": 9}]
        return {"content": "ok", "tool_calls": [*calls, {"name": "d", "duration_ms": "long"}]}

    (reply,) = hold_conversation(agent, "x")
    assert reply.steps == (Step("tool", "a", 0.0, 40.0), Step("tool", "c", 90.5, 9.0))


def test_a_reply_or_data_alone_will_do():
    assert hold_conversation(lambda messages: Reply("r", data=[1]), "x") == [Reply("r", data=[1])]
    assert hold_conversation(lambda messages: {"data": 0}, "x") == [Reply(data=0)]


def test_history_grows_with_what_was_said_and_done():
    received: list[Any] = []

    def agent(messages: list[Any]) -> dict[str, Any]:
        received.append(messages)
        return {"content": "ok", "tool_calls": [{"name": "t", "arguments": {}, "result": 1}], "data": {"n": 1}}

    hold_conversation(agent, "a", "b", history=(Message("system", "be brief"),))
    assert received[0] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}]  # N5
    assert [message["role"] for message in received[1]] == ["system", "user", "assistant", "user"]
    assert received[1][2] == {
        "role": "assistant",
        "content": "ok",
        "data": {"n": 1},
        "tool_calls": [{"name": "t", "arguments": {}, "result": 1}],
    }


def test_what_it_raises_is_its_failure_and_what_is_out_of_reach_is_not():
    def breaks(messages: list[Any]) -> str:
        raise KeyError("x")

    def unreachable(messages: list[Any]) -> str:
        raise Unreachable("nobody there")

    with pytest.raises(AgentFailed, match="KeyError: 'x'"):
        hold_conversation(breaks, "x")  # N17
    with pytest.raises(Unreachable):
        hold_conversation(unreachable, "x")


def test_a_constructor_or_closer_that_raises_is_its_failure_too():
    class CannotBeMade(Counter):
        def __init__(self) -> None:
            raise ValueError("no licence")

    class CannotBeClosed(Counter):
        def close(self) -> None:
            raise ValueError("stuck")

    class Both(CannotBeClosed):
        def reply(self, messages: list[Any]) -> str:
            raise ValueError("first")

    for target, output in (
        (CannotBeMade, "ValueError: no licence"),
        (CannotBeClosed, "ValueError: stuck"),
        (Both, "ValueError: first"),
    ):
        with pytest.raises(AgentFailed) as failed:
            hold_conversation(target, "x")
        assert failed.value.message == output


def test_an_object_of_its_own_is_closed_and_a_shared_one_is_not():
    closed: list[str] = []

    class Closing(Counter):
        def close(self) -> None:
            closed.append("closed")

    hold_conversation(Closing(), "x")
    assert closed == []
    hold_conversation(Closing, "x")
    assert closed == ["closed"]


def test_a_cut_off_call_leaves_the_agents_own_cancellations_alone():
    """A timeout of ours is ours; a CancelledError of the agent's own is its failure."""

    async def hangs(messages: list[Any]) -> str:
        await asyncio.sleep(60)
        return "never"

    async def cancels(messages: list[Any]) -> str:
        raise asyncio.CancelledError

    async def scenario() -> None:
        context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=HttpTransport())
        async with PythonAgent(hangs).open(context) as session:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.send(Message("user", "x"), {}), 0.05)

    asyncio.run(scenario())
    with pytest.raises(AgentFailed, match="cancelled itself"):
        hold_conversation(cancels, "x")


def test_fixtures_reach_those_who_ask_for_them():
    def agent(messages: list[Any], tools: Any, memory: Any) -> dict[str, Any]:
        return {"data": {"tools": tools, "memory": memory}}

    stubs = Fixtures((ToolStub("t", {"a": 1}),), ("m",))
    (reply,) = hold_conversation(agent, "x", fixtures=stubs)
    assert reply.data == {"tools": [{"tool": "t", "response": {"a": 1}, "error": None}], "memory": ["m"]}
    assert PythonAgent(agent).provides == {"workspace", "tool_stubs", "memory"}
    assert PythonAgent(lambda messages: "x").provides == {"workspace"}
    assert PythonAgent(lambda messages: "x", takes_fixtures=True).provides == {"workspace", "tool_stubs", "memory"}


def test_fixtures_are_in_the_options_of_an_agent_that_only_says_that_it_takes_them():
    """W3: what it was promised to use has to reach it."""

    def agent(messages: list[Any], options: dict[str, Any]) -> str:
        given = options.get("fixtures")
        return f"{given['tools'].call('t')['a']} {given['memory'][0]}" if given else "none"

    stubs = Fixtures((ToolStub("t", {"a": 1}),), ("m",), stub_all_tools=True)
    (reply,) = hold_conversation(agent, "x", fixtures=stubs)
    assert (reply.content, [call.name for call in reply.tool_calls]) == ("1 m", ["t"])
    assert [reply.content for reply in hold_conversation(agent, "x")] == ["none"]


def test_a_helpers_dict_is_its_answer():
    (reply,) = hold_conversation(lambda messages: {"passed": True, "reason": "fine"}, "x", role="judge")
    assert reply.data == {"passed": True, "reason": "fine"}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "pkg_of_agents").mkdir()
    (tmp_path / "pkg_of_agents" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "pkg_of_agents" / "mine.py").write_text(
        "class A:\n    @staticmethod\n    def hello(messages): return 'hello'\n", encoding="utf-8"
    )
    (tmp_path / "neighbour_of_agent.py").write_text("WORD = 'neighbour'\n", encoding="utf-8")
    (tmp_path / "agent.py").write_text(
        "import neighbour_of_agent\ndef agent(messages):\n    import neighbour_of_agent as late\n    return late.WORD\n",
        encoding="utf-8",
    )
    return tmp_path


@pytest.mark.parametrize(
    ("reference", "output"),
    [
        ("./agent.py:agent", "neighbour"),
        ("agent.py:agent", "neighbour"),
        ("pkg_of_agents.mine:A.hello", "hello"),
        ("pkg_of_agents/mine.py:A.hello", "hello"),
    ],
)
def test_a_reference_is_found_from_its_folder(code: Path, reference: str, output: str):
    before = list(sys.path)
    try:
        assert texts(import_target(reference, str(code)), "x") == [output]
    finally:
        sys.path[:] = before
        for name in [name for name in sys.modules if name.startswith(("pkg_of_agents", "neighbour_of_agent"))]:
            del sys.modules[name]


def test_a_relative_reference_may_go_upward(code: Path):
    assert callable(import_target("../agent.py:agent", str(code / "pkg_of_agents")))


def test_the_same_file_is_imported_once(code: Path):
    one, other = (import_target("./agent.py:agent", str(code)) for _ in range(2))
    assert one is other


@pytest.mark.parametrize(
    ("reference", "what"),
    [
        ("agent.py", "does not name an attribute"),
        ("./absent.py:a", "there is no file"),
        ("./agent.py:agnet", "did you mean agent"),
        ("./agent.py:neighbour_of_agent", "neither callable nor an object with `reply`"),
        ("no_such_package_here.x:a", "does not import: ModuleNotFoundError"),
        ("pkg_of_agents.absent:a", "does not import: ModuleNotFoundError"),
    ],
)
def test_a_reference_that_leads_nowhere_says_why(code: Path, reference: str, what: str):
    with pytest.raises(BadInput, match=what):
        import_target(reference, str(code))


class Answer(pydantic.BaseModel):
    city: str
    price: float


class WholeReply(pydantic.BaseModel):
    content: str
    tool_calls: list[dict[str, Any]]


@dataclass
class Plain:
    city: str


def test_one_parameter_of_type_str_is_the_text_of_the_last_message():
    def question(question: str) -> str:
        return question.upper()

    def message(message: Any, options: Any) -> str:
        return f"{message} {options['session_id']}"

    def both(message: str, messages: list[Any]) -> str:
        return f"{message} {len(messages)}"

    def unknown(text: str, more: Any) -> str:
        return f"{text} {more['session_id']}"

    assert texts(question, "hi") == ["HI"]
    assert texts(message, "hi") == ["hi s-1"]
    assert texts(both, "hi", "ho") == ["hi 1", "ho 3"]
    assert texts(unknown, "hi") == ["hi s-1"]


def test_models_and_dataclasses_are_data_or_whole_replies():
    (reply,) = hold_conversation(lambda messages: Answer(city="Rome", price=3.5), "x")
    assert (reply.content, reply.data) == ("", {"city": "Rome", "price": 3.5})
    (reply,) = hold_conversation(lambda messages: Plain("Rome"), "x")
    assert reply.data == {"city": "Rome"}
    (reply,) = hold_conversation(lambda messages: WholeReply(content="hi", tool_calls=[{"name": "t"}]), "x")
    assert (reply.content, reply.tool_calls[0].name) == ("hi", "t")
    (judged,) = hold_conversation(lambda messages: Plain("Rome"), "x", role="judge")
    assert judged.data == {"city": "Rome"}


def test_a_file_is_the_module_that_other_code_imports(code: Path, monkeypatch: pytest.MonkeyPatch):
    """So that monkeypatch reaches it, in any order of imports. A module of the same name stays."""
    (code / "vv_first.py").write_text("def agent(messages): return 'a'\n")
    (code / "vv_second.py").write_text("def agent(messages): return 'b'\n")
    monkeypatch.syspath_prepend(str(code))
    loaded = import_target("./vv_first.py:agent", str(code))
    assert importlib.import_module("vv_first").agent is loaded
    imported = importlib.import_module("vv_second")
    assert import_target("./vv_second.py:agent", str(code)) is imported.agent
    (code / "json.py").write_text("def agent(messages): return 'c'\n")
    import_target("./json.py:agent", str(code))
    assert hasattr(importlib.import_module("json"), "dumps")


def test_messages_are_copied_only_for_code_that_takes_them():
    """A copy for each turn makes a long conversation quadratic."""
    copies: list[int] = []

    def conversation() -> list[Message]:
        copies.append(1)
        return [Message("user", "hi")]

    assert texts(lambda message: message, "a", "b", conversation=conversation) == ["a", "b"]
    assert not copies
    assert texts(lambda messages: f"{len(messages)}", "a", "b", conversation=conversation) == ["1", "1"]
    assert len(copies) == 2
