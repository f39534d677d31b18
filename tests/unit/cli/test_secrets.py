"""No secret that a run was given stands in anything that it keeps or says."""

import base64
import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from project import Project, case
from viva.testing import HttpServer, ReceivedRequest, StubResponse, json_response

PASSWORD, KEY, HEADER = "pa$$-w0rd/+&<x>", "K9-api-key-4711", "literal-h3ader-value"
USERINFO = f"user:{quote(PASSWORD, safe='')}"
REPORTS = ("r.jsonl", "r.json", "r.xml", "r.html", "r.md")


def forms(secret: str) -> list[str]:
    raw = secret.encode()
    return [
        secret,
        json.dumps(secret)[1:-1],
        quote(secret, safe=""),
        re.sub("%..", lambda code: code[0].lower(), quote(secret, safe="")),
        html.escape(secret),
        base64.b64encode(raw).decode().rstrip("="),
        base64.b64encode(b"user:" + raw).decode().rstrip("="),
    ]


def left_in(project: Project, *said: str, known: tuple[str, ...] = (PASSWORD, KEY)) -> list[tuple[str, str]]:
    """The files and texts that contain a form of a secret."""
    files = [path for path in project.folder.rglob("*") if path.is_file() and path.suffix not in (".toml", ".pyc")]
    texts = {str(path): path.read_bytes().decode(errors="replace") for path in files} | dict(enumerate(said))
    found = [form for secret in known for form in forms(secret)]
    return [(str(name), form) for name, text in texts.items() for form in found if form in text]


def echo(request: ReceivedRequest) -> StubResponse:
    """Returns the request in several encodings."""
    conversation = " | ".join(form for secret in (PASSWORD, KEY, HEADER) for form in forms(secret))
    headers = dict(request.headers)
    return json_response({"content": f"{request.path} {headers} {conversation}", "data": {KEY: [PASSWORD, headers]}})


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with HttpServer(echo) as server:
        yield server


def address(server: HttpServer) -> str:
    return server.url.replace("://", f"://{USERINFO}@") + f"/chat?api_key={KEY}&v=1"


def outputs(*names: str) -> list[str]:
    return [word for name in names for word in ("-o", name)]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_secrets_of_a_url_are_in_no_file_and_no_output(project: Project, server: HttpServer):
    project.suite(case("good", "chat"), case("bad", "chat", assertions=[{"type": "contains", "value": "never"}]))
    url = address(server)
    ended = project.test("-n", url, "-v", "--record", "c.cassette", *outputs(*REPORTS), code=1)
    runs = project.viva("runs")
    shown = project.viva("runs", "show", "latest", "--json")
    events = project.test("-n", url, "--json")
    replayed = project.test("-n", url, "--replay", "c.cassette", code=1)  # the definition fits, with its mask
    assert left_in(project, *(each.out + each.err for each in (ended, runs, shown, events, replayed))) == []
    masked = url.replace(USERINFO, "***").replace(KEY, "***")
    assert masked in runs.out
    assert project.records("r.jsonl")[0]["agent"] == masked
    assert (
        "stands for a secret" in project.test("-n", masked, code=4).err
    )  # the command of a report: it says what is missing


def test_secrets_of_the_config_are_in_no_file_and_no_output(project: Project, server: HttpServer):
    """A URL and headers, of an agent and of a connector."""
    project.suite(case("good", "chat"))
    project.write(
        "viva.toml",
        f'[agents.bot]\nurl = "{address(server)}"\nheaders = {{ X-Custom-Key = "{HEADER}" }}\n'
        f'[connectors.x]\nprovider = "openai"\nmodel = "m"\nbase_url = "{address(server)}"\n',
    )
    ended = project.test("--record", "c.cassette", "-v", *outputs(*REPORTS), agent=None, code=0)
    listed = project.viva("agents")
    as_json = project.viva("agents", "--json")
    assert "***" in listed.out
    direct = project.viva("test", "-i", "a message")
    said = [each.out + each.err for each in (ended, listed, as_json, direct)]
    assert left_in(project, *said, known=(PASSWORD, KEY, HEADER)) == []
    cassette = (project.folder / "c.cassette").read_text()
    assert "://***@" in cassette
    assert "api_key=***" in cassette


def test_a_resumed_run_needs_its_secrets_again(project: Project, server: HttpServer):
    project.suite(case("one", "chat"), case("two", "chat"))
    url = address(server)
    assert project.test("-n", url).code == 0
    journal = project.find_journal()
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if b'"run_ended"' not in line and b'"id":"two"' not in line))
    without = project.viva("test", "--resume", "latest", code=4)
    assert "secrets are not saved: pass -n again" in without.err
    other = project.viva("test", "--resume", "latest", "-n", server.url, code=4)
    assert "-n differs from that of the run" in other.err
    ended = project.viva("test", "--resume", "latest", "-n", url, code=0)
    assert left_in(project, without.err, other.err, ended.out) == []


def test_a_resumed_run_without_secrets_refuses_an_agent(project: Project):
    project.suite(case("one"))
    assert project.test().code == 0
    journal = project.find_journal()
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if b'"run_ended"' not in line))
    assert "remove -n" in project.viva("test", "--resume", "latest", "-n", "python:./agent.py:agent", code=4).err


@pytest.mark.parametrize("key", ["passed", "static", "123456", "assertions", "completed", '{"a":1}', "failed"])
def test_a_key_that_equals_a_word_of_the_record_keeps_the_record_readable(project: Project, key: str):
    """Only string values are redacted."""
    project.suite(case("passed", f"say {key}"), case("bad", "x", assertions=[{"type": "contains", "value": "y"}]))
    project.test("-v", *outputs(*REPORTS), env={"OPENAI_API_KEY": key}, code=1)
    assert [each["status"] for each in project.records("r.jsonl")] == ["passed", "failed"]
    assert project.records("r.jsonl")[0]["turns"][0]["output"] == "say ***"
    assert project.viva("runs", "show", "latest").code == 0


def test_stored_files_are_private(project: Project):
    # 0600 and 0700
    project.suite(case("one"))
    assert project.test("--record", "c.cassette", "-o", "r.jsonl").code == 0
    kept = [project.folder / "c.cassette", project.folder / ".viva", *(project.folder / ".viva").rglob("*")]
    assert {path.stat().st_mode & 0o077 for path in kept} == {0}


def test_an_agent_that_is_a_command_hides_its_options(project: Project):
    project.suite(case("one"))
    ended = project.test("-n", f"acp:./no-such-agent --token {KEY} --url http://{USERINFO}@host/", "-v")
    assert left_in(project, ended.out, ended.err, project.viva("runs").out) == []


def test_a_proxy_with_a_password_hides_it(project: Project):
    project.write("agent.py", f"def agent(messages, options):\n    return {PASSWORD!r}\n")
    project.suite({"id": "one", "input": "x", "assertions": [{"type": "contains", "value": "x"}]})
    env = {"HTTPS_PROXY": f"http://{USERINFO}@127.0.0.1:9"}
    ended = project.test("-v", "-o", "r.jsonl", env=env)
    assert project.records("r.jsonl")[0]["turns"][0]["output"] == "***", ended


@pytest.mark.parametrize("flag", ["-n", "-r", "--simulator", "--evaluator"])
def test_a_complete_run_refuses_agents_when_its_reports_are_written_again(project: Project, flag: str):
    project.suite(case("one"))
    assert project.test().code == 0
    given = project.viva("test", "--resume", "latest", flag, "python:./agent.py:agent", "-o", "again.jsonl")
    assert (given.code, "The run is complete" in given.err, f"remove {flag}" in given.err) == (4, True, True), given
    assert project.records("again.jsonl") == []
    assert project.viva("test", "--resume", "latest", "-o", "again.jsonl").code == 0
    assert [record["id"] for record in project.records("again.jsonl")] == ["one"]
