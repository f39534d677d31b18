"""The real opencode, run by `viva test` as a user types it, against the stand-in for the OpenAI API."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from project import Project
from real_clis import search_path
from scripted_clis import ScriptedCli, call_stubbed_tool, persona, rename_tools
from viva.agents.cli.cli_agent import CliAgent
from viva.agents.cli.opencode import OPENCODE
from viva.llm.transport import HttpTransport
from viva.model.case import Key, WorkspaceSpec
from viva.model.message import Message, ToolCall
from viva.protocols import SessionContext
from viva.testing import OpenAIServer
from viva.workspace.folders import LocalWorkspaces

AGENT = '[agents.coder]\ntype = "opencode"\nmodel = "m-1"\n'


def _tool(call: ToolCall) -> ToolCall:
    given = call.arguments
    if call.name == "write_file":
        return ToolCall("write", {"filePath": given["file_path"], "content": given["content"]})
    return ToolCall("bash", {"command": given["command"], "description": "as asked"})


@pytest.fixture
def stand_in_server(project: Project) -> Iterator[ScriptedCli]:
    with OpenAIServer(rename_tools(_tool)) as server:
        scripted_cli = ScriptedCli(project, server, ".config", "opencode")
        scripted_cli.config(AGENT)
        yield scripted_cli


def test_a_playbook_for_the_gemini_cli_holds_for_opencode(stand_in_server: ScriptedCli) -> None:
    """P9: tools by its own names, a command counts whatever its exit status; P11: the second turn resumes the session."""
    criteria = {
        "files_contain": {"second.txt": ["two"]},
        "tool_calls_contain": {"run_shell_command": ["touch first.txt"], "write_file": ["second.txt", "two"]},
    }
    name = stand_in_server.playbook("persona", timeout=180, persona=persona("RUN touch first.txt; exit 3", **criteria))
    _, (record,) = stand_in_server.test("-i", name, "-n", "coder")
    assert [turn["input"] for turn in record["turns"]] == ["RUN touch first.txt; exit 3", "WRITE second.txt: two"]
    assert [call["name"] for turn in record["turns"] for call in turn["tool_calls"]] == ["bash", "write"]
    resumed = stand_in_server.find_resumed_request("WRITE second.txt")
    assert any("RUN touch first.txt" in message.text for message in resumed.messages)
    assert stand_in_server.untouched()  # P10


def test_a_provider_that_fails_is_not_a_fault_of_the_agent(tmp_path: Path) -> None:
    """P11: its stream and its stderr are silent, and it retries without end; its log has what the provider said.

    It is cut off as soon as the log has it: a time limit would be too short on a loaded machine.
    """
    found = search_path("opencode")
    assert found is not None
    log = Path("home", OPENCODE.log_file)

    async def scenario(env: dict[str, str]) -> str | None:
        agent = CliAgent(spec=OPENCODE, host={"PATH": found, "HOME": str(tmp_path), **env}, model="m-1")
        http = HttpTransport()
        async with LocalWorkspaces(str(tmp_path))(WorkspaceSpec("empty"), Key("s", "c")) as workspace:
            context = SessionContext(key=Key("s", "c"), meter=lambda _call: None, http=http, workspace=workspace)
            async with agent.open(context) as session:
                turn = asyncio.ensure_future(session.send(Message("user", "FAIL 503"), {}))
                async with asyncio.timeout(180):
                    while not turn.done() and "small=false agent=build mode=primary error" not in _text(tmp_path, log):
                        await asyncio.sleep(0.2)
                turn.cancel()
                await asyncio.wait([turn])
                await http.close()
            return context.progress.provider_trouble

    with OpenAIServer(rename_tools(_tool)) as server:
        assert asyncio.run(scenario(dict(server.env))) == "opencode: AI_APICallError: the puppet fails"


def _text(folder: Path, log: Path) -> str:
    """The log of the one workspace that is there."""
    return "".join(path.read_text(encoding="utf-8") for path in folder.glob(f"viva-*/{log}"))


def test_what_the_provider_refuses_is_the_agents_failure(stand_in_server: ScriptedCli) -> None:
    name = stand_in_server.playbook("bad", timeout=180, persona=persona("FAIL 400", files_exist=["x"]))
    _, (record,) = stand_in_server.test("-i", name, "-n", "coder", code=1)
    assert (record["status"], record["fault"]) == ("failed", "agent")  # P11
    assert "the puppet fails" in record["error"]


def test_its_tools_are_those_of_the_case(project: Project) -> None:  # W3
    record = call_stubbed_tool(project, OpenAIServer, ".config", AGENT)
    assert [call["name"] for call in record["turns"][0]["tool_calls"]] == ["lookup"]
