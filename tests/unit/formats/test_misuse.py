"""What people get wrong, for each format and for `-i` itself: all of it is found in one pass, each where it stands."""

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from viva.errors import BadInput, Problem
from viva.formats.documents import decode_chunk, read_chunks
from viva.formats.load_options import LoadOptions
from viva.formats.raw_files import MAX_BYTES
from viva.formats.sources import SuiteFiles, load_files, parse_input

Found = tuple[int, str, str]
"""Line, path, and a phrase of what is wrong."""


def problems(folder: Path, *inputs: str, **options: Any) -> list[Problem]:
    """What is wrong with these inputs."""
    try:
        paths: list[Path] = []
        for text in inputs:
            found = parse_input(text, folder)
            assert isinstance(found, SuiteFiles), found
            paths += found.paths
        load_files(paths, LoadOptions(folder=str(folder), find_helper_problems=nobody_but_rules, **options), folder)
    except BadInput as error:
        return list(error.problems)
    raise AssertionError("nothing is wrong")


def nobody_but_rules(name: str) -> tuple[Problem, ...]:
    return () if name.startswith("viva.") else (Problem("", 0, "", f"there is no agent {name!r}"),)


def check(found: list[Problem], file: str, expected: list[Found]) -> None:
    """Just these, in any order."""
    assert {each.file for each in found} == {file}
    left = list(found)
    for line, path, phrase in expected:
        fitting = [each for each in left if (each.line, each.path) == (line, path) and phrase in each.message]
        assert fitting, (line, path, phrase, [*map(str, left)])
        left.remove(fitting[0])
    assert not left, [*map(str, left)]


NATIVE: dict[str, tuple[str, list[Found]]] = {
    "structure-and-meaning": (
        """\
- id: a
  inptu: hello
  timeout: 5x
  turn_timeout: 0s
  before: nowhere:f
  assertions:
    - {type: regex, pattern: "("}
    - {type: contains, valu: x}
    - {type: agent, use: ghost, criteria: y}
    - 7
    - {type: contains, value: "{{name}}"}
""",
        [
            (2, "$[0]", "unknown key 'inptu'; did you mean 'input'?"),
            (3, "$[0].timeout", "should be a duration"),
            (4, "$[0].turn_timeout", "greater than 0"),
            (5, "$[0]", "there is no nowhere.py"),
            (7, "$[0].assertions[0]", "is not a regular expression"),
            (8, "$[0].assertions[1]", "unknown key 'valu'; did you mean 'value'?"),
            (9, "$[0].assertions[2]", "there is no agent 'ghost'"),
            (10, "$[0].assertions[3]", "is the number 7"),
        ],
    ),
    "turns": (
        """\
- id: a
  mode: single
  turns:
    - {input: x, set: {v: "$["}}
    - {inptu: y, assert: {type: regex, pattern: "("}}
    - 7
    - {input: "{{w}}"}
  max_turns: 2
- id: a
  turns: []
  final_assertions: {type: agent, use: ghost}
""",
        [
            (2, "$[0]", "mode is 'single', but the case has 'turns'"),
            (4, "$[0].turns[0].set.v", "is not a JSONPath"),
            (5, "$[0].turns[1]", "did you mean 'input'?"),
            (5, "$[0].turns[1].assert", "is not a regular expression"),
            (6, "$[0].turns[2]", "is the number 7"),
            (7, "$[0].turns[3].input", "nothing sets {{w}}"),
            (8, "$[0].max_turns", "is 2, but there are 4 turns"),
            (9, "$[1].id", "id 'a' is taken"),
            (10, "$[1].turns", "is empty"),
            (11, "$[1].final_assertions", "there is no agent 'ghost'"),
        ],
    ),
    "checkpoints": (
        """\
- id: a
  simulator: {use: ghost, tempo: fast}
  checkpoints:
    - {id: one, assertion: {type: contains, value: x}, after: [two]}
    - {assertion: {type: nope}}
    - {id: three, assertion: {type: contains, value: x}, after: [none]}
    - {id: four}
""",
        [
            (2, "$[0].simulator", "unknown key 'tempo'"),
            (2, "$[0].simulator", "there is no agent 'ghost'"),
            (4, "$[0].checkpoints[0]", "after names a checkpoint that does not exist: 'two'"),
            (5, "$[0].checkpoints[1]", "is missing 'id'"),
            (5, "$[0].checkpoints[1].assertion.type", "unknown assertion type"),
            (6, "$[0].checkpoints[2]", "after names a checkpoint that does not exist: 'none'"),
            (7, "$[0].checkpoints[3]", "is missing 'assertion'"),
        ],
    ),
    "no-simulator": (
        "- id: a\n  checkpoints: [{id: c, assertion: {type: contains, value: x}}]\n",
        [(1, "$[0]", "has checkpoints but no simulator")],  # and no word of an agent 'None'
    ),
    "mode": (
        "- {id: a, input: x, mode: dynamic}\n",
        [(1, "$[0]", "give it 'simulator' and 'checkpoints', or leave 'mode' out")],
    ),
    "siblings": (
        "name: suite\ncases:\n  - {id: a, input: x}\n  - {id: b}\n",
        [(1, "$", "unknown key 'name' next to 'cases'"), (4, "$.cases[1]", "is missing 'input'")],
    ),
    "what-sets-variables-is-wrong": (
        "- id: a\n  turns: [{input: x, set: 5}, {input: '{{v}}'}]\n- {id: b, input: '{{v}}', for: 5}\n",
        [(2, "$[0].turns[0].set", "is the number 5"), (3, "$[1].for", "is the number 5")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), NATIVE.values(), ids=NATIVE)
def test_native_files(tmp_path: Path, text: str, expected: list[Found]):
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    check(problems(tmp_path, "s.yaml"), "s.yaml", expected)  # N2


PLAYBOOKS: dict[str, tuple[str, list[Found]]] = {
    "structure-and-meaning": (
        """\
nam: x
timeot: 5
env: [HOME, $BAD]
tmpdir: {link_paths: [../up]}
evaluator_model: 7
steps:
  - {user_input: "", expected_outcome: y}
  - {user_input: x}
persona:
  context: c
  success_criteria:
    files_exist: [/etc/passwd, 5]
    flow_contains: 9
""",
        [
            (1, "$", "did you mean 'name'?"),
            (2, "$", "did you mean 'timeout'?"),
            (3, "$.env[1]", "is not the name of a variable"),
            (4, "$.tmpdir.link_paths[0]", "leaves the working folder"),
            (5, "$.evaluator_model", "is the number 7"),
            (7, "$.steps[0].user_input", "is empty"),
            (8, "$.steps[1]", "is missing 'expected_outcome'"),
            (12, "$.persona.success_criteria.files_exist[1]", "is the number 5"),
            (13, "$.persona.success_criteria.flow_contains", "is the number 9"),
        ],
    ),
    "no-steps": ("name: x\nagent_model: 5\n", [(1, "$", "is missing 'steps' or 'persona'"), (2, "$.agent_model", "is the number 5")]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PLAYBOOKS.values(), ids=PLAYBOOKS)
def test_playbooks(tmp_path: Path, text: str, expected: list[Found]):
    (tmp_path / "p.yaml").write_text(text, encoding="utf-8")
    check(problems(tmp_path, "p.yaml", environ={"HOME": "/"}), "p.yaml", expected)  # N2, P1


GOLDEN = '{"kind": "golden", "match": {"strategy": "exact", "value": "x"}}'
EVALS: dict[str, tuple[str, list[Found]]] = {
    "structure-and-meaning": (
        f"""\
{{"suiteId": "acme", "modes": ["golden", "silver"], "tasks": [
 {{"taskId": "a", "input": "x", "expected": {GOLDEN}}},
 {{"taskId": "a", "input": "x", "expected": {{"kind": "rubric"}}}},
 {{"taskId": "c", "inptu": "x", "expected": {{"kind": "golden"}}}}]}}
""",
        [
            (1, "$.suiteId", "should be scope.org.evals.name"),
            (1, "$", "is missing 'version'"),
            (1, "$.modes[1]", 'unknown value "silver"'),
            (3, "$.tasks[1]", "task id 'a' is taken"),
            (3, "$.tasks[1].expected", "is rubric but is missing 'rubric'"),
            (4, "$.tasks[2]", "did you mean 'input'?"),
            (4, "$.tasks[2].expected", "is golden but is missing 'match'"),
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), EVALS.values(), ids=EVALS)
def test_eval_suites(tmp_path: Path, text: str, expected: list[Found]):
    (tmp_path / "s.json").write_text(text, encoding="utf-8")
    check(problems(tmp_path, "s.json"), "s.json", expected)  # N2


CASE = json.dumps({"id": "a", "input": "x"}).encode()
FILES: dict[str, tuple[bytes, Found]] = {
    "empty.yaml": (b"", (1, "", "does not contain cases; write a list of cases")),
    "comment.yml": (b"# nothing\n", (1, "", "does not contain cases; write a list of cases")),
    "empty.json": (b"[]", (1, "", "does not contain cases; write a list of cases")),
    "none.json": (b'{"cases": []}', (1, "", "does not contain cases")),
    "empty.jsonl": (b"", (1, "", "does not contain cases; write one JSON object a line")),
    "siblings.json": (b'{"name": "[x", "cases": [' + CASE + b"]}", (1, "$", "unknown key 'name' next to 'cases'")),
    "utf16.jsonl": (CASE.decode().encode("utf-16"), (1, "", "is UTF-16 text; save the file as UTF-8")),
    "utf16.yaml": ("- id: a".encode("utf-16"), (1, "", "is UTF-16 text")),
    "utf16-be.json": (b"\xfe\xff" + CASE.decode().encode("utf-16-be"), (1, "", "is UTF-16 text")),
    "no-bom.jsonl": (CASE.decode().encode("utf-16-le"), (1, "", "is a binary file")),
    "binary.jsonl": (bytes(range(256)) * 9, (1, "", "is a binary file")),
    "binary.yaml": (b"\x89PNG\r\n\x1a\n" + bytes(range(64)), (1, "", "is a binary file")),
    "binary.json": (b"PK\x03\x04\x14\x00\x00\x08\x08\x00\xff\xfe", (1, "", "is a binary file")),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_files_that_hold_no_suite(tmp_path: Path, name: str):
    text, expected = FILES[name]
    (tmp_path / name).write_bytes(text)
    check(problems(tmp_path, name), name, [expected])  # N2


def test_a_byte_order_mark_of_utf8_is_not_a_mistake(tmp_path: Path):
    for name in ("s.jsonl", "s.json", "s.yaml"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + CASE)
        assert load_files([tmp_path / name], LoadOptions(), tmp_path)[0].count == 1


@pytest.mark.parametrize("more", [b" " * 500 + CASE, b'[{"a":\n' + b"\n" * 500 + b"]"], ids=["line", "lines"])
def test_a_document_that_is_too_long_is_not_read_to_its_end(tmp_path: Path, more: bytes):
    (tmp_path / "s.jsonl").write_bytes(CASE + b"\n" + more + b"\n" + CASE)
    short, long = read_chunks(tmp_path / "s.jsonl", max_bytes=400)
    assert (short.line, long.line) == (1, 2)
    with pytest.raises(BadInput, match=r"s\.jsonl:2: is more than"):
        decode_chunk("s.jsonl", long)


def test_a_file_that_is_too_large_for_its_format(tmp_path: Path):
    (tmp_path / "s.yaml").touch()
    os.truncate(tmp_path / "s.yaml", MAX_BYTES + 1)
    check(problems(tmp_path, "s.yaml"), "s.yaml", [(0, "", "Write it as .jsonl, which is read line by line")])


def test_what_is_not_a_file_is_not_waited_for(tmp_path: Path):
    """A pipe without a writer, a device, a circular link: each message names it."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "dead.jsonl").symlink_to("nowhere")
    (tmp_path / "round").symlink_to("round")
    check(problems(tmp_path, "pipe.jsonl"), "pipe.jsonl", [(0, "", "is a pipe, not a file")])  # N7
    check(problems(tmp_path, "/dev/null"), "/dev/null", [(0, "", "is a device, not a file")])
    for name in ("dead.jsonl", "round"):
        check(problems(tmp_path, name), str(tmp_path / name), [(0, "", "broken symbolic link")])


def test_a_folder_that_leads_back_to_itself_is_read_once(tmp_path: Path):
    (tmp_path / "tests/deep").mkdir(parents=True)
    (tmp_path / "tests/deep/up").symlink_to("..")
    (tmp_path / "tests/a.jsonl").write_bytes(CASE)
    assert parse_input("tests", tmp_path) == SuiteFiles((tmp_path / "tests/a.jsonl",))


@contextmanager
def an_ordinary_user() -> Generator[None]:
    """A user that permissions stop: root can read everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_what_may_not_be_read_says_so(tmp_path: Path):
    """A folder, one in a folder, a file in one, a file: never less than all is read."""
    (tmp_path / "tests/shut").mkdir(parents=True)
    (tmp_path / "tests/a.jsonl").write_bytes(CASE)
    (tmp_path / "tests/shut/b.jsonl").write_bytes(CASE)
    (tmp_path / "c.jsonl").write_bytes(CASE)
    for folder in (*tmp_path.parents[:3], tmp_path):
        folder.chmod(0o755)
    for name in ("tests/shut", "c.jsonl"):
        (tmp_path / name).chmod(0)
    with an_ordinary_user():
        denied = [(0, "", "cannot be read: Permission denied")]
        for asked in ("tests/shut", "tests"):
            check(problems(tmp_path, asked), str(tmp_path / "tests/shut"), denied)  # N2
        check(problems(tmp_path, "tests/shut/b.jsonl"), str(tmp_path / "tests/shut/b.jsonl"), denied)
        check(problems(tmp_path, "c.jsonl"), "c.jsonl", denied)
    (tmp_path / "tests/shut").chmod(0o755)


REFERENCES = {
    "agent:x": "agents:x",
    "Agents:x.y?count=3": "agents:x.y?count=3",
    "AGENT:x": "agents:x",
    "script:m.f": "scripts:m.f",
    "scripts.m.mod": "scripts:m.mod",
    "agents.echo": "agents:echo",
}


@pytest.mark.parametrize("text", REFERENCES)
def test_a_mistyped_reference_is_never_sent_to_a_model(tmp_path: Path, text: str):
    (error,) = problems(tmp_path, text)
    assert error.message.endswith(f"did you mean {REFERENCES[text]}?")  # N7, N8


@pytest.mark.parametrize("text", ["script.py", "agents/x.jsonl"])
def test_a_file_that_is_not_there_is_no_reference(tmp_path: Path, text: str):
    (error,) = problems(tmp_path, text)
    assert error.message == f"there is no file {text!r}"
