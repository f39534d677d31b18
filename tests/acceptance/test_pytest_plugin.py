"""The pytest plugin, in pytest runs of their own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from openwop import golden, suite, task

CONFIG = """
[defaults]
agent = "echo"

[agents.echo]
use = "python:./agents.py:echo"

[agents.other]
use = "python:./agents.py:other"

[agents.judge]
use = "python:./agents.py:judge"

[agents.broken]
use = "python:./agents.py:broken"
"""
AGENTS = """
def echo(messages, options):
    return {"content": "You said: " + messages[-1]["content"], "data": {"count": len(messages)}}

def other(messages):
    return "Something else"

def judge(messages, options):
    return {"passed": "said" in options["metadata"]["output"], "reason": "it was heard"}

def broken(messages):
    raise ValueError("boom")
"""
CASES = """
- id: holds
  tags: [quick]
  input: hello
  assertions: [{type: contains, value: hello}]
- id: fails
  input: hello
  assertions: [{type: contains, value: bye}]
- id: left-out
  skip: not now
  input: hello
- id: unchecked
  input: hello
- id: broken-check
  input: hello
  assertions: [{type: max_tokens, value: 5}]
- id: repeated
  runs: 3
  input: hello
  assertions: [{type: contains, value: hello}]
"""


class Pytest:
    """A folder of tests, and pytest as a process of its own in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("viva.toml", CONFIG)
        self.write("agents.py", AGENTS)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, *arguments: str, plugins: tuple[str, ...] = ("viva.pytest_plugin",)) -> tuple[str, dict[str, str]]:
        """What it printed, and the outcome of each test by its id. Without `plugins` it loads all that are installed, except
        pytest-asyncio, which warns of a missing setting.
        """
        named = [word for plugin in plugins or ("no:asyncio",) for word in ("-p", plugin)]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-v", *named, *arguments]
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        if plugins:
            env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # the many plugins of this environment take seconds to import
        ended = subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=300, check=False
        )
        out = ended.stdout + ended.stderr
        outcomes = re.findall(r"^(\S+::\S+) (PASSED|FAILED|SKIPPED|XFAIL|ERROR)", out, re.MULTILINE)
        return out, {name.partition("::")[2]: outcome for name, outcome in outcomes}


@pytest.fixture
def inner(tmp_path: Path) -> Pytest:
    return Pytest(tmp_path)


def test_each_case_is_an_item(inner: Pytest):
    """Passed, failed and skipped are pytest's own; what could not be examined fails with its fault."""
    inner.write("suites/cases.viva.yaml", CASES)
    out, outcomes = inner.run()
    assert outcomes == {
        "holds": "PASSED",
        "fails": "FAILED",
        "left-out": "SKIPPED",
        "unchecked": "SKIPPED",
        "broken-check": "FAILED",
        "repeated": "PASSED",
    }, out
    assert "SKIPPED (not now)" in out
    assert "SKIPPED (nothing was checked)" in out  # N11
    assert '✗ turn 1: contains "bye"' in out
    assert 'actual:   "You said: hello"' in out
    assert "at suites/cases.viva.yaml:6" in out
    assert "viva test -i suites/cases.viva.yaml -k '^fails$' -v -n echo" in out
    assert "  agent: You said: hello" in out
    assert "error (undetermined)" in out  # N17
    assert "reported no usage" in out
    assert "Traceback" not in out
    assert not (inner.folder / ".viva").exists()


def test_files_of_every_suffix_are_collected_and_others_are_not(inner: Pytest):
    for name in ("jsonl", "json", "yml"):
        inner.write(
            f"a.viva.{name}", json.dumps({"id": name, "input": "a", "assertions": [{"type": "contains", "value": "a"}]})
        )
    inner.write("b.jsonl", "{}")
    assert inner.run()[1] == {"jsonl": "PASSED", "json": "PASSED", "yml": "PASSED"}


def test_each_task_of_an_eval_suite_is_an_item(inner: Pytest):
    """W2: by its own check; its threshold is an item of its own, which decides as in `viva test`. Fixtures that the agent does
    not take are an error of collection, as they are for a run.
    """
    tasks = task("one", expected=golden("count")), task("two", expected=golden("x"))
    inner.write("suite.viva.json", json.dumps(suite(*tasks, thresholds={"passScore": 0.5})))
    out, outcomes = inner.run("-rx")
    assert outcomes == {"one": "PASSED", "two": "XFAIL", "threshold": "PASSED"}, out
    assert "two - counts in the threshold of its suite: failed (agent): " in out
    inner.write("suite.viva.json", json.dumps(suite(*tasks, thresholds={"passScore": 0.9})))
    out, outcomes = inner.run()
    assert outcomes == {"one": "PASSED", "two": "XFAIL", "threshold": "FAILED"}, out
    assert re.search(r"^FAILED suite.viva.json::threshold - .*0\.9", out, re.MULTILINE)
    out, outcomes = inner.run("-k", "not two", "-rs")
    assert outcomes == {"one": "PASSED", "threshold": "SKIPPED"}, out
    assert "1 of 2 cases of the suite did not run here" in out
    inner.write("suite.viva.json", json.dumps(suite(task(fixtures={"memorySeed": [{"content": "Ada"}]}))))
    assert "does not support memory" in inner.run()[0]


def test_the_agent_can_be_named_and_cases_chosen(inner: Pytest):
    """`--viva-agent` for all; `-k` knows ids and tags; other workers do as well."""
    inner.write("cases.viva.yaml", CASES)
    assert inner.run("--viva-agent", "other", "-k", "quick")[1] == {"holds": "FAILED"}
    assert (
        inner.run("cases.viva.yaml::holds", "-n", "2", plugins=("viva.pytest_plugin", "xdist"))[0].count("1 passed")
        == 1
    )


def test_a_bad_file_is_an_error_of_collection(inner: Pytest):  # N2
    """With file and line, and no traceback; a missing agent is asked for."""
    inner.write("bad.viva.jsonl", '{"id": "one", "inputt": "hello"}\n')
    out, _ = inner.run()
    assert "bad.viva.jsonl:1: $: unknown key 'inputt'; did you mean 'input'?" in out
    assert "Traceback" not in out
    inner.write("bad.viva.jsonl", '{"id": "one", "input": "hello"}\n')
    inner.write("viva.toml", CONFIG.replace('agent = "echo"', ""))
    assert "no agent given. Give --viva-agent NAME" in inner.run()[0]


def test_the_nearest_config_counts(inner: Pytest):
    """Two projects in one run: each suite has the agents of its own."""
    inner.write("a/cases.viva.yaml", CASES)
    inner.write("b/viva.toml", '[agents.echo]\nuse = "python:./agents.py:other"\n')
    inner.write("b/agents.py", AGENTS)
    inner.write("b/cases.viva.yaml", CASES.replace("id: ", "id: b-"))
    _, outcomes = inner.run("-k", "holds")
    assert outcomes == {"holds": "PASSED", "b-holds": "FAILED"}


def test_hooks_of_cases_are_called(inner: Pytest):  # N32
    inner.write("hooks.py", "def login(ctx, case):\n    return {'token': 'T-1'}\n")
    inner.write(
        "a.viva.yaml",
        "- {id: a, before: 'hooks:login', input: '{{token}}', assertions: [{type: contains, value: T-1}]}\n",
    )
    assert inner.run()[1] == {"a": "PASSED"}


def test_conversations_are_held_from_sync_tests(inner: Pytest):
    """The fixture `viva`: say, expect, judge, run; what does not hold is told with the conversation."""
    inner.write(
        "cases/one.jsonl", '{"id": "one", "input": "hi", "assertions": [{"type": "contains", "value": "hi"}]}\n'
    )
    inner.write(
        "test_chat.py",
        """
import asyncio
import pytest
import viva as v

def test_talk(viva):
    chat = viva.chat()
    assert chat.say("hello").content == "You said: hello"
    chat.expect(viva.check.contains("hello"), v.check.max_turns(1))
    assert chat.say("again").data == {"count": 3}
    assert chat.judge("It repeats", use="judge").passed
    assert len(chat.messages) == 4
    assert "user: again" in chat.transcript

def test_unmet(viva):
    chat = viva.chat("echo", timeout="5s")
    chat.say("hello")
    chat.expect(viva.check.contains("bye"))

def test_broken_agent(viva):
    with pytest.raises(v.errors.AgentFailed, match="boom"):
        viva.chat("broken").say("hello")

def test_nobody(viva):
    viva.chat("nobody")

def test_function(viva):
    chat = viva.chat(lambda messages: "hi")
    chat.say("hello")
    chat.expect(viva.check.equals("hi"))

def test_suite(viva):
    result = viva.run("cases/one.jsonl")
    assert result.passed, result

def test_two_at_once(viva):
    one, two = viva.chat(), viva.chat("other")
    one.say("a"), two.say("b")
    one.expect(viva.check.contains("a"))
    two.expect(viva.check.contains("else"))
""",
    )
    out, outcomes = inner.run()
    assert outcomes == {
        "test_talk": "PASSED",
        "test_unmet": "FAILED",
        "test_broken_agent": "PASSED",
        "test_nobody": "FAILED",
        "test_function": "PASSED",
        "test_suite": "PASSED",
        "test_two_at_once": "PASSED",
    }, out
    assert '✗ contains "bye"' in out
    assert "> " in out
    assert "E         agent: You said: hello" in out
    assert "src/viva/" not in out.partition("test_nobody")[0]  # our own frames are hidden


def test_script_tests_run_in_pytest_too(inner: Pytest):  # N31
    """The same file as `-i scripts:…` runs; soft assertions fail the test at its end, not its teardown."""
    inner.write(
        "test_script.py",
        """
def test_holds(t, ctx):
    reply = ctx.call("echo", [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"content": "c"}])
    t.assert_.equal(reply.data["count"], 3)
    t.assert_.agent(reply, "judge", {"criteria": "It was heard"})

def test_soft(t, ctx):
    reply = ctx.call(None, "hello")
    t.assert_.contains(reply.content, "bye")
    t.log("still", "here")
    t.assert_.equal(1, 2)

def TestCamel(t, ctx):
    t.assert_.Panic(lambda: ctx.call("broken", "x"))

def TestFixtures(t, tmp_path):
    t.assert_.true_(tmp_path.exists())

async def test_async(t, ctx):
    t.assert_.contains(await ctx.call("echo", "hello"), "hello")

def test_zero(t, ctx):
    pass

def test_plain(ctx):
    assert ctx.call("echo", "hello").content == "You said: hello"

def test_by_viva(t, viva):
    chat = viva.chat("echo")
    chat.say("hello")
    chat.expect(viva.check.contains("hello"))

async def test_async_by_viva(viva):
    async with viva.Conversation(lambda messages: "hi") as chat:
        await chat.say("hello")
        chat.expect(viva.check.contains("hi"))

async def test_async_unmet(viva):
    chat = viva.chat("echo")
    chat.say("hello")
    chat.expect(viva.check.contains("bye"))

def test_skip(t):
    t.skip("not today")

def test_unknown_agent(t, ctx):
    ctx.call("absent", "hello")
def test_fatal(t):
    t.fatal("no use")

def test_skip_after_failure(t):
    t.error("wrong")
    t.skip("not today")

def test_raises(t, ctx):
    t.error("wrong")
    ctx.call("broken", "x")

class TestClass:
    def test_method(self, t):
        t.assert_.nil(None)

def Testing():
    raise AssertionError("not a test")
""",
    )
    out, outcomes = inner.run("-rs")
    assert outcomes == {
        "test_holds": "PASSED",
        "test_soft": "FAILED",
        "TestCamel": "PASSED",
        "TestFixtures": "PASSED",
        "test_async": "PASSED",
        "test_zero": "SKIPPED",  # N11
        "test_plain": "SKIPPED",
        "test_by_viva": "PASSED",
        "test_async_by_viva": "PASSED",
        "test_async_unmet": "FAILED",
        "test_skip": "SKIPPED",
        "test_unknown_agent": "FAILED",
        "test_fatal": "FAILED",
        "test_skip_after_failure": "FAILED",
        "test_raises": "FAILED",
        "TestClass::test_method": "PASSED",
    }, out
    assert 'contains "bye"' in out
    assert "✗ equal 2" in out
    assert "still here" in out
    assert re.search(r"SKIPPED \[1\] test_script\.py:\d+: nothing was checked\. Use t\.assert_ in the test", out)
    assert "SKIPPED (not today)" in out
    assert "AgentFailed: ValueError: boom" in out
    assert "viva.errors.BadInput: there is no agent 'absent'" in out
    assert " error" not in out.splitlines()[-1]


def test_projects_that_have_nothing_to_do_with_viva_are_left_alone(inner: Pytest):
    """Fixtures of the same names are the project's own, and nothing of Viva is imported but the plugin."""
    inner.write(
        "test_own.py",
        """
import sys
import pytest

@pytest.fixture
def t():
    return "mine"

@pytest.mark.parametrize("ctx", [1])
def test_it(t, ctx):
    assert (t, ctx) == ("mine", 1)
    assert not [name for name in sys.modules if name.startswith("viva.") and name != "viva.pytest_plugin"]
""",
    )
    inner.write(
        "conftest.py",
        """
import asyncio, inspect
import pytest

ran = []

def pytest_pyfunc_call(pyfuncitem):
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        ran.append(pyfuncitem.name)
        asyncio.run(pyfuncitem.obj(t="mine"))
        return True

@pytest.fixture
def names():
    return ran
""",
    )
    inner.write(
        "test_own_async.py",
        """
import pytest

@pytest.mark.parametrize("t", ["mine"], ids=["a"])
async def test_async(t):
    assert t == "mine"

def test_the_project_ran_it_itself(names):
    assert names == ["test_async[a]"]

def TestHelper(ctx):
    raise AssertionError("not a test")
""",
    )
    assert inner.run(plugins=())[1] == {
        "test_it[1]": "PASSED",
        "test_async[a]": "PASSED",
        "test_the_project_ran_it_itself": "PASSED",
    }


CONFTEST = """
import threading
import pytest

class Shop:
    # Four calls have to meet, so this works only if cases run at once.
    barrier = threading.Barrier(4, timeout=300)

    def reply(self, message: str):
        if message == "meet":
            self.barrier.wait()
        return f"You said: {message}"

@pytest.fixture(scope="session")
def viva_agent():
    return Shop()
"""
MEETING = """
- {id: m1, tags: [smoke], input: meet, assertions: [{type: contains, value: meet}]}
- {id: m2, tags: [smoke], input: meet, assertions: [{type: contains, value: meet}]}
- {id: m3, tags: [smoke], input: meet, assertions: [{type: contains, value: meet}]}
- {id: m4, tags: [smoke, skip], input: meet, assertions: [{type: contains, value: bye}]}
- {id: other, input: hello, assertions: [{type: contains, value: hello}]}
"""


def test_cases_run_at_once_against_an_object_that_a_fixture_makes(inner: Pytest):
    """Tags are markers, also with --strict-markers; the summary says which check failed; `viva.chat()` has the same agent."""
    inner.write("conftest.py", CONFTEST)
    inner.write("meeting.viva.yaml", MEETING)
    inner.write(
        "test_chat.py",
        """
import pytest
from viva.types import VivaFixture

@pytest.fixture(scope="module")
def shared(viva_module: VivaFixture):
    chat = viva_module.chat()
    chat.say("one")
    return chat

def test_first(shared):
    shared.expect(lambda turn: turn.text == "You said: one")
    shared.say("two")

def test_second(shared, viva_session):
    assert len(shared.messages) == 4
    assert viva_session.run("Hello there", history=False)[0].turns[0].output == "You said: Hello there"

@pytest.mark.smoke
def test_smoke(viva):
    with pytest.raises(viva.BadInput, match="checks nothing"):
        viva.chat().expect()
""",
    )
    out, outcomes = inner.run("--strict-markers", "-m", "smoke")
    assert outcomes == {"m1": "PASSED", "m2": "PASSED", "m3": "PASSED", "m4": "FAILED", "test_smoke": "PASSED"}, out
    assert 'FAILED meeting.viva.yaml::m4 - failed (agent): turn 1: contains "bye"' in out
    assert "\npytest meeting.viva.yaml::m4\n" in out  # `viva test` cannot make the agent
    assert "viva test" not in out
    out, outcomes = inner.run("-k", "other or test_chat", "--viva-agent", "echo", "-x")
    assert outcomes == {"other": "PASSED", "test_first": "PASSED", "test_second": "PASSED", "test_smoke": "PASSED"}, out


def test_nothing_that_an_agent_raises_leaves_the_test_waiting(inner: Pytest):
    """`pytest.fail` in a tool is no Exception; a user's own Agent does not catch it."""
    inner.write(
        "test_hang.py",
        """
import contextlib, sys
import pytest
import agents

class Own:
    provides = frozenset()

    @contextlib.asynccontextmanager
    async def open(self, context):
        yield self

    async def send(self, message, options):
        {"fail": lambda: pytest.fail("inner"), "interrupt": self.interrupt, "exit": lambda: sys.exit(3)}[message.text]()

    def interrupt(self):
        raise KeyboardInterrupt

@pytest.mark.parametrize("how", ["fail", "exit"])
def test_agent(viva, how):
    viva.chat(Own()).say(how)

def test_interrupt(viva):
    with pytest.raises(viva.AgentFailed, match="KeyboardInterrupt"):
        viva.chat(Own()).say("interrupt")
    assert viva.chat("echo").say("still here").text == "You said: still here"

async def never(messages):
    raise KeyboardInterrupt

def test_async_function(viva):
    with pytest.raises(viva.AgentFailed, match="KeyboardInterrupt"):
        viva.chat(never).say("x")

def test_monkeypatch_reaches_the_agent(viva, monkeypatch):
    monkeypatch.setattr(agents, "answer", lambda: "patched")
    assert viva.chat("python:./agents.py:asks").say("x").text == "patched"

def test_flags_are_those_of_pytest(viva):
    with pytest.raises(viva.BadInput, match="--viva-agent http"):
        viva.chat("http://u:***@host/")

async def test_flags_in_async_code(viva):
    with pytest.raises(viva.BadInput, match="--viva-agent http"):
        await viva.arun("Hello there", "http://u:***@host/")
""",
    )
    inner.write(
        "agents.py", AGENTS + "\ndef answer():\n    return 'plain'\n\ndef asks(messages):\n    return answer()\n"
    )
    out, outcomes = inner.run()
    assert outcomes == {
        "test_agent[fail]": "FAILED",
        "test_agent[exit]": "FAILED",
        "test_interrupt": "PASSED",
        "test_async_function": "PASSED",
        "test_monkeypatch_reaches_the_agent": "PASSED",
        "test_flags_are_those_of_pytest": "PASSED",
        "test_flags_in_async_code": "PASSED",
    }, out


RESULT_TESTS = """
import viva

def make_result(word):
    return viva.run({"id": "greets", "input": "hello", "assertions": [viva.check.contains(word)]}, "echo", history=False)

def check(result):
    assert result, result

def test_direct():
    passed, result = make_result("hello"), make_result("bye")
    assert result, result

def test_in_a_function():
    check(make_result("ciao"))

def test_without_a_variable():
    assert make_result("hola")

def test_other_error():
    result = make_result("other")
    raise ValueError(result)
"""


def test_a_result_that_is_asserted_says_why_it_did_not_pass(inner: Pytest):
    """pytest shows only the repr of what follows the comma."""
    inner.write("test_results.py", RESULT_TESTS)
    out, outcomes = inner.run()
    assert set(outcomes.values()) == {"FAILED"}, out
    texts = re.findall(r"^-+ viva -+\n.*\n✗ greets: failed \(agent\)\n +(.*)$", out, re.MULTILINE)
    assert texts == [f'turn 1: contains "{word}": was "You said: hello"' for word in ("bye", "ciao", "hola")], out
    assert 'assert <RunResult greets: turn 1: contains "hola": was' in out  # the summary line begins with it


ASYNC_TESTS = """
import asyncio
import pytest
import viva as v

async def reply(messages):
    return f"on {id(asyncio.get_running_loop())}"

MARK
async def test_arun_uses_the_loop_of_the_test(viva):
    result = await viva.arun({"input": "hi", "assertions": [v.check.contains(str(id(asyncio.get_running_loop())))]}, reply)
    assert result, result

MARK
async def test_conversation_without_the_fixture():
    async with v.Conversation(reply) as chat:
        await chat.say("hi")
        chat.expect(lambda turn: turn.text == f"on {id(asyncio.get_running_loop())}")

MARK
async def test_run_and_chat_in_async_code(viva):
    assert viva.run({"input": "hi", "assertions": [v.check.contains("on")]}, reply)
    assert "on" in viva.chat(reply).say("hi").text

def test_sync(viva):
    with v.SyncConversation(reply) as chat:
        assert "on" in chat.say("hi").text
"""


@pytest.mark.parametrize(
    ("mark", "plugin", "arguments"),
    [
        (
            "@pytest.mark.asyncio",
            "pytest_asyncio.plugin",
            ("-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function"),
        ),
        ("", "pytest_asyncio.plugin", ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")),
        ("@pytest.mark.anyio\n@pytest.mark.parametrize('anyio_backend', ['asyncio'])", "anyio.pytest_plugin", ()),
    ],
    ids=["pytest-asyncio", "pytest-asyncio auto", "anyio"],
)
def test_plugins_for_async_tests_run_them(inner: Pytest, mark: str, plugin: str, arguments: tuple[str, ...]):
    inner.write("test_async.py", ASYNC_TESTS.replace("MARK", mark))
    out, outcomes = inner.run(*arguments, plugins=("viva.pytest_plugin", plugin))
    assert set(outcomes.values()) == {"PASSED"}, out
    assert len(outcomes) == 4


def test_a_test_can_be_debugged_and_measured(inner: Pytest):
    """--pdb stops in the test, not in Viva; coverage sees an agent that runs in another thread."""
    inner.write("conftest.py", CONFTEST.replace('scope="session"', 'scope="function"'))
    inner.write("cases.viva.yaml", "- {id: a, input: hello, assertions: [{type: contains, value: hello}]}\n")
    inner.write(
        "test_chat.py",
        "def test_it(viva):\n    chat = viva.chat()\n    chat.say('hi')\n    mine = 1\n    chat.expect(lambda turn: False)\n",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider", "--pdb", "-q"],
        cwd=inner.folder, input="p 'mine', mine\nq\n", capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "('mine', 1)" in done.stdout, done
    command = ["-m", "coverage", "run", "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider", "cases.viva.yaml"]
    done = subprocess.run([sys.executable, *command], cwd=inner.folder, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done
    report = subprocess.run(
        [sys.executable, "-m", "coverage", "report", "-m", "--include=conftest.py"],
        cwd=inner.folder, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert re.search(r"conftest\.py +\d+ +1 ", report.stdout), report.stdout  # only the line of `meet`
