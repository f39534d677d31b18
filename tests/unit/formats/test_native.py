"""Native cases: what is refused and in which words, both spellings of the wild, and what a case becomes."""

import asyncio
import re
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from viva import catalog
from viva.errors import BadInput
from viva.formats import native
from viva.formats.documents import open_documents, wrap_values
from viva.formats.load_options import LoadOptions
from viva.model.case import Case, Fixtures, Key, ToolStub, UserMessage
from viva.model.message import File, Image, Message, Text
from viva.state.evaluation import format_assertion_label
from viva.state.trial_state import TrialState
from viva.testing.check_context import FrozenClock, NoHelpers

OK = {"type": "contains", "value": "x"}


def suite(*cases: Any, folder: Path = Path(), **reading: Any):
    return native.load(wrap_values(cases, "s"), "s", folder, LoadOptions(**reading))


def built(*cases: Any, folder: Path = Path(), **reading: Any) -> list[Case]:
    """The cases, as they are pulled in a run."""

    async def pulled() -> list[Case]:
        return [case async for case in suite(*cases, folder=folder, **reading).cases()]

    return asyncio.run(pulled())


def wrong(*cases: Any, folder: Path = Path(), **reading: Any) -> list[str]:
    """What is complained about: path and words."""
    with pytest.raises(BadInput) as raised:
        suite(*cases, folder=folder, **reading)
    return [f"{problem.path}: {problem.message}" for problem in raised.value.problems]


def asserting(**assertion: Any) -> dict[str, Any]:
    return {"id": "a", "input": "hi", "assertions": [assertion]}


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"input": "x"}, "$: is missing 'id'"),
        ({"id": "", "input": "x"}, "$.id: is empty"),
        ({"id": 5, "input": "x"}, "$.id: is the number 5; should be a string"),
        ({"id": "a", "inptu": "x"}, "$: unknown key 'inptu'; did you mean 'input'?"),
        ({"id": "a", "input": "x", "colour": 1}, "$: unknown key 'colour'; known keys: id, name,"),
        ({"id": "a"}, "$: is missing 'input' (one turn), 'turns' (a script) or 'simulator' with 'checkpoints'"),
        ({"id": "a", "input": []}, "$.input: is empty"),
        ({"id": "a", "input": [{"role": "robot", "content": "x"}]}, '$.input[0].role: unknown value "robot"'),
        (
            {"id": "a", "input": [{"role": "assistant", "content": "x"}]},
            "$.input: the message to send has the role 'assistant'",
        ),
        ({"id": "a", "input": {"role": "user"}}, "$.input: is missing 'content'"),
        ({"id": "a", "turns": []}, "$.turns: is empty"),
        ({"id": "a", "turns": ["x"]}, "$.turns[0]: is a string; should be"),
        ({"id": "a", "turns": [{"assert": OK}]}, "$.turns[0]: is missing 'input'"),
        (
            {"id": "a", "turns": [{"input": "x"}], "input": "y"},
            "$: has input and turns; put the input into the first turn",
        ),
        (
            {"id": "a", "turns": [{"input": "x"}], "assertions": [OK]},
            "$: 'assertions' cannot be used here, where no turn is checked; move it to a turn",
        ),
        (
            {"id": "a", "turns": [{"input": "x"}, {"input": [{"content": "y"}, {"content": "z"}]}]},
            "$.turns[1].input: is a list of several messages; only the first turn",
        ),
        (
            {"id": "a", "turns": [{"input": "x"}, {"input": "y"}], "max_turns": 1},
            "$.max_turns: is 1, but there are 2 turns",
        ),
        (
            {
                "id": "a",
                "turns": [{"input": "x"}],
                "simulator": {"use": "s"},
                "checkpoints": [{"id": "c", "assertion": OK}],
            },
            "$: has turns and simulator/checkpoints; choose one",
        ),
        ({"id": "a", "simulator": {"use": "s"}}, "$: has a simulator but no checkpoints"),
        (
            {"id": "a", "checkpoints": [{"id": "c", "assertion": OK}]},
            "$: has checkpoints but no simulator; add one, or give a default with --simulator",
        ),
        (
            {"id": "a", "input": "x", "mode": "dynamic"},
            "$: mode is 'dynamic', but the case has only an 'input', which makes it 'single'; give it 'simulator' and 'checkpoints'",
        ),
        (
            {"id": "a", "turns": [{"input": "x"}], "mode": "single"},
            "$: mode is 'single', but the case has 'turns', which makes it 'static'; give it only an 'input'",
        ),
        ({"id": "a", "input": "x", "mode": "statik"}, "$.mode: unknown value \"statik\"; did you mean 'static'?"),
        ({"id": "a", "input": "x", "timeout": "soon"}, '$.timeout: is "soon"; should be a duration such as 30s'),
        ({"id": "a", "input": "x", "timeout": 0}, "$.timeout: must be greater than 0"),
        (
            {"id": "a", "turns": [{"input": "x", "turn_timeout": "3 days"}]},
            '$.turns[0].turn_timeout: is "3 days"; should be a duration',
        ),
        ({"id": "a", "input": "x", "runs": 0}, "$.runs: is 0; should be at least 1"),
        ({"id": "a", "input": "x", "tags": "t"}, "$.tags: is a string; should be an array"),
        ({"id": "a", "input": "x", "on_missing_input": "stop"}, '$.on_missing_input: unknown value "stop"'),
        ({"id": "a", "input": "x", "for": []}, "$.for: is empty"),
        (
            {"id": "a", "input": "x", "assertions": [OK], "assert": OK},
            "$: gives both 'assertions' and 'assert'; keep one of them",
        ),
        ({"id": "a", "turns": [{"input": "x", "set": {"v": "$["}}]}, "$.turns[0].set.v: '$[' is not a JSONPath"),
        (asserting(value="x"), "$.assertions[0]: is missing 'type'"),
        (
            asserting(type="contians", value="x"),
            "$.assertions[0].type: unknown assertion type \"contians\"; did you mean 'contains'",
        ),
        (asserting(type="contains"), "$.assertions[0]: is missing 'value'"),
        (asserting(type="contains", value=5), "$.assertions[0].value: is the number 5; should be a string"),
        (
            asserting(type="contains", value="x", ignorecase=True),
            "$.assertions[0]: unknown key 'ignorecase'; did you mean 'ignore_case'?",
        ),
        (asserting(type="regex"), "$.assertions[0]: is missing 'pattern'"),
        (asserting(type="regex", pattern="("), "$.assertions[0]: '(' is not a regular expression"),
        (
            asserting(type="regex", pattern="a", value="b"),
            "$.assertions[0]: gives both spellings of 'pattern'; keep one",
        ),
        (asserting(type="json_path", path="$.a["), "$.assertions[0]: '$.a[' is not a JSONPath"),
        (asserting(type="json_path", path="a", matches="["), "$.assertions[0]: '[' is not a regular expression"),
        (asserting(type="type", value="text"), '$.assertions[0].value: unknown value "text"'),
        (asserting(type="tool_called"), "$.assertions[0]: is missing 'name'"),
        (asserting(type="tool_called", name="a", value="b"), "$.assertions[0]: gives both spellings of 'name'"),
        (
            asserting(type="tool_called", name="a", times={"min": 2, "maks": 3}),
            "$.assertions[0].times: unknown key 'maks'",
        ),
        (asserting(type="max_latency", value="fast"), "$.assertions[0]"),
        (asserting(type="script", use="agents:x"), "$.assertions[0]: 'agents:x' is an agent, but a script is needed"),
        (
            asserting(type="script", use="scripts:no_such_module_here.f"),
            "$.assertions[0]: 'scripts:no_such_module_here.f': there is no",
        ),
        (asserting(type="not", assertion={"type": "regex", "pattern": "("}), "$.assertions[0]"),
        (
            asserting(type="all", assertions=[OK, {"type": "nope"}]),
            '$.assertions[0].assertions[1].type: unknown assertion type "nope"',
        ),
        (asserting(type="all", assertions=[]), "$.assertions[0]: assertions is a list of at least one"),
        (asserting(type="contains", value="x", weight=-1), "$.assertions[0].weight: is -1; should be at least 0"),
    ],
)
def test_problems_have_a_place(case: dict[str, Any], expected: str):
    first, *more = wrong(case)
    assert first.startswith(expected), first  # N2, N4, N9, N24
    assert not more


DYNAMIC = {"id": "a", "simulator": {"use": "s"}}


@pytest.mark.parametrize(
    ("checkpoints", "expected"),
    [
        (
            [{"id": "c", "assertion": OK, "after": ["d"]}],
            "$.checkpoints[0]: after names a checkpoint that does not exist: 'd'; there are c",
        ),
        (
            [{"id": "c", "assertion": OK, "after": ["c"]}],
            "$.checkpoints: the `after` of these checkpoints form a cycle: c",
        ),
        (
            [{"id": "c", "assertion": OK, "after": ["d"]}, {"id": "d", "assert": OK, "after": ["c"]}],
            "$.checkpoints: the `after` of these checkpoints form a cycle: c, d",
        ),
        (
            [{"id": "c", "assertion": OK}, {"id": "c", "assertion": OK}],
            "$.checkpoints[1]: id 'c' is taken by another checkpoint",
        ),
        ([{"id": "c", "assertion": OK, "required": False}], "$.checkpoints: no checkpoint is required"),
        ([{"id": "c"}], "$.checkpoints[0]: is missing 'assertion'"),
        ([{"id": "c", "assertion": OK, "assert": OK}], "$.checkpoints[0]: gives both 'assertion' and 'assert'"),
    ],
)
def test_checkpoints_that_cannot_work_are_refused(checkpoints: list[Any], expected: str):
    assert any(each.startswith(expected) for each in wrong(DYNAMIC | {"checkpoints": checkpoints}))  # N2


def test_all_problems_of_all_cases_come_at_once_and_once():
    """In the order of the file; a `for` with many rows says the same thing once."""
    said = wrong(
        {"id": "a", "input": 5, "name": 7, "runs": 0},
        {"id": "b", "input": "{{x}}", "timeout": "soon", "for": [{"x": 1}, {"x": 2}]},
        {"id": "c", "input": "fine"},
        {"id": "c", "input": "taken"},
    )
    assert [each.split(":")[0] for each in said] == ["$.input", "$.name", "$.runs", "$.timeout", "$.id"]  # N2


def test_ids_made_by_for_are_unique_too():
    assert wrong({"id": "a-1", "input": "x"}, {"id": "a", "input": "x", "for": [{"n": 1}]}) == [
        "$.id: id 'a-1' is taken; line 1 has it too"
    ]


def test_a_simulator_given_on_the_command_line_is_enough():
    (case,) = built({"id": "a", "checkpoints": [{"id": "c", "assertion": OK}]}, simulator="users.default")
    assert case.user.simulator == "users.default"  # N2


@pytest.mark.parametrize(
    ("mode", "case"),
    [
        ("static", {"input": "x"}),
        ("single", {"input": "x"}),
        ("static", {"turns": [{"input": "x"}]}),
        ("dynamic", {"simulator": {"use": "s"}, "checkpoints": [{"id": "c", "assertion": OK}]}),
    ],
)
def test_a_mode_that_agrees_is_fine(mode: str, case: dict[str, Any]):
    assert built({"id": "a", "mode": mode, **case})[0].id == "a"  # N9


def test_a_case_has_what_was_written_and_defaults_elsewhere():
    (plain,) = built({"id": "a", "input": "x"})
    assert (plain.limits.timeout_s, plain.limits.turn_timeout_s, plain.limits.max_turns) == (300.0, None, 20)  # N4
    assert (plain.on_missing_input, plain.skip_reason, plain.runs, plain.tags) == (None, None, None, ())
    (full,) = built(
        {
            "id": "a",
            "name": "n",
            "description": "d",
            "tags": ["t"],
            "turns": [{"input": "x", "turn_timeout": "500ms", "options": {"o": 1}, "set": {"v": "$.a"}, "assert": OK}],
            "final_assertions": OK,
            "max_turns": 5,
            "timeout": "2m30s",
            "turn_timeout": 7,
            "on_missing_input": "end",
            "options": {"mode": "chat"},
            "metadata": {"k": "v"},
            "skip": "why",
            "runs": 3,
        }
    )
    assert (full.name, full.description, full.tags) == ("n", "d", ("t",))
    assert (full.limits.timeout_s, full.limits.turn_timeout_s, full.limits.max_turns) == (150.0, 7.0, 5)  # N6
    assert (full.on_missing_input, full.skip_reason, full.runs) == ("end", "why", 3)
    assert (full.options, full.metadata) == ({"mode": "chat"}, {"k": "v"})
    (line,) = full.user.planned_messages
    assert (line.timeout_s, line.options, line.variables) == (0.5, {"o": 1}, {"v": "$.a"})
    assert len(line.assertions) == 1
    (final,) = full.final_assertions
    assert final.over == "case"  # N12
    assert built({"id": "a", "input": "x", "skip": True})[0].skip_reason == "marked to be skipped"
    assert built({"id": "a", "input": "x", "skip": False})[0].skip_reason is None


def test_a_default_of_the_config_stands_below_the_case():
    own, other = built({"id": "a", "input": "x", "timeout": "1s"}, {"id": "b", "input": "x"}, timeout_s=9.0)
    assert (own.limits.timeout_s, other.limits.timeout_s) == (1.0, 9.0)  # N18


def test_inputs_are_texts_messages_or_histories():
    text, message, history = built(
        {"id": "a", "input": "x"},
        {
            "id": "b",
            "input": {"content": [{"type": "text", "text": "y"}, {"type": "image", "source": "http://h/i.png"}]},
        },
        {
            "id": "c",
            "input": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "h"}, {"content": "z"}],
        },
    )
    assert text.user.planned_messages[0].message == Message("user", "x")  # N5
    assert message.user.planned_messages[0].message.content == (
        Text("y"),
        Image("http://h/i.png", None, None, "http://h/i.png"),
    )
    assert history.history == (Message("system", "s"), Message("assistant", "h"))
    assert history.user.planned_messages[0].message == Message("user", "z")


def test_the_same_case_has_the_same_digest():
    one, other, changed = built(
        {"id": "a", "input": "x", "metadata": {"p": 1, "q": 2}},
        {"metadata": {"q": 2, "p": 1}, "input": "x", "id": "a "[:1] + "2"},
        {"id": "a3", "input": "y", "metadata": {"p": 1, "q": 2}},
    )
    assert len({one.digest, other.digest, changed.digest}) == 3
    (again,) = built({"metadata": {"q": 2, "p": 1}, "input": "x", "id": "a"})
    assert again.digest == one.digest


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"type": "regex", "pattern": "a"}, {"type": "regex", "value": "a"}),
    ({"type": "tool_called", "name": "t"}, {"type": "tool_called", "value": "t"}),
    ({"type": "tool_called", "name": ["t", "u"]}, {"type": "tool_called", "value": ["t", "u"]}),
    (
        {"type": "tool_called", "name": "t", "arguments": {"a": 1}},
        {"type": "tool_called", "value": {"name": "t", "arguments": {"a": 1}}},
    ),
    ({"type": "tool_not_called", "name": "t"}, {"type": "tool_not_called", "value": "t"}),
    (
        {"type": "tool_result", "name": "t", "result": {"a": 1}},
        {"type": "tool_result", "value": {"tool": "t", "result": {"a": 1}}},
    ),
    ({"type": "tool_result", "name": "t"}, {"type": "tool_result", "value": {"tool": "t"}}),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_both_spellings_of_the_wild_mean_the_same(one: dict[str, Any], other: dict[str, Any]):
    first, second = built({"id": "a", "input": "x", "assertions": [one]}, {"id": "b", "input": "x", "assert": other})
    checks = [case.user.planned_messages[0].assertions[0].check for case in (first, second)]
    own: Any = catalog.find_component("check", one["type"])
    of_first, of_second = ({name: getattr(check, name) for name in own.__struct_fields__} for check in checks)
    assert of_first == of_second  # N3


def test_script_checks_have_two_spellings_as_well(tmp_path: Path):
    (tmp_path / "spelled.py").write_text("def f(output, metadata): return True\n", encoding="utf-8")
    one, other = built(
        asserting(type="script", use="scripts:spelled.f", options={"metadata": {"a": 1}}),
        asserting(type="script", script="spelled:f", metadata={"a": 1}) | {"id": "b"},
        folder=tmp_path,
    )
    checks: list[Any] = [case.user.planned_messages[0].assertions[0].check for case in (one, other)]
    first, second = checks
    assert first.all_metadata == second.all_metadata == {"a": 1}  # N3, N8
    said = wrong(
        asserting(type="script", use="scripts:spelled.f", metadata={}, options={"metadata": {}}), folder=tmp_path
    )
    assert said == ["$.assertions[0]: gives both spellings of 'metadata'; keep one of them"]


def test_assertions_are_one_object_or_a_list():
    one, many = built({"id": "a", "input": "x", "assertions": OK}, {"id": "b", "input": "x", "assert": [OK, OK]})
    assert [len(case.user.planned_messages[0].assertions) for case in (one, many)] == [1, 2]  # N3


def test_assertions_keep_their_weight_message_and_negation():
    ((case),) = built(asserting(type="contains", value="x", message="be polite", negate=True, weight=3))
    (assertion,) = case.user.planned_messages[0].assertions
    assert (assertion.message, assertion.negate, assertion.weight) == ("be polite", True, 3.0)  # N24
    assert assertion.definition["type"] == "contains"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("file://absent.png", "file://absent.png: there is no file"),
        ("file://../outside.txt", "file://../outside.txt leaves the suite's folder"),
        ("file:///etc/hostname", "file:///etc/hostname leaves the suite's folder"),
        ("file://link.txt", "file://link.txt leaves the suite's folder"),
        ("file://inside%2F..%2F..%2Foutside.txt", "leaves the suite's folder"),
        ("file://inside", "there is no file"),
    ],
)
def test_attachments_must_be_there_and_inside(tmp_path: Path, source: str, expected: str):
    folder = tmp_path / "suite"
    (folder / "inside").mkdir(parents=True)
    (tmp_path / "outside.txt").write_text("secret", encoding="utf-8")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    case = {"id": "a", "turns": [{"input": "x", "attachments": [{"type": "file", "source": source}]}]}
    (found,) = wrong(case, folder=folder)
    assert found.startswith("$.turns[0].attachments[0]: ")  # N5
    assert expected in found


def test_a_root_that_the_user_allows_is_inside(tmp_path: Path):
    folder, assets = tmp_path / "suite", tmp_path / "assets"
    folder.mkdir()
    assets.mkdir()
    (assets / "a b.txt").write_text("hello", encoding="utf-8")
    case = {"id": "a", "input": "x", "attachments": [{"type": "file", "source": "file://../assets/a%20b.txt"}]}
    (got,) = built(case, folder=folder, attachment_roots=(str(assets),))
    text, file = got.user.planned_messages[0].message.content
    assert text == Text("x")  # N5
    assert file == File("file://../assets/a%20b.txt", "a b.txt", "text/plain", "data:text/plain;base64,aGVsbG8=")


def test_an_attachment_that_is_gone_when_the_case_is_due_stops_it(tmp_path: Path):
    """It was there when the suite was checked; nothing is sent without it."""
    attached = tmp_path / "a.txt"
    attached.write_text("hello", encoding="utf-8")
    loaded = suite(
        {"id": "a", "input": "x", "attachments": [{"type": "file", "source": "file://a.txt"}]}, folder=tmp_path
    )
    attached.unlink()

    async def pulled() -> list[Case]:
        return [case async for case in loaded.cases()]

    with pytest.raises(BadInput, match="there is no file"):
        asyncio.run(pulled())


@pytest.mark.parametrize(
    ("assertion", "what"),
    [
        ({"type": "regex", "pattern": "(", "message": "{{x}}"}, "'(' is not a regular expression"),
        ({"type": "regex", "pattern": "a", "value": "{{x}}"}, "gives both spellings of 'pattern'"),
        ({"type": "json_path", "path": "$[", "value": "{{x}}"}, "'$[' is not a JSONPath"),
        ({"type": "json_path", "path": "$.a", "matches": "(", "value": "{{x}}"}, "'(' is not a regular expression"),
        ({"type": "script", "use": "scripts:nowhere.f", "metadata": {"a": "{{x}}"}}, "there is no nowhere.py"),
        ({"type": "json_schema", "schema": {"type": 5}, "message": "{{x}}"}, "not a JSON Schema"),
        ({"type": "tool_called", "message": "{{x}}"}, "is missing 'name'"),
        (
            {"type": "all", "assertions": [{"type": "contains", "value": "{{x}}"}, {"type": "regex", "value": "("}]},
            "assertions[1]: '(' is not a regular expression",
        ),
        ({"type": "not", "assertion": {"type": "regex", "value": "(", "message": "{{x}}"}}, "'(' is not a regular"),
    ],
)
def test_a_variable_in_one_field_excuses_no_other(assertion: dict[str, Any], what: str):
    (said,) = wrong(asserting(**assertion), has_before_run=True)
    assert what in said  # N2, N21


def test_helpers_of_assertions_with_variables_are_looked_for_before_the_run():
    asked: list[str] = []
    waiting = {"type": "agent", "use": "agents:b", "criteria": "{{x}}"}
    suite(
        asserting(type="agent", use="a", metadata={"criteria": "{{x}}"}),
        asserting(type="any", assertions=[waiting]) | {"id": "b"},
        asserting(type="rubric", criteria=["{{x}}"]) | {"id": "c"},
        asserting(type="agent", use="{{x}}", criteria="y") | {"id": "d"},
        find_helper_problems=lambda name: asked.append(name) or (),
        has_before_run=True,
    )
    assert asked == ["a", "b", "viva.validator"]  # N8


def test_one_problem_of_a_case_hides_no_other():
    """The id and the assertions of a case that does not fit are looked at all the same."""
    bad = {"id": "a", "input": 5, "assertions": [{"type": "regex", "value": "("}, {"type": "contains", "valu": "x"}]}
    late = {"id": "b", "turns": [{"input": "x", "assert": {"type": "script", "use": "scripts:nowhere.f"}}, 7]}
    said = wrong(bad, {"id": "a", "input": "x", "inputt": "y"}, late, {"id": "a", "input": "x"}, "rubbish", ["b"])
    assert len([each for each in said if "id 'a' is taken" in each]) == 2, said  # N2
    assert any(each.startswith("$.assertions[0]: '(' is not a regular") for each in said), said
    assert any(each.startswith("$.turns[0].assert: 'scripts:nowhere.f'") for each in said), said


def test_fixtures_stand_in_for_tools_and_memory():
    """`tools`, even none, means that no tool runs live; what a case needs is known before it runs."""  # W3
    cases = [
        {"id": "both", "input": "x", "fixtures": {"tools": [{"tool": "t", "error": "down"}], "memory": [{"a": 1}]}},
        {"id": "none", "input": "x", "fixtures": {"tools": []}},
        {"id": "plain", "input": "x"},
    ]
    both, none, plain = built(*cases)
    assert both.fixtures == Fixtures((ToolStub("t", error="down"),), ({"a": 1},), stub_all_tools=True)
    assert none.fixtures == Fixtures(stub_all_tools=True)
    assert plain.fixtures is None
    assert suite(*cases).needs == {"tool_stubs": ("both", "none"), "memory": ("both",)}


@pytest.mark.parametrize(
    "assertion",
    [
        {"type": "file_exists", "path": "a"},
        {"type": "file_contains", "path": "a", "value": "x", "negate": True},
        {"type": "not", "assertion": {"type": "any", "assertions": [OK, {"type": "file_exists", "path": "a"}]}},
        {"type": "file_exists", "path": "{{name}}"},
    ],
)
def test_a_case_that_looks_at_files_needs_a_workspace_and_no_other_does(assertion: dict[str, Any]):
    checkpoint = {"id": "c", "assertion": assertion}
    cases = built(
        asserting(**assertion),
        {"id": "b", "input": "x", "final_assertions": assertion},
        {"id": "c", "simulator": {"use": "viva.simulator"}, "checkpoints": [checkpoint]},
        {"id": "d", "input": "x", "assertions": [OK]},
        has_before_run=True,
    )
    assert ["workspace" in case.needs for case in cases] == [True, True, True, False]


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../b"])
def test_a_path_that_leaves_the_workspace_is_refused(path: str):  # P5
    (said,) = wrong(asserting(type="file_exists", path=path))
    assert said == f"$.assertions[0]: path {path!r} must be relative to the workspace, without `..`"
    assert wrong(asserting(type="file_contains", path=path, value="{{x}}"))


UNSET_VARIABLES: list[tuple[dict[str, Any], list[str]]] = [
    ({"input": "Hi {{nme}}"}, ["$.input: nothing sets {{nme}}"]),
    ({"input": [{"role": "user", "content": "{{a}}"}, {"content": [{"type": "text", "text": "{{b}}"}]}]},
     ["$.input[0].content: nothing sets {{a}}", "$.input[1].content[0].text: nothing sets {{b}}"]),
    ({"input": "x", "assertions": {"type": "contains", "value": "{{a}}"}}, ["$.assertions.value: nothing sets {{a}}"]),
    ({"input": "x", "final_assertions": [{"type": "all", "assertions": [{"type": "contains", "value": "{{a}}"}]}]},
     ["$.final_assertions[0].assertions[0].value: nothing sets {{a}}"]),
    ({"turns": [{"input": "{{name}}", "set": {"name": "$.n"}}, {"input": "{{nme}}"}]},
     ["$.turns[0].input: nothing sets {{name}} before this: turn 1 does", "$.turns[1].input: nothing sets {{nme}}; did you mean {{name}}?"]),
    ({"simulator": {"use": "viva.rules", "options": {"metadata": {"goal": "{{a}}"}}},
      "checkpoints": [{"id": "c", "assertion": {"type": "contains", "value": "{{b}}"}}]},
     ["$.checkpoints[0].assertion.value: nothing sets {{b}}", "$.simulator.options.metadata.goal: nothing sets {{a}}"]),
    ({"input": "{{a}} {{b}}", "for": [{"a": 1}]}, ["$.input: nothing sets {{b}}"]),
]  # fmt: skip


@pytest.mark.parametrize(("case", "expected"), UNSET_VARIABLES)
def test_a_variable_that_nothing_sets_is_found_at_load(case: dict[str, Any], expected: list[str]):
    found = wrong({"id": "a", **case})
    assert len(found) == len(expected), found
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start), found  # N21
    assert suite({"id": "a", **case}, has_before_run=True).count


def test_a_variable_that_something_may_set_is_left_to_the_run(tmp_path: Path):
    (tmp_path / "hooks.py").write_text("def before(ctx, case):\n    return {}\n", encoding="utf-8")
    turns = [{"input": "x", "set": {"a": "$.a"}, "assert": {"type": "contains", "value": "{{a}}"}}, {"input": "{{a}}"}]
    assert suite({"id": "a", "turns": turns}, {"id": "b", "input": r"\{{c}}"}).count == 2  # N21
    assert suite({"id": "a", "input": "{{c}}", "before": "hooks:before"}, folder=tmp_path).count == 1


def test_an_escaped_brace_is_text_in_inputs_assertions_and_rows():
    escaped, rows = built(
        {"id": "a", "input": r"Hi \{{x}}", "assertions": {"type": "contains", "value": r"\{{x}}"}},
        {"id": "b", "input": r"\{{x}} {{x}}", "name": r"\{{x}} {{x}}", "for": [{"x": 1}]},
    )
    assert escaped.user.planned_messages[0].assertions[0].check.label == 'contains "{{x}}"'  # N21
    assert escaped.user.planned_messages[0].assertions[0].definition["value"] == r"\{{x}}"
    assert [line.message.text for case in (escaped, rows) for line in spoken(case)] == ["Hi {{x}}", "{{x}} 1"]
    assert rows.name == "{{x}} 1"


def spoken(case: Case) -> list[UserMessage]:
    """What a scripted user says."""
    state = TrialState(case, Key("s", case.id), NoHelpers(), FrozenClock())

    async def said() -> list[UserMessage]:
        return [line async for line in case.user.speak(state)]

    return asyncio.run(said())


def test_before_its_variables_are_known_a_label_shows_their_names():
    (case,) = built(
        {
            "id": "a",
            "input": "x",
            "assertions": [
                {"type": "contains", "value": "Hi {{name}}"},
                {"type": "contains", "value": "{{name}}", "negate": True},
                {"type": "regex", "pattern": "({{name}}"},
            ],
        },
        has_before_run=True,
    )
    assert [format_assertion_label(assertion) for assertion in case.user.planned_messages[0].assertions] == [
        'contains "Hi {{name}}"',
        'not contains "{{name}}"',
        'regex {"pattern":"({{name}}"}',
    ]  # N21


def test_a_brace_may_be_written_as_an_escape(tmp_path: Path):
    """A file without `{{` is not searched for variables: an escaped brace is one all the same."""
    path = tmp_path / "s.jsonl"
    path.write_text('{"id": "a", "input": "\\u007b\\u007bname}}"}', encoding="utf-8")
    with pytest.raises(BadInput, match=re.escape("nothing sets {{name}}")):  # N21
        native.load(open_documents(path, "s.jsonl"), "s.jsonl", tmp_path, LoadOptions())


def test_cases_that_do_not_stay_in_memory_are_checked_like_all_others():  # N2
    """They are checked without being built; every problem is reported, and the same cases run."""
    kept = [{"id": f"kept{n}", "input": "x", "assertions": [OK]} for n in range(native.MAX_CASES_IN_MEMORY)]
    plain = [{"id": f"c{n}", "turns": [{"input": f"{n}", "assertions": [OK]}], "runs": n} for n in range(1, 4)]
    set_first = [{"input": "x", "set": {"name": "$.a"}}, {"input": "{{name}}", "assertions": [OK]}]
    cases = [*kept, *plain, {"id": "d", "turns": set_first}]
    large, run = suite(*cases), built(*cases)
    digest = blake2b("".join(case.digest for case in run).encode(), digest_size=8).hexdigest()
    assert (large.count, large.case_runs, large.digest) == (len(cases), (1, 2, 3), digest)
    assert [(case.id, len(case.user.planned_messages)) for case in run[-4:]] == [
        ("c1", 1),
        ("c2", 1),
        ("c3", 1),
        ("d", 2),
    ]
    wrong = [
        plain[0],
        {"id": "p", "input": "x", "assertions": {"type": "regex", "pattern": "("}},
        {"id": "q", "turns": [{"input": "x"}, {"input": "y"}], "max_turns": 1},
        {"id": "r", "input": "x", "assertion": [OK]},
        {"id": "s", "input": "x", "assertions": [{**OK, "value": ""}]},
    ]
    with pytest.raises(BadInput) as raised:
        suite(*cases, *wrong)
    assert [problem.line - len(cases) for problem in raised.value.problems] == [1, 2, 3, 4, 5]
