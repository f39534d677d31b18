"""What every adapter of a framework must do, with the real framework and a stand-in for its model on a socket.

`tests/contract/test_frameworks.py` runs this file in the environment of the frameworks, once for each: FRAMEWORK names the
module beside this file that builds the agents. The tests are in the order of what users need first.
"""

import asyncio
import base64
import importlib
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
from apps.tools import MISDEEDS, RELEASED

import viva
from viva.agents.frameworks.recognition import find_framework
from viva.cli.main import main
from viva.llm.provider_errors import MODEL_CLIENT_PACKAGES
from viva.llm.transport import HttpTransport
from viva.model import codec
from viva.model.case import Fixtures, Key, ToolStub
from viva.model.message import Message, ModelCall, ToolCall
from viva.model.record import TrialRecord
from viva.protocols import SessionContext
from viva.testing import Fail, ModelRequest, Say

NAME = os.environ["FRAMEWORK"]
app = importlib.import_module(f"apps.{NAME}")
NUMBERS = itertools.count(1)
"""Of the ids of tool calls, which are unique in all conversations."""
TRIP = {"city": "Rome", "days": 3}


def read_request(request: ModelRequest) -> tuple[str, list[str], int]:
    """What the user wrote last, the tools that were called since, and how often the user wrote.

    Some frameworks write the results of tools, and more, into messages of the user: their app tells them apart.
    """
    if hasattr(app, "read_request"):
        return app.read_request(request)
    return request.text, request.tool_results, len([each for each in request.messages if each.role == "user"])


def say(text: str) -> Say | str:
    """A text of the model, as this framework expects it."""
    return app.say(text) if hasattr(app, "say") else text


def answer(request: ModelRequest) -> Say | Fail | str:
    """The model: it calls the tool that the user names, and greets otherwise."""
    text, called, messages = read_request(request)
    if called and any("then fail" in each.text for each in request.messages):
        return Fail(500)
    if called:
        return say(f"{called[-1]} is done")
    if text.startswith("fail "):
        return Fail(int(text.split()[1]))
    if "call " in text:
        before, _, calls = text.partition("call ")
        return Say(
            content="Let me see." if before else None,
            tool_calls=[read_call(each) for each in calls.partition(" then ")[0].split(" and ")],
            cached_tokens=4,
        )
    if "trip" in text:
        return app.say_trip(TRIP)
    return say(f"Hello, {messages}")


def read_call(text: str) -> ToolCall:
    name, *numbers = text.split()
    return ToolCall(name, dict(zip("ab", map(int, numbers), strict=False)), f"call_{next(NUMBERS)}")


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with app.SERVER(answer) as running:
        app.connect(running)
        yield running
    RELEASED.set()


@pytest.fixture(scope="module")
def agent(server: Any) -> Any:
    return app.make_agent()


def run(agent: Any, *turns: Any, **keywords: Any) -> TrialRecord:
    return next(iter(run_all(agent, [case("c", *turns)], **keywords)))


def case(name: str, *turns: Any, **fields: Any) -> dict[str, Any]:
    holds = {"type": "regex", "pattern": "(?s).*"}
    plain = [turn if isinstance(turn, dict) else {"input": turn} for turn in turns]
    return {"id": name, "turns": [{"assertions": [holds], **turn} for turn in plain], **fields}


def run_all(agent: Any, cases: Any, **keywords: Any) -> list[TrialRecord]:
    result = viva.run(cases, agent, options=viva.RunOptions(retry_faults=0), **keywords)
    return sorted(result.records(), key=lambda record: (record.id, record.trial))


def test_three_turns_with_a_tool_and_memory(server: Any, agent: Any):
    record = run(agent, "call add 1 2", "and now?", "bye")
    assert record.status == "passed", record.error
    first, second, third = record.turns
    assert [(call.name, call.args, call.result, call.error) for call in first.tool_calls] == [
        ("add", {"a": 1, "b": 2}, 3, None)
    ] or str(first.tool_calls[0].result) == "3"
    assert first.output == "add is done"
    assert (second.tool_calls, third.tool_calls) == ([], [])  # those of this turn only
    assert (second.output, third.output) == ("Hello, 2", "Hello, 3")  # N19: one session, full history
    assert (first.awaiting_input, first.path[:1]) == (False, app.PATH)


def test_tools_that_are_called_together_keep_their_results(server: Any, agent: Any):
    record = run(agent, "call add 1 2 and add 3 4 and book 5")
    assert record.status == "passed", record.error
    calls = [(call.name, call.args, str(call.result)) for call in record.turns[0].tool_calls]
    expected = [("add", {"a": 1, "b": 2}, "3"), ("add", {"a": 3, "b": 4}, "7"), ("book", {"a": 5}, "booked 5")]
    assert calls == expected


def test_a_turn_that_raises_keeps_its_own_tool_calls_and_model_calls(server: Any, agent: Any):
    record = run(agent, "call add 1 2", "call add 3 4 then fail")
    assert (record.status, record.fault) == ("error", "infra"), record.error
    assert [(call.name, call.args, str(call.result)) for call in record.turns[1].tool_calls] == [
        ("add", {"a": 3, "b": 4}, "7")
    ]
    assert record.usage is not None
    assert record.usage.calls == 3  # the one that failed has no usage


def test_what_an_agent_says_before_a_tool_call_is_a_part_of_the_reply(server: Any, agent: Any):
    record = run(agent, "explain and call add 1 2", "and now?")  # 18
    assert record.status == "passed", record.error
    first, second = record.turns
    assert first.parts == ("Let me see.", "add is done")
    assert first.output == "Let me see.\nadd is done"  # text checks see all that the user sees
    assert (second.parts, second.output) == ((), "Hello, 2")


if NAME in ("autogen", "smolagents", "crewai"):  # for them it is a thought, not a message
    del test_what_an_agent_says_before_a_tool_call_is_a_part_of_the_reply


def test_every_model_call_is_counted_and_priced(server: Any, agent: Any):
    record = run(agent, "call add 1 2", "bye")
    assert record.usage is not None
    assert [turn.usage.calls for turn in record.turns if turn.usage] == [2, 1]
    assert (record.usage.input_tokens, record.usage.output_tokens) == (30, 15)
    assert record.cost_usd is not None
    assert record.cost_usd > 0


def test_each_trial_has_a_new_session_and_the_history_of_its_case(server: Any, agent: Any):
    before = [
        {"role": "user", "content": "I am Ada"},
        {"role": "assistant", "content": "Hi Ada"},
        {"role": "user", "content": "hello"},
    ]
    holds = {"type": "contains", "value": "Hello"}
    records = run_all(agent, [{"id": "h", "input": before, "assertions": holds}], runs=2)
    assert [record.turns[0].output for record in records] == ["Hello, 2", "Hello, 2"]
    texts = [each.text for each in server.model_requests[-1].messages]
    history = ["I am Ada", "Hi Ada", "hello"]
    assert [part for text in texts[-3:] for part in history if part in text] == history
    assert any(app.INSTRUCTIONS in text for text in texts)


def test_tool_calls_in_the_history_of_a_case_reach_the_model(server: Any, agent: Any):
    call = {"id": "call_1", "name": "add", "arguments": {"a": 20, "b": 22}, "result": "the sum is 42"}
    before = [
        {"role": "user", "content": "add 20 and 22"},
        {"role": "assistant", "content": "It is 42.", "tool_calls": [call]},
        {"role": "user", "content": "hello"},
    ]
    (record,) = run_all(agent, [{"id": "h", "input": before, "assertions": {"type": "contains", "value": "Hello"}}])
    assert record.status == "passed", record.error
    assert record.turns[0].tool_calls == []
    sent = codec.compact_json(server.model_requests[-1].json)
    places = [sent.find(text) for text in ("add 20 and 22", "the sum is 42", "It is 42.", "hello")]
    assert places == sorted(places)
    assert -1 not in places


@pytest.mark.parametrize(("status", "fault"), [(401, "infra"), (429, "infra"), (500, "infra"), (400, "agent")])
def test_a_fault_of_the_provider_is_told_from_one_of_the_agent(server: Any, agent: Any, status: int, fault: str):
    record = run(agent, f"fail {status}")  # N17
    assert (record.status, record.fault) == ("error" if fault == "infra" else "failed", fault), record.error


def test_a_raising_tool_is_shown_with_its_error(server: Any, agent: Any):
    record = run(agent, "call broken")
    (call,) = record.turns[0].tool_calls
    assert "no such table" in (call.error or "")
    assert any("no such table" in each.error for each in record.tracebacks)  # N38
    assert (record.status, record.fault) == (("passed", None) if app.HANDLES_TOOL_ERRORS else ("failed", "agent"))


def test_a_tool_whose_server_is_down_is_not_a_fault_of_the_provider(server: Any, agent: Any):
    record = run(agent, "call unreachable")
    (call,) = record.turns[0].tool_calls
    assert "refused" in (call.error or "")
    assert record.fault in ((None,) if app.HANDLES_TOOL_ERRORS else ("undetermined",))  # N17


@pytest.mark.parametrize("deed", range(len(MISDEEDS)), ids=[each.__name__ for each in MISDEEDS])
def test_whatever_a_tool_does_the_run_goes_on(server: Any, agent: Any, deed: int):
    records = run_all(agent, [case("bad", f"call misbehave {deed}", timeout="30s"), case("good", "hello")])
    assert [record.id for record in records] == ["bad", "good"]
    bad, good = records
    assert (good.status, good.turns[0].output) == ("passed", "Hello, 1"), good.error
    assert bad.status == "passed" or bad.error
    assert "timeout" not in (bad.error or "")
    assert codec.decode_own(codec.encode(bad), type=TrialRecord) == bad


@pytest.mark.parametrize("tool", ["hang", "hang_in_thread"])
def test_a_turn_that_is_cut_off_keeps_its_tool_calls_and_model_calls(server: Any, agent: Any, tool: str):
    metered: list[ModelCall] = []
    context = SessionContext(key=Key("s", "c"), meter=metered.append, http=HttpTransport())

    async def scenario() -> None:
        app.STARTED.clear()
        wrapped = find_framework(agent).wrap_object(agent, MODEL_CLIENT_PACKAGES)
        async with wrapped.open(context) as session:
            sending = asyncio.create_task(session.send(Message("user", f"call {tool}"), {}))
            await asyncio.to_thread(app.STARTED.wait)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending

    asyncio.run(scenario())
    assert context.progress.partial is not None
    assert [call.name for call in context.progress.partial.tool_calls] == [tool]
    assert [(call.model, call.provider, call.input_tokens) for call in metered] == [(app.MODEL, app.PROVIDER, 10)]


@pytest.mark.parametrize(
    ("decision", "output"),
    [
        ("yes, please", "book is done"),
        ({"input": "hm", "options": {"approval": "approve"}}, "book is done"),
        ("no", None),
        ("Rome instead of Paris", None),
        ({"input": "yes", "options": {"approval": "deny"}}, None),
    ],
)
def test_an_approval_waits_for_the_users_next_line(server: Any, decision: Any, output: str | None):
    app.BOOKED.clear()
    record = run(app.make_approving_agent(), "call book 7", decision)
    waiting, after = record.turns
    assert record.status == "passed", record.error
    assert (waiting.awaiting_input, waiting.awaiting_reason) == (True, "agent_declared")  # N22
    assert "book" in (waiting.input_hint or "")
    assert [(call.name, call.pending) for call in waiting.tool_calls] == [("book", True)]
    assert after.awaiting_input is False
    assert [(call.name, call.pending, call.refused) for call in after.tool_calls] == [("book", False, output is None)]
    assert ([] if output is None else [7]) == app.BOOKED
    if output is None and (app.TELLS_EVERY_REASON or decision == "Rome instead of Paris"):
        said = decision if isinstance(decision, str) else decision["input"]
        assert any(said in each.text for each in server.model_requests[-1].messages)  # the model hears the reason
    assert output is None or after.output == output


@pytest.mark.parametrize(("decision", "booked"), [("approve", [7, 8]), ("deny", [])])
def test_calls_that_wait_together_are_decided_together(server: Any, decision: str, booked: list[int]):
    app.BOOKED.clear()
    answered = {"input": "hm", "options": {"approval": decision}}
    record = run(app.make_approving_agent(), "call book 7 and book 8", answered)
    assert record.status == "passed", record.error
    waiting, after = record.turns
    assert [(call.args, call.pending) for call in waiting.tool_calls] == [({"a": 7}, True), ({"a": 8}, True)]
    assert [(call.args, call.refused) for call in after.tool_calls] == [
        ({"a": 7}, not booked),
        ({"a": 8}, not booked),
    ]
    assert sorted(app.BOOKED) == booked


def test_what_an_agent_says_before_it_waits_is_not_said_again(server: Any):
    record = run(app.make_approving_agent(), "explain and call book 7", "yes")
    assert [turn.output for turn in record.turns] == ["Let me see.", "book is done"]


if not hasattr(app, "make_approving_agent"):  # the framework has no approvals
    del test_an_approval_waits_for_the_users_next_line, test_calls_that_wait_together_are_decided_together
    del test_what_an_agent_says_before_it_waits_is_not_said_again


def test_stubs_replace_every_tool(server: Any, agent: Any):
    app.BOOKED.clear()
    stubs = {"tools": [{"tool": "book", "response": {"ok": True}}, {"tool": "add", "error": "no power"}]}
    turns = ["call book 7", "call add 1 2", "call broken"]
    (record,) = run_all(agent, [case("s", *turns, fixtures=stubs)])
    assert record.status == "passed", record.error
    calls = [turn.tool_calls[0] for turn in record.turns]
    assert (calls[0].result, calls[1].error) == ({"ok": True}, "no power")
    assert "no canned response" in (calls[2].error or "")  # W3: never the live tool
    assert app.BOOKED == []
    texts = [each.text.replace(" ", "").replace("'", '"').lower() for each in server.model_requests[-1].messages]
    assert any('"ok":true' in text for text in texts)


def test_an_agent_that_a_tool_runs_is_counted_and_logged(server: Any):
    record = run(app.make_nesting_agent(), "call research", "bye")
    assert record.status == "passed", record.error
    assert [(call.name, str(call.result)) for call in record.turns[0].tool_calls] == [
        ("research", "add is done"),
        ("add", "3"),
    ]
    assert record.usage is not None
    assert (record.usage.calls, record.usage.input_tokens) == (5, 50)  # 18: every model call has its price
    assert record.turns[1].tool_calls == []


if not hasattr(app, "make_nesting_agent"):
    del test_an_agent_that_a_tool_runs_is_counted_and_logged


def test_structured_output_is_the_data_of_the_reply(server: Any):
    record = run(app.make_planning_agent(), "plan a trip")
    assert record.status == "passed", record.error
    assert record.turns[0].data == TRIP
    assert record.turns[0].tool_calls == []


def test_ten_at_once_and_run_after_run(server: Any, agent: Any):
    for _ in range(2):  # every run has a new event loop; the clients inside the object must not notice
        cases = [case(f"c{number}", f"call add {number} 1", "and now?") for number in range(10)]
        records = run_all(agent, cases, parallel=10)
        assert [record.status for record in records] == ["passed"] * 10, [record.error for record in records]
        for number, record in enumerate(records):
            assert record.turns[0].tool_calls[0].args == {"a": number, "b": 1}
            assert record.turns[1].output == "Hello, 2"


def test_a_conversation_on_the_users_own_loop(server: Any, agent: Any):
    async def talk() -> str:
        async with viva.Conversation(agent) as chat:
            await chat.say("call add 1 2")
            chat.expect({"type": "tool_sequence", "names": ["add"]}, {"type": "path_contains", "names": [app.PATH[0]]})
            return (await chat.say("and now?")).content

    assert [asyncio.run(talk()) for _ in range(2)] == ["Hello, 2", "Hello, 2"]


@pytest.mark.parametrize(
    "reference", ["python:./app.py:agent", f"{NAME}:./app.py:agent", f"{NAME}:./app.py:make_agent"]
)
def test_the_command_line_takes_the_object_or_a_function_that_creates_it(
    server: Any, tmp_path: Any, monkeypatch: Any, capsys: Any, reference: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.py").write_text(f"from apps.{NAME} import make_agent\nagent = make_agent()\n")
    with pytest.raises(SystemExit, match="0"):
        main(["test", "-i", "call add 1 2", "-n", reference])
    assert "add is done" in capsys.readouterr().out


def test_an_image_reaches_the_model(server: Any, agent: Any, tmp_path: Any):
    picture = tmp_path / "dot.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(24))

    async def talk() -> None:
        async with viva.Conversation(agent, folder=tmp_path) as chat:
            await chat.say("look", attachments=[picture])

    if not app.TAKES_IMAGES:
        with pytest.raises(viva.errors.AgentFailed, match="only text"):
            asyncio.run(talk())
        return
    asyncio.run(talk())
    assert base64.b64encode(picture.read_bytes()) in server.model_requests[-1].body


def test_a_function_may_create_the_object_for_each_conversation(server: Any):
    assert run(app.make_agent, "call add 1 2").turns[0].output == "add is done"


def test_another_object_and_another_version_are_explained(server: Any, agent: Any):
    session = find_framework(agent).session
    with pytest.raises(viva.errors.BadInput, match=f"{session.package}.*does not fit.*tested with"):
        session.load(type(agent).__module__, "ANameOfTheNextVersion")
    with pytest.raises(viva.errors.BadInput, match=session.title):
        session.check_target(object())


def test_a_stubbed_session_of_an_openwop_suite(server: Any, agent: Any):
    fixtures = Fixtures((ToolStub("add", 40),), stub_all_tools=True)
    context = SessionContext(key=Key("s", "c"), meter=lambda call: None, http=HttpTransport(), fixtures=fixtures)

    async def scenario() -> Any:
        async with find_framework(agent).wrap_object(agent, MODEL_CLIENT_PACKAGES).open(context) as session:
            return await session.send(Message("user", "call add 1 2"), {})

    (call,) = asyncio.run(scenario()).tool_calls
    assert call.result == 40
