"""The real Codex, run by `viva test` as a user types it, against the stand-in for the OpenAI API."""

import shlex
from collections.abc import Iterator

import pytest

from project import Project
from scripted_clis import ScriptedCli, call_stubbed_tool, persona, rename_tools
from viva.model.message import ToolCall
from viva.testing import OpenAIServer

pytestmark = pytest.mark.soak  # it is a download of 170 MB
AGENT = '[agents.coder]\ntype = "codex"\nmodel = "m-1"\n'


def _tool(call: ToolCall) -> ToolCall:
    given = call.arguments
    if call.name == "write_file":
        return ToolCall("exec_command", {"cmd": f"printf %s {shlex.quote(given['content'])} > {given['file_path']}"})
    return ToolCall("exec_command", {"cmd": given["command"]})


@pytest.fixture
def stand_in_server(project: Project) -> Iterator[ScriptedCli]:
    with OpenAIServer(rename_tools(_tool)) as server:
        scripted_cli = ScriptedCli(project, server, ".codex", "codex")
        scripted_cli.config(AGENT)
        yield scripted_cli


def test_a_playbook_for_the_gemini_cli_holds_for_codex(stand_in_server: ScriptedCli) -> None:
    """P9: a command counts whatever its exit status; P11: the second turn resumes the session."""
    criteria = {
        "files_contain": {"second.txt": ["two"]},
        "tool_calls_contain": {"run_shell_command": ["touch first.txt", "second.txt"]},
    }
    name = stand_in_server.playbook("persona", timeout=120, persona=persona("RUN touch first.txt; exit 3", **criteria))
    _, (record,) = stand_in_server.test("-i", name, "-n", "coder")
    first, second = record["turns"]
    assert [call["name"] for call in first["tool_calls"]] == ["command_execution"]
    assert first["tool_calls"][0]["error"]
    assert "refused" not in first["tool_calls"][0]
    assert [(file["path"], file["change"]) for file in second["files"]] == [("second.txt", "added")]
    resumed = stand_in_server.find_resumed_request("WRITE second.txt")
    assert any("RUN touch first.txt" in message.text for message in resumed.messages)
    assert stand_in_server.untouched()  # P10


def test_a_provider_that_fails_is_not_a_fault_of_the_agent(stand_in_server: ScriptedCli) -> None:
    name = stand_in_server.playbook("busy", timeout=120, persona=persona("FAIL 503", files_exist=["x"]))
    _, (record,) = stand_in_server.test("-i", name, "-n", "coder", "--retry-faults", "0", code=1)
    assert (record["status"], record["fault"]) == ("error", "infra")  # P11
    assert "the puppet fails" in record["error"]


def test_without_a_key_it_says_so_at_once(stand_in_server: ScriptedCli) -> None:
    """P10: it would wait for the network until its time is up."""
    for name in stand_in_server.server.env:
        del stand_in_server.project.env[name]
    stand_in_server.playbook("keyless", timeout=120, persona=persona("hello", files_exist=["x"]))
    _, (record,) = stand_in_server.test("-i", "playbooks", "-n", "coder", "--retry-faults", "0", code=1)
    assert (record["status"], record["fault"]) == ("error", "infra")
    assert "Codex has no login: set CODEX_API_KEY or OPENAI_API_KEY" in record["error"]
    assert record["duration_ms"] < 60_000
    assert stand_in_server.said == []


def test_its_tools_are_those_of_the_case(project: Project) -> None:  # W3
    record = call_stubbed_tool(project, OpenAIServer, ".codex", AGENT)
    assert [(call["name"], call["args"]) for call in record["turns"][0]["tool_calls"]] == [("lookup", {"id": 7})]
