"""Which CLIs are there, in which version, and what they miss."""

import asyncio
import json
import os

from terminals import fake, host
from viva.agents.cli.gemini import GEMINI
from viva.agents.cli.installed import Installed, look_at, too_old


def looked_at(folder, logins: str | None = None, **env: str) -> Installed:
    return asyncio.run(look_at("gemini", host(folder, **env), GEMINI, logins))


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


def test_one_that_is_not_there_is_named_with_how_to_install_it(tmp_path):
    found = looked_at(tmp_path)
    assert found.executable is None
    assert found.missing is not None
    assert "npm install -g @google/gemini-cli" in found.missing


def test_one_that_is_too_old_is_missing_too(tmp_path):
    fake(tmp_path, "gemini", "", version="0.9.0-nightly")
    assert looked_at(tmp_path, GEMINI_API_KEY="k").missing == "Gemini CLI 0.9.0 is too old: 0.30.0 or newer is needed"


def test_versions_are_compared_by_number(tmp_path):
    path = fake(tmp_path, "gemini", "", version="0.100.0")
    assert asyncio.run(too_old(str(path), dict(os.environ), GEMINI)) is None


def test_a_missing_login_is_told_before_anything_runs(tmp_path):
    fake(tmp_path, "gemini", "")
    assert "no login: set GEMINI_API_KEY or" in (looked_at(tmp_path).missing or "")  # P10
    (tmp_path / ".gemini").mkdir()
    (tmp_path / ".gemini" / "oauth_creds.json").write_text("{}", encoding="utf-8")
    assert looked_at(tmp_path, logins=str(tmp_path)).missing is None
    assert looked_at(tmp_path).missing is not None
