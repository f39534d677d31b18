"""Turns of CLIs that are run as processes: fakes that play recorded streams, and fakes that misbehave."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from real_clis import node
from terminals import CAPTURES, fake, hold_conversation, host
from viva.agents.cli.claude import CLAUDE
from viva.agents.cli.cli_agent import CliAgent
from viva.agents.cli.codex import CODEX
from viva.agents.cli.gemini import GEMINI
from viva.engine.sending import send_with_timeout
from viva.errors import AgentFailed, TrialFault, Undetermined, Unreachable
from viva.llm.transport import HttpTransport
from viva.model.case import Key, WorkspaceSpec
from viva.model.message import Image, Message, Text
from viva.model.progress import CallProgress
from viva.protocols import SessionContext
from viva.workspace.folders import LocalWorkspaces
from viva.workspace.processes import find_trial_processes

INIT = 'say(type="init", session_id=option("--resume") or "s-1", model="m")\n'
DONE = 'say(type="result", status="success", stats={"models": {"m": {"input_tokens": 3, "output_tokens": 2}}})\n'


def gemini(
    folder: Path, body: str, version: str = "99.1.0", env: dict[str, str] | None = None, **fields: Any
) -> CliAgent:
    fake(folder, "gemini", body, version)
    return CliAgent(spec=GEMINI, host=host(folder, GEMINI_API_KEY="key-1", **(env or {})), **fields)


def played(stream: str) -> str:
    return f"play({str(CAPTURES / 'gemini' / stream)!r})\n"


def fault_of(agent: CliAgent, *output: str, limit_s: float | None = None) -> TrialFault:
    with pytest.raises(TrialFault) as raised:
        hold_conversation(agent, *(output or ("x",)), limit_s=limit_s)
    return raised.value


def cut_off(agent: CliAgent, limit_s: float, progress: CallProgress | None = None) -> TrialFault:
    """What the engine makes of a turn that takes too long."""
    known = progress or CallProgress()

    async def scenario() -> None:
        context = SessionContext(key=Key("s", "c"), meter=lambda _call: None, http=HttpTransport(), progress=known)
        async with agent.open(context) as session:
            await send_with_timeout(session, Message("user", "x"), {}, limit_s, known)

    with pytest.raises(TrialFault) as raised:
        asyncio.run(scenario())
    return raised.value


def test_a_recorded_turn_becomes_a_reply_with_text_tools_and_usage(tmp_path):
    outcome = hold_conversation(gemini(tmp_path, played("g1_turn1.jsonl")), "WRITE hello.txt")
    assert outcome.reply.content.startswith("I will write the file now. Done.")
    assert [(call.name, call.error) for call in outcome.reply.tool_calls] == [("write_file", None)]
    assert [call.input_tokens for call in outcome.metered] == [200]
    assert outcome.metered == list(outcome.reply.calls)


def test_the_second_turn_resumes_the_session_of_the_first(tmp_path):
    """By its id, and with the same HOME, in which the CLI keeps its sessions."""
    body = """
home = os.environ["HOME"] + "/seen"
with open(home, "a") as seen: seen.write(json.dumps(args) + "\\n")
say(type="init", session_id=option("--resume") or "id-1", model="m")
say(type="message", role="assistant", content=str(len(open(home).readlines())), delta=True)
say(type="result", status="success")
"""
    outcome = hold_conversation(gemini(tmp_path, body), "one", "two", "three")
    assert [reply.content for reply in outcome.replies] == ["1", "2", "3"]
    assert "--resume" not in outcome.home["seen"].splitlines()[0]
    assert outcome.home["seen"].count("--resume=id-1") == 2  # P11


def test_a_session_that_changes_its_id_is_a_failed_turn(tmp_path):
    body = 'say(type="init", session_id="new-" + str(os.getpid()))\nsay(type="result", status="success")\n'
    fault = fault_of(gemini(tmp_path, body), "one", "two")
    assert isinstance(fault, AgentFailed)  # P11
    assert "it answered in session new-" in fault.message


def test_a_cli_that_names_no_session_cannot_be_gone_on_with(tmp_path):
    fault = fault_of(gemini(tmp_path, DONE), "one", "two")
    assert fault.message == "its first turn reported no session, so it cannot be resumed"


def test_it_gets_a_small_environment_a_private_home_and_its_own_keys(tmp_path):
    body = (
        INIT + 'say(type="message", role="assistant", content=json.dumps(dict(os.environ, cwd=os.getcwd())))\n' + DONE
    )
    agent = gemini(tmp_path, body, env={"OTHER_SECRET": "s", "GOOGLE_GEMINI_BASE_URL": "http://x"})
    outcome = hold_conversation(agent, "x", spec=WorkspaceSpec("empty", env={"CASE_VAR": "v"}))
    import json

    env = json.loads(outcome.reply.content)
    assert env["GEMINI_API_KEY"] == "key-1"
    assert env["GOOGLE_GEMINI_BASE_URL"] == "http://x"
    assert env["CASE_VAR"] == "v"
    assert env["GEMINI_CLI_TRUST_WORKSPACE"] == "true"
    assert "OTHER_SECRET" not in env
    assert env["HOME"] != str(tmp_path)
    assert env["HOME"] != env["cwd"]
    assert '"selectedType": "gemini-api-key"' in outcome.home[".gemini/settings.json"]


def test_a_login_is_copied_only_where_that_is_wanted_and_then_no_key_comes_along(tmp_path):
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini" / "oauth_creds.json").write_text("{}", encoding="utf-8")
    body = INIT + 'say(type="message", role="assistant", content=str("GEMINI_API_KEY" in os.environ))\n' + DONE
    without = hold_conversation(gemini(tmp_path, body), "x")
    copied = hold_conversation(gemini(tmp_path, body, login="copy"), "x")
    assert (without.reply.content, copied.reply.content) == ("True", "False")  # P10
    assert ".gemini/oauth_creds.json" not in without.home
    assert ".gemini/oauth_creds.json" in copied.home


def test_a_home_that_cannot_be_set_up_is_not_a_fault_of_the_agent(tmp_path):
    """A full disk, for one; here a file is in the way."""

    async def scenario() -> None:
        async with LocalWorkspaces()(WorkspaceSpec("empty"), Key("s", "c")) as workspace:
            Path(workspace.home, ".gemini").write_text("x", encoding="utf-8")
            context = SessionContext(
                key=Key("s", "c"), workspace=workspace, meter=lambda _call: None, http=HttpTransport()
            )
            async with gemini(tmp_path, DONE).open(context):
                pass

    with pytest.raises(Undetermined, match=r"its HOME cannot be prepared: .*\.gemini"):
        asyncio.run(scenario())


def test_it_gets_the_folders_of_its_links_but_no_single_file(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.txt").write_text("x", encoding="utf-8")
    agent = gemini(tmp_path, INIT + 'say(type="message", role="assistant", content=" ".join(args))\n' + DONE)
    outcome = hold_conversation(agent, "x", spec=WorkspaceSpec("empty", str(tmp_path), ("file.txt", "folder")))
    assert [word for word in outcome.reply.content.split() if "include" in word] == [
        f"--include-directories={tmp_path}/folder"
    ]  # P5


def test_a_message_too_long_for_a_command_line_goes_to_standard_input(tmp_path):
    outcome = hold_conversation(
        gemini(
            tmp_path,
            INIT + 'text = sys.stdin.read()\nsay(type="message", role="assistant", content=f"{len(text)}")\n' + DONE,
        ),
        "short",
        "ä" * 70_000,
    )
    assert [reply.content for reply in outcome.replies] == ["0", "70000"]


def test_the_model_of_the_case_stands_over_that_of_the_config(tmp_path):
    body = (
        INIT
        + 'say(type="message", role="assistant", content=option("--model") + " " + option("--approval-mode"))\n'
        + DONE
    )
    agent = gemini(tmp_path, body, model="from-config", approval="auto_edit")
    assert hold_conversation(agent, "x").reply.content == "from-config auto_edit"
    assert hold_conversation(agent, "x", options={"model": "from-case"}).reply.content == "from-case auto_edit"  # P3


def test_it_may_do_everything_unless_the_config_says_otherwise():
    assert CliAgent(spec=GEMINI).approval_mode == "yolo"
    assert CliAgent(spec=GEMINI).auto_approves
    assert not CliAgent(spec=GEMINI, approval="plan").auto_approves
    with pytest.raises(
        ValueError, match="Gemini CLI does not have the approval mode 'all'; there are yolo, auto_edit, default, plan"
    ):
        CliAgent(spec=GEMINI, approval="all")


def test_what_was_said_before_stands_at_the_top_of_the_first_message(tmp_path):
    body = INIT + 'say(type="message", role="assistant", content=option("--prompt"))\n' + DONE
    history = (Message("user", "My name is Ada."), Message("assistant", "Hello Ada."))
    outcome = hold_conversation(gemini(tmp_path, body), "Who am I?", "And now?", history=history)
    assert outcome.replies[0].content == (
        "This is the conversation so far.\n\nuser: My name is Ada.\n\nassistant: Hello Ada.\n\n"
        "Now the user says:\n\nWho am I?"
    )
    assert outcome.replies[1].content == "And now?"


def test_what_is_not_text_cannot_be_sent_to_a_cli(tmp_path):
    message = Message("user", (Text("look"), Image("file://a.png", "a.png")))
    with pytest.raises(Undetermined, match=r"takes text only, but this message has attachments: a\.png"):
        hold_conversation(gemini(tmp_path, INIT + DONE), message)


# How turns end (P11, N17)


def test_an_error_of_the_result_is_the_agents_failure(tmp_path):
    fault = fault_of(gemini(tmp_path, played("g9_err400.jsonl") + "sys.exit(144)"))
    assert isinstance(fault, AgentFailed)  # P11
    assert fault.message.startswith('[API Error: {"error":{"code":400,"message":"fake error"')


@pytest.mark.parametrize(
    "error",
    [
        '[API Error: {"error":{"code":503}}]',
        "got status: 429 Too Many",
        "API Error: 401",
        "[API Error: You have exhausted your daily quota on this model.]",
        "You exceeded your current quota, please check your plan and billing details.",
    ],
)
def test_an_error_of_the_provider_is_not(tmp_path, error):
    fault = fault_of(gemini(tmp_path, INIT + f'say(type="result", status="error", error={{"message": {error!r}}})'))
    assert isinstance(fault, Unreachable)  # N17


def test_a_turn_without_a_result_has_failed_although_the_exit_code_is_0(tmp_path):
    fault = fault_of(gemini(tmp_path, INIT + 'print("bye", file=sys.stderr)'))
    assert isinstance(fault, AgentFailed)  # P11
    assert fault.message == "it ended without a result: bye"


def test_an_exit_code_is_a_failure_and_the_end_of_stderr_is_shown(tmp_path):
    stderr = (CAPTURES / "gemini" / "g11_resume_none.err").read_text(encoding="utf-8")
    fault = fault_of(gemini(tmp_path, f"sys.stderr.write({stderr!r}); sys.exit(42)"))
    assert isinstance(fault, AgentFailed)  # N17
    assert fault.message.startswith(
        "exit code 42, without a result: Error resuming session: Invalid session identifier"
    )


def test_an_exit_code_after_a_good_result_is_a_failure_too(tmp_path):
    fault = fault_of(gemini(tmp_path, INIT + DONE + "sys.exit(3)"))
    assert (type(fault), fault.message) == (AgentFailed, "exit code 3, after its result")


def test_what_a_failed_turn_used_is_counted(tmp_path):
    from viva.model.message import ModelCall

    metered: list[ModelCall] = []

    async def scenario() -> None:
        context = SessionContext(key=Key("s", "c"), meter=metered.append, http=HttpTransport())
        async with gemini(tmp_path, INIT + DONE + "sys.exit(3)").open(context) as session:
            await session.send(Message("user", "x"), {})

    with pytest.raises(AgentFailed):
        asyncio.run(scenario())
    assert [call.input_tokens for call in metered] == [3]


def test_the_end_of_a_long_stream_is_not_lost_when_the_cli_exits_at_once(tmp_path):
    """P11: it is a program of Node's, which throws away what a pipe did not take."""
    if (programs := node()) is None:
        return
    code = """
        const line = (event) => JSON.stringify(event) + "\\n";
        const init = line({type: "init", session_id: "s-1"});
        const said = line({type: "message", role: "assistant", content: "x".repeat(1000000) + " end"});
        process.stdout.write(init + said + line({type: "result", status: "success"}));
        process.exit(0);
    """
    program = fake(tmp_path, "gemini", "")
    program.write_text(f"#!{programs / 'node'}\n{code}", encoding="utf-8")
    outcome = hold_conversation(CliAgent(spec=GEMINI, host=host(tmp_path, GEMINI_API_KEY="key-1")), "x")
    assert (len(outcome.reply.content), outcome.reply.content[-4:]) == (1_000_004, " end")


def test_a_cli_that_is_not_installed_cannot_be_reached(tmp_path):
    fault = fault_of(CliAgent(spec=GEMINI, host={"PATH": str(tmp_path)}))
    assert isinstance(fault, Unreachable)  # N17
    assert fault.deterministic
    assert fault.message == (
        "Gemini CLI is not installed: there is no command 'gemini'; npm install -g @google/gemini-cli installs it"
    )


def test_a_cli_that_is_too_old_cannot_be_used(tmp_path):
    fault = fault_of(gemini(tmp_path, INIT + DONE, version="0.9.0"))
    assert (type(fault), fault.message) == (Unreachable, "Gemini CLI 0.9.0 is too old: 0.30.0 or newer is needed")
    assert fault.deterministic


def test_a_command_of_the_config_is_not_asked_for_its_version(tmp_path):  # 12.1
    """It would be too old."""
    fake(tmp_path, "my-gemini", INIT + DONE, version="0.9.0")
    agent = CliAgent(spec=GEMINI, command=("my-gemini",), host=host(tmp_path, GEMINI_API_KEY="key-1"))
    assert hold_conversation(agent, "x").replies[0].finish_reason is None


def test_a_missing_login_is_shown_in_the_words_of_the_cli(tmp_path):
    body = 'print("Please set an Auth method in your settings.json or GEMINI_API_KEY", file=sys.stderr); sys.exit(41)'
    fault = fault_of(gemini(tmp_path, body))
    assert isinstance(fault, Unreachable)  # N17, P10
    assert fault.message.startswith("Gemini CLI needs a login: Please set an Auth method in your settings.json")


def test_a_missing_login_in_a_result_is_one_too(tmp_path):
    body = 'say(type="system", subtype="init", session_id="s")\nsay(type="result", subtype="success", is_error=True, result="Invalid API key · Please run /login")'
    fake(tmp_path, "claude", body)
    fault = fault_of(CliAgent(spec=CLAUDE, host=host(tmp_path, ANTHROPIC_API_KEY="k")))
    assert isinstance(fault, Unreachable)
    assert fault.message == "Claude Code needs a login: Invalid API key · Please run /login"


DONE_BY_CODEX = 'say(type="thread.started", thread_id="t")\nsay(type="turn.completed")'


def test_a_cli_without_a_key_or_login_is_not_started(tmp_path):
    """P10: nor with a login that is not to come along."""
    fake(tmp_path, "codex", "time.sleep(600)")
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text("{}", encoding="utf-8")
    fault = fault_of(CliAgent(spec=CODEX, host=host(tmp_path, HOME=str(tmp_path))), limit_s=60)
    assert isinstance(fault, Unreachable)
    assert fault.message.startswith("Codex has no login: set CODEX_API_KEY or OPENAI_API_KEY")
    assert fault.deterministic


@pytest.mark.parametrize(
    ("env", "fields"),
    [
        ({"OPENAI_API_KEY": "k"}, {}),
        ({"OPENAI_BASE_URL": "http://127.0.0.1:1"}, {}),  # a server of one's own may need none
        ({}, {"env": {"CODEX_API_KEY": "k"}}),
        ({}, {"args": ("--oss",)}),
        ({}, {"login": "copy"}),
    ],
)
def test_what_may_stand_for_a_key(tmp_path, env: dict[str, str], fields: dict[str, Any]):
    fake(tmp_path, "codex", DONE_BY_CODEX)
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text("{}", encoding="utf-8")
    agent = CliAgent(spec=CODEX, host=host(tmp_path, HOME=str(tmp_path), **env), **fields)
    assert hold_conversation(agent, "x").reply.content == ""


def test_a_cli_that_waits_for_a_login_is_not_waited_for(tmp_path, shorten):
    """Its message is shown, not a timeout."""
    shorten("viva.agents.cli.monitor._LOGIN_S", 0.5)
    body = 'print("Please sign in: visit http://127.0.0.1/auth", file=sys.stderr, flush=True); time.sleep(600)'
    began = time.monotonic()
    fault = fault_of(gemini(tmp_path, body), limit_s=60)
    assert isinstance(fault, Unreachable)
    assert "needs a login: Please sign in" in fault.message
    assert time.monotonic() - began < 150


def test_a_tool_that_speaks_of_a_login_is_not_the_clis_own(tmp_path):
    body = (
        INIT
        + 'say(type="message", role="assistant", content="hm")\nprint("please log in to the registry", file=sys.stderr)\nsys.exit(1)'
    )
    assert isinstance(fault_of(gemini(tmp_path, body)), AgentFailed)


def test_time_is_up_while_the_provider_fails_the_provider_is_to_blame(tmp_path):
    stderr = str(CAPTURES / "gemini" / "g19_err503.err")
    body = (
        played("g19_err503.jsonl") + f"sys.stderr.write(open({stderr!r}).read()); sys.stderr.flush(); time.sleep(600)"
    )
    fault = cut_off(gemini(tmp_path, body), 2)
    assert isinstance(fault, Unreachable)  # P11
    assert fault.message.startswith("timeout after 2s: Gemini CLI: Attempt 6 failed with status 503.")


def test_time_is_up_for_no_such_reason_the_agent_is_to_blame_and_its_last_words_are_known(tmp_path):
    body = INIT + 'print("thinking hard", file=sys.stderr, flush=True); time.sleep(600)'
    progress = CallProgress()
    fault = cut_off(gemini(tmp_path, body), 2, progress)
    assert (type(fault), fault.message) == (AgentFailed, "timeout after 2s")  # P11, N18
    assert progress.stderr_tail == "thinking hard"
    assert progress.provider_trouble is None


def test_a_turn_that_is_cut_off_keeps_its_text_and_its_tool_calls(tmp_path):
    body = (
        INIT
        + 'say(type="message", role="assistant", content="I look")\n'
        + 'say(type="tool_use", tool_name="read_file", tool_id="t1", parameters={"path": "a"})\ntime.sleep(600)'
    )
    progress = CallProgress()
    cut_off(gemini(tmp_path, body), 2, progress)
    assert progress.partial is not None
    assert progress.partial.content == "I look"
    assert [(call.name, call.arguments) for call in progress.partial.tool_calls] == [("read_file", {"path": "a"})]


def test_what_it_says_while_it_is_ended_is_kept_too(tmp_path):
    last = 'say(type="message", role="assistant", content=" and then"); sys.exit()'
    body = (
        f"signal.signal(signal.SIGTERM, lambda *_: exec({last!r}))\n"
        + INIT
        + 'say(type="message", role="assistant", content="I look")\nwhile True: time.sleep(0.05)'
    )
    progress = CallProgress()
    cut_off(gemini(tmp_path, body), 2, progress)
    assert progress.partial is not None
    assert progress.partial.content == "I look and then"


def test_trouble_that_is_over_excuses_no_failure(tmp_path):
    body = (
        'print("Attempt 1 failed with status 503. Retrying", file=sys.stderr, flush=True); time.sleep(0.7)\n'
        + INIT
        + 'say(type="message", role="assistant", content="Here I am")\ntime.sleep(600)'
    )
    assert isinstance(cut_off(gemini(tmp_path, body), 4), AgentFailed)


# Misuse


def test_a_cli_that_prints_nothing_has_failed(tmp_path):
    fault = fault_of(gemini(tmp_path, ""))
    assert (type(fault), fault.message) == (AgentFailed, "it ended without a result")


def test_a_cli_that_prints_100_mb_is_borne_and_has_failed(tmp_path):
    body = INIT + 'for _ in range(1600): sys.stdout.write("x" * 65536)\n' + "print()\n" + DONE
    fault = fault_of(gemini(tmp_path, body), limit_s=120)
    assert isinstance(fault, AgentFailed)
    assert fault.message.startswith("it printed too much")


def test_one_huge_line_is_left_out_and_the_rest_is_read(tmp_path):
    body = INIT + 'say(type="message", role="assistant", content="x" * 20_000_000)\n' + DONE
    held = hold_conversation(gemini(tmp_path, body), "x")
    assert (held.reply.content, held.warnings) == ("", ["Gemini CLI: left out 1 line of more than 8 MB"])


def test_a_cli_that_lingers_after_its_result_is_ended_and_the_result_stands(tmp_path, shorten):
    shorten("viva.agents.cli.cli_agent._EXIT_S", 0.5)
    body = INIT + DONE + "time.sleep(600)"
    assert hold_conversation(gemini(tmp_path, body), "x", limit_s=60).reply.calls[0].input_tokens == 3


@pytest.mark.parametrize("body", ["signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)", "time.sleep(600)"])
def test_nothing_is_left_of_a_cli_that_is_cut_off(tmp_path, body):
    """Neither one that ignores TERM, nor the daemons that it has started."""
    daemon = 'subprocess.Popen(["sleep", "611"], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)\n'
    cut_off(gemini(tmp_path, INIT + daemon + body), 2)
    ours = f"-{os.getpid()}-"
    assert [pid for pid, mark in find_trial_processes().items() if ours in mark] == []  # P7


def test_a_daemon_that_holds_the_pipe_does_not_hold_the_turn(tmp_path):
    body = INIT + 'subprocess.Popen(["sleep", "612"], start_new_session=True)\n' + DONE
    began = time.monotonic()
    hold_conversation(gemini(tmp_path, body), "x")
    assert time.monotonic() - began < 150


def test_a_cli_that_deletes_its_workspace_cannot_go_on(tmp_path):
    body = INIT + "import shutil; shutil.rmtree(os.getcwd())\n" + DONE
    fault = fault_of(gemini(tmp_path, body), "one", "two")
    assert isinstance(fault, AgentFailed)
    assert "its working folder is gone" in fault.message


def test_noise_and_bytes_that_are_not_text_do_not_matter(tmp_path):
    body = INIT + 'sys.stdout.buffer.write(b"\\xff\\xfe{\\n[1]\\nnull\\n{}\\n"); sys.stdout.flush()\n' + DONE
    assert hold_conversation(gemini(tmp_path, body), "x").reply.content == ""
