"""Which CLIs are there, in which version, and what they miss."""

import asyncio
import json
import os
import sys
from pathlib import Path

from terminals import command_agent, fake, host
from viva.agents.acp import AcpAgent
from viva.agents.agent_config import AgentStatus
from viva.agents.cli.cli_agent import CliAgent
from viva.agents.cli.gemini import GEMINI
from viva.agents.cli.installation import check_version, inspect_installation
from viva.workspace.folders import LocalWorkspaces


def looked_at(folder, logins: str | None = None, **env: str) -> AgentStatus:
    return asyncio.run(inspect_installation("gemini", host(folder, **env), GEMINI, logins, LocalWorkspaces()))


def test_the_version_is_read_beside_the_program_where_npm_put_it(tmp_path):
    """No process is started for that."""
    package = tmp_path / "lib" / "node_modules" / "@google" / "gemini-cli"
    (package / "bundle").mkdir(parents=True)
    (package / "package.json").write_text(json.dumps({"name": "@google/gemini-cli", "version": "0.61.0"}), "utf-8")
    program = package / "bundle" / "gemini.js"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n", encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gemini").symlink_to(program)
    found = looked_at(tmp_path, GEMINI_API_KEY="k")
    assert (found.version, found.missing) == ("0.61.0", None)
    assert not (tmp_path / "ran").exists()


def test_others_are_asked_for_it(tmp_path):
    fake(tmp_path, "gemini", "", version="Gemini CLI v0.33.1 (stable)")
    assert looked_at(tmp_path, GEMINI_API_KEY="k").version == "0.33.1"


NOSY = """#!{python}
import json, os, pathlib, sys
seen = {{"cwd": os.getcwd(), "here": os.listdir(), "env": dict(os.environ)}}
pathlib.Path({seen!r}).write_text(json.dumps(seen))
print("1.2.3")
"""


def nosy(folder: Path, name: str = "gemini") -> Path:
    """A program that writes down where it is run, and with what."""
    path = fake(folder, name, "")
    path.write_text(NOSY.format(python=sys.executable, seen=str(folder / "seen")), encoding="utf-8")
    return path


def test_it_is_asked_in_an_empty_folder_of_its_own_with_a_small_environment(tmp_path):
    """P10: nothing of an agent is run outside of its own folders."""
    nosy(tmp_path)
    assert looked_at(tmp_path, GEMINI_API_KEY="k", OTHER="secret", TMPDIR=str(tmp_path)).version == "1.2.3"
    seen = json.loads((tmp_path / "seen").read_text(encoding="utf-8"))
    top = os.path.dirname(seen["cwd"])
    assert os.path.basename(top).startswith("viva-version-")
    assert seen["here"] == []
    assert (seen["env"]["HOME"], seen["env"]["TMPDIR"]) == (f"{top}/home", f"{top}/tmp")
    assert not {"GEMINI_API_KEY", "OTHER"} & set(seen["env"])
    assert not os.path.exists(top)


def test_a_command_that_the_user_has_configured_is_not_run_to_ask_it(tmp_path):
    """P10."""
    program = nosy(tmp_path, "my-gemini")
    for agent in (
        CliAgent(spec=GEMINI, command=(str(program),), host=host(tmp_path)),
        command_agent(command=(str(program),), output="gemini", host=host(tmp_path)),
        AcpAgent(command=(str(nosy(tmp_path)), "--acp"), host=host(tmp_path)),
    ):
        status = asyncio.run(agent.inspect(LocalWorkspaces()))
        assert (status.executable, status.version) == (agent.command[0], None)
    assert not (tmp_path / "seen").exists()


def test_one_that_does_not_exist_is_named_with_how_to_install_it(tmp_path):
    found = looked_at(tmp_path)
    assert found.executable is None
    assert found.missing is not None
    assert "npm install -g @google/gemini-cli" in found.missing


def test_one_that_is_too_old_is_missing_too(tmp_path):
    fake(tmp_path, "gemini", "", version="0.9.0-nightly")
    assert looked_at(tmp_path, GEMINI_API_KEY="k").missing == "Gemini CLI 0.9.0 is too old: 0.30.0 or newer is needed"


def test_versions_are_compared_by_number(tmp_path):
    path = fake(tmp_path, "gemini", "", version="0.100.0")
    assert asyncio.run(check_version(str(path), dict(os.environ), GEMINI, LocalWorkspaces())) is None


def test_a_version_of_any_length_is_compared(tmp_path):  # 12.9
    path = fake(tmp_path, "gemini", "")
    package = {"name": "@google/gemini-cli", "version": "9" * 5000}
    (path.parent / "package.json").write_text(json.dumps(package), encoding="utf-8")
    assert asyncio.run(check_version(str(path), dict(os.environ), GEMINI, LocalWorkspaces())) is None


def test_a_missing_login_is_reported_before_anything_runs(tmp_path):
    fake(tmp_path, "gemini", "")
    assert "no login: set GEMINI_API_KEY or" in (looked_at(tmp_path).missing or "")  # P10
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini" / "oauth_creds.json").write_text("{}", encoding="utf-8")
    assert looked_at(tmp_path, logins=str(tmp_path)).missing is None
    assert looked_at(tmp_path).missing is not None
