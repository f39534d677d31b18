"""Terminal agents from names, references and the config."""

from pathlib import Path

import pytest
from msgspec import structs

from viva import config
from viva.agents.acp import AcpAgent
from viva.agents.agent_config import list_nameable_kinds
from viva.agents.cli.cli_agent import CliAgent
from viva.agents.cli.codex import CODEX
from viva.agents.cli.events import CliTurnEnded, TextPrinted
from viva.agents.cli.gemini import GEMINI
from viva.config import Settings
from viva.errors import BadInput
from viva.session.agents import AgentFactory


def settings(folder: Path, text: str) -> Settings:
    (folder / "viva.toml").write_text(text, encoding="utf-8")
    environ = {"PATH": "/bin", "MY_KEY": "value-of-my-key", "GEMINI_API_KEY": "value-of-gemini-key"}
    return structs.replace(config.load_settings(folder / "viva.toml", folder), environ=environ)


@pytest.mark.parametrize("name", list_nameable_kinds())
def test_a_cli_can_be_named_without_a_config(tmp_path, name):
    agent = AgentFactory(Settings(folder=tmp_path)).find_agent_under_test(name)
    assert agent.kind == name
    assert agent.parallel == 2  # N19
    assert "workspace" in agent.agent.provides


def test_the_gemini_cli_is_meant_also_where_a_connector_is_called_so(tmp_path):
    found = settings(tmp_path, '[connectors.gemini]\nmodels = ["gemini-*"]\n')
    agent = AgentFactory(found).find_agent_under_test("gemini").agent
    assert isinstance(agent, CliAgent)
    assert agent.spec is GEMINI  # P3


def test_a_cli_of_the_config_has_what_the_config_says(tmp_path):
    found = settings(
        tmp_path,
        """
[agents.mine]
type = "gemini"
command = "./bin/gemini --debug"
model = "gemini-2.5-pro"
approval = "auto_edit"
args = ["--sandbox"]
login = "copy"
parallel = 5
env = { TOKEN_A = "literal-token", B = "$MY_KEY" }
""",
    )
    named = AgentFactory(found).find_agent("mine")
    agent = named.agent
    assert isinstance(agent, CliAgent)
    assert agent.program == (f"{tmp_path}/bin/gemini", "--debug")
    assert (agent.model, agent.approval_mode, agent.args, agent.login) == (
        "gemini-2.5-pro",
        "auto_edit",
        ("--sandbox",),
        "copy",
    )
    assert dict(agent.env) == {"TOKEN_A": "literal-token", "B": "value-of-my-key"}
    assert named.parallel == 5
    assert {"literal-token", "value-of-my-key", "value-of-gemini-key"} <= set(found.redactor.secrets)


def test_secrets_are_not_part_of_what_an_agent_is_made_of(tmp_path):
    agents = AgentFactory(settings(tmp_path, '[agents.a]\ntype = "codex"\nenv = { OPENAI_API_KEY = "hush-hush" }\n'))
    agent = agents.find_agent("a").agent
    assert isinstance(agent, CliAgent)
    assert agent.spec is CODEX
    assert "hush-hush" not in str(agents.definitions)


def test_an_acp_agent_by_reference_and_by_config(tmp_path):
    agents = AgentFactory(
        settings(tmp_path, '[agents.a]\ntype = "acp"\ncommand = ["x", "--acp"]\npermissions = ["edit"]\n')
    )
    by_reference = agents.find_agent_under_test("acp:gemini --acp --flag 'a b'").agent
    assert isinstance(by_reference, AcpAgent)
    assert by_reference.command == ("gemini", "--acp", "--flag", "a b")
    by_config = agents.find_agent("a").agent
    assert isinstance(by_config, AcpAgent)
    assert by_config.permissions == ("edit",)


def test_a_command_with_rules(tmp_path):
    text = """
[agents.a]
type = "command"
command = ["mycli", "{input}"]
output = "jsonl"
events = [{ when = { type = "text" }, text = "$.text" }, { when = { type = "done" }, end = true }]
"""
    agent = AgentFactory(settings(tmp_path, text)).find_agent("a").agent
    assert isinstance(agent, CliAgent)
    assert list(agent.spec.parse_line(b'{"type": "text", "text": "hi"}')) == [TextPrinted("hi")]
    assert list(agent.spec.parse_line(b'{"type": "done"}')) == [CliTurnEnded()]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('type = "gemini"\napproval = "never"', r"viva\.toml:1: agent 'a': Gemini CLI does not have the approval mode 'never'"),
        ('type = "gemini"\nlogin = "steal"', "login: unknown value"),
        ('type = "gemini"\nmodle = "x"', "unknown key 'modle'; did you mean 'model'?"),
        ('type = "command"', "is missing 'command'"),
        ('type = "acp"', "agent 'a' is missing `command`"),
        ('type = "acp"\ncommand = "x"\npermissions = "maybe"', "permissions are allow, deny or a list"),
        ('type = "command"\ncommand = "x {what}"', "there is no {what} to fill in"),
        ('type = "command"\ncommand = "x"\noutput = "jsonl"\nevents = [{ txt = "$.a" }]', "unknown key 'txt'; did you mean 'text'"),
        ('type = "claude"\nenv = { A = "$NOT_SET_ANYWHERE" }', "environment variable NOT_SET_ANYWHERE is not set"),
    ],
)  # fmt: skip
def test_a_mistake_is_found_before_anything_runs(tmp_path, text, error):
    import re

    with pytest.raises(BadInput) as raised:
        AgentFactory(settings(tmp_path, f"[agents.a]\n{text}\n")).find_agent("a")
    assert error in str(raised.value) or re.search(error, str(raised.value)), str(raised.value)


def test_a_mistyped_name_of_a_cli_is_guessed(tmp_path):
    with pytest.raises(BadInput, match="there is no agent 'gemni'; did you mean gemini"):
        AgentFactory(Settings(folder=tmp_path)).find_agent_under_test("gemni")
