"""Playbooks through the command line, against a Python agent that works in its workspace. The evaluator is code as well."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from project import Ended, InProcessProject, Project
from viva.testing import AnthropicServer, GeminiServer, OpenAIServer, When
from viva.testing.model_server import ModelServer

CONFIG = """
[agents.coder]
use = "python:./agents.py:coder"

[agents.judge]
use = "python:./agents.py:evaluator"
"""
AGENTS = '''
"""The coder does what each line says; the evaluator finds words, and notes all that it is told."""
import json, pathlib

HERE = pathlib.Path(__file__).parent

def coder(messages, options):
    work = pathlib.Path(options["workspace"])
    said, calls = [f"model {options.get('model')}"], []
    for line in messages[-1]["content"].splitlines():
        verb, _, rest = line.partition(" ")
        if verb == "write":
            name, _, text = rest.partition(" ")
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(text)
            calls.append({"name": "write_file", "arguments": {"path": name, "text": text}, "result": "written"})
        elif verb == "remove":
            (work / rest).unlink()
        elif verb == "refused":
            calls.append({"name": rest, "arguments": {"path": "refused.txt"}, "error": "no", "refused": True})
        elif verb == "list":
            said.append("files " + " ".join(sorted(str(p.relative_to(work)) for p in work.rglob("*") if p.is_file())))
        elif verb == "read":
            said.append((work / rest).read_text())
        elif verb == "done":
            return {"content": "done", "awaiting_input": False}
        else:
            said.append(line)
    return {"content": "\\n".join(said), "tool_calls": calls}

def evaluator(messages, options):
    told = options["metadata"]
    with open(HERE / "told.jsonl", "a") as file:
        file.write(json.dumps({**told, "messages": messages}, default=str) + "\\n")
    if told["test_mode"] == "simulator":
        lines = told["persona"].split("; ")
        spoken = sum(m["role"] == "user" for m in messages)
        if lines[0] == "ends":
            return {"input": "go on", "goal_achieved": True}
        return {"input": lines[min(spoken, len(lines)) - 1]}
    wanted = told["criteria"].removeprefix("says ")
    return {"passed": wanted in told["output"], "reason": f"looked for {wanted} in {told['output']}"}
'''


def step(said: str, outcome: str = "says model") -> dict[str, str]:
    return {"user_input": said, "expected_outcome": outcome}


def persona(first: str = "hello", context: str = "go on", max_turns: int = 3, **criteria: Any) -> dict[str, Any]:
    return {"initial_user_input": first, "context": context, "max_turns": max_turns, "success_criteria": criteria}


class Books(InProcessProject):
    """A project with a repository, whose playbooks stand in `books`."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        super().__init__(folder, capture)
        self.write("viva.toml", CONFIG)
        self.write("agents.py", AGENTS)
        (folder / "agent.py").unlink()

    def book(self, name: str = "one", **value: Any) -> None:
        self.write(f"books/{name}.json", json.dumps({"name": name, **value}))

    def run(self, *arguments: str, evaluator: str | None = "judge", **kwargs: Any) -> Ended:
        grading = ["--evaluator", evaluator] if evaluator else []
        return self.viva("test", "-i", "books", "-n", "coder", "-o", "out.jsonl", *grading, *arguments, **kwargs)

    @property
    def trials(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "out.jsonl").read_text("utf-8").splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        (found,) = self.trials
        return found

    def told(self, mode: str) -> list[dict[str, Any]]:
        """What the evaluator was told in one of its roles."""
        lines = (self.folder / "told.jsonl").read_text("utf-8").splitlines()
        return [told for told in map(json.loads, lines) if told["test_mode"] == mode]


@pytest.fixture
def books(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Books:
    return Books(tmp_path, capfd)


def test_a_folder_of_playbooks_runs_like_any_suite(books: Books):
    """P1, P2: steps pass one by one; the first that fails ends its case, and later ones are listed as not run."""
    books.book("good", steps=[step("hi"), step("ho", "says ho")])
    books.book("bad", steps=[step("hi", "says bye"), step("never")])
    ended = books.run("-o", "out.xml", "--runs", "2")
    assert ended.code == 1, ended
    assert [(r["id"], r["suite"], r["trial"], r["status"]) for r in books.trials] == [
        ("books/bad", "books", 1, "failed"),
        ("books/bad", "books", 2, "failed"),
        ("books/good", "books", 1, "passed"),
        ("books/good", "books", 2, "passed"),
    ]
    assert books.trials[0]["turns_not_run"] == ["never"]
    assert books.trials[0]["tags"] == ["playbook"]
    assert "-k '^books/bad$'" in ended.out
    assert "--evaluator judge" in ended.out  # what is shown to be typed runs
    again = books.run("--last-failed")
    assert [r["id"] for r in books.trials] == ["books/bad"], again
    assert books.run("-k", "good").code == 0
    assert books.viva("compare", "latest~1", "latest").code in (0, 1)


def test_yaml_with_lines_and_the_nearest_key(books: Books):
    """P1: nothing runs, and every problem is told."""
    books.write("books/a.yaml", "name: A\nstep:\n  - user_input: hi\n    expected_outcome: x\n")
    (books.folder / "away").symlink_to("/etc")
    books.write(
        "books/b.yml", "name: B\nsteps: []\ntmpdir:\n  link_paths: [../x, gone, away]\nenv:\n  - VIVA_NOT_SET\n"
    )
    ended = books.run()
    assert ended.code == 4
    assert "books/a.yaml:2: $: unknown key 'step'; did you mean 'steps'?" in ended.err
    assert "books/b.yml:2: $.steps: is empty, and there is no persona" in ended.err
    assert "books/b.yml:4: $.tmpdir.link_paths[0]: '../x' leaves the working folder" in ended.err  # P5
    assert "books/b.yml:4: $.tmpdir.link_paths[1]: there is no 'gone' in the working folder" in ended.err
    assert "books/b.yml:4: $.tmpdir.link_paths[2]: 'away' leads outside the working folder, to /" in ended.err
    assert "books/b.yml:6: $.env[0]: VIVA_NOT_SET is not set" in ended.err  # P6
    assert not (books.folder / "told.jsonl").exists()
    assert "$.env" not in books.viva("check", "books", code=4).out


def test_steps_then_persona_in_one_conversation(books: Books):
    """P2: the persona goes on with what was said; its own first line is not used."""
    books.book(steps=[step("one"), step("two")], persona=persona("unused", "-; three; four", 2, flow_contains=["four"]))
    assert books.run().code == 0
    assert [turn["input"] for turn in books.record["turns"]] == ["one", "two", "three", "four"]
    heard = [message["content"] for message in books.told("simulator")[0]["messages"]]
    assert heard == ["one", "model None\none", "two", "model None\ntwo"]


def test_max_turns_are_those_of_the_persona(books: Books):
    """P2, P8: with each criterion's last verdict."""
    books.book(
        steps=[step("one")], persona=persona("unused", "nothing", 2, flow_contains=["never"], llm_checks=["says x"])
    )
    assert books.run().code == 1
    record = books.record
    assert record["error"] == "max turns (2) exceeded"
    assert [turn["input_source"] for turn in record["turns"]] == ["static", "simulated", "simulated"]
    flow, judged = record["checkpoints"]
    assert "never" in flow["reason"]
    assert "looked for x" in judged["reason"]
    assert [told["max_turns"] for told in books.told("simulator")] == [3, 3]


def test_criteria_are_tried_before_the_persona_speaks(books: Books):
    """P2: what the steps have reached already needs no simulated user."""
    books.book(steps=[step("write a.txt hello")], persona=persona("unused", "x", 2, files_exist=["a.txt"]))
    assert books.run().code == 0
    assert books.record["total_turns"] == 1
    assert books.told("simulator") == []


def test_a_failed_step_ends_the_case_before_the_persona(books: Books):
    """P2."""
    books.book(steps=[step("hi", "says bye")], persona=persona(flow_contains=["model"]))
    assert books.run().code == 1
    assert books.record["total_turns"] == 1
    assert books.told("simulator") == []


def test_files_tools_and_words_are_criteria(books: Books):
    """P8, P9: each by its own verdict; a refused call does not count."""
    books.book(
        persona=persona(
            "refused write_file\nsecret word",
            "write out/a.txt Hello World",
            4,
            flow_contains=["secret word"],
            files_exist=["out/a.txt"],
            files_contain={"out/a.txt": ["Hello", "World"]},
            tool_calls_contain={"write_file": ["out/a.txt", "Hello"]},
            llm_checks=["says model"],
        )
    )
    ended = books.run()
    assert ended.code == 0, ended
    assert {each["id"]: each["turn"] for each in books.record["checkpoints"]} == {
        "flow_contains[0]": 1,
        "tool_calls_contain: write_file": 2,
        "files_exist: out/a.txt": 2,
        "files_contain: out/a.txt": 2,
        "llm_checks[0]": 2,
    }
    assert len(books.told("validator")) == 1  # P8: asked only when the cheap ones hold
    (added,) = books.record["turns"][1]["files"]
    assert (added["path"], added["change"]) == ("out/a.txt", "added")


def test_a_file_has_to_be_there_when_all_else_holds(books: Books):
    """P8: files are checked again each time; a reached text stays reached."""
    talking = "remove a.txt\nready; write a.txt y"
    books.book(persona=persona("write a.txt x", talking, 4, files_exist=["a.txt"], flow_contains=["ready"]))
    assert books.run().code == 0
    reached = {each["id"]: each["turn"] for each in books.record["checkpoints"]}
    assert reached == {"flow_contains[0]": 2, "files_exist: a.txt": 3}


def test_the_simulated_user_cannot_end_the_case(books: Books):
    """P8."""
    books.book(persona=persona("hello", "ends", 2, flow_contains=["never"]))
    assert books.run().code == 1
    assert books.record["error"] == "max turns (2) exceeded"
    assert "goal_achieved" not in books.record


def test_judge_and_simulated_user_are_two_and_see_what_they_should(books: Books):
    """P3, P4: the judge sees objective, reply, calls and files; the user sees the conversation, and no criterion."""
    books.book(
        steps=[step("write a.txt hello", "says model")],
        persona=persona("unused", "go on", 1, llm_checks=["the hidden criterion"]),
    )
    assert books.run().code == 1
    first = books.told("validator")[0]
    assert first["criteria"] == "says model"
    assert first["output"] == "model None"
    assert first["files"] == [{"path": "a.txt", "change": "added"}]
    (call,) = first["messages"][-1]["tool_calls"]
    assert (call["name"], call["arguments"]["path"], call["result"]) == ("write_file", "a.txt", "written")
    (user,) = books.told("simulator")
    assert user["persona"] == "go on"
    assert "hidden criterion" not in json.dumps(user)


def test_models_are_those_of_the_playbook_or_the_flag(books: Books):
    """P3: --agent-model over agent_model."""
    books.book(agent_model="gemini-2.5-pro", steps=[step("hi", "says model gemini-2.5-pro")])
    assert books.run().code == 0, books.record
    books.run("--agent-model", "other-1")
    assert books.record["turns"][0]["output"].startswith("model other-1")


def test_without_an_evaluator_nothing_runs(books: Books):
    """P3: exit 4; the config may name one."""
    books.book(steps=[step("hi")])
    ended = books.run(evaluator=None)
    assert ended.code == 4
    assert "books/one.json:1: $: the playbook has no evaluator" in ended.err
    books.write("viva.toml", '[defaults]\nevaluator = "judge"\n' + CONFIG)
    assert books.run(evaluator=None).code == 0
    books.write("viva.toml", '[defaults]\nevaluator = "gone"\n' + CONFIG)
    ended = books.run(evaluator=None)
    assert ended.code == 4
    assert "viva.toml:2: evaluator: no agent or connector is called 'gone'" in ended.err
    assert books.run("--evaluator", "also-gone", evaluator=None).code == 4


def test_a_model_that_no_connector_reaches_is_refused_with_what_to_write(books: Books):
    books.book(evaluator_model="judge-9", steps=[step("hi")])
    ended = books.run(evaluator=None)
    assert ended.code == 4
    assert "books/one.json:1: $.evaluator_model: no agent or connector is called 'judge-9'" in ended.err
    assert 'add `models = ["judge-*"]` to its connector in viva.toml, for example below [connectors.judge]' in ended.err


@pytest.mark.parametrize(
    ("stand_in", "model", "key"),
    [
        (GeminiServer, "gemini-2.5-flash", "GEMINI_API_KEY"),
        (OpenAIServer, "o4-mini", "OPENAI_API_KEY"),
        (AnthropicServer, "claude-haiku-4-5", "ANTHROPIC_API_KEY"),
    ],
)
def test_a_well_known_model_needs_no_config(books: Books, stand_in: type[ModelServer], model: str, key: str):
    """P3: its provider's own address, or the one that the usual variable names, and its usual key."""
    (books.folder / "viva.toml").unlink()
    books.env = {name: value for name, value in books.env.items() if not name.endswith(("_API_KEY", "_BASE_URL"))}
    books.book(evaluator_model=model, steps=[step("hi")])
    run = ("test", "-i", "books", "-n", "python:./agents.py:coder", "-o", "out.jsonl")
    with stand_in(json.dumps({"passed": True, "reason": "x"})) as server:
        keyless = {name: value for name, value in server.env.items() if name != key}
        ended = books.viva(*run, env=keyless, code=4)
        assert f"books/one.json:1: $.evaluator_model: model {model!r} needs a key" in ended.err
        assert f"{key} is not set" in ended.err
        assert books.viva("test", "-i", "hello", "-n", model, env=keyless).code == 4
        assert server.requests == []
        assert books.viva(*run, env=server.env).code == 0
        assert books.viva(*run, "--record", "chat.cassette", env=server.env).code == 0
        assert books.viva("test", "-i", "hello", "-n", model, env=server.env).code == 0
        assert {asked.model for asked in server.model_requests} == {model}
        assert len(server.model_requests) == 3
    assert books.viva(*run, "--replay", "chat.cassette").code == 0  # nothing is called, so no key is needed


def test_declared_variables_are_filled_and_never_shown(books: Books):
    """P6: not on the console, not in reports, journals or cassettes; short values are too common to hide."""
    books.book(
        env=["VIVA_T_TOKEN", "VIVA_T_SHORT"],
        steps=[step("token $VIVA_T_TOKEN ${VIVA_T_SHORT} $HOME", "says token ${VIVA_T_TOKEN}")],
        persona=persona(
            max_turns=1,
            context="write $VIVA_T_TOKEN.txt $VIVA_T_TOKEN",
            files_exist=["$VIVA_T_TOKEN.txt"],
            tool_calls_contain={"write_file": ["$VIVA_T_TOKEN"]},
        ),
    )
    books.write("secrets.env", "VIVA_T_TOKEN=s3cret-value\nVIVA_T_SHORT=abc\n")
    ended = books.run("--env-file", "secrets.env", "-v", "-o", "out.md", "--record", "chat.cassette")
    assert ended.code == 0, ended
    assert "token *** abc $HOME" in ended.out
    kept = [
        path for path in books.folder.rglob("*") if path.is_file() and path.name not in ("secrets.env", "told.jsonl")
    ]
    assert not [path for path in kept if b"s3cret-value" in path.read_bytes()]
    assert "s3cret-value" not in ended.out + ended.err
    assert books.told("validator")[0]["criteria"] == "says token s3cret-value"


def test_criteria_that_name_a_variable_hold_in_a_replay_too(books: Books):
    """P6: a cassette keeps the variable's name, and a replay takes the value that it has by then."""
    wanted = {"files_contain": {"a.txt": ["$VIVA_T_TOKEN"]}, "tool_calls_contain": {"write_file": ["${VIVA_T_TOKEN}"]}}
    books.book(env=["VIVA_T_TOKEN"], persona=persona("write a.txt $VIVA_T_TOKEN", "-", 1, **wanted))
    assert books.run("--record", "chat.cassette", env={"VIVA_T_TOKEN": "s3cret-value"}).code == 0
    assert b"s3cret-value" not in (books.folder / "chat.cassette").read_bytes()
    for value in ("s3cret-value", "another-value"):
        replayed = books.run("--replay", "chat.cassette", env={"VIVA_T_TOKEN": value})
        assert replayed.code == 0, replayed


def test_a_turn_has_the_playbooks_time_and_the_case_none(books: Books):
    """P7: `timeout` is for each reply; --timeout is for the whole."""
    books.write(
        "agents.py", AGENTS.replace("    work = pathlib", "    import time; time.sleep(30)\n    work = pathlib")
    )
    books.book(timeout=1, steps=[step("hi")])
    assert books.run().code == 1
    assert books.record["error"] == "timeout after 1s"
    books.book(timeout=60, steps=[step("hi")])
    assert books.run("--timeout", "1s").code == 1
    assert books.record["error"] == "timeout after 1s"
    assert books.run("--turn-timeout", "1000ms").code == 1
    assert books.record["error"] == "timeout after 1s"


def git(books: Books, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=books.folder, check=True, capture_output=True)


def test_without_tmpdir_the_agent_works_in_a_copy_of_the_repository(books: Books):
    """P5: without ignored files, the suite's own, and .viva; what it does there does not touch the repository."""
    git(books, "init", "-q")
    books.write(".gitignore", "ignored.txt\n")
    books.write("ignored.txt", "x")
    books.write("src/main.txt", "original")
    books.book(steps=[step("list"), step("write src/main.txt changed"), step("read src/main.txt", "says changed")])
    ended = books.run("--keep-workspace")
    assert ended.code == 0, ended
    (_, listed) = books.record["turns"][0]["output"].splitlines()
    assert listed == "files .gitignore agents.py src/main.txt viva.toml"
    assert (books.folder / "src/main.txt").read_text() == "original"
    assert (Path(books.record["workspace"]) / "src/main.txt").read_text() == "changed"


def test_workspace_flags_say_otherwise(books: Books):
    """P5: in place, or in an empty folder; gone afterwards if all is well."""
    books.write("here.txt", "x")
    books.book(steps=[step("list")])
    assert books.run("--workspace", "empty").code == 0
    assert books.record["turns"][0]["output"].splitlines()[1] == "files "
    assert "workspace" not in books.record
    books.run("--workspace", "cwd")
    assert "here.txt" in books.record["turns"][0]["output"]


def test_tmpdir_is_an_empty_folder_with_links(books: Books):
    """P5: linked, or copied; host files that change through a link are reported, also with odd names."""
    books.write("my tools/ü/tool.txt", "original")
    books.book(
        tmpdir={"link_paths": ["my tools/ü"]}, steps=[step("list"), step("read my tools/ü/tool.txt", "says original")]
    )
    assert books.run("--workspace", "cwd").code == 0  # a tmpdir has said where
    books.book(tmpdir={"link_paths": ["my tools"]}, steps=[step("write my changed")])
    books.write("link.txt", "original")
    books.book(tmpdir={"link_paths": ["link.txt"]}, steps=[step("write link.txt changed")])
    ended = books.run()
    assert ended.code == 0, ended
    assert (books.folder / "link.txt").read_text() == "changed"
    assert "changed through a link" in json.dumps(books.record["warnings"])
    books.write("link.txt", "original")
    books.run("--link-mode", "copy")
    assert (books.folder / "link.txt").read_text() == "original"
    assert "warnings" not in books.record


def test_a_workspace_is_kept_where_the_case_failed(books: Books):
    """P5: and the why-block says where."""
    books.book("bad", steps=[step("write a.txt kept", "says bye")])
    books.book("good", steps=[step("write a.txt kept")])
    ended = books.run()
    bad, good = books.trials
    assert (Path(bad["workspace"]) / "a.txt").read_text() == "kept"
    assert f"workspace: {bad['workspace']}" in ended.out
    assert "workspace" not in good


def test_only_workspaces_named_in_a_record_are_kept(books: Books):
    """P5: neither retried attempts nor trials of `viva shrink` leave a workspace behind."""
    temporary = books.folder.with_name("tmp")
    temporary.mkdir()
    books.env["TMPDIR"] = str(temporary)
    books.write("viva.toml", CONFIG + '[agents.mute]\nreplies = ["no verdict"]\n')
    books.book(steps=[step("write a.txt kept", "says bye")])
    assert books.run(evaluator="mute").code == 1
    assert (books.record["status"], books.record["attempt"]) == ("error", 2)
    kept = [Path(books.record["workspace"]).parent]
    assert list(temporary.iterdir()) == kept
    assert books.run().code == 1
    kept.append(Path(books.record["workspace"]).parent)
    assert books.viva("shrink", "latest", "books/one").code == 0
    assert set(temporary.iterdir()) == set(kept)


def test_two_cases_at_once_in_one_repository_do_not_meet(books: Books):
    for name in "abcd":
        books.book(name, steps=[step(f"write same.txt {name}"), step("read same.txt", f"says {name}"), step("list")])
    assert books.run("--parallel", "4").code == 0
    assert {len(record["turns"]) for record in books.trials} == {3}


def test_playbooks_and_native_cases_in_one_folder(books: Books):
    """N1, N7: each file by its keys; without a named agent all must agree on one."""
    books.book(steps=[step("hi")])
    books.write(
        "books/cases.jsonl", json.dumps({"id": "n", "input": "hi", "assertions": [{"type": "contains", "value": "hi"}]})
    )
    ended = books.viva("test", "-i", "books", "--evaluator", "judge", code=4)
    assert "The suites name different agents: books is for 'gemini'. Pass -n NAME, or run them separately" in ended.err
    books.write(
        "books/cases.jsonl",
        json.dumps({"id": "n", "input": "write a hi", "assertions": [{"type": "file_exists", "path": "a"}]}),
    )
    assert books.run().code == 0
    assert sorted(record["id"] for record in books.trials) == ["books/one", "n"]


def test_a_run_continues_where_it_was_cut_off(books: Books):
    """--resume knows the evaluator, the model and the workspace that the run had."""
    for name in ("a", "b"):
        books.book(name, steps=[step("list", "says model m-1")])
    first = books.run("--agent-model", "m-1", "--workspace", "empty", "--parallel", "1")
    assert first.code == 0, first
    journal = books.find_journal()
    lines = journal.read_bytes().splitlines(keepends=True)
    ended = [at for at, line in enumerate(lines) if b'"trial_ended"' in line]
    journal.write_bytes(b"".join(lines[: ended[1]]))
    (books.folder / "told.jsonl").unlink()
    books.viva("test", "--resume", "latest", "-o", "out.jsonl", code=0)
    assert [(r["id"], r["turns"][0]["output"]) for r in books.trials] == [
        ("books/a", "model m-1\nfiles "),
        ("books/b", "model m-1\nfiles "),
    ]
    assert [told["test_id"] for told in books.told("validator")] == ["books/b"]


def test_dry_run_lists_playbooks_and_shrink_makes_a_native_case_of_one(books: Books):
    books.book(steps=[step("hi"), step("hi and so on", "says bye")], persona=persona(max_turns=2, flow_contains=["x"]))
    listed = books.viva("test", "-i", "books", "-n", "coder", "--evaluator", "judge", "--dry-run")
    assert "books/one  one  up to 4 turns  books/one.json:1" in listed.out
    written = books.viva(
        "test", "-i", "books", "-n", "coder", "--evaluator", "judge", "--dry-run", "-o", "x.jsonl", code=4
    )
    assert "'one' is not a native case" in written.err
    assert books.run().code == 1
    books.viva("shrink", "latest", "books/one", code=0)
    case = json.loads((books.folder / "shrunk.jsonl").read_text())
    (turn,) = case["turns"]
    assert len(turn["input"].split()) == 1
    assert turn["assertions"] == [{"type": "judge", "criteria": "says bye", "use": "judge"}]
    books.viva("test", "-i", "shrunk.jsonl", "-n", "coder", code=1)


def test_a_playbook_comes_by_standard_input(books: Books):
    value = {"name": "piped", "steps": [step("hi")]}
    books.viva(
        "test", "-i", "-", "-n", "coder", "--evaluator", "judge", "-o", "out.jsonl", input=json.dumps(value), code=0
    )
    assert books.record["id"] == "stdin"


def test_a_cassette_holds_what_the_agent_did_to_its_files(books: Books):
    """A replay calls no agent, and still restores the files."""
    books.book(
        persona=persona("write a.txt x", "write b.txt y", 3, files_exist=["a.txt", "b.txt"], llm_checks=["says model"])
    )
    assert books.run("--record", "chat.cassette").code == 0
    (books.folder / "told.jsonl").unlink()
    replayed = books.run("--replay", "chat.cassette")
    assert replayed.code == 0, replayed
    assert not (books.folder / "told.jsonl").exists()


def test_a_model_is_reached_through_the_connector_that_fits_its_name(books: Books):
    """P3: judge and simulated user are two calls with that very model; an exact connector comes before a pattern."""
    verdict = json.dumps({"passed": True, "reason": "x"})  # N26: more is not needed of a judge that somebody has named
    user = json.dumps({"reasoning": "x", "input": "write a.txt x", "goal_achieved": False})
    script = [
        When(user, text="You play a person", model="judge-9"),
        When(user, system="You play a person", model="judge-9"),
        When(verdict, model="judge-9"),
    ]
    with OpenAIServer(script) as server:
        connector = f'base_url = "{server.url}"\napi_key_env = "VIVA_T_KEY"\nmodels = ["judge-*"]\n'
        books.write("viva.toml", f"{CONFIG}\n[connectors.first]\n{connector}\n[connectors.second]\n{connector}")
        books.book(
            evaluator_model="judge-9",
            steps=[step("hi")],
            persona=persona("unused", "A tester.", 2, files_exist=["a.txt"], llm_checks=["It worked."]),
        )
        ended = books.run(evaluator=None, env={"VIVA_T_KEY": "k"})
        assert ended.code == 0, ended
        assert {asked.model for asked in server.model_requests} == {"judge-9"}
        assert len(server.model_requests) == 3
        assert not [
            asked
            for asked in server.model_requests
            if "You play a person" in asked.system + asked.text and "It worked" in asked.system + asked.text
        ]


def test_the_default_agent_is_the_gemini_cli(books: Books):
    """P3, N7: -n, then the config's own default, then the agent that playbooks are for; not the only agent of the config."""
    books.book(steps=[step("hi")])
    listing = ("test", "-i", "books", "--evaluator", "judge", "--dry-run")
    assert "agent gemini; nothing was run" in books.viva(*listing).out
    books.write("viva.toml", CONFIG + '\n[connectors.gemini]\nprovider = "gemini"\nmodels = ["gemini-*"]\n')
    assert "agent gemini; nothing was run" in books.viva(*listing).out
    books.write("viva.toml", '[defaults]\nagent = "coder"\n' + CONFIG)
    assert "agent coder; nothing was run" in books.viva(*listing).out
    assert "agent judge; nothing was run" in books.viva(*listing, "-n", "judge").out


def test_native_cases_of_an_agent_that_is_a_command_have_a_workspace_too(books: Books):
    """P5, P10: a copy of the repository, and the first line says what the command may do."""
    books.write("viva.toml", '[agents.shell]\ntype = "command"\ncommand = ["sh", "-c", "ls; echo x > made.txt"]\n')
    books.write("here.txt", "x")
    case = {
        "id": "a",
        "input": "hi",
        "assertions": [{"type": "contains", "value": "here.txt"}, {"type": "file_exists", "path": "made.txt"}],
    }
    name = books.suite(case)
    ended = books.viva("test", "-i", name, "-n", "shell", "-o", "out.jsonl", code=0)
    assert "shell runs in auto-approve mode: every tool runs without asking, unconfined (--sandbox bwrap)" in ended.out
    assert name not in books.record["turns"][0]["output"]  # it cannot read what it is examined in
    assert not (books.folder / "made.txt").exists()


def test_pytest_collects_playbooks(books: Books):
    books.write("books/one.playbook.yaml", json.dumps({"name": "one", "steps": [step("hi")]}))
    books.write("books/two.playbook.json", json.dumps({"name": "two", "steps": [step("hi", "says bye")]}))

    def pytest_prints(*flags: str) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "viva.pytest_plugin", "--viva-agent", "coder", *flags]
        env = books.env | {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"
        }  # the plugins of this environment take seconds to import
        return subprocess.run(command, cwd=books.folder, env=env, capture_output=True, text=True, check=False).stdout

    printed = pytest_prints("--viva-evaluator", "judge")
    assert "1 failed, 1 passed" in printed
    assert "looked for bye" in printed
    assert "--viva-evaluator NAME" in pytest_prints()


def test_the_same_can_be_asked_in_python(books: Books):
    """viva.run takes what the flags say."""
    books.book(agent_model="m-1", steps=[step("list", "says model m-2")])
    code = """
import viva
result = viva.run("books", "coder", options=viva.RunOptions(evaluator="judge", agent_model="m-2", workspace="empty", keep_workspace=True))
(record,) = result.records()
print(result.exit_code, record.turns[0].output.splitlines(), record.workspace is not None)
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=books.folder, capture_output=True, text=True, check=False)
    assert ran.stdout == "0 ['model m-2', 'files '] True\n", ran


SAMPLES = Path(__file__).resolve().parents[3] / "shared" / "specs" / "playbook-samples"


def test_the_four_real_samples_load(books: Books, capfd: pytest.CaptureFixture[str]):
    """P1: as they are; one links a folder of its own repository."""
    if not SAMPLES.is_dir():
        with capfd.disabled():
            print(f"\nNOT RUN: the four real playbooks, for there is no {SAMPLES}", file=sys.stderr, flush=True)
        return
    for sample in SAMPLES.glob("*.yaml"):
        books.write(f"books/{sample.name}", sample.read_bytes())
    ended = books.viva("check", "books", code=4)
    assert "there is no 'tools/skill-turn-harness/test/fixtures/mock-tool-use-skill' in the working folder" in ended.out
    books.write("tools/skill-turn-harness/test/fixtures/mock-tool-use-skill/SKILL.md", "x")
    assert "4 cases in 4 files: no problems" in books.viva("check", "books").out
    listed = books.run("--dry-run", "-o", "x.jsonl", env={"MY_SECRET_ID": "my-project"})
    assert "is not a native case" in listed.err
    listed = books.viva("test", "-i", "books", "--evaluator", "judge", "--dry-run", env={"MY_SECRET_ID": "my-project"})
    assert "4 cases, 4 trials, agent gemini; nothing was run" in listed.out, listed


EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "playbooks"


def test_the_example_passes_offline(tmp_path: Path):
    """With the commands of its README, in a copy: a repository around it would be copied for each case."""
    folder = shutil.copytree(EXAMPLES, tmp_path / "playbooks", ignore=shutil.ignore_patterns("__pycache__", ".viva"))
    project = Project(tmp_path)
    project.folder = folder
    project.viva("test", "-i", "playbooks/", "--env-file", "release.env", "-o", "out.jsonl", code=0)
    records = [json.loads(line) for line in (folder / "out.jsonl").read_text("utf-8").splitlines()]
    assert {record["id"]: len(record["turns"]) for record in records} == {
        "playbooks/greeting.playbook": 2,
        "playbooks/notes.playbook": 2,
        "playbooks/release.playbook": 3,
    }
    assert "no problems" in project.viva("check", "playbooks").out


def test_a_message_to_an_agent_that_is_a_command_finds_the_repository_too(books: Books):
    """P5, P10: in a copy; the note goes to standard error, for the answer is on the other."""
    books.write("viva.toml", '[agents.shell]\ntype = "command"\ncommand = ["sh", "-c", "ls; echo x > made.txt"]\n')
    ended = books.viva("test", "-i", "what is here?", "-n", "shell", code=0)
    assert "agents.py" in ended.out
    assert "shell runs in auto-approve mode" in ended.err
    assert not (books.folder / "made.txt").exists()
