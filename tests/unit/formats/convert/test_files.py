"""Files of other tools become native cases; what has no counterpart is named with its line."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from viva.errors import BadInput
from viva.formats.convert.files import TOOLS, Conversion, convert_file
from viva.formats.yaml_values import format_yaml, parse_yaml

PROMPTFOO = """\
prompts:
  - "Question: {{question}}"
providers: [openai:gpt-4o]
defaultTest:
  assert: [{ type: not-icontains, value: sorry }]
tests:
  - description: Opening hours
    vars: { question: When do you open? }
    assert:
      - { type: contains-any, value: [am, a.m.], weight: 2 }
      - { type: llm-rubric, value: "Polite about {{question}}", threshold: 0.7 }
      - { type: latency, threshold: 3000 }
      - { type: starts-with, value: "Hi (" }
      - { type: is-json, value: { required: [hours] } }
      - { type: javascript, value: output.length < 100 }
  - vars: { question: [A, B] }
  - vars: { question: first }
    metadata: { conversationId: c1 }
  - vars: { question: second }
    metadata: { conversationId: c1 }
  - description: Wants a refund
    provider: { id: "promptfoo:simulated-user", config: { maxTurns: 5 } }
    vars: { instructions: You want a refund }
"""


def convert(folder: Path, name: str, text: str, tool: str | None = None) -> Conversion:
    (folder / name).write_text(text, encoding="utf-8")
    return convert_file(folder / name, tool)


def test_promptfoo(tmp_path: Path):
    conversion = convert(tmp_path, "promptfooconfig.yaml", PROMPTFOO)
    hours, a, b, refund, talk = conversion.cases
    not_sorry = {"type": "contains", "value": "sorry", "ignore_case": True, "negate": True}
    assert hours == {
        "id": "opening-hours",
        "input": "Question: When do you open?",
        "assertions": [
            {
                "type": "any",
                "assertions": [{"type": "contains", "value": "am"}, {"type": "contains", "value": "a.m."}],
                "weight": 2,
            },
            {"type": "judge", "criteria": "Polite about When do you open?", "min_score": 0.7},
            {"type": "max_latency", "value": "3000ms"},
            {"type": "regex", "pattern": r"\AHi\ \("},
            {"type": "json_schema", "schema": {"required": ["hours"]}},
            not_sorry,
        ],
    }
    assert [a["input"], b["input"]] == ["Question: A", "Question: B"]
    assert [turn["input"] for turn in talk["turns"]] == ["Question: first", "Question: second"]
    assert refund["max_turns"] == 5
    assert refund["simulator"]["options"]["metadata"]["goal"] == "You want a refund"
    assert [(note.line, note.path) for note in conversion.notes] == [(15, "$.tests[0].assert[5]")]


def test_the_prompts_of_promptfoo_are_read_only_inside_its_folder(tmp_path: Path):
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("secret")
    chat = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "{{q}}"}]
    (folder / "chat.json").write_text(json.dumps(chat))
    config: dict[str, Any] = {"prompts": ["file://chat.json"], "tests": [{"vars": {"q": "Why {{x}}?"}}]}
    (case,) = convert(folder, "a.yaml", yaml.safe_dump(config)).cases
    assert case["input"][1]["content"] == "Why \\{{x}}?"
    config["prompts"] = ["file://../outside.txt"]
    with pytest.raises(BadInput, match="outside the folder") as refused:
        convert(folder, "b.yaml", yaml.safe_dump(config))
    assert refused.value.problems[0].path == "$.prompts[0]"


def test_adk(tmp_path: Path):
    turn = {
        "user_content": {"parts": [{"text": "Turn off the lamp"}], "role": "user"},
        "final_response": {"parts": [{"text": "It is off."}], "role": "model"},
        "intermediate_data": {"tool_uses": [{"name": "set_device", "args": {"id": "lamp", "on": False}}]},
    }
    scenario = {"starting_prompt": "Hi", "conversation_plan": "Book a room"}
    cases = [{"eval_id": "lamp", "conversation": [turn]}, {"eval_id": "room", "conversation_scenario": scenario}]
    lamp, room = convert(tmp_path, "x.evalset.json", json.dumps({"eval_set_id": "x", "eval_cases": cases})).cases
    assert lamp["turns"][0]["assertions"][:2] == [
        {"type": "tool_sequence", "names": ["set_device"], "exact": True},
        {"type": "tool_called", "name": "set_device", "arguments": {"id": "lamp", "on": False}},
    ]
    assert room["input"] == "Hi"
    old = [{"query": "Hi", "expected_tool_use": [{"tool_name": "t", "tool_input": {}}], "reference": "Hello"}]
    (case,) = convert(tmp_path, "x.test.json", json.dumps(old)).cases
    assert [each["type"] for each in case["turns"][0]["assertions"]] == ["tool_sequence", "judge"]


def test_pydantic_evals(tmp_path: Path):
    text = """\
name: capitals
cases:
- name: simple case
  inputs: capital of France?
  metadata: {level: easy}
  expected_output: Paris
  evaluators:
  - EqualsExpected
  - Contains: {value: par, case_sensitive: false}
  - LLMJudge: It is polite
evaluators:
- IsInstance: str
- MaxDuration: 2.0
- HasMatchingSpan: {query: {name_equals: a}}
"""
    conversion = convert(tmp_path, "capitals.yaml", text)
    assert [list(each.values())[:2] for each in conversion.cases[0]["assertions"]] == [
        ["equals", "Paris"],
        ["contains", "par"],
        ["judge", "It is polite"],
        ["type", "string"],
        ["max_latency", "2.0s"],
    ]
    assert [(note.line, note.path) for note in conversion.notes] == [(14, "$.evaluators[2]")]


def test_inspect_and_deepeval(tmp_path: Path):
    plain, choice = convert(
        tmp_path,
        "samples.jsonl",
        '{"input": "2+2?", "target": ["4", "four"]}\n{"input": "Which?", "choices": ["a", "b"], "target": "B"}\n',
    ).cases
    assert plain["assertions"][0]["type"] == "any"
    assert choice["input"].startswith("Which?\n\nA) a\nB) b\n")
    (row,) = convert(tmp_path, "samples.csv", "input,target,id\nHi,Hello,greets\n").cases
    assert (row["id"], row["assertions"][0]["value"]) == ("greets", "Hello")
    goldens = [
        {"input": "Hi", "expected_output": "Hello", "context": ["c"], "expected_tools": [{"name": "log"}]},
        {"scenario": "Wants a refund", "expected_outcome": "It is promised", "user_description": "Ada"},
    ]
    conversion = convert(tmp_path, "goldens.json", json.dumps(goldens))
    assert [each["type"] for each in conversion.cases[0]["assertions"]] == ["judge", "tool_called"]
    assert conversion.cases[1]["checkpoints"][0]["assertion"]["criteria"] == "It is promised"
    assert [note.path for note in conversion.notes] == ["$[0].context"]


@pytest.mark.parametrize(
    ("name", "text", "tool", "message"),
    [
        ("x.yaml", "a: 1", None, "not a file of a known tool; files of promptfoo"),
        ("x.yaml", "tests: [{vars: {}}]", "adk", "is not a file of adk"),
        ("x.yaml", "tests: [1]", None, "cannot be read as a file of promptfoo"),
        ("x.yaml", "tests: []", None, "has no cases"),
        ("x.yaml", "", None, "is empty"),
        ("x.yaml", "a: [", None, "is not YAML"),
        ("x.txt", "", None, "must end in"),
        ("x.yaml", "prompts: [file://p.py]\ntests: [{vars: {}}]", None, "made by code"),
    ],
)
def test_misuse(tmp_path: Path, name: str, text: str, tool: str | None, message: str):
    with pytest.raises(BadInput, match=message):
        convert(tmp_path, name, text, tool)


def test_an_evaluator_without_a_name_has_no_counterpart(tmp_path: Path):  # 12.9
    conversion = convert(tmp_path, "x.json", '{"cases": [{"inputs": "q", "evaluators": [{}]}]}')
    assert [note.message.partition(";")[0] for note in conversion.notes] == ["{} has no counterpart"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["tests", "vars", "assert", "type", "value", "cases", "inputs", "input", "target", "prompts",
                         "eval_cases", "conversation", "query", "expected_output", "scenario", "evaluators"]), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(value=JSON, tool=st.sampled_from([None, *TOOLS]))
def test_any_json_is_converted_or_refused(tmp_path_factory: pytest.TempPathFactory, value: Any, tool: str | None):
    """No content of a file ends in a traceback."""
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(value))
    try:
        conversion = convert_file(file, tool)
    except BadInput:
        return
    assert conversion.cases


def test_files_that_a_config_of_promptfoo_names_are_read(tmp_path: Path):
    files = {
        "default.yaml": "assert: [{ type: contains, value: bye }]\n",
        "schema.json": '{"required": ["hours"]}',
        "rubric.txt": "Polite\n",
        "doc.txt": "the text",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    text = """\
prompts: ["{{doc}} for {{user.name}}, {{user.age}}"]
defaultTest: file://default.yaml
tests:
  - vars: { doc: file://doc.txt, user: { name: Ann } }
    assert:
      - { type: is-json, value: file://schema.json }
      - { type: llm-rubric, value: file://rubric.txt }
      - { type: contains, value: x, weight: 0 }
      - { type: python, value: file://check.py }
"""
    conversion = convert(tmp_path, "promptfooconfig.yaml", text)
    (case,) = conversion.cases
    assert case["input"] == "the text for Ann, \\{{user.age}}"
    assert case["assertions"] == [
        {"type": "json_schema", "schema": {"required": ["hours"]}},
        {"type": "judge", "criteria": "Polite"},
        {"type": "contains", "value": "bye"},
    ]
    notes = [(note.line, note.message) for note in conversion.notes]
    assert sorted(line for line, _ in notes) == [4, 8, 9, 9]  # no value; weight 0; code, and its type
    assert any("'user.age' has no value" in message for _, message in notes)


def test_cells_of_a_csv_file_may_have_several_lines(tmp_path: Path):
    text = 'input,target,choices\n"line one\nline two",A,"red, green"\nnext,B,"x,y"\n'
    first, second = convert(tmp_path, "samples.csv", text, "inspect").cases
    assert first["input"].startswith("line one\nline two\n\nA) red\nB) green\n")
    assert second["input"].startswith("next\n\nA) x\nB) y\n")


@example("a\x85b\u2028")
@given(st.recursive(st.text() | st.integers() | st.booleans() | st.none(), lambda inner: st.lists(inner, max_size=3)))
def test_what_is_written_as_yaml_is_read_as_the_same(value: Any):
    assert [read for read, _ in parse_yaml(format_yaml([value, "1e3", "no", "0o7", "12:30", "~"]))] == [
        [value, "1e3", "no", "0o7", "12:30", "~"]
    ]
