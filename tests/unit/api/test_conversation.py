"""A conversation that Python code holds turn by turn."""

import asyncio

import pytest

import viva


def echo(messages, options):
    return f"You said: {messages[-1]['content']}"


def talked(work, agent=echo, **settings):
    """Opens a conversation, does the work, and gives what it returns."""

    async def hold():
        async with viva.Conversation(agent, **settings) as chat:
            return await work(chat)

    return asyncio.run(hold())


def test_a_reply_tells_what_was_said_and_done_and_whether_the_agent_waits(folder):
    async def work(chat):
        return await chat.say("submit it"), await chat.say("who asks?")

    first, second = talked(work, "assistants.expense", folder=folder)
    assert first.content == first.text == "You said: submit it"
    assert first.data["messages"] == 1
    assert [call.name for call in first.tool_calls] == ["submit"]
    assert (first.awaiting, second.awaiting) == (False, True)
    assert second.awaiting_reason == "agent_declared"  # N22
    assert second.latency_ms > 0


def test_the_agent_knows_all_that_was_said_before(folder):  # N19
    async def work(chat):
        await chat.say("one")
        reply = await chat.say("two")
        return reply.data["messages"], [message.text for message in chat.messages]

    history = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    count, said = talked(work, "assistants.expense", folder=folder, history=history)
    assert count == 5
    assert said == ["hello", "hi", "one", "You said: one", "two", "You said: two"]


def test_options_are_merged_as_in_a_suite(folder):  # N20
    async def work(chat):
        return (await chat.say("x", options={"metadata": {"b": 2}, "mode": "fast"})).data["options"]

    options = talked(work, "assistants.expense", folder=folder, options={"metadata": {"a": 1}, "mode": "slow"})
    assert options["metadata"] == {"a": 1, "b": 2}
    assert (options["mode"], options["tone"], options["referer"]) == ("fast", "dry", "agent-test")
    assert options["session_id"]


def test_all_failed_assertions_are_reported_together():  # N10
    async def work(chat):
        await chat.say("hello")
        chat.expect(viva.check.contains("hello"), viva.check.max_turns(1))
        with pytest.raises(AssertionError) as raised:
            chat.expect(viva.check.contains("bye"), viva.check.contains("You"), viva.check.tool_called("submit"))
        return str(raised.value)

    told = talked(work)
    assert '✗ contains "bye"' in told
    assert 'actual:   "You said: hello"' in told
    assert '"submit" was not called; no tool was called' in told
    assert 'contains "You"' not in told
    assert "user: hello" in told
    assert "agent: You said: hello" in told


def test_what_cannot_be_evaluated_is_not_a_failure_of_the_agent():  # N24
    async def work(chat):
        await chat.say("hello")
        with pytest.raises(viva.errors.CheckError, match="reported no usage"):
            chat.expect(viva.check.contains("hello"), viva.check.max_tokens(5))
        with pytest.raises(AssertionError, match="reported no usage"):
            chat.expect(viva.check.contains("bye"), viva.check.max_tokens(5))

    talked(work)


def test_tools_of_the_whole_conversation_can_be_asked_for(folder):
    async def work(chat):
        await chat.say("submit it")
        await chat.say("thanks")
        chat.expect(viva.check.tool_called("submit", arguments={"amount": 3500}), scope="case")
        with pytest.raises(AssertionError):
            chat.expect(viva.check.tool_called("submit"))

    talked(work, "assistants.expense", folder=folder)


def test_a_judge_is_waited_for(folder):  # N26
    async def work(chat):
        await chat.say("hello")
        verdict = await chat.judge("polite", use="workers.judge")
        assert (verdict.passed, verdict.score, verdict.reason) == (True, 0.8, "about polite")
        with pytest.raises(AssertionError, match=r"score 0\.8 is below 0\.9"):
            await chat.judge("polite", use="workers.judge", min_score=0.9)
        with pytest.raises(viva.errors.CheckError, match="the judge is ill"):
            await chat.judge("break", use="workers.judge")
        await chat.judge(viva.check.rubric("polite", use="workers.judge"))

    talked(work, "assistants.expense", folder=folder)


def test_what_has_to_wait_cannot_be_expected_at_once(folder):
    (folder / "vv_checks.py").write_text("async def check(output): return True")

    async def work(chat):
        await chat.say("hello")
        for slow in (
            viva.check.judge("polite"),
            viva.check.script("vv_checks.check"),
            viva.check.any_of(viva.check.judge("x")),
        ):
            with pytest.raises(TypeError, match=r"chat\.judge"):
                chat.expect(slow)
        await chat.judge(viva.check.script("vv_checks.check"))

    talked(work, "assistants.expense", folder=folder)


def test_an_agent_that_breaks_or_cannot_be_reached_raises(folder):  # N17
    async def work(chat):
        with pytest.raises((viva.errors.AgentFailed, viva.errors.Unreachable)) as raised:
            await chat.say("hello")
        assert "user: hello" in chat.transcript
        return raised.value

    assert str(talked(work, "broken", folder=folder)) == "ValueError: boom"
    assert isinstance(talked(work, "unreachable", folder=folder), viva.errors.Unreachable)


def test_each_reply_has_its_time():  # N18
    async def never(messages):
        await asyncio.Event().wait()

    async def work(chat):
        with pytest.raises(viva.errors.AgentFailed, match="timeout after 20ms"):
            await chat.say("hello")
        with pytest.raises(viva.errors.AgentFailed, match="timeout after 10ms"):
            await chat.say("hello", timeout="10ms")

    talked(work, never, timeout=0.02)


def test_files_are_attached_as_parts(tmp_path):  # N5
    (tmp_path / "receipt.png").write_bytes(b"\x89PNG")
    seen = []

    def look(messages):
        seen.append(messages[-1]["content"])
        return "ok"

    async def work(chat):
        await chat.say("look", attachments=[tmp_path / "receipt.png", {"type": "file", "source": "https://x/y.pdf"}])
        with pytest.raises(viva.errors.BadInput, match="there is no file"):
            await chat.say("look", attachments=[tmp_path / "none.png"])

    talked(work, look)
    text, image, file = seen[0]
    assert text == {"type": "text", "text": "look"}
    assert (image["type"], image["url"]) == ("image", "data:image/png;base64,iVBORw==")
    assert file["url"] == "https://x/y.pdf"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "must be a user message"),
        ({"role": "assistant", "content": "x"}, "must be a user message"),
        ([{"role": "bot", "content": "x"}], r"messages\[0\] is not a message"),
        ([{"content": [{"type": "movie"}]}], r"messages\[0\] is not a message"),
        ([{"content": "a"}, {"content": "b"}], "one message at a time"),
    ],
)
def test_what_cannot_be_said_is_refused(words, what):
    async def work(chat):
        with pytest.raises(viva.errors.BadInput, match=what):
            await chat.say(words)

    talked(work)


def test_a_conversation_is_open_between_its_doors():
    chat = viva.Conversation(echo)
    with pytest.raises(RuntimeError, match="not open"):
        chat.expect(viva.check.contains("x"))

    async def hold():
        async with chat:
            with pytest.raises(RuntimeError, match=r"call say\(\) first"):
                chat.expect(viva.check.contains("x"))
            await chat.say("hello")
        chat.expect(viva.check.contains("hello"))
        with pytest.raises(RuntimeError, match="is closed"):
            await chat.say("hello?")

    asyncio.run(hold())


def test_secrets_are_not_told(folder):
    """What comes from the environment into the config never reaches a message, however an agent says it."""
    (folder / "viva.toml").write_text('[connectors.x]\nmodel = "m"\napi_key_env = "PATH"\n')

    async def work(chat):
        import os

        await chat.say(f"my path is {os.environ['PATH']}")
        with pytest.raises(AssertionError) as raised:
            chat.expect(viva.check.contains("bye"))
        assert os.environ["PATH"] not in str(raised.value) + chat.transcript
        assert "my path is ***" in chat.transcript

    talked(work, folder=folder)


def test_an_unknown_name_is_bad_input(folder):  # N7
    with pytest.raises(viva.errors.BadInput, match=r"did you mean assistants\.expense"):
        talked(lambda chat: chat.say("x"), "assistants.expens", folder=folder)


@pytest.mark.parametrize("message", [None, 5])
def test_what_is_not_a_message_is_bad_input(message):
    with pytest.raises(viva.BadInput, match="is not a message: give a text"):
        talked(lambda chat: chat.say(message))


def test_an_unknown_scope_is_bad_input():
    async def work(chat):
        await chat.say("hello")
        with pytest.raises(viva.BadInput, match="scope='cse' is not 'turn' or 'case'"):
            chat.expect(viva.check.contains("hello"), scope="cse")
        with pytest.raises(viva.BadInput, match="scope='cse'"):
            await chat.judge("polite", use=lambda messages, options: True, scope="cse")

    talked(work)


def test_a_text_is_not_an_assertion():
    async def work(chat):
        await chat.say("hello")
        with pytest.raises(viva.BadInput, match=r"pass viva.check.contains\('order'\), for example, or a function"):
            chat.expect("order")

    talked(work)


def test_a_message_names_the_parameter_instead_of_the_flag(tmp_path):
    with pytest.raises(viva.BadInput, match=r"no agent given. Give agent=NAME"):
        talked(None, None, folder=tmp_path)


def test_a_closed_conversation_says_that_it_is_closed():
    with viva.SyncConversation(echo) as chat:
        chat.say("hello")
    with pytest.raises(RuntimeError, match="is closed; expect, messages and transcript still work"):
        chat.say("again")
    chat.expect(viva.check.contains("hello"))
    with pytest.raises(RuntimeError, match="is not open"):
        viva.SyncConversation(echo).say("hello")
