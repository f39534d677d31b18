"""The real Gemini CLI over the Agent Client Protocol, against the stand-in for the Gemini API."""

from collections.abc import Iterator

import pytest

from project import Project
from puppets import COMPILED, Stage, processes, puppet
from viva.testing import GeminiServer

STEPS = [
    {"user_input": "WRITE notes.txt: buy milk", "expected_outcome": "It did so."},
    {"user_input": "What have I said?", "expected_outcome": "It did so."},
]


@pytest.fixture
def stage(project: Project) -> Iterator[Stage]:
    with GeminiServer(puppet) as server:
        yield Stage(project, server, ".gemini", "gemini")


def agent(stage: Stage, permissions: str) -> None:
    talker = f'[agents.talker]\ntype = "acp"\ncommand = "gemini --acp"\nmodel = "m-1"\npermissions = {permissions}'
    stage.config(f"{talker}\n{COMPILED}")


@pytest.mark.parametrize("permissions", ['"allow"', '["edit"]', '["write_file"]'])
def test_what_the_policy_allows_is_done_and_the_session_goes_on(stage: Stage, permissions: str) -> None:
    agent(stage, permissions)
    _, (record,) = stage.test("-i", stage.playbook("two_steps", steps=STEPS), "-n", "talker")
    first, second = record["turns"]
    assert [(call["name"], call.get("error")) for call in first["tool_calls"]] == [("write_file", None)]
    assert [(file["path"], file["change"]) for file in first["files"]] == [("notes.txt", "added")]  # P4
    assert "WRITE notes.txt: buy milk" in second["output"]
    assert stage.untouched()  # P10
    assert processes(str(stage.project.folder)) == []


def test_what_it_denies_is_not_done_and_the_agent_waits(stage: Stage) -> None:
    agent(stage, '"deny"')
    _, (record,) = stage.test("-i", stage.playbook("denied", steps=STEPS[:1]), "-n", "talker")
    (turn,) = record["turns"]
    assert (turn["awaiting_input"], turn["awaiting_reason"]) == (True, "protocol_state")  # N22
    assert turn["input_hint"] == "Writing to notes.txt"
    assert [call["error"] for call in turn["tool_calls"]] == ["the permission that it asked for was denied"]
    assert "files" not in turn
