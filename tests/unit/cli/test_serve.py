"""`viva serve`: its tokens, flags and warnings."""

import json

import pytest

from project import Project
from viva.cli.serve import find_address_warning


def test_the_audit_log_has_new_and_revoked_tokens(project: Project):
    project.write("viva.toml", '[serve]\naudit_log = "audit.jsonl"\n')
    added = project.viva("serve", "token", "add", "acme", code=0)
    name = added.err.split(":")[0]
    project.viva("serve", "token", "revoke", name, code=0)
    entries = [json.loads(line) for line in (project.folder / "audit.jsonl").read_text().splitlines()]
    assert [(entry["action"], entry["tenant"], entry["token"]) for entry in entries] == [
        ("add_token", "acme", name),
        ("revoke_token", "acme", name),
    ]
    assert added.out.strip() not in (project.folder / "audit.jsonl").read_text()


def test_the_commands_add_list_and_revoke(project: Project):
    added = project.viva(
        "serve", "token", "add", "acme", "--scope", "runs:read", "--expires", "90d", "--note", "CI", code=0
    )
    token, name = added.out.strip(), added.err.split(":")[0]
    assert token.startswith("viva-")
    listed = project.viva("serve", "token", "list", code=0).out
    assert name in listed
    assert token not in listed
    assert {"acme", "runs:read", "CI"} <= set(listed.split())
    stored = json.loads((project.folder / ".viva" / "host" / "tokens.json").read_text())
    assert (stored[0]["tenant"], stored[0]["scopes"]) == ("acme", ["runs:read"])
    assert stored[0]["expires_at"] > 0
    project.viva("serve", "token", "revoke", name, code=0)
    assert project.viva("serve", "token", "list", code=0).out == ""
    admin = project.viva("serve", "token", "add", "--scope", "admin", code=0)
    assert "the host, admin" in admin.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add",), "No tenant given"),
        (("add", "acme", "--scope", "runs:write"), "there is no scope"),
        (("add", "acme", "--scope", "admin"), "whole host"),
        (("add", "--scope", "admin", "--scope", "runs:read"), "whole host"),
        (("add", "a b"), "is not a valid tenant name"),
        (("add", "acme", "--expires", "soon"), "--expires"),
        (("add", "acme", "--expires", "0d"), "--expires"),
        (("revoke", "tok-none"), "there is no token"),
    ],
)
def test_mistakes_are_explained(project: Project, arguments: tuple[str, ...], message: str):
    ended = project.viva("serve", "token", *arguments)
    assert (ended.code, message in ended.err) == (4, True), ended


@pytest.mark.parametrize(
    ("address", "url", "is_warned"),
    [
        ("0.0.0.0", "http://0.0.0.0:8765", True),
        ("10.0.0.7", "http://evals.example.com", True),
        ("0.0.0.0", "https://evals.example.com", False),
        ("127.0.0.1", "http://127.0.0.1:8765", False),
    ],
)
def test_plain_http_on_a_public_address_is_warned_about(address: str, url: str, is_warned: bool):
    assert ("plain text" in (find_address_warning(address, url) or "")) is is_warned


@pytest.mark.parametrize(
    ("flags", "config", "message"),
    [
        (("--keep", "soon"), "", "30d"),
        ((), '[serve]\nkeep = "0d"', "viva.toml:2"),
        ((), '[serve]\nmetrics_address = "9464"', "viva.toml:2"),
        (("--port", "9464"), '[serve]\nmetrics_address = "127.0.0.1:9464"', "viva.toml:2"),
        ((), '[serve]\ntrusted_proxies = ["proxy"]', "viva.toml:2"),
        ((), '[serve]\nheader_timeout = "soon"', "viva.toml:2"),
        ((), '[serve]\nadmin_tokens = ["short"]', "viva.toml:2"),
        ((), '[openwop]\nagents = ["nobody"]', "viva.toml:2"),
        ((), '[openwop.tenants.a]\nkeep = "x"', "viva.toml:2"),
        ((), '[openwop.tenants.a]\nagents = ["nobody"]', "viva.toml:2"),
    ],
)
def test_mistakes_in_the_settings_of_a_host_are_explained(
    project: Project, flags: tuple[str, ...], config: str, message: str
):
    project.write("viva.toml", f'{config}\n[agents.a]\nuse = "python:./agent.py:agent"\n')
    ended = project.viva("serve", "--port", "0", *flags)
    assert ended.code in (2, 4), ended
    assert message in ended.err
