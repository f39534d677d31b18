"""Agents behind the Agent Client Protocol: recorded conversations played over real pipes, and fakes that misbehave."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from terminals import CAPTURES, collect_turn, fake, hold_conversation, host
from viva.agents.acp import AcpAgent
from viva.agents.acp_updates import parse_update
from viva.agents.cli.events import ToolStarted
from viva.awaiting.detector import detect_awaiting
from viva.engine.sending import send_with_timeout
from viva.errors import AgentFailed, Unreachable
from viva.llm.transport import HttpTransport
from viva.model.case import Key
from viva.model.message import Message, ModelCall, Reply
from viva.protocols import SessionContext

PLAYER = str(Path(__file__).parents[2] / "acp_player.py")


def playing(capture: str, seen: Path | None = None, **fields: Any) -> AcpAgent:
    command = (sys.executable, PLAYER, str(CAPTURES / "acp" / f"{capture}.jsonl"), *([str(seen)] if seen else []))
    return AcpAgent(command=command, host={"PATH": "/usr/bin:/bin"}, **fields)


def prompts(capture: str) -> list[str]:
    lines = map(json.loads, (CAPTURES / "acp" / f"{capture}.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["text"] for line in lines if line["kind"] == "PROMPT"]


def sent_to(seen: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in seen.read_text(encoding="utf-8").splitlines()]


def short(reply: Reply) -> tuple[str, list[tuple[str, Any, bool]], list[int]]:
    calls = [(call.name, call.arguments, call.error is None) for call in reply.tool_calls]
    return reply.content[:40], calls, [call.input_tokens for call in reply.calls]


EXPECTED: dict[str, list[Any]] = {
    "acp_claude": [
        ("Done. Tool answered: File created succes", [("Write", {"file_path": "/workspace/c.txt", "content": "via claude acp\n"}, True)], []),
        ('I saw 2 user turns: ["CALL Write {\\"file', [], []),
    ],
    "acp_codex": [
        ("Model metadata for `fake-model` not foun", [], []),
        ("Model metadata for `fake-model` not foun", [], []),
    ],
    "acp_opencode": [
        ("Done. Tool answered: Wrote file successf", [("write", {"filePath": "/workspace/o2.txt", "content": "via opencode acp"}, True)], [100]),
        ('I saw 2 user turns: ["CALL write {\\"file', [], [100]),
    ],
    "acp_gemini_allow": [
        (
            "I will write the file now. Done. Tool wr",
            [("write_file", {"title": "Writing to acp.txt", "paths": ["/workspace/acp.txt"], "path": "/workspace/acp.txt", "content": "via acp\n"}, True)],
            [200],
        ),
        ('I saw 2 user turns: ["WRITE acp.txt via ', [], [100]),
    ],
    "acp_gemini_fs": [
        ("I will write the file now. Done. Tool wr", [("write_file", {"title": "Writing to fs.txt", "paths": ["/workspace/fs.txt"]}, False)], [200]),
        ('Done. Tool read_file answered: {"error":', [("read_file", {"title": "fs.txt", "paths": ["/workspace/fs.txt"]}, False)], [200]),
    ],
    "acp_gemini_shell_touch_default": [
        ("Done. Tool run_shell_command answered: {", [("run_shell_command", {"title": "touch shell-made.txt"}, True)], [200]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("capture", EXPECTED)
def test_a_recorded_conversation_becomes_replies(capture: str):
    told = hold_conversation(playing(capture, files=True), *prompts(capture))
    assert [short(reply) for reply in told.replies] == EXPECTED[capture]
    assert told.metered == [call for reply in told.replies for call in reply.calls]


@pytest.mark.parametrize("capture", sorted(path.stem for path in (CAPTURES / "acp").glob("*.jsonl")))
def test_every_recorded_update_can_be_read_and_none_of_the_users_words_are_the_agents(capture: str):
    lines = map(json.loads, (CAPTURES / "acp" / f"{capture}.jsonl").read_text(encoding="utf-8").splitlines())
    updates = [line["update"] for line in lines if line["kind"] == "session_update"]
    reply = collect_turn(event for update in updates for event in parse_update(update)).build_reply()
    own = [u["content"]["text"] for u in updates if u["sessionUpdate"] == "agent_message_chunk"]
    assert reply.content == "".join(own)
    assert {call.id for call in reply.tool_calls} == {u["toolCallId"] for u in updates if "toolCallId" in u}


def test_a_command_of_codex_has_its_kind_for_a_name_and_its_input_whole():
    told = hold_conversation(playing("acp_codex_full", mode="full-access"), *prompts("acp_codex_full"))
    (call,) = told.replies[0].tool_calls
    assert (call.name, call.result) == ("execute", "via codex acp\n")
    assert call.arguments["command"][-1] == "echo via codex acp > x.txt; cat x.txt"


def test_text_before_the_message_is_not_its_answer_and_an_error_is_a_failure():
    agent = playing("acp_gemini_yolo", mode="yolo")
    told = hold_conversation(agent, *prompts("acp_gemini_yolo")[:3])
    assert "[MODE_UPDATE]" not in told.replies[0].content
    with pytest.raises(AgentFailed, match=r'"code":400'):
        hold_conversation(agent, *prompts("acp_gemini_yolo"))


def test_a_session_is_opened_once_in_the_workspace_and_put_into_its_mode(tmp_path):
    seen = tmp_path / "seen"
    hold_conversation(playing("acp_codex_full", seen, mode="full-access"), *prompts("acp_codex_full"))
    methods = [message.get("method") for message in sent_to(seen)]
    assert methods == ["initialize", "session/new", "session/set_mode", "session/prompt", "session/prompt"]
    first, new, mode, prompt, _ = sent_to(seen)
    assert first["params"]["protocolVersion"] == 1
    assert first["params"]["clientCapabilities"]["fs"] == {"readTextFile": False, "writeTextFile": False}
    assert new["params"]["cwd"].endswith("/work")
    assert mode["params"]["modeId"] == "full-access"
    assert prompt["params"]["prompt"] == [{"type": "text", "text": prompts("acp_codex_full")[0]}]


@pytest.mark.parametrize(
    ("permissions", "option"),
    [("allow", "proceed_once"), ("deny", "cancel"), (("edit",), "proceed_once"), (("write_file",), "proceed_once"), (("execute",), "cancel")],
)  # fmt: skip
def test_a_request_for_permission_is_answered_by_policy(tmp_path, permissions, option):
    seen = tmp_path / "seen"
    told = hold_conversation(playing("acp_gemini_allow", seen, permissions=permissions), prompts("acp_gemini_allow")[0])
    (answer,) = [message["result"] for message in sent_to(seen) if "result" in message]
    assert answer == {"outcome": {"outcome": "selected", "optionId": option}}
    denied = option == "cancel"
    assert told.reply.protocol_state == ("permission-request" if denied else None)  # N22


def test_a_denied_permission_is_an_agent_that_waits_and_a_call_that_does_not_count():
    told = hold_conversation(playing("acp_gemini_reject", permissions="deny"), *prompts("acp_gemini_reject"))
    allowed, denied = told.replies
    assert not detect_awaiting(allowed).is_awaiting
    waits = detect_awaiting(denied)
    assert (waits.is_awaiting, waits.reason, denied.input_hint) == (True, "protocol_state", "Writing to rej.txt")  # N22
    assert [(call.name, call.error) for call in denied.tool_calls] == [
        ("write_file", "permission denied")  # P9
    ]


FILES = """
number = 0
def write(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def hear():
    line = sys.stdin.readline()
    return json.loads(line) if line else sys.exit(0)
def ask(method, **params):
    global number
    number += 1
    write(id=number, method=method, params=params)
    return hear()
def shown(answer):
    return answer.get("result", answer.get("error", {}).get("message"))
while True:
    message = hear()
    method = message.get("method")
    if method == "session/new":
        cwd = message["params"]["cwd"]
        write(id=message["id"], result={"sessionId": "s"})
    elif method == "session/prompt":
        told = []
        for line in message["params"]["prompt"][0]["text"].splitlines():
            verb, path, *content = line.split(" ", 2)
            path = path.replace("CWD", cwd)
            more = {"content": content[0]} if content else {}
            told.append(shown(ask("fs/read_text_file" if verb == "read" else "fs/write_text_file", path=path, **more)))
        text = json.dumps(told).replace(cwd, "CWD")
        write(method="session/update", params={"update": {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}})
        write(id=message["id"], result={"stopReason": "end_turn"})
    elif "id" in message:
        write(id=message["id"], result={})
"""


def test_files_that_it_reads_and_writes_through_us_stay_inside_of_the_workspace(tmp_path):
    fake(tmp_path, "agent", FILES)
    agent = AcpAgent(command=("agent",), host=host(tmp_path), files=True)
    outside = tmp_path / "outside.txt"
    lines = f"write CWD/a/b.txt hi there\nread CWD/a/b.txt\nread CWD/none.txt\nread /etc/passwd\nwrite {outside} x\nwrite CWD/../x y"
    told = json.loads(hold_conversation(agent, lines).reply.content)
    assert told[:3] == [{}, {"content": "hi there"}, "Resource not found: CWD/none.txt"]
    assert [answer.endswith("is not in the workspace") for answer in told[3:]] == [True, True, True]
    assert not outside.exists()


def test_a_pipe_in_the_workspace_is_neither_read_nor_written(tmp_path):
    """Opening it would block the run without end."""
    body = FILES.replace("while True:\n", "while True:\n    if not os.path.exists('pipe'): os.mkfifo('pipe')\n", 1)
    fake(tmp_path, "agent", body)
    agent = AcpAgent(command=("agent",), host=host(tmp_path), files=True)
    told = json.loads(
        hold_conversation(agent, "read CWD/pipe\nwrite CWD/pipe x\nread CWD/a\\0b".replace("\\0", "\0")).reply.content
    )
    assert told[0] == "CWD/pipe: is not a regular file"
    assert told[1].startswith("CWD/pipe: ")
    assert told[2].endswith("is not in the workspace")


def test_without_files_there_is_no_such_method(tmp_path):
    fake(tmp_path, "agent", FILES)
    told = hold_conversation(AcpAgent(command=("agent",), host=host(tmp_path)), "read CWD/a.txt")
    assert told.reply.content == '["no method fs/read_text_file"]'


def broken(tmp_path: Path, body: str) -> AcpAgent:
    fake(tmp_path, "agent", body)
    return AcpAgent(command=("agent",), host=host(tmp_path))


def test_an_agent_that_ends_amid_the_conversation_has_failed_with_its_last_words(tmp_path):
    agent = broken(tmp_path, 'sys.stdin.readline(); print("out of memory", file=sys.stderr); sys.exit(7)')
    with pytest.raises(AgentFailed, match="exit code 7, without an answer: out of memory"):
        hold_conversation(agent, "x")


def test_one_that_wants_a_login_cannot_be_reached(tmp_path):
    body = """
for line in sys.stdin:
    message = json.loads(line)
    error = {"code": -32000, "message": "Authentication required"}
    answer = {"result": {}} if message["method"] == "initialize" else {"error": error}
    say(jsonrpc="2.0", id=message["id"], **answer)
"""
    with pytest.raises(Unreachable, match="agent needs a login: Authentication required"):
        hold_conversation(broken(tmp_path, body), "x")


def test_one_that_does_not_exist_cannot_be_reached(tmp_path):
    with pytest.raises(Unreachable, match="no command 'agent'"):
        hold_conversation(AcpAgent(command=("agent",), host=host(tmp_path)), "x")


def test_noise_on_the_wire_is_not_a_message(tmp_path):
    body = 'sys.stdout.buffer.write(b"hello\\n[1]\\n\\xff\\n{}\\n"); sys.stdout.flush()\n' + FILES
    assert hold_conversation(broken(tmp_path, body), "read CWD/a").reply.content == '["no method fs/read_text_file"]'


def test_an_answer_without_a_reason_to_stop_is_not_an_end_of_a_turn(tmp_path):
    body = FILES.replace('{"stopReason": "end_turn"}', "{}")
    with pytest.raises(AgentFailed, match="has no stopReason"):
        hold_conversation(broken(tmp_path, body), "read CWD/a")


def test_a_turn_that_is_cut_off_is_cancelled(tmp_path):
    """The agent is told before its process is ended."""
    seen = tmp_path / "told"
    body = f"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it reads on in its grace
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "session/cancel":
        with open({str(seen)!r}, "w") as file:
            file.write("cancelled")
        sys.exit()
    elif message["method"] != "session/prompt":
        say(jsonrpc="2.0", id=message["id"], result={{"sessionId": "s"}})
"""

    async def scenario() -> None:
        calls: list[ModelCall] = []
        context = SessionContext(key=Key("s", "c"), meter=calls.append, http=HttpTransport())
        async with broken(tmp_path, body).open(context) as session:
            await send_with_timeout(session, Message("user", "x"), {}, 2, context.progress)

    with pytest.raises(AgentFailed, match="timeout after 2s"):
        asyncio.run(scenario())
    assert seen.read_text(encoding="utf-8") == "cancelled"


def test_the_model_is_asked_for_as_the_agent_knows_it(tmp_path):
    seen = tmp_path / "seen"
    with pytest.raises(AgentFailed, match="no method session/set_model"):
        hold_conversation(playing("acp_claude", seen, model="m-1"), "x")
    asked = [message for message in sent_to(seen) if "set_" in message.get("method", "")]
    assert [message["method"] for message in asked] == ["session/set_config_option", "session/set_model"]
    assert asked[0]["params"] | {"sessionId": ""} == {"sessionId": "", "configId": "model", "value": "m-1"}


def test_a_policy_that_is_none_is_a_mistake_of_the_config():
    with pytest.raises(ValueError, match="permissions are allow, deny or a list"):
        AcpAgent(command=("a",), permissions="yes")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (
            {"toolCallId": "1", "title": "Write x", "kind": "edit", "_meta": {"claudeCode": {"toolName": "Write"}}},
            "Write",
        ),
        ({"toolCallId": "write_file__fc-1", "title": "Writing to a.txt", "kind": "edit"}, "write_file"),
        ({"toolCallId": "c1", "title": "bash", "kind": "execute"}, "bash"),
        ({"toolCallId": "c1", "title": "ls -la", "kind": "execute"}, "execute"),
        ({"toolCallId": "c1"}, "tool"),
    ],
)
def test_a_tool_is_called_by_the_name_that_can_be_found(call: dict[str, Any], name: str):
    first = next(iter(parse_update({"sessionUpdate": "tool_call", **call})))
    assert isinstance(first, ToolStarted)
    assert first.name == name
