"""Objects of frameworks: how they are recognised, what is said where they do not fit, and their sessions."""

import asyncio
import inspect
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import viva
from viva import catalog
from viva.agents.agent_config import find_kind
from viva.agents.frameworks.framework_agent import FrameworkAgent, FrameworkSession, intercept
from viva.agents.frameworks.recognition import find_framework
from viva.errors import AgentFailed, BadInput
from viva.llm.transport import HttpTransport
from viva.model import codec
from viva.model.case import Key
from viva.model.message import Message, ModelCall, Reply
from viva.protocols import SessionContext

KINDS = list(dict.fromkeys(catalog.AGENT_KIND_BY_TYPE.values()))


def make_object(module: str, name: str, **members: Any) -> Any:
    """An object that says it is of a framework, as far as its type goes."""
    return type(name, (), {"__module__": module, **members})()


@pytest.mark.parametrize(("place", "kind"), catalog.AGENT_KIND_BY_TYPE.items())
def test_an_object_is_recognised_by_the_module_of_its_type(place: str, kind: str):
    package, _, name = place.partition(":")
    before = set(sys.modules)
    base = type(name, (), {"__module__": f"{package}.inner"})
    derived = type("Mine", (base,), {"__module__": "app"})
    assert find_framework(derived()) is find_kind(kind)
    assert find_framework(make_object("mine", name)) is None
    imported = {each.partition(".")[0] for each in set(sys.modules) - before}
    assert imported <= {"viva", *sys.stdlib_module_names}  # no framework


def test_an_object_with_reply_needs_no_adapter():
    assert find_framework(make_object("agents.agent", "Agent", reply=lambda self, messages: "hi")) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_framework_that_is_not_installed_is_named(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    session: type[FrameworkSession] = getattr(find_kind(kind), "session")  # noqa: B009 -- a kind is any class
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("agent = object()\n")
    with pytest.raises(BadInput, match=f"{session.title}: it is not installed; pip install {session.package}"):
        viva.run([{"id": "c", "input": "hi"}], f"{kind}:./app.py:agent")


def test_any_other_object_is_refused_with_what_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text("class Thing: ...\n\nthing = Thing()\n")
    for agent in (object(), "python:./app.py:thing", "python:./app.py:Thing"):
        with pytest.raises(BadInput) as refused:
            viva.run([{"id": "c", "input": "hi"}], agent)
        for words in ("neither callable nor", "LangGraph", "pydantic-ai", "def agent(messages):"):
            assert words in str(refused.value)


class EchoSession(FrameworkSession):
    """A framework that needs no package."""

    title = "Echo"
    package = "pytest"
    tested_version = "1"
    types = ("builtins:str",)

    async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
        self.log.enter_node("echo")
        if message.text == "other loop":
            raise RuntimeError("<Event> is bound to a different event loop")
        if message.text == "another version":
            return self.target.name_of_the_next_version
        if message.text == "context":
            return self.log.build_reply(textwrap.dedent(self.tool_context))  # a tool that needs it
        if message.text == "exit":
            sys.exit(3)
        if message.text.startswith("surrogate"):
            self.log.add_message("half \ud800")
            self.log.start_call("\ud800", "\ud800", "\ud800")
            self.log.add_model_call("\ud800", None, None)
            self.log.enter_node("\ud800")
        if message.text == "surrogate before an error":
            raise ValueError("\ud800")
        return self.log.build_reply(f"{self.target} {self.tool_context} {id(asyncio.get_running_loop())}")


def send(agent: FrameworkAgent, text: str) -> tuple[Reply, SessionContext]:
    context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=HttpTransport())

    async def scenario() -> Reply:
        async with agent.open(context) as session:
            return await session.send(Message("user", text), {})

    return asyncio.run(scenario()), context


@pytest.mark.parametrize("text", ["surrogate", "surrogate before an error"])
def test_half_a_surrogate_pair_is_the_agents_failure(text: str):
    """12.9: a model writes it as an escape, and no journal can hold it."""
    calls: list[ModelCall] = []
    context = SessionContext(key=Key("s", "c"), meter=calls.append, http=HttpTransport())

    async def scenario() -> None:
        async with FrameworkAgent("agent", EchoSession).open(context) as session:
            await session.send(Message("user", text), {})

    with pytest.raises(AgentFailed) as failed:
        asyncio.run(scenario())
    assert failed.value.message.encode()
    assert context.progress.partial is not None
    assert context.progress.partial.content == "half \\ud800"
    assert codec.encode((context.progress.partial, calls))


def test_all_runs_share_one_loop_and_a_function_creates_one_object_each():
    created: list[str] = []

    async def create() -> str:
        created.append("agent")
        return f"agent{len(created)}"

    agent = FrameworkAgent(create, EchoSession, make_context=lambda: "context")
    first, second = (send(agent, "hi")[0].content.split() for _ in range(2))
    assert (first[:2], second[:2]) == (["agent1", "context"], ["agent2", "context"])
    assert first[2] == second[2]


def test_an_object_that_was_used_on_another_loop_is_explained():
    with pytest.raises(AgentFailed, match="used on another event loop before: pass a function") as failed:
        send(FrameworkAgent("agent", EchoSession), "other loop")
    assert failed.value.deterministic


def test_a_context_that_is_missing_is_explained():  # as the `deps` of pydantic-ai
    class Asker(str):
        __slots__ = ()
        needs = int

    class AskerSession(EchoSession):
        context_field = "needs"

    with pytest.raises(AgentFailed, match=r"'NoneType'.*`context` of its entry in viva.toml names a function"):
        send(FrameworkAgent(Asker("agent"), AskerSession), "context")


def test_a_version_that_lacks_what_the_adapter_needs_is_named():
    with pytest.raises(
        AgentFailed, match=r"name_of_the_next_version.*pytest .* does not fit; .* tested with pytest 1"
    ) as failed:
        send(FrameworkAgent("agent", EchoSession), "another version")
    assert failed.value.deterministic


def test_a_version_without_a_name_that_the_adapter_needs_is_refused_before_anything_runs():
    class NextEchoSession(EchoSession):
        required_names = ("builtins:str", "builtins:a_name_of_the_next_version")

    with pytest.raises(
        BadInput, match=r"Echo: pytest .* does not fit: .*a_name_of_the_next_version.* tested with pytest"
    ):
        NextEchoSession.check_target("agent")


def test_a_class_and_a_function_with_parameters_are_refused():
    for target, problem in (
        (int, "int is a class, not an object of str"),
        (lambda x: x, "has parameters; name a function without any"),
    ):
        with pytest.raises(BadInput, match=problem):
            EchoSession.check_target(target)


def test_a_method_is_intercepted_once_and_stays_what_it_is():
    class Tool:
        def run(self, text: str) -> str:
            """Runs."""
            return text

    signature = inspect.signature(Tool.run)
    for _ in range(2):
        intercept(Tool, "run", lambda session, run, tool, text: f"<{run(tool, text)}>")
    assert (Tool().run("a"), Tool.run.__doc__, inspect.signature(Tool.run)) == ("a", "Runs.", signature)

    class ToolSession(EchoSession):
        async def run_turn(self, message: Message, options: Mapping[str, Any]) -> Reply:
            in_thread = await asyncio.get_running_loop().run_in_executor(None, Tool().run, "c")
            return self.log.build_reply(Tool().run("b") + in_thread)

    assert send(FrameworkAgent("agent", ToolSession), "hi")[0].content == "<b><c>"


def test_what_a_function_creates_is_checked_too():
    with pytest.raises(AgentFailed, match="Echo: int is not str"):
        send(FrameworkAgent(lambda: 5, EchoSession), "hi")


def test_an_exit_in_the_users_code_ends_the_turn_only():
    agent = FrameworkAgent("agent", EchoSession)
    with pytest.raises(AgentFailed, match="SystemExit"):
        send(agent, "exit")
    assert send(agent, "hi")[0].path == ("echo",)
