"""Script tests: Python functions as cases, with turns for their calls and verdicts for their assertions."""

import sys

import pytest

import viva
from running import run_cases
from viva.errors import BadInput
from viva.session.scripts.script_tests import find_script_tests

_serial = iter(range(1000))


@pytest.fixture
def script(folder):
    """Writes a module of tests, runs it, and gives the records by id."""

    def run(text, only=None, agent=None, **options):
        name = f"vv_script_{next(_serial)}"
        (folder / f"{name}.py").write_text(text)
        result = run_cases(f"scripts:{name}", agent, folder=folder, history=False, only=only, **options)
        return {record.id: record for record in result.records()}

    return run


def module_of(file):
    """The module that was loaded from a file, under whatever name."""
    return next(module for module in sys.modules.values() if getattr(module, "__file__", None) == str(file))


def add_agent(folder, name, text):
    (folder / f"vv_{name}.py").write_text(text)
    with (folder / "viva.toml").open("a") as config:
        config.write(f'\n[agents.{name}]\nuse = "python:./vv_{name}.py:{name}"\n')


def test_the_outcome_of_a_test(script):  # N31, N11, N17
    records = script('''
import sys, viva
def test_holds(t, ctx):
    """It repeats."""
    t.assert_.contains(ctx.call("assistants.expense", "hello"), "hello")
def test_fails(t, ctx):
    t.assert_.contains(ctx.call("assistants.expense", "hello"), "bye")
def test_asserts(t, ctx):
    assert ctx.call("assistants.expense", "hello").content == "bye"
def test_fatal(t, ctx):
    t.fatal("no use")
def test_error(t, ctx):
    t.error("wrong")
def TestSkip(t, ctx):
    t.skip("not today")
def test_nothing(t, ctx):
    ctx.call("assistants.expense", "hello")
def test_mistake(t, ctx):
    t.assert_.true_(True)
    {}["total"]
def test_leaves(t, ctx):
    sys.exit(3)
def test_broken_agent(t, ctx):
    ctx.call("broken", "hello")
def test_unreachable_agent(t, ctx):
    ctx.call("unreachable", "hello")
def test_nobody(t, ctx):
    ctx.call("".join(("assistants", ".expens")), "hello")  # a name in quotes is looked up before
def test_broken_judge(t, ctx):
    t.assert_.agent(ctx.call("assistants.expense", "x"), "workers.judge", {"criteria": "break"})
async def test_async(t, ctx):
    t.assert_.contains(await ctx.call("assistants.expense", "hello"), "hello")
def test_plain(t, ctx):
    assert ctx.call("assistants.expense", "hello").content == "You said: hello"
def test_takes_t_alone(t):
    t.assert_.true_(True)
''')
    assert {name: (record.status, record.fault) for name, record in records.items()} == {
        "test_holds": ("passed", None),
        "test_fails": ("failed", "agent"),
        "test_asserts": ("failed", "agent"),
        "test_fatal": ("failed", "agent"),
        "test_error": ("failed", "agent"),
        "TestSkip": ("skipped", None),
        "test_nothing": ("skipped", None),
        "test_mistake": ("error", "undetermined"),
        "test_leaves": ("error", "undetermined"),
        "test_broken_agent": ("failed", "agent"),
        "test_unreachable_agent": ("error", "infra"),
        "test_nobody": ("error", "undetermined"),
        "test_broken_judge": ("error", "judge"),
        "test_async": ("passed", None),
        "test_plain": ("skipped", None),
        "test_takes_t_alone": ("passed", None),
    }
    assert records["test_holds"].name == "It repeats."
    assert records["TestSkip"].error == "not today"
    for name in ("test_nothing", "test_plain"):
        assert records[name].error == "nothing was checked"
        assert "t.assert_" in str(records[name].hint)
    assert "test_mistake raised KeyError: 'total' (vv_script_" in str(records["test_mistake"].error)
    assert "did you mean assistants.expense" in str(records["test_nobody"].error)
    assert records["test_broken_agent"].error == "agent error: ValueError: boom"
    assert 'content == "bye" (vv_script_' in records["test_asserts"].turns[0].assertions[0]["reason"]


def test_every_call_is_a_turn_with_its_assertions(script):
    record = script("""
def test_it(t, ctx):
    t.assert_.not_nil(ctx)
    first = ctx.call("assistants.expense", "one", {"mode": "fast"})
    t.assert_.equal(first.data["options"]["mode"], "fast")
    t.assert_.equal(first.data["options"]["tone"], "dry")
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    second = ctx.call("agents:assistants.expense", said)
    t.assert_.json_path(second, "$.messages", 3)
    third = ctx.call("assistants.expense", "who asks?")
    t.assert_.true_(third.awaiting)
""")["test_it"]
    assert record.status == "passed", record
    assert [(turn.input, len(turn.assertions)) for turn in record.turns] == [("one", 2), ("c", 1), ("who asks?", 1)]
    assert len(record.final_assertions) == 1
    assert record.checks == 5
    assert record.suite.startswith("scripts:vv_script_")
    assert str(record.source).endswith(".py:2")


def test_assertions_go_on_after_one_that_fails(script):  # N31
    record = script("""
def test_it(t, ctx):
    reply = ctx.call("assistants.expense", "hello")
    t.assert_.contains(reply.content, "bye", "it must say bye")
    t.log("went", "on")
    t.assert_.equal(1, 2)
""")["test_it"]
    assert record.assertion_errors == [
        'it must say bye: "bye" is not in "You said: hello"',
        "equal 2: expected 2, was 1",
    ]
    assert record.notes == ["went on"]


@pytest.mark.parametrize("end", ['{}["total"]', 't.skip("not today")', 'ctx.call("unreachable", "x")'])
def test_a_failure_stays_for_every_end_of_the_test(script, end):  # N17
    for said in ("", 'ctx.call("assistants.expense", "hello")'):
        text = f"def test_it(t, ctx):\n    {said}\n    t.error('wrong')\n    {end}\n"
        record = script(text)["test_it"]
        assert (record.status, record.fault) == ("failed", "agent")
        assert record.error


def test_a_fault_of_the_agent_can_be_what_is_asked_for(script):
    record = script("""
def test_it(t, ctx):
    t.assert_.panic(lambda: ctx.call("broken", "hello"))
    t.assert_.no_panic(lambda: ctx.call("assistants.expense", "hello"))
""")["test_it"]
    assert record.status == "passed"
    assert [turn.error for turn in record.turns] == ["agent error: ValueError: boom", None]


def test_a_validator_gives_its_result_and_its_suggestions_are_logged(script, folder):  # N26, N31
    record = script("""
def test_it(t, ctx):
    ctx.call("assistants.expense", "something else")
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    reply = ctx.call("assistants.expense", said)
    found = t.assert_.Agent(reply.content, "workers.judge", {"metadata": {"criteria": "polite", "tone": "warm"}})
    assert (found.passed, found.score, found.reason, found.suggestions) == (True, 0.8, "about polite", ("be brief",))
    assert dict(found) == {"passed": True, "score": 0.8, "reason": "about polite", "suggestions": ("be brief",)}
    assert (found["passed"], found.get("score"), found.get("other", 5), "reason" in found) == (True, 0.8, 5, True)
    denied = t.assert_.agent("rubbish", "workers.judge", {"metadata": {"criteria": "polite"}})
    assert denied["passed"] is False
    t.assert_.agent(reply, "workers.judge", {"metadata": {"criteria": "polite"}, "min_score": 0.9})
""")["test_it"]
    assert record.status == "failed"
    assert [each["passed"] for each in record.turns[1].assertions] == [True, False, False]
    assert record.notes == ["suggestion: be brief"] * 3
    heard = module_of(folder / "vv_agents.py").heard
    assert [message["content"] for message in heard[0]["messages"]] == ["a", "b", "c", "You said: c"]
    assert heard[0]["metadata"]["test_mode"] == "validator"
    assert (heard[0]["metadata"]["criteria"], heard[0]["metadata"]["tone"]) == ("polite", "warm")
    assert heard[1]["metadata"]["output"] == "rubbish"


def test_a_validator_sees_only_sent_user_messages(script, folder):  # N26, N31
    record = script("""
def test_it(t, ctx):
    t.assert_.agent("it said so", "workers.judge", {"criteria": "polite"})
""")["test_it"]
    assert record.status == "passed", record
    (asked,) = module_of(folder / "vv_agents.py").heard
    assert asked["messages"] == [{"role": "assistant", "content": "it said so"}]
    assert asked["metadata"]["output"] == "it said so"


def test_an_async_test_continues_while_an_agent_is_called(script, folder):  # N31
    """The agent answers only once the test's own loop has done something else; faults are raised where it awaits."""
    add_agent(
        folder,
        "waits",
        "import threading\ngo = threading.Event()\n"
        "def waits(messages):\n    return 'free' if go.wait(300) else 'stuck'\n",
    )
    record = script("""
import asyncio, sys, viva
async def test_it(t, ctx):
    called = asyncio.ensure_future(ctx.call("waits", "hello"))
    while not (loaded := [m for m in list(sys.modules.values()) if str(getattr(m, "__file__", "")).endswith("vv_waits.py")]):
        await asyncio.sleep(0)
    loaded[0].go.set()
    t.assert_.equal((await called).content, "free")
    try:
        await ctx.call("broken", "hello")
    except viva.errors.AgentFailed as raised:
        t.assert_.error(raised)
""")["test_it"]
    assert (record.status, record.checks) == ("passed", 2), record


def test_a_coroutine_that_is_not_awaited_is_reported(script):
    """A call that is looked at unawaited has neither raised nor held: it is the test's mistake."""
    record = script("""
async def test_it(t, ctx):
    t.assert_.panic(lambda: ctx.call("broken", "hello"))
""")["test_it"]
    assert (record.status, record.fault) == ("error", "undetermined")
    assert "a coroutine is never awaited here" in str(record.error)


def test_the_agent_under_test_needs_no_name(script):
    text = 'def test_it(t, ctx):\n    t.assert_.contains(ctx.call(None, "hello").content, "hello")\n'
    assert script(text, agent="assistants.expense")["test_it"].status == "passed"
    record = script(text)["test_it"]
    assert (record.status, record.agent) == ("error", None)
    assert "no agent is under test" in str(record.error)


def test_a_test_that_hangs_is_cut_off_and_charged_to_the_one_who_hung(script, folder):  # N18
    add_agent(folder, "never", "async def never(messages):\n    import asyncio\n    await asyncio.Event().wait()\n")
    records = script(
        """
import threading
ended = []
def test_itself(t, ctx):
    t.assert_.true_(True)
    while True:
        pass
def test_agent(t, ctx):
    t.assert_.true_(True)
    ctx.call("never", "x")
def test_judge(t, ctx):
    t.assert_.agent("x", "never", {"criteria": "x"})
""",
        timeout="200ms",
    )
    assert {name: (record.status, record.fault) for name, record in records.items()} == {
        "test_itself": ("error", "undetermined"),
        "test_agent": ("failed", "agent"),
        "test_judge": ("error", "judge"),
    }
    assert records["test_itself"].error == "timeout after 200ms, in the test's own code"


def test_a_timeout_after_a_fault_or_beside_another_call_is_charged_to_the_one_who_hung(script, folder):  # N18
    add_agent(folder, "never", "async def never(messages):\n    import asyncio\n    await asyncio.Event().wait()\n")
    records = script(
        """
import asyncio, threading
def test_itself_after_a_fault(t, ctx):
    try:
        ctx.call("broken", "x")
    except Exception:
        pass
    while True:
        threading.Event().wait(0.01)
async def test_agent_beside_another(t, ctx):
    await asyncio.gather(ctx.call("assistants.expense", "x"), ctx.call("never", "x"))
async def test_agent_beside_a_fault(t, ctx):
    await asyncio.gather(ctx.call("broken", "x"), ctx.call("never", "x"), return_exceptions=True)
""",
        timeout="2s",  # all else has ended by then, on a busy machine too
    )
    assert {name: (record.status, record.fault) for name, record in records.items()} == {
        "test_itself_after_a_fault": ("error", "undetermined"),
        "test_agent_beside_another": ("failed", "agent"),
        "test_agent_beside_a_fault": ("failed", "agent"),
    }


def test_a_reply_has_a_time_limit_of_its_own(script, folder):  # N18
    add_agent(folder, "never", "async def never(messages):\n    import asyncio\n    await asyncio.Event().wait()\n")
    (record,) = script('def test_reply(t, ctx):\n    ctx.call("never", "x", timeout="10ms")\n', timeout="5m").values()
    assert (record.status, record.fault, record.error) == ("failed", "agent", "timeout after 10ms")


def test_tests_run_at_once(script):
    """Each waits for the other, so one after the other they would never end."""
    records = script(
        """
import threading
both = threading.Barrier(2)
def test_one(t, ctx):
    t.assert_.not_nil(both.wait(300))
def test_two(t, ctx):
    t.assert_.not_nil(both.wait(300))
""",
        parallel=2,
    )
    assert {record.status for record in records.values()} == {"passed"}


def test_a_test_that_is_not_needed_any_more_is_cut_off(script, folder):  # N19
    """With `fail_fast`, the failure of one ends the others, though they wait for an agent that never answers."""
    add_agent(folder, "never", "async def never(messages):\n    import asyncio\n    await asyncio.Event().wait()\n")
    records = script(
        """
def test_waits(t, ctx):
    ctx.call("never", "x")
def test_fails(t, ctx):
    t.error("wrong")
""",
        parallel=2,
        fail_fast=True,
    )
    assert list(records) == ["test_fails"]


def test_calls_are_recorded_and_replayed(folder):
    """A replay calls no agent."""
    add_agent(
        folder, "counted", "asked = []\ndef counted(messages):\n    asked.append(1)\n    return str(len(asked))\n"
    )
    (folder / "vv_taped.py").write_text("""
def test_it(t, ctx):
    said = [ctx.call("counted", text).content for text in ("one", "two", "three")]
    t.assert_.equal(said, ["1", "2", "3"])
    t.assert_.agent("it said so", "workers.judge", {"criteria": "polite"})
""")
    tape = folder / "tape.jsonl"
    assert run_cases("scripts:vv_taped", folder=folder, history=False, record=tape).passed
    assert run_cases("scripts:vv_taped", folder=folder, history=False, replay=tape).passed
    assert len(module_of(folder / "vv_counted.py").asked) == 3
    assert len(module_of(folder / "vv_agents.py").heard) == 1


def test_cases_are_repeated_and_chosen_as_others(script):  # N33
    text = "def test_a(t):\n    t.assert_.true_(True)\ndef test_b(t):\n    t.assert_.true_(True)\n"
    assert list(script(text, only="_b$")) == ["test_b"]
    assert script(text, runs=3)["test_a"].trial == 3


def write(folder, text):
    name = f"vv_script_{next(_serial)}"
    (folder / f"{name}.py").write_text(text)
    return name


def test_a_module_has_tests_or_a_generator(tmp_path):  # N8
    tests = write(
        tmp_path, "def test_b(t): ...\ndef TestA(t, ctx): ...\ndef helper(): ...\nclass TestC: ...\ntest_x = 5\n"
    )
    found = find_script_tests(tests, (str(tmp_path),))
    assert found is not None
    assert [(each.name, each.parameters) for each in found] == [("test_b", ("t",)), ("TestA", ("t", "ctx"))]
    one = find_script_tests(f"{tests}.TestA", (str(tmp_path),))
    assert one is not None
    assert [each.name for each in one] == ["TestA"]
    assert find_script_tests(f"{tests}.helper", (str(tmp_path),)) is None
    assert find_script_tests(write(tmp_path, "def generate(): ..."), (str(tmp_path),)) is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def test_a(t, tmp_path): ...", ":1: test_a needs 'tmp_path'; a script test takes t and ctx"),
        ("import nothing_like_this", "does not import"),
    ],
)
def test_an_unusable_script_is_an_error_before_anything_runs(folder, text, what):  # N2
    with pytest.raises(viva.errors.BadInput) as raised:
        run_cases(f"scripts:{write(folder, text)}", folder=folder, history=False)
    assert what in str(raised.value)


def test_a_script_that_does_not_exist_is_bad_input(folder):
    with pytest.raises(viva.errors.BadInput, match=r"there is no vv_none\.py"):
        run_cases("scripts:vv_none", folder=folder)


def test_tests_take_no_values(folder):
    name = write(folder, "def test_a(t): ...")
    with pytest.raises(viva.errors.BadInput, match=r"script tests take no values; remove \?count"):
        run_cases(f"scripts:{name}?count=5", folder=folder)


def test_a_name_in_quotes_is_looked_up_before_anything_runs(script):  # N8
    """Where it stands; not in what may be meant to fail."""
    with pytest.raises(BadInput) as wrong:
        script("""
def test_it(t, ctx):
    reply = ctx.call("agents:assistants.expens", "hello")
    t.assert_.Agent(reply, "workers.jugde", {"criteria": "x"})
    t.assert_.judge(reply, "x", use="agents:workers.jugde2")
    t.assert_.rubric(reply, ["x"], use="workers.jugde3")
    t.assert_.judge(reply, "x", use=reply.text)
    t.assert_.panic(lambda: ctx.call("nobody", "x"))
    try:
        ctx.call("nobody", "x")
    except Exception:
        pass
""")
    assert [(each.line, each.message.partition(";")[0]) for each in wrong.value.problems] == [
        (3, "there is no agent 'assistants.expens'"),
        (4, "there is no agent 'workers.jugde'"),
        (5, "there is no agent 'workers.jugde2'"),
        (6, "there is no agent 'workers.jugde3'"),
    ]


def test_an_assertion_that_fails_while_a_call_runs_does_not_end_the_test(script, folder):  # N31
    add_agent(
        folder,
        "later",
        "async def later(message):\n    import asyncio\n    await asyncio.sleep(0.05)\n    return message\n",
    )
    record = script("""
import asyncio
async def test_it(t, ctx):
    call = asyncio.create_task(ctx.call("later", "one"))
    await asyncio.sleep(0.01)
    t.assert_.equal(1, 2)
    t.assert_.equal((await call).content, "one")
    t.assert_.equal((await ctx.call("later", "two")).content, "two")
""")["test_it"]
    assert (record.status, record.checks, record.total_turns) == ("failed", 3, 2)


def test_a_check_is_about_the_reply_that_it_is_given(folder, script):
    """Not about a later turn with the same text: its tool calls and the user's message are others."""
    add_agent(
        folder,
        "done",
        "def done(messages):\n"
        '    name = messages[-1]["content"]\n'
        '    return {"content": "Done.", "tool_calls": [{"name": name, "arguments": {}}]}\n',
    )
    (record,) = script("""
def test_calls(t, ctx):
    first, second = ctx.call("done", "save"), ctx.call("done", "delete")
    t.assert_.tool_called(first, "save")
    t.assert_.tool_not_called(first, "delete")
    t.assert_.tool_called(second, "delete")
    t.assert_.tool_called(first.content, "delete")  # of a text alone, the last turn that has it
""").values()
    assert (record.status, record.assertion_errors) == ("passed", None)
