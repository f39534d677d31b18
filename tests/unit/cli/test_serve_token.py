"""`viva serve token`."""

import json

import pytest

from project import Project


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
        (("add",), "Whose token?"),
        (("add", "acme", "--scope", "runs:write"), "there is no scope"),
        (("add", "acme", "--scope", "admin"), "whole host"),
        (("add", "--scope", "admin", "--scope", "runs:read"), "whole host"),
        (("add", "a b"), "no name of a tenant"),
        (("add", "acme", "--expires", "soon"), "--expires"),
        (("add", "acme", "--expires", "0d"), "--expires"),
        (("revoke", "tok-none"), "there is no token"),
    ],
)
def test_mistakes_are_explained(project: Project, arguments: tuple[str, ...], message: str):
    ended = project.viva("serve", "token", *arguments)
    assert (ended.code, message in ended.err) == (4, True), ended
