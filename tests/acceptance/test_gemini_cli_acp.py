"""The real Gemini CLI over the Agent Client Protocol, against the stand-in for the Gemini API."""

from collections.abc import Iterator

import pytest

from project import Project
from scripted_clis import COMPILED, ScriptedCli, processes, puppet
from viva.testing import GeminiServer

STEPS = [
    {"user_input": "WRITE notes.txt: buy milk", "expected_outcome": "It did so."},
    {"user_input": "What have I said?", "expected_outcome": "It did so."},
]


@pytest.fixture
def stand_in_server(project: Project) -> Iterator[ScriptedCli]:
    with GeminiServer(puppet) as server:
        yield ScriptedCli(project, server, ".gemini", "gemini")


def agent(stand_in_server: ScriptedCli, permissions: str) -> None:
    talker = f'[agents.talker]\ntype = "acp"\ncommand = "gemini --acp"\nmodel = "m-1"\npermissions = {permissions}'
    stand_in_server.config(f"{talker}\n{COMPILED}")


@pytest.mark.parametrize("permissions", ['"allow"', '["edit"]', '["write_file"]'])
def test_what_the_policy_allows_is_done_and_the_session_continues(
    stand_in_server: ScriptedCli, permissions: str
) -> None:
    agent(stand_in_server, permissions)
    _, (record,) = stand_in_server.test("-i", stand_in_server.playbook("two_steps", steps=STEPS), "-n", "talker")
    first, second = record["turns"]
    assert [(call["name"], call.get("error")) for call in first["tool_calls"]] == [("write_file", None)]
    assert [(file["path"], file["change"]) for file in first["files"]] == [("notes.txt", "added")]  # P4
    assert "WRITE notes.txt: buy milk" in second["output"]
    assert stand_in_server.untouched()  # P10
    assert processes(str(stand_in_server.project.folder)) == []


def test_what_it_denies_is_not_done_and_the_agent_waits(stand_in_server: ScriptedCli) -> None:
    agent(stand_in_server, '"deny"')
    _, (record,) = stand_in_server.test("-i", stand_in_server.playbook("denied", steps=STEPS[:1]), "-n", "talker")
    (turn,) = record["turns"]
    assert (turn["awaiting_input"], turn["awaiting_reason"]) == (True, "protocol_state")  # N22
    assert turn["input_hint"] == "Writing to notes.txt"
    assert [call["error"] for call in turn["tool_calls"]] == ["permission denied"]
    assert "files" not in turn
