"""The real qwen-code, run by `viva test` as a user types it, against the stand-in for the OpenAI API."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from project import Project
from scripted_clis import COMPILED, ScriptedCli, call_stubbed_tool, processes, puppet
from viva.testing import OpenAIServer

AGENT = f'[agents.coder]\ntype = "qwen"\nmodel = "m-1"\n{COMPILED}\n'


@pytest.fixture
def stand_in_server(project: Project) -> Iterator[ScriptedCli]:
    with OpenAIServer(puppet) as server:
        scripted_cli = ScriptedCli(project, server, ".qwen", "qwen")
        scripted_cli.config(AGENT)
        yield scripted_cli


def case(case_id: str, *turns: tuple[str, dict[str, Any]], **fields: Any) -> dict[str, Any]:
    said = [{"input": text, "assertions": [assertion]} for text, assertion in turns]
    return {"id": case_id, "turns": said, **fields}


def contains(value: str) -> dict[str, Any]:
    return {"type": "contains", "value": value}


def test_its_own_tool_makes_a_file_and_the_next_turn_resumes_the_session(stand_in_server: ScriptedCli) -> None:
    criteria = {
        "llm_checks": ["Both files were made."],
        "files_contain": {"first.txt": ["one"], "second.txt": ["two"]},
        "tool_calls_contain": {"write_file": ["second.txt", "two"]},
    }
    persona = {"initial_user_input": "WRITE first.txt: one", "context": "You want two files.", "max_turns": 3}
    name = stand_in_server.playbook("persona", persona=persona | {"success_criteria": criteria})
    _, (record,) = stand_in_server.test("-i", name, "-n", "coder")
    first, second = record["turns"]
    assert (first["input"], second["input"]) == ("WRITE first.txt: one", "WRITE second.txt: two")  # P8
    assert [(file["path"], file["change"]) for file in second["files"]] == [("second.txt", "added")]
    # P11: what each turn used, not the session
    assert [turn["usage"]["input_tokens"] for turn in record["turns"]] == [20, 20]
    resumed = stand_in_server.find_resumed_request("WRITE second.txt: two")
    assert any("WRITE first.txt: one" in message.text for message in resumed.messages)  # P11
    assert stand_in_server.untouched()  # P10
    assert stand_in_server.server.unknown_requests == []
    assert list(stand_in_server.temporary.iterdir()) == []  # P5


def test_a_refused_tool_does_not_count(stand_in_server: ScriptedCli) -> None:
    stand_in_server.config(AGENT + 'approval = "default"')
    called = {"type": "tool_called", "name": "write_file"}
    done = {**called, "status": "ok", "negate": True}
    stand_in_server.project.suite({"id": "a", "input": "WRITE no.txt: x", "assertions": [called, done]})
    _, (record,) = stand_in_server.test(agent="coder")
    (call,) = record["turns"][0]["tool_calls"]
    assert "permission" in call["error"]
    assert "files" not in record["turns"][0]


def test_a_hang_is_cut_off_and_a_busy_provider_is_not_a_fault_of_the_agent(stand_in_server: ScriptedCli) -> None:
    mark = f"32{os.getpid()}"
    stand_in_server.project.suite(
        case("hang", (f"RUN setsid sleep {mark} & touch began; sleep {mark}", contains("x"))),
        case("busy", ("FAIL 503", contains("x"))),
    )
    _, (hung, busy) = stand_in_server.test("--turn-timeout", "14s", "--retry-faults", "0", agent="coder", code=1)
    assert (hung["status"], hung["fault"], hung["error"]) == ("failed", "agent", "timeout after 14s")  # P7, P11
    assert Path(hung["workspace"], "began").exists()  # P5
    assert (busy["status"], busy["fault"]) == ("error", "infra")  # P11: its stderr is silent, its own log is not
    assert "503" in busy["error"]
    assert processes(mark) == []  # P7
    assert processes(str(stand_in_server.project.folder)) == []


def test_what_the_provider_refuses_and_a_turn_without_a_result_are_failed_turns(stand_in_server: ScriptedCli) -> None:
    killing = "RUN kill -TERM $PPID; sleep 5"
    stand_in_server.project.suite(case("bad", ("FAIL 400", contains("x"))), case("killed", (killing, contains("x"))))
    _, (bad, killed) = stand_in_server.test(agent="coder", code=1)
    for record in (bad, killed):
        assert (record["status"], record["fault"]) == ("failed", "agent")  # P11
        assert record["error"].startswith("agent error: ")
    assert "the puppet fails" in bad["error"]
    assert "without a result" in killed["error"]


def test_a_message_too_long_for_a_command_line_arrives_whole(stand_in_server: ScriptedCli) -> None:
    assert stand_in_server.send_long_message("coder")


def test_its_tools_are_those_of_the_case(project: Project) -> None:  # W3
    record = call_stubbed_tool(project, OpenAIServer, ".qwen", AGENT)
    assert [(call["name"], call["args"]) for call in record["turns"][0]["tool_calls"]] == [("lookup", {"id": 7})]
