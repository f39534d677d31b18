"""Every recorded stream of a real CLI, read line by line: what it is worth as a reply."""

from pathlib import Path
from typing import Any

import pytest

from terminals import CAPTURES, collect_turn
from viva.agents.cli.claude import CLAUDE
from viva.agents.cli.codex import CODEX
from viva.agents.cli.events import CliEvent, CliTurn, CliTurnEnded, ToolEnded, ToolStarted
from viva.agents.cli.gemini import GEMINI
from viva.agents.cli.opencode import OPENCODE
from viva.agents.cli.qwen import QWEN
from viva.agents.cli.spec import CliSpec, TurnRequest, parse_events
from viva.model import codec

DIALECTS = {dialect.name: dialect for dialect in (GEMINI, CLAUDE, CODEX, QWEN, OPENCODE)}
STREAMS = [(name, path.stem) for name in DIALECTS for path in sorted((CAPTURES / name).glob("*.jsonl"))]
EXPECTED: dict[str, Any] = codec.decode((Path(__file__).parent / "replies.json").read_bytes())


def events_of(dialect: CliSpec, stream: str) -> tuple[list[CliEvent], int]:
    """The events of a capture, and how many of its lines were none of the stream."""
    found: list[CliEvent] = []
    noise = 0
    for line in (CAPTURES / dialect.name / f"{stream}.jsonl").read_bytes().splitlines():
        events = parse_events(dialect, line)
        noise += events is None
        found += events or ()
    return found, noise


def told(dialect: CliSpec, stream: str) -> dict[str, Any]:
    events, noise = events_of(dialect, stream)
    turn = collect_turn(events)
    ended = {"error": turn.end.error, "finish_reason": turn.end.finish_reason} if turn.end else None
    told = codec.to_plain({"session": turn.session, "ended": ended, "reply": turn.build_reply(), "noise": noise})
    for call in told["reply"].get("calls", ()):
        call.pop("cost_usd", None)  # prices change
    told["reply"].pop("steps", None)  # times of this process: a slow moment makes a step
    return told


@pytest.mark.parametrize(("name", "stream"), STREAMS)
def test_a_recorded_stream_makes_the_reply_that_it_made_before(name: str, stream: str):
    """`replies.json` holds what each was worth when it was looked at by eye."""
    assert told(DIALECTS[name], stream) == EXPECTED[f"{name}/{stream}"]  # P11


def test_every_stream_is_expected_and_none_else():
    assert sorted(EXPECTED) == sorted(f"{name}/{stream}" for name, stream in STREAMS)


def reply(dialect: CliSpec, stream: str):
    return collect_turn(events_of(dialect, stream)[0]).build_reply()


def test_text_is_the_deltas_joined_without_the_echoed_message():
    text = reply(GEMINI, "g1_turn1").content  # P9
    assert text.startswith("I will write the file now. Done. Tool write_file answered:")
    assert "WRITE hello.txt hello from fake" not in text


def test_a_call_that_a_policy_refuses_is_not_a_call_that_failed():
    events, _ = events_of(GEMINI, "g8_plan_write")
    assert [event.status for event in events if isinstance(event, ToolEnded)] == ["refused"]
    events, _ = events_of(CLAUDE, "claude3_default_perm")
    assert [event.status for event in events if isinstance(event, ToolEnded)] == ["refused", "refused"]
    (call,) = reply(CLAUDE, "claude3_default_perm").tool_calls
    assert call.refused  # P9
    assert call.error == "Claude requested permissions to write to /workspace/no.txt, but you haven't granted it yet."


def test_arguments_are_decoded_and_a_result_without_output_is_still_a_result():
    (call,) = reply(GEMINI, "g1_turn1").tool_calls
    assert (call.name, call.arguments) == ("write_file", {"file_path": "hello.txt", "content": "hello from fake\n"})
    assert (call.result, call.error) == ("", None)


def test_a_killed_cli_has_no_result_and_a_failed_call_of_the_api_is_an_error():
    assert collect_turn(events_of(GEMINI, "g19_err503")[0]).end is None  # P11
    ended = collect_turn(events_of(GEMINI, "g9_err400")[0]).end
    assert ended is not None
    assert ended.error is not None
    assert '"code":400' in ended.error


def test_an_error_without_text_gets_the_trouble_reported_before_it():
    """The Gemini CLI reports an incomplete, empty or invalid answer of its model in this way."""
    lines = [
        b'{"type":"init","session_id":"a"}',
        b'{"type":"error","severity":"error","message":"Model stream ended without a finish reason."}',
        b'{"type":"result","status":"error","stats":{}}',
    ]
    ended = collect_turn(event for line in lines for event in parse_events(GEMINI, line) or ()).end
    assert ended == CliTurnEnded("Model stream ended without a finish reason.")  # P11
    assert collect_turn(parse_events(GEMINI, lines[2]) or ()).end == CliTurnEnded("it ended with an error")


@pytest.mark.parametrize(
    ("dialect", "streams", "used"),
    [
        (CODEX, ["codex1", "codex2_resume_tool", "codex3_resume_last"], [100, 200, 100]),
        (QWEN, ["qwen20_1", "qwen20_2"], [200, 200]),
        (GEMINI, ["g1_turn1", "g2_turn2_resume_latest", "g3_turn3_resume_uuid"], [200, 100, 200]),
        (CLAUDE, ["claude1", "claude2_resume"], [200, 100]),
        (OPENCODE, ["opencode1", "opencode2"], [200, 100]),
    ],
)
def test_usage_is_that_of_the_turn_also_where_a_cli_counts_on(dialect: CliSpec, streams: list[str], used: list[int]):
    before, tokens = (), list[int]()  # P11
    for stream in streams:
        turn = collect_turn(events_of(dialect, stream)[0], before)
        before = turn.session_usage
        tokens.append(sum(call.input_tokens for call in turn.usage))
    assert tokens == used


def test_claude_code_counts_on_in_newer_versions_and_in_older_ones_not():
    def line(model: int, turn: int) -> bytes:
        models = {"m": {"inputTokens": model, "outputTokens": 10, "costUSD": model / 1000}}
        usage = {"input_tokens": turn, "output_tokens": 0}
        return codec.encode(
            {"type": "result", "subtype": "success", "is_error": False, "usage": usage, "modelUsage": models}
        )

    first = collect_turn(CLAUDE.parse_line(line(100, 100)))
    older = collect_turn(CLAUDE.parse_line(line(150, 150)), first.session_usage)
    newer = collect_turn(CLAUDE.parse_line(line(250, 150)), first.session_usage)
    assert [call.input_tokens for call in older.usage] == [150]
    assert [call.input_tokens for call in newer.usage] == [150]
    assert [call.cost_usd for call in newer.usage] == [pytest.approx(0.15)]


def test_a_count_that_decreases_was_restarted():
    first = collect_turn(events_of(CODEX, "codex3_resume_last")[0])
    assert [call.input_tokens for call in collect_turn(events_of(CODEX, "codex1")[0], first.session_usage).usage] == [
        100
    ]


def test_the_model_that_was_asked_for_stands_where_a_cli_names_none():
    turn = CliTurn(model="openai/gpt-4o")
    for event in events_of(OPENCODE, "opencode2")[0]:
        turn.add_event(event)
    (call,) = turn.usage
    assert (call.provider, call.model) == ("openai", "gpt-4o")
    assert call.cost_usd is not None
    assert call.cost_usd > 0


def test_qwen_calls_a_turn_a_success_in_which_its_model_could_not_be_asked():
    line = {"type": "result", "subtype": "success", "is_error": False, "result": "[API Error: 400 no such model]"}
    (ended,) = QWEN.parse_line(codec.encode(line))
    assert isinstance(ended, CliTurnEnded)
    assert ended.error == "[API Error: 400 no such model]"
    (ended,) = QWEN.parse_line(codec.encode({**line, "result": "It said [API Error: 400]."}))
    assert isinstance(ended, CliTurnEnded)
    assert ended.error is None


def test_a_tool_that_qwen_hides_is_called_by_its_own_name():
    given = {"name": "mcp__viva__lookup", "arguments": {"id": 7}}
    block = {"type": "tool_use", "id": "1", "name": "tool_call", "input": given}
    (started,) = QWEN.parse_line(codec.encode({"type": "assistant", "message": {"content": [block]}}))
    assert started == ToolStarted("mcp__viva__lookup", {"id": 7}, "1")


def test_words_of_a_helper_are_not_the_agents_but_its_tools_are():
    block = {"type": "text", "text": "psst"}, {"type": "tool_use", "id": "1", "name": "Read", "input": {}}
    line = {"type": "assistant", "parent_tool_use_id": "toolu_1", "message": {"content": list(block)}}
    output = collect_turn(CLAUDE.parse_line(codec.encode(line))).build_reply()
    assert output.content == ""
    assert [call.name for call in output.tool_calls] == ["Read"]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: dialect.name)
def test_a_session_is_resumed_by_its_id_and_a_message_is_not_a_flag(dialect: CliSpec):
    """The first turn names no session; others name just that one, never the latest."""
    asked = TurnRequest(prompt="--help", model="m", approval=dialect.approval_modes[0], linked_folders=["/links/a"])
    first = dialect.build_argv(asked)
    later = dialect.build_argv(
        TurnRequest(prompt="--help", session="id-7", model="m", approval=dialect.approval_modes[0])
    )
    assert not any("id-7" in word or "resume" in word for word in first)
    assert sum("id-7" in word for word in later) == 1  # P11
    assert not any("latest" in word or "--last" in word or "--continue" in word for word in later)
    assert any(word == "m" or word.endswith(("=m", "/m")) for word in first)  # P3
    if not dialect.prompt_on_stdin:
        assert "--prompt=--help" in first or first[-2:] == ["--", "--help"]


@pytest.mark.parametrize("dialect", [GEMINI, QWEN, CLAUDE, CODEX], ids=lambda dialect: dialect.name)
def test_a_message_that_is_piped_is_not_on_the_command_line(dialect: CliSpec):
    """Codex is told to look there; the others look by themselves."""
    argv = dialect.build_argv(
        TurnRequest(prompt="hello", on_stdin=True, session="id-7", approval=dialect.approval_modes[0])
    )
    assert dialect.long_prompt_on_stdin
    assert not any("hello" in word or "--prompt" in word for word in argv)
    assert argv[-1] == "-" or "--" not in argv


def test_links_are_told_to_those_that_refuse_to_leave_the_workspace():
    argv = GEMINI.build_argv(TurnRequest(prompt="x", approval="yolo", linked_folders=["/a", "/b,c", "/b c"]))
    assert argv[-2:] == ["--include-directories=/a", "--include-directories=/b c"]  # P5


def test_another_address_is_told_to_those_who_need_a_provider_for_it():
    env = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1", "OPENAI_API_KEY": "s3cret"}
    argv = CODEX.build_argv(TurnRequest(prompt="x", approval="bypass", env=env))
    assert 'model_providers.viva.base_url="http://127.0.0.1:1/v1"' in argv
    config = codec.decode(
        OPENCODE.build_variables(TurnRequest(prompt="x", model="m", env=env))["OPENCODE_CONFIG_CONTENT"]
    )
    assert config["provider"]["custom"]["models"] == {"m": {}}
    assert "s3cret" not in f"{config} {argv}"


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({"GEMINI_API_KEY": "k"}, "gemini-api-key"),
        ({"GOOGLE_API_KEY": "k"}, "vertex-ai"),
        ({"GEMINI_API_KEY": "k", "GOOGLE_GENAI_USE_VERTEXAI": "true"}, "vertex-ai"),
        ({}, "oauth-personal"),
    ],
)
def test_the_gemini_cli_is_told_how_to_log_in(env: dict[str, str], kind: str):
    (text,) = GEMINI.build_home_files(env).values()
    assert codec.decode(text)["security"]["auth"]["selectedType"] == kind


def claude_result(output: str) -> str:
    block = {"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": output}
    return codec.compact_json({"type": "user", "message": {"content": [block]}})


def codex_result(status: str, code: int) -> str:
    item = {"id": "c", "type": "command_execution", "command": "x", "status": status, "exit_code": code}
    return codec.compact_json({"type": "item.completed", "item": item})


def opencode_result(output: str) -> str:
    part = {"tool": "tool", "callID": "c", "state": {"status": "error", "input": {}, "error": output}}
    return codec.compact_json({"type": "tool_use", "part": part})


@pytest.mark.parametrize(
    ("dialect", "lines", "refused"),
    [
        (
            GEMINI,
            ['{"type":"tool_result","tool_id":"c","status":"error","error":{"type":"tool_not_registered"}}'],
            True,
        ),
        (GEMINI, ['{"type":"tool_result","tool_id":"c","status":"error","error":{"type":"policy_violation"}}'], True),
        (
            GEMINI,
            ['{"type":"tool_result","tool_id":"c","status":"error","error":{"type":"shell_execute_error"}}'],
            False,
        ),
        (CLAUDE, [claude_result("<tool_use_error>Error: No such tool available: Wrote</tool_use_error>")], True),
        (CLAUDE, [claude_result("Exit code 1\nClaude requested permissions")], False),
        (QWEN, [claude_result('Qwen Code requires permission to use "x", but that permission was declined.')], True),
        (CODEX, [codex_result("declined", 1)], True),
        (CODEX, [codex_result("failed", 1)], False),
        (OPENCODE, [opencode_result("The user rejected permission to use this specific tool call.")], True),
        (OPENCODE, [opencode_result("File not found: /x")], False),
    ],
)
def test_which_calls_never_ran_on_each_cli(dialect: CliSpec, lines: list[str], refused: bool):  # P9
    turn = CliTurn()
    turn.add_event(ToolStarted("tool", {}, "c"))
    for line in lines:
        for event in parse_events(dialect, line.encode()) or ():
            turn.add_event(event)
    (call,) = turn.build_reply().tool_calls
    assert call.error
    assert call.refused is refused


def test_a_refusal_that_is_repeated_as_a_failure_stays_a_refusal():  # P9
    (call,) = (
        collect_turn(
            [ToolStarted("x", {}, "c"), ToolEnded("c", "refused", "denied"), ToolEnded("c", "error", "it failed")]
        )
        .build_reply()
        .tool_calls
    )
    assert call.refused


def test_its_own_warnings_are_kept_once_each():  # P11
    line = b'{"type":"error","severity":"warning","message":"Loop detected, stopping execution"}'
    events = [*(parse_events(GEMINI, line) or ()), *(parse_events(GEMINI, line) or ()), CliTurnEnded()]
    assert list(collect_turn(events).warnings) == ["Loop detected, stopping execution"]


def test_a_cli_cannot_report_less_than_nothing():
    models = {"m": {"inputTokens": -100, "outputTokens": 10, "cacheReadInputTokens": -5, "costUSD": -3.5}}
    usage = {"input_tokens": -100, "output_tokens": 10}
    line = {"type": "result", "subtype": "success", "is_error": False, "usage": usage, "modelUsage": models}
    (call,) = collect_turn(CLAUDE.parse_line(codec.encode(line))).usage
    assert (call.input_tokens, call.output_tokens, call.cached_tokens, call.cost_usd) == (0, 10, 0, None)
