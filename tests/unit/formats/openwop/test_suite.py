"""Eval suites: what the loader refuses, and what becomes of the rest."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from openwop import SUITE_ID, golden, rubric, suite, task
from viva.checks.golden import Golden, ReturnSchema
from viva.checks.judge import Rubric
from viva.checks.safety import Safety, SafetyJudge, UnstubbedToolCalls
from viva.errors import BadInput, Problem
from viva.formats.documents import open_documents, parse_json_document, wrap_values
from viva.formats.load_options import LoadOptions
from viva.formats.openwop.modes import EvalOptions, parse_modes, select_modes
from viva.formats.openwop.suite import ManifestInfo, load, load_suite, parse_suite
from viva.model import codec
from viva.model.case import Case, Fixtures, Suite, Threshold, ToolStub

TOOLS = {"toolResponses": [{"tool": "acme:lookup", "response": {"n": 1}}, {"tool": "acme:other"}]}
MEMORY = {"memorySeed": [{"content": "Ada"}]}


def read(written: Any, terms: ManifestInfo | None = None, **asked: Any) -> Suite:
    evals = EvalOptions(**asked)
    document = parse_json_document(codec.encode(written), "suite.json")
    return load_suite(document, LoadOptions(eval_options=evals), terms or ManifestInfo())


def cases(found: Suite) -> list[Case]:
    async def pulled() -> list[Case]:
        return [case async for case in found.cases()]

    return asyncio.run(pulled())


def checks(case: Case) -> list[Any]:
    return [assertion.check for line in case.user.planned_messages for assertion in line.assertions]


def refused(written: Any, **asked: Any) -> str:
    with pytest.raises(BadInput) as error:
        read(written, **asked)
    return str(error.value)


CROSS_FIELD = [
    ({"kind": "golden"}, "is golden but is missing 'match'"),
    ({"kind": "rubric"}, "is rubric but is missing 'rubric'"),
    (rubric(("a", 0), ("b", 0)), "weights that are all 0"),
    ({"kind": "golden", "match": {"strategy": "regex", "value": "x"}}, "should be one of exact, contains, json-match"),
    ({"kind": "golden", "match": {"strategy": "exact"}}, "is missing 'value'"),
    (rubric(("a", 2)), "should be at most 1"),
    ({"kind": "rubric", "rubric": []}, "is empty"),
    ({"kind": "gold", "match": {"strategy": "exact", "value": 1}}, "did you mean 'golden'?"),
    ({**golden("x"), "note": 1}, "unknown key 'note'"),
]


@pytest.mark.parametrize(("expected", "what"), CROSS_FIELD)
def test_an_expectation_that_cannot_be_scored_is_refused(expected: Any, what: str):
    assert what in refused(suite(task(expected=expected)))  # R3, section 2


CLOSED = [
    ({"suiteId": "acme.demo"}, "should be scope.org.evals.name"),
    ({"suiteId": "Acme.evals.demo"}, "should be scope.org.evals.name"),
    ({"version": "1.0.0-beta"}, "should be three numbers"),
    ({"version": "1.0"}, "should be three numbers"),
    ({"modes": []}, "is empty"),
    ({"modes": ["golden", "golden"]}, "a list of different modes"),
    ({"modes": ["silver"]}, "unknown value"),
    ({"tasks": []}, "is empty"),
    ({"extra": 1}, "unknown key 'extra'"),
    ({"thresholds": {"passScore": 1.5}}, "should be at most 1"),
    ({"thresholds": {"maxP95LatencyMs": 1.5}}, "should be an integer"),
    ({"thresholds": {"passscore": 1}}, "did you mean 'passScore'?"),
    ({"allowedModels": ["chat"]}, "unknown value"),
    ({"targetAgentId": ""}, "is empty"),
]


@pytest.mark.parametrize(("fields", "what"), CLOSED)
def test_a_suite_is_closed_and_its_fields_have_their_form(fields: Any, what: str):
    assert what in refused(suite(**fields))  # R3


@pytest.mark.parametrize("name", ["Refund", "refund_window", "-refund", "", "refund window"])
def test_task_ids_are_kebab_case(name: str):
    assert "$.tasks[0].taskId" in refused(suite(task(name)))  # R3


def test_every_problem_is_reported_at_once_with_its_line(tmp_path: Path):
    """N2, section 2: four faults in one file, each where it stands."""
    path = tmp_path / "suite.json"
    path.write_bytes(
        codec.pretty_json(
            codec.encode(
                suite(
                    task("a"),
                    task("a"),
                    task("b", expected={"kind": "golden"}),
                    task("c", expected={"kind": "rubric"}),
                    task("d", expected=rubric(("x", 0))),
                )
            )
        )
    )
    with pytest.raises(BadInput) as error:
        load(open_documents(path, "suite.json"), "suite.json", tmp_path, LoadOptions())
    said = [str(problem) for problem in error.value.problems]
    assert len(said) == 4
    assert "suite.json:20: $.tasks[1]: task id 'a' is taken; tasks[0] has it too" in said
    lines = [problem.line for problem in error.value.problems]
    assert lines == sorted(lines)
    assert len(set(lines)) == 4


def test_a_schema_error_hides_nothing_else():
    """Neither what only code can find, nor what was asked for; and it makes nothing up."""
    same = task(expected={"kind": "golden"})
    said = refused(suite(same, same, task(taskId="B B"), {"input": "x"}, modes=()), modes=("rubric",))
    assert sorted(line.split(": ")[1:3] for line in said.splitlines()) == [
        ["$.modes", "is empty"],
        ["$.tasks[0].expected", "is golden but is missing 'match'"],
        ["$.tasks[1]", "task id 'a' is taken; tasks[0] has it too"],
        ["$.tasks[1].expected", "is golden but is missing 'match'"],
        ["$.tasks[2].taskId", 'is "B B"; should be lower-case letters, digits and hyphens, such as refund-window'],
        ["$.tasks[3]", "is missing 'expected'"],
        ["$.tasks[3]", "is missing 'taskId'"],
    ]  # N2


def test_weights_that_do_not_add_up_to_one_are_a_warning():
    """R20."""
    document = parse_json_document(codec.encode(suite(task(expected=rubric(("a", 0.5), ("b", 0.2))))), "s.json")
    _, odd = parse_suite(document)
    assert odd == ("s.json:1: $.tasks[0].expected: the weights add up to 0.7, not 1; the score is their share",)
    exact = parse_json_document(
        codec.encode(suite(task(expected=rubric(("a", 0.1), ("b", 0.2), ("c", 0.7))))), "s.json"
    )
    assert parse_suite(exact)[1] == ()


def test_a_value_that_is_in_every_output_is_a_warning():
    assert any("this task cannot fail" in note for note in read(suite(task(expected=golden("")))).notes)
    assert read(suite(task(expected=golden("", "exact")))).notes == ()


def test_a_second_suite_in_a_file_and_an_empty_file_are_refused(tmp_path: Path):
    two = wrap_values([suite(), suite()], "s.jsonl")
    with pytest.raises(BadInput, match="second suite"):
        load(two, "s.jsonl", tmp_path, LoadOptions())
    with pytest.raises(BadInput, match="does not contain an eval suite"):
        load(wrap_values([], "s.jsonl"), "s.jsonl", tmp_path, LoadOptions())


def test_a_yaml_suite_loads_but_cannot_say_nan(tmp_path: Path):
    path = tmp_path / "s.yaml"
    text = "suiteId: a.evals.b\nversion: 1.0.0\nmodes: [golden]\ntasks:\n- taskId: t\n  input: hi\n  expected: {kind: golden, match: {strategy: json-match, value: VALUE}}\n"
    path.write_text(text.replace("VALUE", "[1, true]"))
    assert load(open_documents(path, "s.yaml"), "s.yaml", tmp_path, LoadOptions()).count == 1
    path.write_text(text.replace("VALUE", "[1e999]"))
    with pytest.raises(BadInput, match=r"s\.yaml:5: .*NaN"):  # section 4
        load(open_documents(path, "s.yaml"), "s.yaml", tmp_path, LoadOptions())


def test_a_summary_is_not_taken_for_a_suite():
    assert "is the summary of an eval" in refused({"suiteId": SUITE_ID, "aggregateScore": 1, "tasks": []})


def test_a_task_is_a_case_of_one_turn():
    """R8, W1."""
    found = read(suite(task("a", "hi"), task("b", {"z": 1, "a": [True]}), task("c", ["x"]), task("d", 5)))
    assert (found.id, found.version, found.count) == (SUITE_ID, "1.0.0", 4)
    said = [case.user.planned_messages[0].message for case in cases(found)]
    assert [message.content for message in said] == ["hi", '{"a":[true],"z":1}', '["x"]', "5"]
    assert [message.data for message in said] == [None, {"z": 1, "a": [True]}, ["x"], 5]
    assert [case.id for case in cases(found)] == ["a", "b", "c", "d"]
    assert all(len(case.user.planned_messages) == 1 and case.suite == SUITE_ID for case in cases(found))


def test_double_braces_in_an_input_are_the_authors_own():
    (case,) = cases(read(suite(task(said="Hello {{name}}"))))
    assert case.user.planned_messages[0].message.content == "Hello {{name}}"
    assert not getattr(case.user, "has_variables", True)


def test_golden_and_rubric_become_checks():
    found = cases(read(suite(task("a", expected=golden(1, "json-match")), task("b", expected=rubric(("x", 1))))))
    first, second = (checks(case)[0] for case in found)
    assert first == Golden(strategy="json-match", value=1)
    assert isinstance(second, Rubric)
    assert (second.min_score, second.use) == (0.7, "viva.validator")  # section 4: rubric score


SCORES = [
    (suite(), {}, 1.0),
    (suite(task(expected=rubric(("x", 1)))), {}, 0.7),
    (suite(task(expected=rubric(("x", 1)))), {"pass_score": 0.9}, 0.9),
    (suite(thresholds={"passScore": 0.25}), {"pass_score": 0.9}, 0.25),
]


@pytest.mark.parametrize(("written", "asked", "score"), SCORES)
def test_the_pass_score_is_the_suites_or_the_configs_or_ours(written: Any, asked: Any, score: float):
    assert read(written, **asked).threshold == Threshold(score)  # section 4: default passScore


def test_thresholds_are_read():
    limits = {"passScore": 0.5, "maxCostUsd": 0, "maxP95LatencyMs": 200}
    assert read(suite(thresholds=limits)).threshold == Threshold(0.5, 0, 200)  # R16


def test_fixtures_become_stubs_and_memory():
    """R4, W3."""
    found = read(suite(task("a", fixtures={**TOOLS, **MEMORY}), task("b", fixtures=MEMORY), task("c", fixtures={})))
    both, memory, nothing = cases(found)
    stubs = (ToolStub("acme:lookup", {"n": 1}), ToolStub("acme:other", None))  # section 4: absent is null
    assert both.fixtures == Fixtures(stubs, ({"content": "Ada"},), stub_all_tools=True)
    assert memory.fixtures == Fixtures((), ({"content": "Ada"},), stub_all_tools=False)
    assert nothing.fixtures is None
    assert (both.needs, memory.needs, nothing.needs) == ({"tool_stubs", "memory"}, {"memory"}, frozenset())
    assert found.needs == {"tool_stubs": ("a",), "memory": ("a", "b")}
    assert [type(check) for check in checks(both)] == [Golden, UnstubbedToolCalls]


def test_tools_that_are_canned_without_an_answer_are_canned_too():
    (case,) = cases(read(suite(task(fixtures={"toolResponses": []}))))
    assert case.fixtures == Fixtures(stub_all_tools=True)
    assert case.needs == {"tool_stubs"}


def test_live_shadow_leaves_fixtures_aside():
    """R6."""
    written = suite(task(fixtures={**TOOLS, **MEMORY}), modes=("golden", "live-shadow"))
    found = read(written, modes=("live-shadow",), is_live=True)
    (case,) = cases(found)
    assert (case.fixtures, case.needs, found.needs) == (None, frozenset(), {})


def test_seeded_memory_is_redacted():
    """R5."""
    seed = {"memorySeed": [{"content": "the password is hunter2"}]}
    (case,) = cases(read(suite(task(fixtures=seed))))
    assert case.fixtures is not None
    assert case.fixtures.memory == ({"content": "the password is [redacted]"},)


def test_adversarial_adds_a_safety_assertion_that_takes_the_score():
    written = suite(task(expected=golden("hello")), modes=("golden", "adversarial"))
    (case,) = cases(read(written, safety_judge="guard", fail_at="high"))
    golden_assertion, safety, judge = case.user.planned_messages[0].assertions
    assert isinstance(golden_assertion.check, Golden)
    assert isinstance(safety.check, Safety)
    assert (safety.check.expected, safety.check.fail_at) == ("hello", "high")
    assert isinstance(judge.check, SafetyJudge)
    assert [assertion.weight for assertion in (golden_assertion, safety, judge)] == [1.0, 0.0, 0.0]
    assert [assertion.gate for assertion in (golden_assertion, safety, judge)] == [False, True, True]
    (plain,) = cases(read(written, modes=("golden",)))
    assert [type(check) for check in checks(plain)] == [Golden]
    unused = {**rubric(("x", 1)), "match": {"strategy": "exact", "value": "hello"}}
    (by_rubric,) = cases(read(suite(task(expected=unused), modes=("rubric", "adversarial"))))
    assert checks(by_rubric)[1].expected == ""  # a value that is not used allows no leak of it


def test_modes_never_drop_tasks():
    """W2."""
    written = suite(task("a"), task("b", expected=rubric(("x", 1))), modes=("golden", "rubric"))
    assert [case.id for case in cases(read(written, modes=("rubric",)))] == ["a", "b"]


def test_what_a_manifest_says_of_the_agent_counts():
    schema = {"type": "string", "minLength": 3}
    terms = ManifestInfo(
        agent_id="vendor.a.b", task_schema=schema, return_schema=schema, allowed_tools=("acme:lookup",)
    )
    found = read(suite(task(fixtures=TOOLS)), terms, agent_names={"vendor.a.b": "support"})
    assert found.target == "support"
    assert any("'acme:other' is not on the agent's tool allow-list" in note for note in found.notes)  # section 4
    (case,) = cases(found)
    assert any(isinstance(check, ReturnSchema) for check in checks(case))
    assert case.fixtures is not None
    assert [stub.tool for stub in case.fixtures.tools] == ["acme:lookup"]  # section 4: the other stays uncallable
    with pytest.raises(BadInput, match="task 'a': the agent's task schema does not take this input"):
        read(suite(task(said="hi")), terms)


def test_the_target_is_the_agent_with_that_id_in_the_config():
    """W5."""
    written = suite(targetAgentId="vendor.a.b", allowedModels=["writing"])
    found = read(written, agent_names={"vendor.a.b": "support"})
    assert found.target == "support"
    assert (found.intended_agent.agent_id, found.intended_agent.model_classes) == ("vendor.a.b", ("writing",))
    assert read(written).target is None
    assert read(suite()).target is None  # R2: any agent


def test_a_missing_judge_is_reported_where_it_is_needed():
    document = parse_json_document(codec.encode(suite(task("a"), task("b", expected=rubric(("x", 1))))), "s.json")
    options = LoadOptions(find_helper_problems=lambda name: (Problem("", 0, "", f"there is no {name}"),))
    with pytest.raises(BadInput, match=r"\$\.tasks\[1\]\.expected: needs a judge: there is no viva\.validator"):
        load_suite(document, options)
    only_checked = LoadOptions(
        find_helper_problems=options.find_helper_problems, eval_options=EvalOptions(validate_only=True)
    )
    assert load_suite(document, only_checked).count == 2


ALL = ("golden", "rubric", "adversarial", "regression", "live-shadow")
CHOSEN = [
    (ALL, {}, ("golden", "rubric", "adversarial")),
    (ALL, {"has_baseline": True}, ("golden", "rubric", "adversarial", "regression")),
    (("golden",), {}, ("golden",)),
    (ALL, {"modes": ("rubric",)}, ("rubric",)),
    (ALL, {"modes": ("live-shadow",), "is_live": True}, ("live-shadow",)),
    (ALL, {"modes": ("golden", "regression"), "has_baseline": True}, ("golden", "regression")),
]


@pytest.mark.parametrize(("declared", "asked", "modes"), CHOSEN)
def test_the_modes_of_a_run(declared: Any, asked: Any, modes: Any):
    found, said = select_modes(declared, EvalOptions(**asked))
    assert found == modes  # W2
    assert (said is not None) is (not asked.get("modes") and set(declared) != set(modes))


NOT_CHOSEN = [
    (("golden",), {"modes": ("rubric",)}, "does not declare the mode rubric"),  # R10
    (ALL, {"modes": ("golden", "live-shadow"), "is_live": True}, "cannot be mixed"),  # section 4
    (ALL, {"modes": ("live-shadow",)}, "confirm that with --live"),
    (ALL, {"is_live": True}, "--live belongs to"),
    (ALL, {"modes": ("golden",), "is_live": True}, "--live belongs to"),
    (ALL, {"modes": ("regression",)}, "needs --baseline"),
    (ALL, {"modes": ("golden",), "has_baseline": True}, "--modes leaves out"),
    (("golden",), {"has_baseline": True}, "does not declare"),
    (("live-shadow",), {}, "no other mode than live-shadow"),
    (("regression",), {}, "no other mode than regression"),
]


@pytest.mark.parametrize(("declared", "asked", "what"), NOT_CHOSEN)
def test_modes_that_cannot_be_had(declared: Any, asked: Any, what: str):
    with pytest.raises(ValueError, match=what):
        select_modes(declared, EvalOptions(**asked))
    assert what in refused(suite(modes=declared), **asked)


def test_modes_are_written_with_commas():
    assert parse_modes("golden, adversarial,golden") == ("golden", "adversarial")
    with pytest.raises(BadInput, match="did you mean 'adversarial'"):
        parse_modes("golden,adverserial")
    with pytest.raises(BadInput, match="no mode given"):
        parse_modes(" , ")


def test_the_lines_of_tasks_are_those_of_the_file():
    text = codec.pretty_json(codec.encode(suite(*(task(f"t{n}") for n in range(5)))))
    found = load_suite(parse_json_document(text, "s.json"), LoadOptions())
    lines = text.decode().splitlines()
    for case in cases(found):
        assert case.origin is not None
        assert f'"taskId": "{case.id}"' in lines[case.origin.line]  # the line after the brace
