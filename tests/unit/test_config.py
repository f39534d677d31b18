"""`viva.toml`, the environment and env files become Settings."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from viva import config
from viva.errors import BadInput
from viva.model import codec
from viva.model.connector import Connector, select_answer_settings
from viva.schemas.validation import read_schema


@pytest.fixture
def write(tmp_path: Path):
    def written(text: str, name: str = "viva.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return written


def problems(file: Path) -> list[str]:
    with pytest.raises(BadInput) as raised:
        config.load_settings(file, file.parent)
    return [f"{problem.line}: {problem.path}: {problem.message}" for problem in raised.value.problems]


def test_the_nearest_file_upward_is_found(tmp_path: Path, write):
    write("")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert config.find_config(tmp_path / "a" / "b") == tmp_path / "viva.toml"  # N7
    write("", "a/viva.toml")
    assert config.find_config(tmp_path / "a" / "b") == tmp_path / "a" / "viva.toml"


def test_without_a_file_there_are_empty_settings(tmp_path: Path):
    settings = config.load_settings(None, tmp_path)
    assert (settings.file, settings.agents, settings.connectors, settings.folder) == (None, {}, {}, tmp_path)


def test_a_whole_config_is_read(write, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ACME_KEY", "sk-0123456789")
    monkeypatch.setenv("ACME_HOST", "example.test")
    file = write(
        """
plugins = ["my.checks"]
attachment_roots = ["assets"]

[defaults]
agent = "a"
timeout = "2m"
turn_timeout = 30
parallel = 8

[awaiting]
confirmation_tools = ["please_confirm"]

[agents.a]
use = "python:./a.py:a"
options = { mode = "chat" }

[connectors.acme]
model = "m"
base_url = "http://$ACME_HOST/v1/"
api_key_env = "ACME_KEY"
headers = { X-Key = "Bearer ${ACME_KEY}" }
timeout = "10s"
retries = 0
price = { input = 1.0, output = 2 }
"""
    )
    settings = config.load_settings(file, file.parent)
    assert (settings.defaults.agent, settings.defaults.timeout_s, settings.defaults.turn_timeout_s) == (
        "a",
        120.0,
        30.0,
    )
    assert settings.defaults.parallel == 8
    assert settings.plugins == ("my.checks",)
    assert settings.attachment_roots == (str(file.parent / "assets"),)
    assert settings.agents["a"]["options"] == {"mode": "chat"}
    acme = settings.connectors["acme"]
    assert (acme.base_url, acme.model, acme.timeout_s, acme.retries) == ("http://example.test/v1", "m", 10.0, 0)
    assert acme.headers == {"X-Key": "Bearer sk-0123456789"}
    assert acme.api_key is not None
    assert acme.api_key.reveal() == "sk-0123456789"
    assert "sk-0123456789" not in repr(acme.api_key)
    assert {"sk-0123456789", "example.test"} <= set(settings.redactor.secrets)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[defaults]\nagnet = 'x'", "2: defaults: unknown key 'agnet'; did you mean 'agent'?"),
        ("[defalts]\nagent = 'x'", "1: : unknown key 'defalts'; did you mean 'defaults'?"),
        ("\n[agents.x]\nuse = 5", "3: agents.x.use: is the number 5; should be a string"),
        ("[connectors.c]\nmodle = 'm'", "2: connectors.c: unknown key 'modle'; did you mean 'model'?"),
        ("[connectors.c]\nretries = -1", "2: connectors.c.retries: is -1; should be at least 0"),
        ("[connectors.c]\napi_key = 'sk-123'", "2: connectors.c: unknown key 'api_key'"),
        ("[defaults]\nparallel = 'many'", '2: defaults.parallel: is "many"; should be a number of at least 1, or auto'),
        (
            "[defaults]\nparallel = 1.5",
            "2: defaults.parallel: is the number 1.5; should be a number of at least 1, or auto",
        ),
        ("[serve]\npublic_url = 'host'", '2: serve.public_url: is "host"; should be a URL that starts with http://'),
        ("[defaults]\ntimeout = 'soon'", "2: : 'soon' is not a duration"),
        ("[connectors.c]\ntimeout = 'soon'", "2: : 'soon' is not a duration"),
        ("x = [", "1: : is not TOML"),
    ],
)
def test_what_is_wrong_has_its_line(write, text: str, expected: str):
    (found,) = problems(write(text))
    assert found.startswith(expected), found


def test_a_secret_in_the_config_itself_is_not_repeated(write):
    """A key belongs into the environment; the complaint does not quote it."""
    (found,) = problems(write("[connectors.c]\napi_key = 'sk-123456'"))
    assert "sk-123456" not in found


def test_all_problems_come_at_once_in_the_order_of_lines(write):
    found = problems(write("[connectors.c]\nmodle = 'm'\n[defaults]\nparallel = 0\nagnet = 1\n"))
    assert [each.split(":")[0] for each in found] == ["2", "4", "5"]


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"a = '\xff'"])
def test_what_is_not_utf_8_is_refused(tmp_path: Path, raw: bytes):
    (tmp_path / "viva.toml").write_bytes(raw)
    assert problems(tmp_path / "viva.toml") == ["0: : is not UTF-8"]


def test_a_byte_order_mark_is_not_content(tmp_path: Path):
    (tmp_path / "viva.toml").write_bytes(b"\xef\xbb\xbf[defaults]\nagent = 'a'\n")
    assert config.load_settings(None, tmp_path).defaults.agent == "a"


def test_an_env_file_has_names_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("PLAIN", "QUOTED", "DOUBLE", "EMPTY", "EQUALS"):
        monkeypatch.setenv(name, "before")
    env = tmp_path / ".env"
    env.write_text(
        "# c\n\nPLAIN=a b\nexport QUOTED='it''s'\n DOUBLE = \"x # y\"\nEMPTY=\nEQUALS=a=b==\n", encoding="utf-8"
    )
    environ = config.load_settings(None, tmp_path, env).environ
    assert {name: environ[name] for name in ("PLAIN", "QUOTED", "DOUBLE", "EMPTY", "EQUALS")} == {
        "PLAIN": "a b",
        "QUOTED": "it''s",
        "DOUBLE": "x # y",
        "EMPTY": "",
        "EQUALS": "a=b==",
    }


@pytest.mark.parametrize(("text", "line"), [("A=1\nnonsense\n", 2), ("1A=2", 1), ("A B=2", 1), ("=x", 1)])
def test_a_bad_line_of_an_env_file_is_named_and_not_quoted(
    tmp_path: Path, text: str, line: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("A", "")
    env = tmp_path / ".env"
    env.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as raised:
        config.load_settings(None, tmp_path, env)
    assert str(raised.value) == f"{env}:{line}: is not NAME=value"


def test_a_connector_named_after_a_provider_uses_its_api_at_any_address(write, monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    url = "base_url = 'http://127.0.0.1:1/'"
    text = (
        f"[connectors.gemini]\nmodels = ['gemini-*']\n{url}\n[connectors.anthropic]\n{url}\n[connectors.mine]\n{url}\n"
    )
    found = config.load_settings(write(text), Path()).connectors  # P3: it is how `evaluator_model` is reached
    assert {name: each.provider for name, each in found.items()} == {
        "gemini": "gemini",
        "anthropic": "anthropic",
        "mine": "openai",
    }
    assert {each.base_url for each in found.values()} == {"http://127.0.0.1:1"}


def test_a_connector_without_an_address_has_the_one_of_the_environment(write, monkeypatch: pytest.MonkeyPatch):
    """Who points the CLI under test at a stand-in does not mean its evaluator to go to the provider itself."""
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", "http://127.0.0.1:2/")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:3/v1")
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)
    text = (
        "[connectors.gemini]\n[connectors.anthropic]\n[connectors.a]\n[connectors.b]\nbase_url = 'http://127.0.0.1:4'\n"
    )
    found = config.load_settings(write(text), Path()).connectors
    assert {name: each.base_url for name, each in found.items()} == {
        "gemini": "http://127.0.0.1:2",
        "anthropic": "",
        "a": "http://127.0.0.1:3/v1",
        "b": "http://127.0.0.1:4",
    }


@pytest.mark.parametrize(
    ("table", "struct"),
    [
        ("defaults", config.Defaults),
        ("openwop", config.OpenwopSettings),
        ("history", config.HistorySettings),
        ("connector", Connector),
    ],
)
def test_a_key_of_the_schema_is_a_field_of_the_settings(table: str, struct: type[Struct]):
    """A key without a field would end the run with a TypeError, or be ignored."""
    schema: Any = codec.decode(read_schema("config"))
    keys = (schema["$defs"] | schema["properties"])[table]["properties"]
    fields = {"timeout": "timeout_s", "turn_timeout": "turn_timeout_s", "body": "extra", "api_key_env": "key_source"}
    assert {fields.get(key, key) for key in keys} - set(struct.__struct_fields__) == set()


def test_a_replay_compares_the_settings_that_change_answers():
    """A new field of a connector is added here, or to the settings that the answer depends on."""
    names = [name for name in Connector.__struct_fields__ if name not in ("provider", "api")]
    values: dict[str, Any] = dict.fromkeys(names, "x")
    compared = select_answer_settings(Connector(provider="openai", **values))
    assert set(names) - compared.keys() == {
        *("name", "base_url", "api_key", "key_source", "headers", "is_built_in"),
        *("timeout_s", "retries", "requests_per_minute", "tokens_per_minute", "price", "models"),
    }


def test_one_mistake_hides_no_other(write):
    """Neither a key that does not fit the connectors that do, nor one connector the next."""
    file = write(
        """\
[agent.x]
use = "python:a.py:b"
[connectors.one]
base_url = "localhost:8000"
[connectors.two]
modle = "m"
[connectors.three]
base_url = "$NO_SUCH_VARIABLE_HERE"
[connectors.four]
base_url = "http://"
"""
    )
    found = problems(file)
    assert [each.partition(":")[0] for each in found] == ["1", "4", "6", "8", "10"], found  # N2
    assert "did you mean http://localhost:8000?" in found[1]
    assert "does not name a host" in found[4]
