"""The real Gemini CLI, run by `viva test` as a user types it, against the stand-in for the Gemini API."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from project import Project
from scripted_clis import COMPILED, JUDGE, ScriptedCli, call_stubbed_tool, processes, puppet
from viva.model.message import ToolCall
from viva.testing import GeminiServer, ModelRequest, Say
from viva.testing.model_server import ScriptLine

EXAMPLES = Path(__file__).parents[2] / "examples" / "playbooks"


@pytest.fixture
def stand_in_server(project: Project) -> Iterator[ScriptedCli]:
    with GeminiServer(puppet) as server:
        yield ScriptedCli(project, server, ".gemini", "gemini")


def step(said: str, outcome: str = "It did so.") -> dict[str, str]:
    return {"user_input": said, "expected_outcome": outcome}


def test_its_own_tool_makes_a_file_and_the_next_turn_resumes_the_session(stand_in_server: ScriptedCli) -> None:
    name = stand_in_server.playbook("two_steps", steps=[step("WRITE notes.txt: buy milk"), step("What have I said?")])
    ended, (record,) = stand_in_server.test("-i", name)
    assert "auto-approve mode" in ended.out  # P10
    first, second = record["turns"]
    (call,) = first["tool_calls"]
    assert call["name"] == "write_file"  # the tool of the CLI, with its arguments
    assert call["args"]["content"] == "buy milk"
    assert [(file["path"], file["change"]) for file in first["files"]] == [("notes.txt", "added")]  # P4
    assert first["output"].startswith("I will.")
    assert "WRITE notes.txt: buy milk" in second["output"]  # P11: the server saw the first turn in the second
    assert "What have I said?" in second["output"]
    assert stand_in_server.said[-1] == "What have I said?"  # what is new is the new message alone
    assert first["usage"]["input_tokens"] == 20  # P11: two calls of ten tokens each, and then one
    assert second["usage"]["input_tokens"] == 10
    assert {asked.model for asked in stand_in_server.server.model_requests} == {"m-1", "judge-1"}  # P3
    assert stand_in_server.untouched()  # P10
    assert stand_in_server.server.unknown_requests == []
    assert processes(str(stand_in_server.project.folder)) == []
    assert list(stand_in_server.temporary.iterdir()) == []  # P5: what passed is cleaned away


def test_a_persona_continues_until_every_criterion_holds(stand_in_server: ScriptedCli) -> None:
    criteria = {
        "llm_checks": ["Both files were made."],
        "flow_contains": ["All done as asked."],
        "files_exist": ["first.txt", "second.txt"],
        "files_contain": {"first.txt": ["one"], "second.txt": ["two"]},
        "tool_calls_contain": {"write_file": ["second.txt", "two"]},
    }
    persona = {"initial_user_input": "WRITE first.txt: one", "context": "You want two files.", "max_turns": 3}
    name = stand_in_server.playbook("persona", persona=persona | {"success_criteria": criteria})
    _, (record,) = stand_in_server.test("-i", name)
    assert [turn["input"] for turn in record["turns"]] == ["WRITE first.txt: one", "WRITE second.txt: two"]  # P8
    simulated = [
        asked for asked in stand_in_server.server.model_requests if "You play a person" in asked.system + asked.text
    ]
    assert len(simulated) == 1
    assert "Both files were made" not in json.dumps(simulated[0].json)  # P3: the user never sees the criteria


def test_a_refused_tool_does_not_count(stand_in_server: ScriptedCli) -> None:
    stand_in_server.config('[agents.careful]\ntype = "gemini"\nmodel = "m-1"\napproval = "default"')
    persona = {"initial_user_input": "WRITE no.txt: x", "context": "You want a file.", "max_turns": 1}
    name = stand_in_server.playbook(
        "refused", persona=persona | {"success_criteria": {"tool_calls_contain": {"write_file": []}}}
    )
    ended, (record,) = stand_in_server.test("-i", name, "-n", "careful", code=1)
    assert record["status"] == "failed"  # P9
    assert "auto-approve" not in ended.out  # P10
    (call,) = record["turns"][0]["tool_calls"]
    assert call["name"] == "write_file"
    assert call["error"]
    assert "files" not in record["turns"][0]


def test_a_hang_is_cut_off_and_no_process_survives(stand_in_server: ScriptedCli) -> None:
    mark = f"31{os.getpid()}"
    # On a busy machine the CLI needs more than ten seconds to send its first request.
    stand_in_server.playbook("hang", timeout=30, steps=[step("HANG")])
    stand_in_server.playbook("daemon", timeout=30, steps=[step(f"RUN setsid sleep {mark} & touch began; sleep {mark}")])
    _, (daemon, hang) = stand_in_server.test("-i", "playbooks", code=1)
    assert len(stand_in_server.said) == 2
    assert Path(daemon["workspace"], "began").exists()  # P5: kept, to be looked at
    for record in (daemon, hang):
        assert (record["status"], record["fault"]) == ("failed", "agent")  # P11
        assert record["error"] == "timeout after 30s"  # P7
    assert processes(mark) == []  # P7
    assert processes(str(stand_in_server.project.folder)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_survives_when_viva_is_interrupted_or_killed(stand_in_server: ScriptedCli, number: int) -> None:
    name = stand_in_server.playbook("hang", timeout=60, steps=[step("HANG")])
    process = stand_in_server.project.start("test", "-i", name)
    stand_in_server.server.wait_for(lambda: bool(stand_in_server.server.requests), 30)
    assert processes(str(stand_in_server.temporary))
    process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode in (2, -signal.SIGKILL)  # N35
    due = time.monotonic() + 20
    while left := processes(str(stand_in_server.temporary)):  # a killed one cannot wait for them
        assert number == signal.SIGKILL, left
        assert time.monotonic() < due, left


def test_what_the_provider_refuses_and_what_it_cannot_do_now_are_different_faults(stand_in_server: ScriptedCli) -> None:
    stand_in_server.playbook("bad", steps=[step("FAIL 400")])
    stand_in_server.playbook("busy", timeout=30, steps=[step("FAIL 503")])
    _, (bad, busy) = stand_in_server.test("-i", "playbooks", "--retry-faults", "0", code=1)
    assert (bad["status"], bad["fault"]) == ("failed", "agent")  # P11
    assert bad["error"].startswith("agent error: ")
    assert "the puppet fails" in bad["error"]
    assert (busy["status"], busy["fault"]) == ("error", "infra")  # P11
    assert "503" in busy["error"]
    # P10: it writes what it sent to its TMPDIR, the values of variables too; that goes, though the workspace is kept.
    assert Path(bad["workspace"]).is_dir()
    assert not list(stand_in_server.temporary.rglob("gemini-client-error*"))


def test_what_it_warns_of_itself_is_in_the_report(project: Project) -> None:
    """A model that calls the same tool again and again: the CLI ends the turn by itself, as a success."""

    def again(asked: ModelRequest) -> ScriptLine:
        return (
            puppet(asked) if asked.model == JUDGE else Say(tool_calls=[ToolCall("list_directory", {"dir_path": "."})])
        )

    with GeminiServer(again) as server:
        stand_in_server = ScriptedCli(project, server, ".gemini", "gemini")
        persona = {"initial_user_input": "Look around.", "context": "-", "max_turns": 1}
        criteria = {"tool_calls_contain": {"list_directory": []}}
        name = stand_in_server.playbook("loop", timeout=60, persona=persona | {"success_criteria": criteria})
        ended, (record,) = stand_in_server.test("-i", name)
    assert record["warnings"] == ["turn 1: Gemini CLI: Loop detected, stopping execution"]
    assert "Loop detected" in ended.out


def test_a_turn_without_a_result_is_a_failed_turn(stand_in_server: ScriptedCli) -> None:
    name = stand_in_server.playbook("killed", steps=[step("RUN kill -TERM $PPID; sleep 5")])
    _, (record,) = stand_in_server.test("-i", name, code=1)
    assert (record["status"], record["fault"]) == ("failed", "agent")  # P11
    assert record["error"].startswith("agent error: ")
    assert "result" in record["error"]


def test_a_link_leads_out_of_the_workspace_and_what_changed_there_is_reported(stand_in_server: ScriptedCli) -> None:
    stand_in_server.project.write("shared/given.txt", "given")
    persona = {"initial_user_input": "WRITE shared/new.txt: from inside", "context": "-", "max_turns": 1}
    criteria = {"files_contain": {"shared/new.txt": ["from inside"], "shared/given.txt": ["given"]}}
    name = stand_in_server.playbook(
        "linked", tmpdir={"link_paths": ["shared"]}, persona=persona | {"success_criteria": criteria}
    )
    # P5: without --include-directories the CLI would refuse the path
    _, (record,) = stand_in_server.test("-i", name, "--link-mode", "symlink")
    assert (stand_in_server.project.folder / "shared" / "new.txt").read_text(encoding="utf-8") == "from inside"
    assert any("shared/new.txt" in warning for warning in record["warnings"])


def test_what_a_playbook_links_is_copied_for_it(stand_in_server: ScriptedCli) -> None:
    """P5: it would refuse to edit a linked file; the host's own files stay as they are."""
    stand_in_server.project.write("given.txt", "given")
    stand_in_server.project.write("shared/node_modules/dep.txt", "dep")
    persona = {"initial_user_input": "WRITE given.txt: from inside", "context": "-", "max_turns": 1}
    criteria = {"files_contain": {"given.txt": ["from inside"], "shared/node_modules/dep.txt": ["dep"]}}
    links = {"link_paths": ["given.txt", "shared/node_modules"]}
    name = stand_in_server.playbook("copied", tmpdir=links, persona=persona | {"success_criteria": criteria})
    _, (record,) = stand_in_server.test("-i", name)
    assert "warnings" not in record
    assert (stand_in_server.project.folder / "given.txt").read_text(encoding="utf-8") == "given"


def test_two_cases_at_once_do_not_see_each_other(stand_in_server: ScriptedCli) -> None:
    def both(case_id: str) -> dict[str, Any]:
        written = {"type": "file_contains", "path": "same.txt", "value": case_id}
        first = {"input": f"WRITE same.txt: {case_id}", "assertions": [written]}
        return {
            "id": case_id,
            "turns": [first, {"input": "Again?", "assertions": [{"type": "contains", "value": case_id}]}],
        }

    stand_in_server.project.suite(both("apricot"), both("walnut"))
    _, records = stand_in_server.test(agent="gemini")
    first, second = (record["turns"][1]["output"] for record in records)
    assert ("walnut" in first, "apricot" in second) == (False, False)
    assert not (stand_in_server.project.folder / "same.txt").exists()  # P5: the repository was copied


def test_what_was_recorded_is_replayed_without_the_cli(stand_in_server: ScriptedCli) -> None:
    criteria = {"files_contain": {"kept.txt": ["on tape"]}, "tool_calls_contain": {"write_file": ["kept.txt"]}}
    persona = {"initial_user_input": "WRITE kept.txt: on tape", "context": "-", "max_turns": 1}
    name = stand_in_server.playbook("taped", persona=persona | {"success_criteria": criteria})
    stand_in_server.test("-i", name, "--record", "chat.cassette")
    asked = len(stand_in_server.server.requests)
    stand_in_server.project.env["PATH"] = os.defpath
    _, (record,) = stand_in_server.test("-i", name, "--replay", "chat.cassette")
    assert record["turns"][0]["tool_calls"][0]["name"] == "write_file"
    assert len(stand_in_server.server.requests) == asked


def test_the_examples_run_as_their_readme_says(stand_in_server: ScriptedCli) -> None:
    folder = Path(shutil.copytree(EXAMPLES, stand_in_server.project.folder / "examples"))
    command = "viva test -i playbooks/ -n gemini --env-file release.env"
    written = f"python -m viva.testing gemini --script replies.yaml -- {command}"
    assert written in (folder / "README.md").read_text(encoding="utf-8")
    words = [sys.executable, "-m", *written.split()[2:], "-k", "greeting"]
    ended = subprocess.run(
        words, cwd=folder, env=stand_in_server.project.env, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


def test_without_a_login_it_says_so_and_does_not_wait(stand_in_server: ScriptedCli) -> None:
    del stand_in_server.project.env["GEMINI_API_KEY"]
    stand_in_server.project.suite({"id": "a", "input": "Hello", "assertions": [{"type": "contains", "value": "x"}]})
    _, (record,) = stand_in_server.test(agent="gemini", code=1)
    assert (record["status"], record["fault"]) == ("error", "infra")  # N17, P10
    assert "login" in record["error"].lower() or "auth" in record["error"].lower()
    assert record["duration_ms"] < 15_000


def test_a_message_too_long_for_a_command_line_arrives_whole(stand_in_server: ScriptedCli) -> None:
    assert stand_in_server.send_long_message("gemini")


def test_its_tools_are_those_of_the_case(project: Project) -> None:  # W3
    agent = f'[agents.coder]\ntype = "gemini"\nmodel = "m-1"\n{COMPILED}\n'
    record = call_stubbed_tool(project, GeminiServer, ".gemini", agent)
    assert [(call["name"], call["args"]) for call in record["turns"][0]["tool_calls"]] == [("lookup", {"id": 7})]
