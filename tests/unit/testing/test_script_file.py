"""The script of a stand-in as a file."""

from pathlib import Path
from textwrap import dedent

import pytest

from viva.errors import BadInput
from viva.model.message import ToolCall
from viva.testing import Fail, Say, When, load_script

WHOLE = """
- Hello!
- when: create
  times: 2
  thought: Let me see.
  text: I will.
  tool_calls: [{name: write_file, arguments: {file_path: a.txt}}, {name: stop, id: c9}]
- { tool: write_file, model: gemini-*, system: assistant, text: Done., input_tokens: 7, output_tokens: 3 }
- { error: 503, message: later, headers: { retry-after: "1" }, delay: 2s }
- { json: { passed: true }, finish_reason: length, delay: 500ms }
- { text: never said, hang: amid_body }
- { hang: true }
- { cut: before }
"""


def write(folder: Path, text: str, name: str = "replies.yaml") -> Path:
    path = folder / name
    path.write_text(dedent(text), encoding="utf-8")
    return path


def test_every_key_has_its_meaning(tmp_path: Path):
    calls = (ToolCall("write_file", {"file_path": "a.txt"}), ToolCall("stop", id="c9"))
    assert load_script(write(tmp_path, WHOLE)) == [
        "Hello!",
        When(Say(thought="Let me see.", content="I will.", tool_calls=calls), text="create", times=2),
        When(
            Say(content="Done.", input_tokens=7, output_tokens=3),
            tool="write_file",
            model="gemini-*",
            system="assistant",
        ),
        Fail(503, "later", {"retry-after": "1"}, 2.0),
        Say(content='{"passed":true}', finish_reason="length", delay_s=0.5),
        Say(content="never said", hold="amid_body"),
        Say(hold=True),
        Say(cut="before"),
    ]


def test_lines_of_json_and_a_json_list_are_read_too(tmp_path: Path):
    lines = write(tmp_path, '"Hello!"\n{"text": "Bye", "when": "x"}\n', "replies.jsonl")
    listed = write(tmp_path, '["Hello!", {"text": "Bye", "when": "x"}]', "replies.json")
    assert load_script(lines) == load_script(str(listed)) == ["Hello!", When(Say(content="Bye"), text="x")]


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("- { whn: a, text: b }", "replies.yaml:1: $[0]: unknown key 'whn'; did you mean 'when'?"),
        ("- ok\n- { when: '(' }", "replies.yaml:2: $[1].when: is not a regular expression"),
        ("- { delay: soon }", "replies.yaml:1: $[0].delay: 'soon' is not a duration"),
        ("- { error: 200 }", "$[0].error"),
        ("- { message: late }", "error"),
        ("- { tool_calls: [{}] }", "replies.yaml:1: $[0].tool_calls[0]"),
        ("- 7", "replies.yaml:1: $[0]"),
        ("[]", "has no replies"),
        ("- {", "is not YAML"),
    ],
)
def test_problems_have_a_place(tmp_path: Path, text: str, output: str):
    with pytest.raises(BadInput) as problem:
        load_script(write(tmp_path, text))
    assert output in str(problem.value)


def test_all_problems_are_reported_together(tmp_path: Path):
    with pytest.raises(BadInput) as problem:
        load_script(write(tmp_path, "- { whn: a }\n- { eror: 400 }"))
    assert len(problem.value.problems) == 2
