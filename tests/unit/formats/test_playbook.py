"""Playbooks: what is refused and in which words, and what a playbook becomes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from viva.errors import BadInput, Problem
from viva.formats.load_options import LoadOptions
from viva.formats.sources import load_files
from viva.model.case import Case, Suite

STEP = {"user_input": "hi", "expected_outcome": "it greets"}
PERSONA = {
    "initial_user_input": "hello",
    "context": "A developer.",
    "success_criteria": {"flow_contains": ["done"]},
}


def persona(**more: Any) -> dict[str, Any]:
    return {"name": "p", "persona": {**PERSONA, **more}}


def suites(folder: Path, *files: str | Path, **reading: Any) -> list[Suite]:
    given: dict[str, Any] = {"environ": {}, "evaluator": "judge", "folder": str(folder), **reading}
    return load_files([folder / file for file in files], LoadOptions(**given), folder)


def suite(folder: Path, value: Any, name: str = "pb/one.json", **reading: Any) -> Suite:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    (found,) = suites(folder, name, **reading)
    return found


def pulled(*found: Suite) -> list[Case]:
    async def all_cases() -> list[Case]:
        return [case for each in found async for case in each.cases()]

    return asyncio.run(all_cases())


def case(folder: Path, value: Any, **reading: Any) -> Case:
    (found,) = pulled(suite(folder, value, **reading))
    return found


def wrong(folder: Path, value: Any, **reading: Any) -> list[str]:
    with pytest.raises(BadInput) as raised:
        suite(folder, value, **reading)
    return [f"{problem.path}: {problem.message}" for problem in raised.value.problems]


def test_a_playbook_is_one_case_named_by_its_path(tmp_path: Path):
    """P1: the id is the path without its ending, and the folder is the suite."""
    found = suite(tmp_path, {"name": "Greets", "steps": [STEP]}, "books/a/greets.playbook.json")
    (made,) = pulled(found)
    assert (found.id, found.count, found.target) == ("books/a", 1, "gemini")  # P3
    assert (made.id, made.name, made.suite) == ("books/a/greets.playbook", "Greets", "books/a")
    assert str(made.origin) == "books/a/greets.playbook.json:1"
    assert made.tags == ("playbook",)
    assert made.definition == {"name": "Greets", "steps": [STEP]}
    assert made.digest


def test_a_folder_of_playbooks_is_one_suite(tmp_path: Path):
    """P1: in YAML and JSON; those of a folder below it are another."""
    for name in ("pb/b.yaml", "pb/a.json", "pb/sub/c.yml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"name": name, "steps": [STEP]}), encoding="utf-8")
    first, second = found = suites(tmp_path, "pb/a.json", "pb/b.yaml", "pb/sub/c.yml")
    assert (first.id, first.count, second.id, second.count) == ("pb", 2, "pb/sub", 1)
    assert [each.id for each in pulled(*found)] == ["pb/a", "pb/b", "pb/sub/c"]


def test_two_files_of_one_name_are_refused(tmp_path: Path):
    for name in ("a.json", "a.yaml"):
        (tmp_path / name).write_text(json.dumps({"name": name, "steps": [STEP]}), encoding="utf-8")
    with pytest.raises(BadInput, match=r"a\.yaml:1: id 'a' is taken; a\.json has it too"):
        suites(tmp_path, "a.json", "a.yaml")


def test_playbooks_and_native_cases_can_stand_in_one_folder(tmp_path: Path):
    """N1: each file is read by its own keys."""
    (tmp_path / "a.json").write_text(json.dumps({"name": "a", "steps": [STEP]}), encoding="utf-8")
    (tmp_path / "b.json").write_text(json.dumps({"id": "b", "input": "hi"}), encoding="utf-8")
    found = suites(tmp_path, "a.json", "b.json")
    assert {each.id: each.target for each in found} == {"b.json": None, ".": "gemini"}


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ({"name": "x", "steps": []}, "$.steps: is empty, and there is no persona: the playbook has no message"),
        ({"name": "x", "stesp": [STEP]}, "$: unknown key 'stesp'; did you mean 'steps'?"),
        ({"steps": [STEP]}, "$: is missing 'name'"),
        ({"name": "x", "tmpdir": {}}, "$: is missing 'steps' or 'persona'"),
        ({"name": "x", "steps": [{"user_input": "a"}]}, "$.steps[0]: is missing 'expected_outcome'"),
        ({"name": "x", "steps": [{**STEP, "user_input": " "}]}, "$.steps[0].user_input: is empty; there would be"),
        (
            {"name": "x", "steps": [{**STEP, "expected_outcome": ""}]},
            "$.steps[0].expected_outcome: is empty; describe the",
        ),
        ({"name": "x", "steps": [STEP], "timeout": 0}, "$.timeout: is 0; should be at least 1"),
        ({"name": "x", "steps": [STEP], "timeout": "60s"}, "$.timeout: is a string; should be an integer"),
        (
            {"name": "x", "steps": [STEP], "env": ["$KEY"]},
            "$.env[0]: '$KEY' is not the name of a variable; write the name",
        ),
        ({"name": "x", "persona": {**PERSONA, "initial_user_input": ""}}, "$.persona.initial_user_input: is empty"),
        (persona(context=""), "$.persona.context: is empty; describe who the user is"),
        (persona(max_turns=0), "$.persona.max_turns: is 0; should be at least 1"),
        (persona(success_criteria={}), "$.persona.success_criteria: is empty; the case can pass only"),
        (
            persona(success_criteria={"llm_checks": [], "files_contain": {}}),
            "$.persona.success_criteria: is empty; the case can pass only",
        ),
        (
            persona(success_criteria={"llm_checks": [""]}),
            "$.persona.success_criteria.llm_checks[0]: is empty; describe what",
        ),
        (persona(success_criteria={"flow_contains": [""]}), "$.persona.success_criteria.flow_contains[0]: is empty"),
        (
            persona(success_criteria={"files_exist": ["../out.txt"]}),
            "$.persona.success_criteria.files_exist[0]: '../out.txt' leaves the workspace; give a path relative to it",
        ),
        (
            persona(success_criteria={"files_exist": ["a/../../b"]}),
            "$.persona.success_criteria.files_exist[0]: 'a/../../b' leaves the workspace",
        ),
        (
            persona(success_criteria={"files_contain": {"/etc/passwd": ["root"]}}),
            "$.persona.success_criteria.files_contain['/etc/passwd']: '/etc/passwd' leaves the workspace",
        ),
        (
            persona(success_criteria={"files_exist": ["."]}),
            "$.persona.success_criteria.files_exist[0]: '.' is not a file name",
        ),
        (
            {"name": "x", "persona": {"context": "c", "success_criteria": {"flow_contains": ["a"]}}},
            "$.persona: is missing 'initial_user_input'",
        ),
    ],
)
def test_problems_have_a_place(tmp_path: Path, value: Any, output: str):
    """P1: by the schema and by hand."""
    (found,) = wrong(tmp_path, value)
    assert found.startswith(output)


def test_every_problem_has_its_line_and_all_come_at_once(tmp_path: Path):
    text = """\
name: Bad
env: [NOT_THERE, NOR_THIS]
tmpdir:
  link_paths: [nowhere]
steps:
  - user_input: hi
    expected: x
persona:
  context: ""
  success_criteria:
    files_exist: [../x]
"""
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "b.yaml").write_text("name: B\nsteps: []\nenv:\n  - ALSO_MISSING\n", encoding="utf-8")
    with pytest.raises(BadInput) as raised:
        suites(tmp_path, "a.yaml", "b.yaml", evaluator=None)
    output = str(raised.value)
    assert "a.yaml:7: $.steps[0]: unknown key 'expected'; did you mean 'expected_outcome'?" in output
    assert (
        "a.yaml:2: $.env[0]: NOT_THERE is not set; set it in the environment, or in a file for --env-file" in output
    )  # P6
    assert "a.yaml:2: $.env[1]: NOR_THIS is not set" in output
    assert "a.yaml:4: $.tmpdir.link_paths[0]: there is no 'nowhere' in the working folder" in output  # P5
    assert "a.yaml:9: $.persona.context: is empty" in output
    assert "a.yaml:11: $.persona.success_criteria.files_exist[0]: '../x' leaves the workspace" in output  # P1
    assert "b.yaml:4: $.env[0]: ALSO_MISSING is not set" in output
    assert "b.yaml:2: $.steps: is empty" in output


def test_a_second_playbook_in_a_file_is_refused(tmp_path: Path):
    text = "name: A\nsteps: []\n---\nname: B\nsteps: []\n"
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=r"a\.yaml:4: \$: is a second playbook in this file"):
        suites(tmp_path, "a.yaml")


def test_steps_are_a_script_with_a_verdict_on_each(tmp_path: Path):
    """P2, P7: nothing ends it but its lines; the time is for each reply."""
    made = case(tmp_path, {"name": "x", "steps": [STEP, {**STEP, "user_input": "{{not}} a variable"}], "timeout": 5})
    assert [line.message.text for line in made.user.planned_messages] == ["hi", "{{not}} a variable"]
    assert [assertion.definition for line in made.user.planned_messages for assertion in line.assertions] == [
        {"type": "judge", "criteria": "it greets", "use": "judge"}
    ] * 2
    assert made.goal.checkpoints == ()
    assert (made.limits.timeout_s, made.limits.turn_timeout_s) == (None, 5.0)
    usual = case(tmp_path, {"name": "x", "steps": [STEP]}).limits
    assert (usual.turn_timeout_s, usual.reply_timeout_text(None)) == (60.0, "60s")  # P7: not 1m


def test_a_persona_speaks_first_with_its_own_line(tmp_path: Path):
    made = case(tmp_path, persona(max_turns=3))
    assert [(line.message.text, line.source) for line in made.user.planned_messages] == [("hello", "initial")]
    assert made.user.simulator == "judge"
    assert (made.limits.max_turns, made.limits.total_turns) == (3, 3)
    assert case(tmp_path, persona()).limits.max_turns == 10  # P2


def test_steps_come_before_the_persona_and_do_not_count(tmp_path: Path):
    """P2: the persona's own first line is used only when there are no steps."""
    made = case(tmp_path, {**persona(max_turns=3), "steps": [STEP, STEP]})
    assert [line.message.text for line in made.user.planned_messages] == ["hi", "hi"]
    assert (made.limits.max_turns, made.limits.total_turns) == (3, 5)
    assert made.user.simulator == "judge"
    assert case(tmp_path, {**persona(), "steps": []}).user.planned_messages[0].message.text == "hello"


def test_criteria_are_patient_checkpoints(tmp_path: Path):
    """P8, P9: each is a checkpoint, cheap ones first; files do not last."""
    criteria = {
        "llm_checks": ["it was polite", "it is done"],
        "flow_contains": ["ready"],
        "files_exist": ["./out.txt"],
        "files_contain": {"out.txt": ["Hello", "World"], "b/c.md": [], "./d": ["x"]},
        "tool_calls_contain": {"edit_file": ["out.txt", "Hello"], "shell": []},
    }
    made = case(tmp_path, persona(success_criteria=criteria))
    assert made.goal.defers_costly_checks
    assert [
        (each.id, each.assertion.definition["type"], each.stays_reached, each.description)
        for each in made.goal.checkpoints
    ] == [
        ("flow_contains[0]", "flow_contains", True, "ready"),
        ("tool_calls_contain: edit_file", "tool_calls_contain", True, ""),
        ("tool_calls_contain: shell", "tool_calls_contain", True, ""),
        ("files_exist: out.txt", "file_exists", False, ""),
        ("files_contain: out.txt", "file_contains", False, ""),
        ("files_contain: b/c.md", "file_exists", False, ""),
        ("files_contain: d", "file_contains", False, ""),
        ("llm_checks[0]", "judge", True, "it was polite"),
        ("llm_checks[1]", "judge", True, "it is done"),
    ]
    assert {each.assertion.over for each in made.goal.checkpoints} == {"case"}
    assert made.goal.checkpoints[4].assertion.definition["value"] == ["Hello", "World"]


def test_the_same_criterion_twice_is_one_and_others_keep_their_names(tmp_path: Path):
    criteria = {"flow_contains": ["a", "a"], "files_contain": {"x": ["1"], "./x": ["2"]}}
    made = case(tmp_path, persona(success_criteria=criteria))
    assert [each.id for each in made.goal.checkpoints] == ["flow_contains[0]", "files_contain: x", "files_contain: x'"]


def test_a_path_with_a_slash_at_its_end_must_be_a_folder(tmp_path: Path):
    """P9: as with `file_exists` of a native case."""
    made = case(tmp_path, persona(success_criteria={"files_exist": ["./out/", "a"]}))
    found = [(each.id, each.assertion.definition["path"]) for each in made.goal.checkpoints]
    assert found == [("files_exist: out", "out/"), ("files_exist: a", "a")]


def test_the_simulated_user_never_sees_the_criteria(tmp_path: Path):
    """P3: nor may it end the case (P8)."""
    made = case(tmp_path, persona(success_criteria={"llm_checks": ["the secret criterion"]}))
    user: Any = made.user
    assert user.options["metadata"]["persona"] == "A developer."
    assert "secret criterion" not in repr((user.options, made.metadata))
    assert not user.can_end


def test_variables_are_filled_where_they_are_declared(tmp_path: Path):
    """P6: in steps, persona and criteria; undeclared names stay, and the values are kept secret."""
    kept: dict[str, str] = {}
    value = {
        "name": "about $KEY",
        "env": ["KEY"],
        "steps": [{"user_input": "$KEY ${KEY} $KEYS $OTHER", "expected_outcome": "says ${KEY}"}],
        "persona": {
            "context": "I am ${KEY}",
            "success_criteria": {"files_contain": {"$KEY.txt": ["${KEY}!"]}, "tool_calls_contain": {"$KEY": ["$KEY"]}},
        },
    }
    made = case(tmp_path, value, environ={"KEY": "v a l u e", "OTHER": "x"}, add_secret=kept.__setitem__)
    user: Any = made.user
    assert user.first.planned_messages[0].message.text == "v a l u e v a l u e $KEYS $OTHER"
    assert user.first.planned_messages[0].assertions[0].definition["criteria"] == "says v a l u e"
    assert user.second.options["metadata"]["persona"] == "I am v a l u e"
    assert [each.id for each in made.goal.checkpoints] == [
        "tool_calls_contain: $KEY",  # an id is not redacted
        "files_contain: $KEY.txt",
    ]
    assert made.goal.checkpoints[1].assertion.definition["path"] == "v a l u e.txt"
    assert made.goal.checkpoints[1].assertion.definition["value"] == ["v a l u e!"]
    assert kept == {"KEY": "v a l u e"}
    assert made.workspace is not None
    assert made.workspace.env == {"KEY": "v a l u e"}
    assert made.name == "about $KEY"
    assert "v a l u e" not in json.dumps(made.definition)


def test_a_refused_path_is_shown_as_it_was_written(tmp_path: Path):
    """P6: not with the value of a variable in it."""
    value = {**persona(success_criteria={"files_exist": ["../$KEY"]}), "env": ["KEY"]}
    (output,) = wrong(tmp_path, value, environ={"KEY": "hidden-value"})
    assert "'../$KEY' leaves the workspace" in output
    assert "hidden-value" not in output


def test_a_value_that_is_not_text_is_refused(tmp_path: Path):
    (output,) = wrong(tmp_path, {"name": "x", "env": ["KEY"], "steps": [STEP]}, environ={"KEY": "\udcff"})
    assert output == "$.env[0]: the value of KEY is not valid UTF-8"  # P6


def test_what_is_only_looked_at_needs_neither_variables_nor_an_evaluator(tmp_path: Path):
    value = {"name": "x", "env": ["NOT_THERE"], "evaluator_model": "unheard-of", "steps": [STEP]}
    assert suite(tmp_path, value, environ=None, evaluator=None).count == 1


def test_the_workspace_is_a_copy_or_what_tmpdir_says(tmp_path: Path):
    """P5: a name with spaces and other letters too."""
    (tmp_path / "a b" / "ü").mkdir(parents=True)
    made = case(tmp_path, {"name": "x", "steps": [STEP]})
    assert made.workspace is not None
    assert (made.workspace.kind, made.workspace.root, made.workspace.link_paths) == ("copy", str(tmp_path), ())
    made = case(tmp_path, {"name": "x", "steps": [STEP], "tmpdir": {"link_paths": ["a b/ü/", "./a b"]}})
    assert made.workspace is not None
    assert (made.workspace.kind, made.workspace.link_paths) == ("empty", ("a b/ü", "a b"))
    made = case(tmp_path, {"name": "x", "steps": [STEP], "tmpdir": {}})
    assert made.workspace is not None
    assert made.workspace.kind == "empty"


@pytest.mark.parametrize(
    ("path", "output"),
    [
        ("..", "'..' leaves the working folder"),
        ("away", "'away' leads outside the working folder, to /"),
        ("away/x", "'away/x' leads outside the working folder, to /"),
        ("a/../b", "'a/../b' leaves the working folder"),
        ("/etc", "'/etc' is absolute; give a path relative to the working folder"),
        ("", "'' names nothing"),
        ("gone", "there is no 'gone' in the working folder"),
        ("x" * 300, f"{'x' * 300!r} cannot be read: "),
        ("a\0b", "'a\\x00b' names nothing"),
        ("dangling", "'dangling' is a broken symbolic link"),
        ("circle", "'circle' is a broken symbolic link"),
    ],
)
def test_links_that_cannot_be_are_refused(tmp_path: Path, path: str, output: str):
    """P5: before anything runs."""
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "away").symlink_to(tmp_path.parent)
    (tmp_path.parent / "x").touch()
    (found,) = wrong(tmp_path, {"name": "x", "steps": [STEP], "tmpdir": {"link_paths": [path]}})
    assert found.startswith(f"$.tmpdir.link_paths[0]: {output}")


def test_the_model_of_the_agent_is_an_option(tmp_path: Path):
    """P3."""
    assert case(tmp_path, {"name": "x", "steps": [STEP], "agent_model": "gemini-9"}).options == {"model": "gemini-9"}
    assert case(tmp_path, {"name": "x", "steps": [STEP]}).options == {}


@pytest.mark.parametrize(
    ("flag", "own", "default", "chosen"),
    [
        ("flag", "own", "default", "flag"),
        (None, "own", "default", "own"),
        (None, None, "default", "default"),
        ("agents:flag", None, None, "flag"),
    ],
)
def test_who_evaluates(tmp_path: Path, flag: str | None, own: str | None, default: str | None, chosen: str):
    """P3: the flag, the playbook, the config."""
    value = {"name": "x", "steps": [STEP], **({"evaluator_model": own} if own else {})}
    made = case(tmp_path, value, evaluator=flag, default_evaluator=default)
    assert made.user.planned_messages[0].assertions[0].definition["use"] == chosen


def test_an_evaluator_is_needed_for_judges_and_simulators(tmp_path: Path):
    """P3: a persona of one line whose criteria need no judge does without."""
    (output,) = wrong(tmp_path, {"name": "x", "steps": [STEP]}, evaluator=None)
    assert output.startswith(
        "$: the playbook has no evaluator, which judges the steps and plays the user: set `evaluator_model` here, --evaluator NAME"
    )
    assert wrong(tmp_path, persona(), evaluator=None) == [output]
    assert wrong(tmp_path, persona(max_turns=1, success_criteria={"llm_checks": ["x"]}), evaluator=None) == [output]
    alone = case(tmp_path, persona(max_turns=1), evaluator=None)
    assert alone.limits.max_turns == 1
    assert alone.user.simulator is None  # rerun commands would name it
    assert [message.source for message in alone.user.planned_messages] == ["initial"]


def test_an_unusable_evaluator_is_reported_where_it_is_named(tmp_path: Path):
    def nobody(name: str) -> list[Problem]:
        return [Problem("", 0, "", f"nobody is called {name}")]

    value = {"name": "x", "evaluator_model": "gone", "steps": [STEP]}
    found = wrong(tmp_path, value, evaluator=None, find_evaluator_problems=nobody)
    assert found == ["$.evaluator_model: nobody is called gone"]
