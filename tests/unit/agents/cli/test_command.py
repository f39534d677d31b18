"""Commands that are spelled out in the config: any argv, text or JSON lines."""

import asyncio
from typing import Any

import pytest
from msgspec import UNSET

from terminals import CAPTURES, command_agent, fake, hold_conversation, host
from viva.agents.cli.cli_agent import CliAgent
from viva.agents.cli.command import LineRule
from viva.errors import AgentFailed, Unreachable

RULES = (
    LineRule(session="$.sid"),
    LineRule(when={"kind": "text"}, text="$.body.text"),
    LineRule(when={"kind": "call"}, tool="$.name", arguments="$.args", id="$.id"),
    LineRule(when={"kind": "back"}, result="$.out", id="$.id", error="$.failed"),
    LineRule(when={"kind": "asks"}, awaiting="$.what"),
    LineRule(when={"kind": "end", "v": {"n": 1}}, end=True, error="$.error", usage="$.used"),
)


def command(folder, body: str, *words: str, **fields: Any) -> CliAgent:
    fake(folder, "mycli", body)
    return command_agent(command=("mycli", *words), host=host(folder), **fields)


def test_all_that_it_prints_is_the_reply(tmp_path):
    body = 'print(args[0]); print(); print("two lines é")'
    assert (
        hold_conversation(command(tmp_path, body, "{input}"), "Hello there").reply.content
        == "Hello there\n\ntwo lines é"
    )


def test_a_reply_that_lacks_a_line_is_no_reply(tmp_path):
    """A check such as `not_contains` would hold for the rest of it."""
    body = 'print("start"); print("x" * 9_000_000); print("end")'
    with pytest.raises(AgentFailed, match="it printed too much, and its result was lost"):
        hold_conversation(command(tmp_path, body, "{input}"), "Hello there")


def test_without_a_place_for_it_the_message_goes_to_standard_input(tmp_path):
    big = "x" * 300_000  # more than a pipe holds, and more than one word of a command line may have
    assert hold_conversation(command(tmp_path, "print(len(sys.stdin.read()))"), big).reply.content == "300000"


def test_a_command_that_does_not_read_input_works(tmp_path):
    assert hold_conversation(command(tmp_path, 'print("no")'), "x" * 300_000).reply.content == "no"


def test_places_are_filled_in_word_by_word(tmp_path):
    body = "print(json.dumps(args))"
    words = ("{input}", "in {workspace}", "--home={home}", '{"json": 1}')
    agent = command(tmp_path, body, *words, model_args=("--model", "{model}"), args=("--last",))
    import json

    conversation = json.loads(hold_conversation(agent, "a; rm -rf $HOME", options={"model": "m"}).reply.content)
    assert conversation[0] == "a; rm -rf $HOME"
    assert conversation[1].startswith("in /")
    assert conversation[1].endswith("/work")
    assert conversation[2].endswith("/home")
    assert conversation[3:] == ['{"json": 1}', "--model", "m", "--last"]
    assert "--model" not in hold_conversation(agent, "x").reply.content


def test_it_resumes_as_it_is_told_to_by_one_id_in_all_turns(tmp_path):
    agent = command(
        tmp_path, "print(*args)", "new", "{session}", "{input}", resume=("mycli", "again", "{session}", "{input}")
    )
    first, second, third = (reply.content.split() for reply in hold_conversation(agent, "a", "b", "c").replies)
    assert (first[0], second[0], third[0]) == ("new", "again", "again")
    assert first[1] == second[1] == third[1]


def test_a_cli_that_cannot_resume_gets_the_conversation_so_far(tmp_path):
    conversation = hold_conversation(command(tmp_path, 'print("seen", sys.stdin.read().count("one"))'), "one", "two")
    assert [reply.content for reply in conversation.replies] == ["seen 1", "seen 1"]


def test_lines_mean_what_the_rules_say(tmp_path):
    body = """
say(kind="hello", sid="s-9")
print("Loading...")
say(kind="text", body={"text": "Writing "})
say(kind="call", name="write", args='{"path": "a.txt"}', id="1")
say(kind="back", id="1", out="ok")
say(kind="call", name="rm", args={"path": "/"}, id="2")
say(kind="back", id="2", failed="not allowed")
say(kind="text", body={"text": "done."})
say(kind="asks", what="Which one?")
say(kind="end", v={"n": 1}, used={"input_tokens": 7, "output_tokens": 2})
"""
    reply = hold_conversation(command(tmp_path, body, "{input}", output="jsonl", events=RULES), "x").reply
    assert reply.content == "Writing done."
    assert [(call.name, call.arguments, call.error) for call in reply.tool_calls] == [
        ("write", {"path": "a.txt"}, None),
        ("rm", {"path": "/"}, "not allowed"),
    ]
    assert reply.tool_calls[0].result == "ok"
    assert (reply.protocol_state, reply.input_hint) == ("input-required", "Which one?")
    assert [call.input_tokens for call in reply.calls] == [7]


def test_a_result_may_be_anything_but_null(tmp_path):
    body = """
for id, out in enumerate([0, False, [], "", None, {}]):
    say(kind="call", name="read", id=id)
    say(kind="back", id=id, out=out)
say(kind="end", v={"n": 1})
"""
    reply = hold_conversation(command(tmp_path, body, "{input}", output="jsonl", events=RULES), "x").reply
    assert [(call.id, call.result) for call in reply.tool_calls] == [
        ("0", 0), ("1", False), ("2", []), ("3", ""), ("4", ""), ("5", {}),
    ]  # fmt: skip
    assert reply.tool_calls[1].result is False


def test_a_result_without_an_id_is_of_the_last_open_call(tmp_path):
    rules = (
        LineRule(when={"kind": "call"}, tool="$.name"),
        LineRule(when={"kind": "back"}, result="$.out", error="$.failed"),
        LineRule(when={"kind": "both"}, tool="$.name", result="$.out"),
        LineRule(when={"kind": "end"}, end=True),
    )
    body = """
say(kind="back", out="of no call")
say(kind="call", name="open")
say(kind="both", name="add", out=3)
say(kind="call", name="rm")
say(kind="back", failed="not allowed")
say(kind="end")
"""
    reply = hold_conversation(command(tmp_path, body, "{input}", output="jsonl", events=rules), "x").reply
    assert [(call.name, call.result, call.error) for call in reply.tool_calls] == [
        ("open", UNSET, None),
        ("add", 3, None),
        ("rm", UNSET, "not allowed"),
    ]


def test_a_turn_needs_the_line_that_ends_it(tmp_path):
    body = 'say(kind="text", body={"text": "almost"})\nsay(kind="end", v={"n": 2})'
    with pytest.raises(AgentFailed, match="it ended without a result"):
        hold_conversation(command(tmp_path, body, "{input}", output="jsonl", events=RULES), "x")


def test_an_error_in_the_last_line_is_a_failed_turn(tmp_path):
    body = 'say(kind="end", v={"n": 1}, error="no idea")'
    with pytest.raises(AgentFailed, match="no idea"):
        hold_conversation(command(tmp_path, body, "{input}", output="jsonl", events=RULES), "x")


def test_a_command_may_print_the_stream_of_a_cli(tmp_path):
    body = f"play({str(CAPTURES / 'claude' / 'claude1.jsonl')!r})"
    reply = hold_conversation(command(tmp_path, body, "{input}", output="claude"), "x").reply
    assert [call.name for call in reply.tool_calls] == ["Write"]


def test_an_exit_code_is_the_end_of_text_and_other_than_0_a_failure(tmp_path):
    with pytest.raises(AgentFailed, match="exit code 2, without a result: boom"):
        hold_conversation(
            command(tmp_path, 'print("half"); print("boom", file=sys.stderr); sys.exit(2)', "{input}"), "x"
        )


def test_a_command_that_does_not_exist_cannot_be_reached(tmp_path):
    with pytest.raises(Unreachable, match="there is no command 'mycli'"):
        hold_conversation(command_agent(command=("mycli",), host=host(tmp_path)), "x")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"command": ()}, "`command` is empty"),
        ({"command": ("a", "{prompt}")}, r"there is no \{prompt\} to fill in"),
        ({"command": ("a",), "output": "jsonl"}, "needs `events`"),
        ({"command": ("a",), "events": RULES}, "`events` describe lines"),
    ],
)
def test_what_cannot_work_is_a_mistake_of_the_config(fields: dict[str, Any], problem: str):
    with pytest.raises(ValueError, match=problem):
        command_agent(**fields)


def test_a_path_that_is_none_is_a_mistake_of_the_config():
    with pytest.raises(ValueError, match="is not a JSONPath"):
        LineRule(text="$[")


def test_its_version_is_never_probed(tmp_path):
    from viva.agents.cli.installation import inspect_installation

    fake(tmp_path, "mycli", f"open({str(tmp_path / 'ran')!r}, 'w')")
    agent = command_agent(command=("mycli",), host=host(tmp_path))
    found = asyncio.run(inspect_installation("mycli", host(tmp_path), agent.spec, None))
    assert (found.version, found.missing) == (None, None)
    assert not (tmp_path / "ran").exists()
