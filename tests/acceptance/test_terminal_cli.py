"""Terminal agents from the command line, with fakes that are real programs."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from project import InProcessProject, Project
from terminals import fake

INIT = 'say(type="init", session_id=option("--resume") or "s-1")\n'
DONE = 'say(type="result", status="success")\n'
ECHO = INIT + 'say(type="message", role="assistant", content="you said " + option("--prompt"))\n' + DONE


@pytest.fixture
def place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Project:
    """A project, and beside it a folder of programs that alone is the PATH."""
    project = InProcessProject(tmp_path / "project", capfd)
    project.env = {key: value for key, value in project.env.items() if not key.endswith(("_API_KEY", "_BASE_URL"))}
    project.env |= {"PATH": f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin", "HOME": str(tmp_path)}
    (tmp_path / "tmp").mkdir()
    project.env["TMPDIR"] = str(tmp_path / "tmp")  # what failed leaves its workspace there
    return project


def case(said: str, expected: str, **more: str) -> dict[str, Any]:
    return {
        "id": said.split(maxsplit=1)[0],
        "input": said,
        "assertions": [{"type": "contains", "value": expected}],
        **more,
    }


def test_a_cli_is_examined_by_its_name_alone(place: Project, tmp_path: Path):
    fake(tmp_path, "gemini", ECHO)
    turns = [{"input": said, "assertions": [{"type": "equals", "value": f"you said {said}"}]} for said in ("a", "b")]
    place.suite({"id": "two", "turns": turns})
    assert "auto-approve" in place.test(agent="gemini", env={"GEMINI_API_KEY": "k-123456"}, code=0).out  # P10


def test_a_cli_that_is_not_installed_is_an_error_of_the_environment(place: Project):
    place.suite(case("hello", "x"))
    ended, (record,) = place.report(agent="claude")
    assert (ended.code, record["status"], record["fault"]) == (1, "error", "infra")  # N17
    assert "Claude Code is not installed" in record["error"]
    assert record["attempt"] == 1, "a retry would find the same"


def test_time_is_up_and_the_last_words_of_the_agent_are_shown(place: Project, tmp_path: Path):
    fake(tmp_path, "gemini", INIT + 'print("still thinking", file=sys.stderr, flush=True); time.sleep(600)')
    place.suite(case("hello", "x", turn_timeout="3s"))
    ended, (record,) = place.report(agent="gemini", env={"GEMINI_API_KEY": "k-123456"})
    assert (record["status"], record["fault"], record["error"]) == ("failed", "agent", "timeout after 3s")  # P11
    assert record["warnings"] == ["stderr: still thinking"]
    assert "still thinking" in ended.out


def test_what_it_leaves_in_its_tmpdir_goes_though_its_workspace_is_kept(place: Project, tmp_path: Path):
    """P10: the Gemini CLI writes what its provider refused there, with the values of variables."""
    leave = 'open(os.environ["TMPDIR"] + "/client-error.json", "w").write(os.environ["GEMINI_API_KEY"])\n'
    fake(tmp_path, "gemini", INIT + leave + 'say(type="result", status="error", error={"message": "400"})\n')
    place.suite(case("hello", "x"))
    _, (record,) = place.report(agent="gemini", env={"GEMINI_API_KEY": "k-123456"})
    assert record["status"] == "failed"
    (kept,) = (tmp_path / "tmp").iterdir()
    assert str(kept / "work") == record["workspace"]
    assert sorted(path.name for path in kept.iterdir()) == [".viva-kept", "work"]


@pytest.mark.parametrize("end", [DONE, "sys.exit(1)"])
def test_warnings_of_a_cli_are_recorded_for_every_end_of_the_turn(place: Project, tmp_path: Path, end: str):
    warning = 'say(type="error", severity="warning", message="Loop detected, stopping execution")\n'
    fake(tmp_path, "gemini", INIT + warning + warning + end)
    place.suite(case("hello", "x"))
    _, (record,) = place.report(agent="gemini", env={"GEMINI_API_KEY": "k-123456"})
    assert record["warnings"][0] == "turn 1: Gemini CLI: Loop detected, stopping execution"  # P11
    assert str(record["warnings"]).count("Loop detected") == 1


def test_a_missing_login_is_in_the_error_of_the_case(place: Project, tmp_path: Path):
    fake(tmp_path, "qwen", 'print("No auth type is selected.", file=sys.stderr); sys.exit(1)')
    place.suite(case("hello", "x"))
    _, (record,) = place.report(agent="qwen", env={"OPENAI_API_KEY": "k-123456"})
    assert (record["status"], record["fault"]) == ("error", "infra")
    assert "qwen-code needs a login: No auth type is selected." in record["error"]  # P10


def test_without_a_key_a_cli_is_not_even_started(place: Project, tmp_path: Path):
    """P10: it would wait for a login, or for the network, until its time is up."""
    fake(tmp_path, "codex", 'open("began", "w"); time.sleep(600)')
    place.suite(case("hello", "x", turn_timeout="60s"))
    ended, (record,) = place.report("--retry-faults", "0", "--keep-workspace", agent="codex")
    assert (ended.code, record["status"], record["fault"]) == (1, "error", "infra")
    assert "Codex has no login: set CODEX_API_KEY or OPENAI_API_KEY" in record["error"]
    assert not list((tmp_path / "tmp").rglob("began"))


def test_a_command_of_the_config_and_its_secrets(place: Project, tmp_path: Path):
    fake(tmp_path, "mycli", 'print("the key is", os.environ["MY_KEY"], "in", args[0])')
    place.write(
        "viva.toml", '[agents.mine]\ntype = "command"\ncommand = ["mycli", "{input}"]\nenv = { MY_KEY = "$OUTER" }\n'
    )
    place.suite(case("hello", "in hello"))
    ended, (record,) = place.report(agent="mine", env={"OUTER": "sesame-open"}, code=0)
    assert "sesame-open" not in json.dumps(record) + ended.out


def test_agents_tells_what_is_there_and_what_is_missing_without_a_config(place: Project, tmp_path: Path):
    fake(tmp_path, "gemini", "", version="0.61.0")
    fake(tmp_path, "codex", "", version="codex-cli 0.2.0")
    ended = place.viva("agents", env={"GEMINI_API_KEY": "k"}, code=0)
    assert "✓ gemini  0.61.0" in ended.out
    assert "✗ codex  0.2.0  Codex 0.2.0 is too old" in ended.out
    assert "✗ claude  Claude Code is not installed" in ended.out


def test_agents_tells_machines_too_and_fails_for_what_the_config_wants(place: Project, tmp_path: Path):
    fake(tmp_path, "gemini", "", version="0.61.0")
    place.write("viva.toml", '[agents.g]\ntype = "gemini"\n[agents.o]\ntype = "opencode"\n')
    ended = place.viva("agents", "--json", code=1)
    told = json.loads(ended.out)
    assert [(row["name"], row.get("version"), bool(row.get("missing"))) for row in told["agents"]] == [
        ("g", "0.61.0", True),  # P10: it has no login
        ("o", None, True),
    ]
    assert {row["name"] for row in told["clis"]} == {"gemini", "claude", "codex", "qwen", "opencode"}


def test_one_that_does_not_answer_for_its_version_does_not_hold_up_the_list(
    place: Project, tmp_path: Path, shorten: Callable[[str, float], None]
):
    shorten("viva.agents.cli.installation._VERSION_S", 0.5)
    (tmp_path / "bin").mkdir()
    slow = tmp_path / "bin" / "gemini"
    slow.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    slow.chmod(0o755)
    assert "✓ gemini\n" in place.viva("agents", env={"GEMINI_API_KEY": "k"}, timeout_s=50).out
