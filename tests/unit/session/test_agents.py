"""Agents by name, by reference, or as objects."""

from pathlib import Path
from typing import Any

import pytest

from viva import config
from viva.agents.python import PythonAgent
from viva.agents.scripted import ScriptedAgent
from viva.errors import BadInput
from viva.session.agents import AgentFactory
from viva.session.name_checks import create_evaluator_check


@pytest.fixture
def agents(tmp_path: Path):
    def made(text: str = "", connector: str | None = None) -> AgentFactory:
        (tmp_path / "viva.toml").write_text(text, encoding="utf-8")
        (tmp_path / "a.py").write_text("def a(messages): return 'a'\n", encoding="utf-8")
        return AgentFactory(config.load_settings(None, tmp_path), connector)

    return made


A = "[agents.a]\nuse = 'python:./a.py:a'\n"


def test_who_is_meant_without_a_name(agents):
    """The default, else the suite's own target, else the only one, else it is an error."""
    assert agents(A).find_agent_under_test(None).name == "a"  # N7
    two = A + "[agents.b]\ntype = 'scripted'\nreplies = ['b']\n"
    assert agents("[defaults]\nagent = 'b'\n" + two).find_agent_under_test(None, "a").name == "b"
    assert agents(two).find_agent_under_test(None, "a").name == "a"
    assert agents(two).find_agent_under_test("b", "a").name == "b"
    with pytest.raises(BadInput, match=r"no agent given.* has a, b"):
        agents(two).find_agent_under_test(None)
    with pytest.raises(BadInput, match="no agent given"):
        agents().find_agent_under_test(None)


def test_a_name_may_have_its_prefix_and_a_script_is_none(agents):
    assert agents(A).find_agent("agents:a").name == "a"  # N8
    with pytest.raises(BadInput, match="is a script, not an agent"):
        agents(A).find_agent("scripts:a")


def test_each_agent_is_built_once(agents):
    known = agents(A)
    assert known.find_agent("a") is known.find_agent("a")


def test_what_the_config_says_comes_along(agents):
    named = agents(A + "description = 'd'\nparallel = 3\noptions = { mode = 'x' }\ntools = ['t', 'u']\n").find_agent(
        "a"
    )
    assert (named.kind, named.description, named.parallel, named.options, named.tools) == (
        "python",
        "d",
        3,
        {"mode": "x"},
        ("t", "u"),
    )


def test_scripted_agents_come_from_the_config_or_a_file(agents, tmp_path: Path):
    (tmp_path / "r.jsonl").write_text('{"content": "one"}\n{"content": "two"}\n', encoding="utf-8")
    (tmp_path / "r.yaml").write_text("- one\n- {content: two}\n", encoding="utf-8")
    (tmp_path / "r.json").write_text('["one"]', encoding="utf-8")
    known = agents(
        "[agents.inline]\ntype = 'scripted'\nreplies = ['one', { content = 'two', delay = '1s' }]\nrepeat = true\n"
        "[agents.lines]\ntype = 'scripted'\nfile = 'r.jsonl'\n"
        "[agents.yaml]\ntype = 'scripted'\nfile = 'r.yaml'\n"
    )

    def scripted(name: str) -> Any:
        agent = known.find_agent(name).agent
        assert isinstance(agent, ScriptedAgent)
        return agent

    assert scripted("inline").replies == ("one", {"content": "two", "delay": "1s"})
    assert scripted("inline").repeat
    assert scripted("lines").replies == ({"content": "one"}, {"content": "two"})
    assert scripted("yaml").replies == ("one", {"content": "two"})
    assert scripted("scripted:r.json").replies == ("one",)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("[agents.a]\n\ntype = 'scripted'\nfile = 'absent.yaml'\n", "viva.toml:4: agent 'a': there is no file"),
        (
            "\n[agents.a]\ntype = 'scripted'\nreplies = [{ content = 'x', delay = 'soon' }]\n",
            "viva.toml:2: agent 'a': 'soon' is not a duration",
        ),
        (
            "[agents.a]\ntype = 'scripted'\nreplies = [{ content = 'x', when = '(' }]\n",
            "agent 'a': '(' is not a regular expression",
        ),
        ("[agents.a]\ntype = 'python'\n", "viva.toml:1: agent 'a' is missing `use`"),
        ("[agents.a]\ntype = 'http'\n", "viva.toml:1: agent 'a' is missing `url`"),
        (
            "[agents.a]\ntype = 'chat'\nconnector = 'acme'\n[connectors.acne]\nmodel = 'm'\n",
            "there is no connector 'acme'; did you mean acne?",
        ),
        ("[agents.a]\ntype = 'chatt'\n", "viva.toml:2: unknown type of agent 'chatt'"),
        ("[agents.a]\ntype = 'build'\n", "viva.toml:2: unknown type of agent 'build'; there are python, chat"),
        ("[agents.a]\ndescription = 'x'\n", "viva.toml:1: agent 'a' has neither `use` nor `type`"),
    ],
)
def test_an_agent_that_cannot_be_built_says_where_and_why(agents, text: str, output: str):
    with pytest.raises(BadInput) as raised:
        agents(text).find_agent("a")
    assert output in str(raised.value)


def test_a_connector_of_the_command_line_has_to_exist(agents):
    with pytest.raises(BadInput, match="-c: there is no connector 'two'; known: one"):
        agents("[connectors.one]\nmodel = 'm'\n", connector="two")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("app.py", "python:app.py:NAME, with the name of the function or object in it?"),
        ("app:reply", "python:app:reply?"),
        ("agent:a", "agents:a?"),
        ("agent:reply", "python:agent:reply?"),
        ("langgrap:./app.py:graph", "langgraph:./app.py:graph?"),
        ("localhost:8000/chat", "http://localhost:8000/chat?"),
    ],
)
def test_a_name_that_is_nearly_a_reference_is_completed(agents, name: str, meant: str):
    with pytest.raises(BadInput) as raised:
        agents(A).find_agent(name)
    assert str(raised.value) == f"there is no agent {name!r}; did you mean {meant}"


def test_an_object_is_taken_as_it_is(agents):
    known = agents()
    function = known.find_agent_under_test(lambda messages: "x")
    assert isinstance(function.agent, PythonAgent)
    given = ScriptedAgent(("x",))
    assert known.find_agent_under_test(given).agent is given
    with pytest.raises(BadInput, match="an int is not an agent"):
        known.find_agent_under_test(5)


def test_what_is_wrong_with_a_helper_is_told_without_raising(agents):
    known = agents(A)
    assert known.find_agent_problems("a") == ()
    (problem,) = known.find_agent_problems("ghost")
    assert problem.message.startswith("there is no agent 'ghost'")


def test_a_connector_of_the_command_line_reaches_an_agent_that_helps_too(agents):
    """A suite that names the agent under test as a helper was read before."""
    known = agents(
        "[connectors.one]\nmodel = 'm'\n[connectors.two]\nmodel = 'n'\n[agents.a]\nconnector = 'one'\n", connector="two"
    )
    assert known.find_agent("a").agent.connector.name == "one"
    assert known.find_agent_under_test("a").agent.connector.name == "two"


def test_a_python_agent_is_told_its_connector(agents):
    """It is not used by Viva: it reaches the agent in its options."""
    config_text = "".join(f"[connectors.{name}]\nprovider = 'openai'\nmodel = 'm'\n" for name in ("local", "other"))
    config_text += "[agents.a]\nuse = 'python:./a.py:a'\nconnector = 'local'\noptions = {mode = 'x'}\n"
    assert agents(config_text).find_agent("a").options == {"mode": "x", "connector": "local"}  # N20
    assert agents(config_text, "other").find_agent_under_test("a").options["connector"] == "other"


def test_a_typo_in_a_scripted_reply_is_found_before_the_run(agents):
    with pytest.raises(BadInput, match="reply 1 has the unknown key 'contnt'; did you mean 'content'"):
        agents("[agents.b]\nreplies = [{contnt = 'ok'}]\n").find_agent("b")  # N2
    with pytest.raises(BadInput, match="reply 2 has the unknown key 'mood'"):
        agents("[agents.b]\nreplies = ['x', {content = 'ok', mood = 'good'}]\n").find_agent("b")
    agents("[agents.b]\nreplies = [{success = true, reason = 'a helper answers as it likes'}]\n").find_agent("b")


@pytest.fixture
def keyless(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI", "GEMINI", "ANTHROPIC"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)


def test_a_well_known_model_is_accepted_as_model_and_connector(agents, monkeypatch: pytest.MonkeyPatch):
    """P3: -n, -c, an agent's `connector`, `judge` in [defaults]; as `model` of a connector it tells the provider."""
    monkeypatch.setenv("OPENAI_API_KEY", "k-openai")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k-anthropic")
    written = "[agents.a]\ntype = 'chat'\nconnector = 'gpt-4o'\n"
    judging = "[defaults]\njudge = 'claude-haiku-4-5'\n"
    reached = [
        agents().find_agent_under_test("gpt-4o"),
        agents(written).find_agent_under_test("a"),
        agents(written, connector="claude-haiku-4-5").find_agent_under_test("a"),
        agents(judging).find_helper("viva.validator", "judge"),
        agents("[connectors.c]\nmodel = 'claude-haiku-4-5'\n").find_agent_under_test("c"),
    ]
    found = [(each.agent.connector.provider, each.agent.connector.model) for each in reached]
    haiku = ("anthropic", "claude-haiku-4-5")
    assert found == [("openai", "gpt-4o"), ("openai", "gpt-4o"), haiku, haiku, haiku]
    assert {each.agent.connector.api_key.reveal() for each in reached} == {"k-openai", "k-anthropic"}


def test_a_connector_with_an_address_uses_the_openai_api_by_default(agents):
    gateway = agents("[connectors.c]\nmodel = 'claude-haiku-4-5'\nbase_url = 'http://127.0.0.1:1/v1'\n")
    assert gateway.find_agent_under_test("c").agent.connector.provider == "openai"


@pytest.mark.usefixtures("keyless")
def test_a_missing_key_is_found_where_the_model_is_named(agents, tmp_path: Path):
    """P3: not in a replay, nor where nothing is called."""
    for ask in (
        lambda: agents().find_agent_under_test("claude-haiku-4-5"),
        lambda: agents(connector="claude-haiku-4-5"),
        lambda: agents().find_helper("claude-haiku-4-5", "judge"),
    ):
        with pytest.raises(BadInput, match="ANTHROPIC_API_KEY is not set"):
            ask()
    with pytest.raises(BadInput, match=r"viva.toml:1: .*MY_KEY is not set"):
        agents("[connectors.c]\nprovider = 'anthropic'\napi_key_env = 'MY_KEY'\n").find_agent_under_test(
            "claude-haiku-4-5"
        )
    assert (
        AgentFactory(config.load_settings(None, tmp_path), is_replaying=True).find_agent_under_test("gpt-4o").kind
        == "chat"
    )
    assert (
        AgentFactory(config.load_settings(None, tmp_path, allow_unset=True)).find_agent_under_test("gpt-4o").kind
        == "chat"
    )


@pytest.mark.usefixtures("keyless")
def test_a_missing_key_of_an_evaluator_is_reported_where_it_is_named(agents, tmp_path: Path):
    known = agents("[defaults]\nevaluator = 'gpt-4o'\n")
    settings = config.load_settings(None, tmp_path)
    (flag,) = create_evaluator_check(known, settings, "o3")("o3")
    assert flag.message == "--evaluator: model 'o3' needs a key: the environment variable OPENAI_API_KEY is not set"
    (default,) = create_evaluator_check(known, settings)("gpt-4o")
    assert (Path(default.file).name, default.line) == ("viva.toml", 2)


def test_a_model_stands_for_the_built_in_helper_that_speaks_to_it(agents, monkeypatch: pytest.MonkeyPatch):
    """P3: by the patterns of connectors; an agent or connector of that name comes first."""
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    known = agents("[connectors.gemini]\nmodels = ['gemini-*']\n[connectors.m]\nmodels = ['*']\nmodel = 'own'\n")
    judge, user = known.find_helper("gemini-9", "judge").agent, known.find_helper("gemini-9", "simulator").agent
    assert (judge.connector.name, judge.connector.model, judge.connector.provider) == ("gemini", "gemini-9", "gemini")
    assert not judge.must_quote  # N26: as any validator, it needs `passed`; what it quotes is looked up all the same
    assert (
        agents("[defaults]\njudge = 'm'\n[connectors.m]\nmodel = 'own'\n")
        .find_helper("viva.validator", "judge")
        .agent.must_quote
    )
    assert "You play a person" in user.prompt
    assert known.find_helper("m", "judge").agent.connector.model == "own"


def test_an_evaluator_that_cannot_be_had_is_reported_with_what_to_write(agents, tmp_path: Path):
    known = agents(A + "[connectors.c]\nmodel = 'm'\nmodels = ['x-*']\n[connectors.d]\nmodels = ['y-*']\n")
    settings = config.load_settings(None, tmp_path)
    wrong_with = create_evaluator_check(known, settings)
    for name in ("a", "agents:a", "c", "x-1", "viva.rules"):
        assert wrong_with(name) == ()
    (problem,) = wrong_with("d")
    assert "connector 'd' has no `model`" in problem.message
    assert "such as y-*" in problem.message
    (problem,) = wrong_with("judge-9")
    assert 'add `models = ["judge-*"]` to its connector in viva.toml' in problem.message
    (problem,) = create_evaluator_check(known, settings, "gone")("gone")
    assert problem.message.startswith("--evaluator: no agent or connector is called 'gone'")
