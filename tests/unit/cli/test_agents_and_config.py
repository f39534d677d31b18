"""Which agent is meant, and what the config says about it."""

import json
import re

import pytest

from project import Project, case, contains


def test_no_agent_is_named(project: Project):
    """The default, else the only one, else exit 4 with the list."""
    project.suite(case("a"))
    assert "no agent given. Give -n NAME" in project.test(agent=None, code=4).err  # N7
    project.write("viva.toml", '[agents.only]\nuse = "python:./agent.py:agent"\n')
    assert project.test(agent=None).code == 0
    project.write(
        "viva.toml", '[agents.one]\nuse = "python:./agent.py:agent"\n[agents.two]\nuse = "python:./agent.py:agent"\n'
    )
    two = project.test(agent=None, code=4)
    assert "has one, two" in two.err
    project.write(
        "viva.toml",
        '[defaults]\nagent = "two"\n[agents.one]\nuse = "python:./no.py:x"\n[agents.two]\nuse = "python:./agent.py:agent"\n',
    )
    assert project.test(agent=None).code == 0


def test_an_unknown_agent_lists_near_names(project: Project):
    project.suite(case("a"))
    project.write("viva.toml", '[agents."assistants.expense"]\nuse = "python:./agent.py:agent"\n')
    ended = project.test("-n", "asistants.expense", code=4)
    assert "there is no agent 'asistants.expense'; did you mean assistants.expense?" in ended.err
    ended = project.test("-n", "langgrap:./app.py:graph", code=4)
    assert "did you mean langgraph:./app.py:graph?" in ended.err
    assert "has assistants.expense" in project.test("-n", "zebra").err
    assert "assistants.expense" in project.test("-n", "agents:assistants.expense").out  # N8


def test_references_to_python_code_say_what_is_wrong(project: Project):
    project.suite(case("a"))
    project.write("broken.py", "import no_such_module\n")
    project.write("value.py", "agent = 5\n")
    for reference, what in {
        "python:./absent.py:agent": "there is no file",
        "python:./agent.py:agnt": "has no 'agnt'; did you mean agent?",
        "python:./agent.py": "does not name an attribute",
        "python:./broken.py:agent": "does not import: ModuleNotFoundError: No module named 'no_such_module'",
        "python:./value.py:agent": "is an int: neither callable nor an object with `reply`",
        "scripts:agent": "is a script",
    }.items():
        ended = project.test("-n", reference, code=4)
        assert what in ended.err
        assert "Traceback" not in ended.err


def test_config_errors_have_their_lines(project: Project):
    """All of them at once, with the nearest key."""
    project.suite(case("a"))
    project.write(
        "viva.toml",
        "# heading\n[defaults]\nagnet = 'x'\nparallel = 0\n\n[agents.a]\nuse = 'python:./agent.py:agent'\n\n"
        "[agents.a.options]\nanything = 1\n\n[connectors.c]\nprovider = 'opnai'\n",
    )
    ended = project.test(agent=None, code=4)  # N2, N35
    said = ended.err.splitlines()
    path = str(project.folder / "viva.toml")
    assert said[0].startswith(f"{path}:3: defaults: unknown key 'agnet'; did you mean 'agent'?")
    assert said[1].startswith(f"{path}:4: defaults.parallel: is 0; should be at least 1")
    assert said[2].startswith(f"{path}:13: connectors.c.provider: ")
    assert "openai" in said[2]
    assert len(said) == 3
    project.write("viva.toml", "[agents.a]\nuse = 'x'\n[agents.a]\n")
    assert re.match(rf"{re.escape(path)}:3: is not TOML", project.test(agent=None).err)
    project.write("viva.toml", "[defaults]\ntimeout = 'soon'\n")
    assert f"{path}:2: " in project.test(agent=None).err
    project.write("viva.toml", "[agents.a]\ndescription = 'neither use nor type'\n")
    assert f"{path}:1: agent 'a' has neither `use` nor `type`" in project.test(agent=None).err
    project.write("viva.toml", "[connectors.c]\nmodel = 'm'\nbase_url = 'http://$NOWHERE_SET/v1'\n")
    assert f"{path}:3: the environment variable NOWHERE_SET is not set" in project.test(agent=None).err


def test_the_nearest_config_upward_is_used_and_its_paths_are_its_own(project: Project):
    project.write(
        "viva.toml", '[agents.a]\nuse = "python:./agents/mine.py:agent"\n[agents.b]\nuse = "python:agents.mine:agent"\n'
    )
    project.write("agents/mine.py", "def agent(messages):\n    return 'hello from mine'\n")
    project.write("below/deep/suite.jsonl", json.dumps(case("a")))
    project.write("other.toml", '[agents.a]\nuse = "python:./agent.py:agent"\n')
    for arguments in (["-n", "a"], ["-n", "b"]):
        project.viva("test", "-i", "below/deep/suite.jsonl", *arguments, code=0)  # N7
    project.folder, above = project.folder / "below" / "deep", project.folder
    assert project.viva("test", "-i", "suite.jsonl", "-n", "a").code == 0
    assert (above / ".viva" / "runs").is_dir()
    other = project.viva("test", "-i", "suite.jsonl", "--config", str(above / "other.toml"))
    assert other.code == 0, other


def test_an_env_file_adds_to_the_environment(project: Project):
    """For the config and for agents that are Python code; a bad line is named and not shown."""
    project.write("agent.py", "import os\ndef agent(messages):\n    return os.environ['GREETING']\n")
    project.write("my.env", "# comment\n\nexport GREETING='hello there'\nOTHER=1\n")
    project.suite(case("a"))
    before = {"GREETING": "", "OTHER": ""}  # so that they are as before when the test is over
    assert project.test("--env-file", "my.env", env=before).code == 0
    project.write("bad.env", "OK=1\nsk-secret-without-a-name\n")
    bad = project.test("--env-file", "bad.env", code=4)
    assert "bad.env:2: is not NAME=value" in bad.err
    assert "sk-secret" not in bad.err


def test_agents_lists_what_the_config_knows_and_can_reach(project: Project):
    project.write(
        "viva.toml",
        '[agents.fine]\nuse = "python:./agent.py:agent"\ndescription = "echoes"\n'
        '[agents.gone]\nuse = "python:./gone.py:agent"\n'
        '[agents.web]\nuse = "http://127.0.0.1:9/chat"\n'
        '[connectors.acme]\nmodel = "m-1"\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = "ACME_KEY"\n',
    )
    ended = project.viva("agents", code=1)
    lines = ended.out.splitlines()
    assert any(line.startswith("✓ fine") and "echoes" in line for line in lines)
    assert any(line.startswith("✗ gone") and "there is no file" in line for line in lines)
    assert any(line.startswith("✗ web") and "127.0.0.1:9" in line for line in lines)
    assert any("connector acme" in line and "ACME_KEY is not set" in line for line in lines)


NAMES = """\
[connectors.one]
base_url = "http://127.0.0.1:9"
model = "m"
[agents.model]
type = "chat"
connector = "one"
[agents.code]
use = "python:./agent.py:agent"
"""


def test_unknown_names_are_found_before_anything_runs(project: Project):
    """Names in flags and in files are checked together, before anything is called."""
    project.write("viva.toml", NAMES)
    project.write(
        "s.yaml",
        """\
- id: a
  input: x
  options: {connector: oen}
  assertions: {type: agent, criteria: y, use: model, options: {connector: eno}}
- id: b
  turns: [{input: x, options: {connector: oen}}]
- id: c
  simulator: {use: model, options: {connector: noe}}
  checkpoints: [{id: c, assertion: {type: contains, value: x}}]
""",
    )
    ended = project.test(
        "-i", "s.yaml", "-n", "model", "--simulator", "nosuch", "-r", "nobody", "--evaluator", "none", code=4
    )  # N2, N8, N20
    assert [line.partition(" there is no ")[0].partition(" no agent")[0] for line in ended.err.splitlines()] == [
        "--simulator:",
        "-r:",
        "--evaluator:",
        "s.yaml:3: $[0].options:",
        "s.yaml:4: $[0].assertions.options:",
        "s.yaml:6: $[1].turns[0].options:",
        "s.yaml:8: $[2].simulator.options:",
    ]
    assert "there is no connector 'oen'; did you mean one?" in ended.err
    # Code gets its options as they are; -c stands over them.
    assert "s.yaml:3" not in project.test("-i", "s.yaml", "-n", "code").err
    assert "s.yaml:3" not in project.test("-i", "s.yaml", "-n", "model", "-c", "one").err


ADDRESSES = {
    '[agents.a]\ntype = "http"\nurl = "localhost:8000/chat"\n': (3, "did you mean http://localhost:8000/chat?"),
    '[agents.a]\ntype = "http"\nurl = "me:hidden@host/chat?key=hidden"\n': (3, "did you mean http://host/chat?"),
    '[agents.a]\ntype = "http"\nurl = "http:///chat"\n': (3, "does not name a host"),
    '[agents.a]\ntype = "http"\nurl = "ftp://host/chat"\n': (3, "only http:// and https://"),
    '[connectors.a]\nbase_url = "localhost:8000/v1"\nmodel = "m"\n': (2, "did you mean http://localhost:8000/v1?"),
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_an_address_that_cannot_be_reached_is_found_at_load(project: Project, text: str):
    project.write("viva.toml", text)
    line, said = ADDRESSES[text]
    ended = project.test("-i", "Hello", "-n", "a", code=4)
    assert f"viva.toml:{line}: " in ended.err
    assert said in ended.err
    assert "hidden" not in ended.err


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("localhost:8000/chat", "did you mean http://localhost:8000/chat?"),
        ("agent:code", "did you mean agents:code?"),
        ("Agents:code", "did you mean agents:code?"),
    ],
)
def test_a_mistyped_agent_name_gets_a_suggestion(project: Project, name: str, expected: str):
    project.write("viva.toml", NAMES)
    project.suite(case("a"), {"id": "b", "input": "x", "assertions": {"type": "agent", "use": name, "criteria": "y"}})
    assert expected in project.test("-n", name, code=4).err  # N8
    assert expected in project.viva("check", "suite.jsonl").out


def test_a_default_simulator_that_does_not_exist_is_wrong_in_the_config(project: Project):
    project.write("viva.toml", '[defaults]\nsimulator = "ghost"\n' + NAMES)
    project.suite(case("a"), {"id": "b", "checkpoints": [{"id": "c", "assertion": contains("x")}]})
    assert "viva.toml:2: simulator: there is no agent 'ghost'" in project.test(code=4).err


def test_variables_are_checked_by_viva_check_unless_the_run_may_set_them(project: Project):
    project.write("hooks.py", "def before(ctx, cases):\n    return {}\n")
    project.suite(case("a", said="Hi {{name}}"))
    assert "$.input: nothing sets {{name}}" in project.viva("check", "suite.jsonl", code=4).out  # N21
    assert project.viva("check", "suite.jsonl", "--before", "hooks:before").code == 0
    assert project.viva("check", "suite.jsonl", "--before", "hooks:nothing").code == 4


def test_a_problem_of_a_reference_is_not_placed_in_the_config(project: Project):
    project.write("viva.toml", '[agents.a]\ntype = "http"\nurl = "http://localhost:1/"\n')
    project.suite(case("a"))
    ended = project.test(agent="http://")
    assert (ended.code, ended.err) == (4, "agent 'http://': `url` does not name a host; write http://HOST\n")
