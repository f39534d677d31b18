"""What the tests with real CLIs share: a model that obeys the message, a project in whose PATH the CLIs are, and its processes."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from project import Ended, Project
from real_clis import INSTALLED, search_path
from viva.model.message import ToolCall
from viva.testing import Fail, ModelRequest, Say
from viva.testing.model_server import ModelServer, ScriptLine

JUDGE = "judge-1"
COMPILED = f'env = {{ NODE_COMPILE_CACHE = "{INSTALLED / "compiled"}" }}'
"""For an agent of the config: Node keeps what it has compiled, which saves a second at every start."""


def puppet(asked: ModelRequest) -> ScriptLine:
    """Does what the newest message says: `WRITE file: text`, `RUN command`, `FAIL status`, `HANG`; else it repeats what it got.

    As the judge it finds that everything holds, unless the criterion says `never`; as the user it asks for `second.txt`.
    """
    if asked.model == JUDGE:
        return _evaluator(asked.system + asked.text)
    if asked.tool_results:
        return "All done as asked."
    if found := re.search(r"WRITE (\S+): (.*)", asked.text):
        path = str(Path(_folder(asked), found[1]))
        return Say(content="I will. ", tool_calls=[ToolCall("write_file", {"file_path": path, "content": found[2]})])
    if found := re.search(r"RUN (.*)", asked.text):
        return Say(tool_calls=[ToolCall("run_shell_command", {"command": found[1], "is_background": False})])
    if found := re.search(r"FAIL (\d+)", asked.text):
        return Fail(int(found[1]), "the puppet fails")
    if "HANG" in asked.text:
        return Say(content="I begin, and never end.", hold="amid_body")
    return "I heard: " + " | ".join(message.text for message in asked.messages if message.role == "user")


def _folder(asked: ModelRequest) -> str:
    """Where the CLI works, as it tells its model: qwen-code takes no path that is relative to that."""
    said = "\n".join(message.text for message in asked.messages)
    found = re.search(r"(?:working in the directory|Workspace Directories):?\W*\s*(/[^\n]*)", said)
    return found[1].strip() if found else ""


def _evaluator(prompt: str) -> ScriptLine:
    if "You play a person" in prompt:
        return json.dumps({"input": "WRITE second.txt: two", "goal_achieved": False})
    said = re.findall(r"All done as asked\.|I heard: [^\"\\]{0,20}", prompt)
    quote = said[-1] if said else "nothing of the kind"
    evidence = [{"turn": 1, "quote": quote}]
    return json.dumps({"passed": "never" not in prompt, "reason": "so it is", "evidence": evidence, "score": 1.0})


def use_stub(asked: ModelRequest) -> ScriptLine:
    """Calls the tool `lookup` of the MCP server, by the name that the CLI gave it, and then says what it returned."""
    if asked.tool_results:
        return f"It says: {asked.new_messages[-1].text}"
    names = re.findall(r'"name":\s*"([^"]*lookup)"', asked.body.decode())
    if names:
        return Say(tool_calls=[ToolCall(names[0], {"id": 7})])
    if listed := re.search(r"mcp__\w+lookup", asked.body.decode()):  # qwen-code shows only the names of such tools
        return Say(tool_calls=[ToolCall("tool_call", {"name": listed[0], "arguments": {"id": 7}})])
    return "I have no such tool."


STUBBED_CASE = {
    "id": "stubbed",
    "input": "Look up order 7.",
    "fixtures": {"tools": [{"tool": "lookup", "response": {"city": "Rome"}}]},
    "assertions": [
        {"type": "tool_called", "name": "lookup", "arguments": {"id": 7}, "times": 1},
        {"type": "contains", "value": "Rome"},
    ],
}
"""A case whose tool is a stub of an MCP server."""


class ScriptedCli:
    """A project in which a CLI meets the puppet. The user's own HOME holds settings that would break the CLI if it read them."""

    def __init__(self, project: Project, server: ModelServer, dotted: str, *clis: str) -> None:
        found = search_path(*clis)
        assert found is not None
        self.project = project
        self.server = server
        self.home = project.folder / "home of the user"
        self.dotted = self.home / dotted
        project.write(f"{self.home.name}/{dotted}/settings.json", '{"not": JSON')
        project.env |= {"HOME": str(self.home), "PATH": f"{found}:{Path(sys.executable).parent}", "JUDGE_KEY": "k"}
        project.env |= server.env
        # The place of the workspaces has a blank and an umlaut in its name, as a user's may have.
        self.temporary = Path(f"{project.folder} tmp ä")
        self.temporary.mkdir()
        project.env["TMPDIR"] = str(self.temporary)
        self.config()

    def config(self, more: str = "") -> None:
        judge = f'provider = "{self.server.provider}"\nbase_url = "{self.server.url}"\napi_key_env = "JUDGE_KEY"\nmodels = ["judge-*"]'
        cli = f'[agents.gemini]\ntype = "gemini"\n{COMPILED}\n' if self.dotted.name == ".gemini" else ""
        text = f'[connectors.judge]\n{judge}\n[defaults]\nevaluator = "{JUDGE}"\n{cli}{more}'
        self.project.write("viva.toml", text)

    def playbook(self, name: str, **fields: Any) -> str:
        written = {"name": name, "agent_model": "m-1", "tmpdir": {}, "timeout": 20, **fields}
        self.project.write(f"playbooks/{name}.json", json.dumps(written))
        return "playbooks"

    def test(self, *arguments: str, code: int = 0, agent: str | None = None) -> tuple[Ended, list[dict[str, Any]]]:
        """Runs `viva test` and returns its output and records. Fails if the exit code is not this one."""
        ended, records = self.project.report(*arguments, agent=agent, timeout_s=300)
        assert ended.code == code, f"{ended}\n{json.dumps(records, indent=1)}"
        return ended, records

    def send_long_message(self, agent: str) -> bool:
        """Does a message that is too long for a command line arrive whole?"""
        long = " ".join(map(str, range(30_000)))
        written = [{"type": "file_exists", "path": "a.txt"}]
        self.project.suite({"id": "a", "input": f"WRITE a.txt: x\n{long}", "assertions": written})
        self.test(agent=agent)
        return any(long in text for text in self.said)

    def find_resumed_request(self, last: str) -> ModelRequest:
        """The first request of the CLI that has this message."""
        asked = (each for each in self.server.model_requests if each.model != JUDGE and last in each.text)
        return next(asked)

    @property
    def said(self) -> list[str]:
        """The model requests of the CLI, without those of the evaluator."""
        return [asked.text for asked in self.server.model_requests if asked.model != JUDGE]

    def untouched(self) -> bool:
        """Is the user's own HOME unchanged?"""
        files = [path for path in self.home.rglob("*") if path.is_file()]
        return files == [self.dotted / "settings.json"] and files[0].read_text(encoding="utf-8") == '{"not": JSON'


def persona(first: str, **criteria: Any) -> dict[str, Any]:
    """A persona of two turns, for a playbook."""
    return {"initial_user_input": first, "context": "You want two files.", "max_turns": 2, "success_criteria": criteria}


def rename_tools(rename: Callable[[ToolCall], ToolCall]) -> Callable[[ModelRequest], ScriptLine]:
    """The puppet, with its tools as another CLI names them."""

    def answer(asked: ModelRequest) -> ScriptLine:
        line = puppet(asked)
        return structs.replace(line, tool_calls=list(map(rename, line.tool_calls))) if isinstance(line, Say) else line

    return answer


def call_stubbed_tool(
    project: Project,
    stand_in: type[ModelServer],
    dotted: str,
    agent: str,
    script: Callable[[ModelRequest], ScriptLine] = use_stub,
) -> dict[str, Any]:
    """The record of a case whose tool is a stub. `agent` is the entry of the config."""
    with stand_in(script) as server:
        cli = re.findall(r'type = "(\w+)"', agent)[0]
        scripted_cli = ScriptedCli(project, server, dotted, cli)
        scripted_cli.config(f"{agent}mcp_stub = true\n")
        project.suite(STUBBED_CASE)
        _, (record,) = scripted_cli.test(agent="coder")
    return record


def processes(mark: str) -> list[str]:
    """The command lines of all other processes that have this text in them or in their environment."""
    found: list[str] = []
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == os.getpid():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            if mark.encode() in command + (folder / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has just ended, or is not ours
            continue
    return found
