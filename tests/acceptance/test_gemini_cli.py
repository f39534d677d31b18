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
from puppets import JUDGE, RunContext, processes, puppet
from viva.model.message import ToolCall
from viva.testing import GeminiServer, ModelRequest, Say
from viva.testing.model_server import ScriptLine

EXAMPLES = Path(__file__).parents[2] / "examples" / "playbooks"


@pytest.fixture
def stand_in_server(project: Project) -> Iterator[RunContext]:
    with GeminiServer(puppet) as server:
        yield RunContext(project, server, ".gemini", "gemini")


def step(said: str, outcome: str = "It did so.") -> dict[str, str]:
    return {"user_input": said, "expected_outcome": outcome}


def test_its_own_tool_makes_a_file_and_the_next_turn_resumes_the_session(run_context: RunContext) -> None:
    name = run_context.playbook("two_steps", steps=[step("WRITE notes.txt: buy milk"), step("What have I said?")])
    ended, (record,) = run_context.test("-i", name)
    assert "auto-approve mode" in ended.out  # P10
    first, second = record["turns"]
    (call,) = first["tool_calls"]
    assert call["name"] == "write_file"  # the tool of the CLI, with its arguments
    assert call["args"]["content"] == "buy milk"
    assert [(file["path"], file["change"]) for file in first["files"]] == [("notes.txt", "added")]  # P4
    assert first["output"].startswith("I will.")
    assert "WRITE notes.txt: buy milk" in second["output"]  # P11: the server saw the first turn in the second
    assert "What have I said?" in second["output"]
    assert run_context.said[-1] == "What have I said?"  # what is new is the new message alone
    assert first["usage"]["input_tokens"] == 20  # P11: two calls of ten tokens each, and then one
    assert second["usage"]["input_tokens"] == 10
    assert {asked.model for asked in run_context.server.model_requests} == {"m-1", "judge-1"}  # P3
    assert run_context.untouched()  # P10
    assert run_context.server.unknown_requests == []
    assert processes(str(run_context.project.folder)) == []
    assert list(run_context.temporary.iterdir()) == []  # P5: what passed is cleaned away


def test_a_persona_goes_on_until_every_criterion_holds(run_context: RunContext) -> None:
    criteria = {
        "llm_checks": ["Both files were made."],
        "flow_contains": ["All done as asked."],
        "files_exist": ["first.txt", "second.txt"],
        "files_contain": {"first.txt": ["one"], "second.txt": ["two"]},
        "tool_calls_contain": {"write_file": ["second.txt", "two"]},
    }
    persona = {"initial_user_input": "WRITE first.txt: one", "context": "You want two files.", "max_turns": 3}
    name = run_context.playbook("persona", persona=persona | {"success_criteria": criteria})
    _, (record,) = run_context.test("-i", name)
    assert [turn["input"] for turn in record["turns"]] == ["WRITE first.txt: one", "WRITE second.txt: two"]  # P8
    simulated = [
        asked for asked in run_context.server.model_requests if "You play a person" in asked.system + asked.text
    ]
    assert len(simulated) == 1
    assert "Both files were made" not in json.dumps(simulated[0].json)  # P3: the user never sees the criteria


def test_a_refused_tool_does_not_count(run_context: RunContext) -> None:
    run_context.config('[agents.careful]\ntype = "gemini"\nmodel = "m-1"\napproval = "default"')
    persona = {"initial_user_input": "WRITE no.txt: x", "context": "You want a file.", "max_turns": 1}
    name = run_context.playbook(
        "refused", persona=persona | {"success_criteria": {"tool_calls_contain": {"write_file": []}}}
    )
    ended, (record,) = run_context.test("-i", name, "-n", "careful", code=1)
    assert record["status"] == "failed"  # P9
    assert "auto-approve" not in ended.out  # P10
    (call,) = record["turns"][0]["tool_calls"]
    assert call["name"] == "write_file"
    assert call["error"]
    assert "files" not in record["turns"][0]


def test_a_hang_is_cut_off_and_no_process_survives(run_context: RunContext) -> None:
    mark = f"31{os.getpid()}"
    run_context.playbook("hang", timeout=12, steps=[step("HANG")])
    run_context.playbook("daemon", timeout=12, steps=[step(f"RUN setsid sleep {mark} & touch began; sleep {mark}")])
    _, (daemon, hang) = run_context.test("-i", "playbooks", code=1)
    assert len(run_context.said) == 2
    assert Path(daemon["workspace"], "began").exists()  # P5: kept, to be looked at
    for record in (daemon, hang):
        assert (record["status"], record["fault"]) == ("failed", "agent")  # P11
        assert record["error"] == "timeout after 12s"  # P7
    assert processes(mark) == []  # P7
    assert processes(str(run_context.project.folder)) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_survives_when_viva_is_interrupted_or_killed(run_context: RunContext, number: int) -> None:
    name = run_context.playbook("hang", timeout=60, steps=[step("HANG")])
    process = run_context.project.start("test", "-i", name)
    run_context.server.wait_for(lambda: bool(run_context.server.requests), 30)
    assert processes(str(run_context.temporary))
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode in (2, -signal.SIGKILL)  # N35
    due = time.monotonic() + 20
    while left := processes(str(run_context.temporary)):  # a killed one cannot wait for them
        assert number == signal.SIGKILL, left
        assert time.monotonic() < due, left


def test_what_the_provider_refuses_and_what_it_cannot_do_now_are_different_faults(run_context: RunContext) -> None:
    run_context.playbook("bad", steps=[step("FAIL 400")])
    run_context.playbook("busy", timeout=12, steps=[step("FAIL 503")])
    _, (bad, busy) = run_context.test("-i", "playbooks", "--retry-faults", "0", code=1)
    assert (bad["status"], bad["fault"]) == ("failed", "agent")  # P11
    assert bad["error"].startswith("agent error: ")
    assert "the puppet fails" in bad["error"]
    assert (busy["status"], busy["fault"]) == ("error", "infra")  # P11
    assert "503" in busy["error"]
    # P10: it writes what it sent to its TMPDIR, the values of variables too; that goes, though the workspace is kept.
    assert Path(bad["workspace"]).is_dir()
    assert not list(run_context.temporary.rglob("gemini-client-error*"))


def test_what_it_warns_of_itself_stands_in_the_report(project: Project) -> None:
    """A model that calls the same tool again and again: the CLI ends the turn by itself, as a success."""

    def again(asked: ModelRequest) -> ScriptLine:
        return (
            puppet(asked) if asked.model == JUDGE else Say(tool_calls=[ToolCall("list_directory", {"dir_path": "."})])
        )

    with GeminiServer(again) as server:
        run_context = RunContext(project, server, ".gemini", "gemini")
        persona = {"initial_user_input": "Look around.", "context": "-", "max_turns": 1}
        criteria = {"tool_calls_contain": {"list_directory": []}}
        name = run_context.playbook("loop", timeout=60, persona=persona | {"success_criteria": criteria})
        ended, (record,) = run_context.test("-i", name)
    assert record["warnings"] == ["turn 1: Gemini CLI: Loop detected, stopping execution"]
    assert "Loop detected" in ended.out


def test_a_turn_without_a_result_is_a_failed_turn(run_context: RunContext) -> None:
    name = run_context.playbook("killed", steps=[step("RUN kill -TERM $PPID; sleep 5")])
    _, (record,) = run_context.test("-i", name, code=1)
    assert (record["status"], record["fault"]) == ("failed", "agent")  # P11
    assert record["error"].startswith("agent error: ")
    assert "result" in record["error"]


def test_a_link_leads_out_of_the_workspace_and_what_changed_there_is_told(run_context: RunContext) -> None:
    run_context.project.write("shared/given.txt", "given")
    persona = {"initial_user_input": "WRITE shared/new.txt: from inside", "context": "-", "max_turns": 1}
    criteria = {"files_contain": {"shared/new.txt": ["from inside"], "shared/given.txt": ["given"]}}
    name = run_context.playbook(
        "linked", tmpdir={"link_paths": ["shared"]}, persona=persona | {"success_criteria": criteria}
    )
    # P5: without --include-directories the CLI would refuse the path
    _, (record,) = run_context.test("-i", name, "--link-mode", "symlink")
    assert (run_context.project.folder / "shared" / "new.txt").read_text(encoding="utf-8") == "from inside"
    assert any("shared/new.txt" in warning for warning in record["warnings"])


def test_what_a_playbook_links_is_copied_for_it(run_context: RunContext) -> None:
    """P5: it would refuse to edit a linked file; the host's own files stay as they are."""
    run_context.project.write("given.txt", "given")
    run_context.project.write("shared/node_modules/dep.txt", "dep")
    persona = {"initial_user_input": "WRITE given.txt: from inside", "context": "-", "max_turns": 1}
    criteria = {"files_contain": {"given.txt": ["from inside"], "shared/node_modules/dep.txt": ["dep"]}}
    links = {"link_paths": ["given.txt", "shared/node_modules"]}
    name = run_context.playbook("copied", tmpdir=links, persona=persona | {"success_criteria": criteria})
    _, (record,) = run_context.test("-i", name)
    assert "warnings" not in record
    assert (run_context.project.folder / "given.txt").read_text(encoding="utf-8") == "given"


def test_two_cases_at_once_do_not_see_each_other(run_context: RunContext) -> None:
    def both(case_id: str) -> dict[str, Any]:
        written = {"type": "file_contains", "path": "same.txt", "value": case_id}
        first = {"input": f"WRITE same.txt: {case_id}", "assertions": [written]}
        return {
            "id": case_id,
            "turns": [first, {"input": "Again?", "assertions": [{"type": "contains", "value": case_id}]}],
        }

    run_context.project.suite(both("apricot"), both("walnut"))
    _, records = run_context.test(agent="gemini")
    first, second = (record["turns"][1]["output"] for record in records)
    assert ("walnut" in first, "apricot" in second) == (False, False)
    assert not (run_context.project.folder / "same.txt").exists()  # P5: the repository was copied


def test_what_was_recorded_is_replayed_without_the_cli(run_context: RunContext) -> None:
    criteria = {"files_contain": {"kept.txt": ["on tape"]}, "tool_calls_contain": {"write_file": ["kept.txt"]}}
    persona = {"initial_user_input": "WRITE kept.txt: on tape", "context": "-", "max_turns": 1}
    name = run_context.playbook("taped", persona=persona | {"success_criteria": criteria})
    run_context.test("-i", name, "--record", "talk.cassette")
    asked = len(run_context.server.requests)
    run_context.project.env["PATH"] = os.defpath
    _, (record,) = run_context.test("-i", name, "--replay", "talk.cassette")
    assert record["turns"][0]["tool_calls"][0]["name"] == "write_file"
    assert len(run_context.server.requests) == asked


def test_the_examples_run_as_their_readme_says(run_context: RunContext) -> None:
    folder = Path(shutil.copytree(EXAMPLES, run_context.project.folder / "examples"))
    command = "viva test -i playbooks/ -n gemini --env-file release.env"
    written = f"python -m viva.testing gemini --script replies.yaml -- {command}"
    assert written in (folder / "README.md").read_text(encoding="utf-8")
    words = [sys.executable, "-m", *written.split()[2:], "-k", "greeting"]
    ended = subprocess.run(
        words, cwd=folder, env=run_context.project.env, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Passed:  1" in ended.stdout


def test_without_a_login_it_says_so_and_nobody_waits(run_context: RunContext) -> None:
    del run_context.project.env["GEMINI_API_KEY"]
    run_context.project.suite({"id": "a", "input": "Hello", "assertions": [{"type": "contains", "value": "x"}]})
    _, (record,) = run_context.test(agent="gemini", code=1)
    assert (record["status"], record["fault"]) == ("error", "infra")  # N17, P10
    assert "login" in record["error"].lower() or "auth" in record["error"].lower()
    assert record["duration_ms"] < 15_000


def test_a_message_that_no_command_line_would_hold_is_heard_whole(run_context: RunContext) -> None:
    long = " ".join(map(str, range(30_000)))
    run_context.project.suite(
        {"id": "a", "input": f"WRITE a.txt: x\n{long}", "assertions": [{"type": "file_exists", "path": "a.txt"}]}
    )
    run_context.test(agent="gemini")
    assert any(long in text for text in run_context.said)
