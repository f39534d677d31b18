"""What `-i` takes, and what it says about files that are wrong."""

import json
import re

from project import Project, case

PRETTY = """\
// The specification's own examples look like this: pretty-printed, one after another.
{
  "id": "T001",
  "name": "Greets // not a comment",
  "input": "Hello {there}",

  // a comment inside
  "assertions": [
    {
      "type": "contains",
      "value": "Hello"
    }
  ]
}

// Static
{
  "id": "T002",
  "turns": [
    {"input": "a } brace", "assertions": [{"type": "contains", "value": "}"}]}
  ]
}
{"id": "T003", "input": "one line", "assertions": [{"type": "contains", "value": "one"}]}
"""


def test_pretty_printed_objects_with_comments_load_as_they_are(project: Project):
    project.write("suite.jsonl", PRETTY)
    assert project.run_passing() == ["T001", "T002", "T003"]  # N1


KINDS: dict[str, str | bytes] = {
    "one.json": json.dumps(case("a"), indent=2),
    "list.json": json.dumps([case("a")]),
    "cases.json": json.dumps({"cases": [case("a")]}, indent=1),
    "list.yaml": "- id: a\n  input: hello\n  assert: {type: contains, value: hello}\n",
    "one.yml": "id: a\ninput: hello\nassert: {type: contains, value: hello}\n",
    "many.yaml": "---\nid: a\ninput: hello\nassert: {type: contains, value: hello}\n---\n",
    "bom.jsonl": b"\xef\xbb\xbf" + json.dumps(case("a")).encode(),
    "crlf.jsonl": json.dumps(case("a")).encode() + b"\r\n\r\n",
    "crlf-pretty.jsonl": json.dumps(case("a"), indent=2).replace("\n", "\r\n").encode(),
    "bom.json": b"\xef\xbb\xbf" + json.dumps([case("a")]).encode(),
    "bom.yaml": b"\xef\xbb\xbf- id: a\r\n  input: hello\r\n  assert: {type: contains, value: hello}\r\n",
}


def test_every_kind_of_file_loads_and_runs(project: Project):
    """.jsonl, .json as one case, an array or {cases}, .yaml and .yml; with a BOM, with CRLF."""
    for name, text in KINDS.items():
        project.write(f"suites/{name}", text)
    _, records = project.report("-i", "suites", code=0)
    assert sorted(record["suite"] for record in records) == sorted(f"suites/{name}" for name in KINDS)  # N1
    assert {record["status"] for record in records} == {"passed"}


def test_cases_come_from_standard_input(project: Project):
    """Lines, pretty-printed objects, or an array; shown as `-`; nothing is left behind."""
    before = {path.name for path in project.folder.iterdir()}
    lines = "".join(json.dumps(case(i)) + "\n" for i in ("a", "b"))
    assert project.run_passing("-i", "-", input=lines) == ["a", "b"]  # N7
    assert project.run_passing("-i", "-", input=PRETTY) == ["T001", "T002", "T003"]
    assert project.run_passing("-i", "-", input=json.dumps([case("x"), case("y")], indent=2)) == ["x", "y"]
    assert project.run_passing("-i", "-", input=json.dumps({"cases": [case("z")]})) == ["z"]
    assert {path.name for path in project.folder.iterdir()} - before <= {".viva", "report.jsonl", "__pycache__"}


def test_standard_input_is_checked_like_a_file(project: Project):
    ended = project.test("-i", "-", input='{"id": "a", "inptu": "x"}\n\n{"id": "b"\n', code=4)  # N2
    assert ended.err.splitlines() == [
        "-:1: $: unknown key 'inptu'; did you mean 'input'?",
        "-:3: is not JSON: the value that starts here does not end",
    ]
    assert project.test("-i", "-", input="").code == 4


FIFTY = [
    ('{"id": "c%d", "input": "x", "asertions": []}', "unknown key 'asertions'; did you mean 'assertions'?"),
    ('{"id": "c%d"}', "is missing 'input'"),
    ('{"id": "c%d", "input": 5}', "is the number 5; should be a text"),
    ('{"id": "c%d", "input": "x", "assert": {"type": "contians", "value": "x"}}', "did you mean 'contains'"),
    ('{"id": "c%d", "input": "x", "assert": {"type": "regex", "pattern": "("}}', "is not a regular expression"),
    ('{"id": "c%d", "input": "x", "assert": {"type": "json_path", "path": "$["}}', "is not a JSONPath"),
    ('{"id": "c%d", "input": "x", "timeout": "soon"}', "should be a duration"),
    ('{"id": "c%d", "input": "x", "assert": {"type": "contains"}}', "is missing 'value'"),
    ('{"id": "c%d", "turns": [], "name": "x"}', "is empty"),
    ('{"id": "c%d", "input": "x" "name": 3}', "is not JSON"),
]


def test_a_suite_with_fifty_mistakes_reports_all_of_them_at_once(project: Project):
    """Each with file, line and path; nothing is run."""
    project.write("agent.py", "raise SystemExit('it was called')\n")
    lines = ["// a heading", ""]
    expected: list[tuple[int, str]] = []
    for i in range(50):
        written, what = FIFTY[i % len(FIFTY)]
        lines.append(written % i)
        expected.append((len(lines), what))
        if i % 7 == 0:
            lines += ["", json.dumps(case(f"good{i}"))]
    project.write("suite.jsonl", "\n".join(lines))
    ended = project.test(code=4)  # N2, N35
    assert ended.out == ""
    said = ended.err.splitlines()
    assert len(said) == 50
    for line, (number, what) in zip(said, expected, strict=True):
        assert re.match(rf"suite\.jsonl:{number}: (\$[^:]*: )?.*{re.escape(what)}", line), (line, number, what)
    checked = project.viva("check", "suite.jsonl")
    assert (checked.code, checked.out.splitlines(), checked.err) == (4, said, "50 problems\n")


UNUSABLE: dict[str, tuple[bytes, str]] = {
    "alias.yaml": (b"- &a\n  id: x\n  metadata: {a: *a}\n", "1: is not YAML: is an alias of a value"),
    "comments.jsonl": (b"// nothing\n\n", "1: does not contain cases"),
    "deep.json": (b"[" * 100_000, "1: is nested more than 128 levels deep"),
    "deep.jsonl": (b"[" * 100_000, "1: is nested more than 128 levels deep"),
    "deep.yaml": (b"[" * 100_000, "1: is not YAML: is nested more than"),
    "empty.json": (b"[]", "1: does not contain cases"),
    "empty.jsonl": (b"", "1: does not contain cases"),
    "empty.yaml": (b"# nothing\n", "1: does not contain cases"),
    "list.jsonl": (b'["id", "a"]\n', "1: $: is an array; should be an object"),
    "nul.jsonl": (b'{"id": "a", "input": "x\x00"}\n', "1: contains a NUL character"),
    "nul.yaml": (b"- id: a\n  input: x\x00\n", "2: is not YAML: "),
    "open.jsonl": (b'\n{"id": "a",\n"input": "x"\n', "2: is not JSON: the value that starts here does not end"),
    "text.jsonl": (b"Dear Sir,\n", "1: is not JSON"),
    "twice.jsonl": (
        b'{"id": "a", "input": "x"}\n\n{"id": "a", "input": "y"}\n',
        "3: $.id: id 'a' is taken; line 1 has",
    ),
    "twice.yaml": (b"- id: a\n  input: x\n  input: y\n", "3: is not YAML: the key 'input' is there twice"),
    "utf16.jsonl": (json.dumps(case("a")).encode("utf-16"), "1: is UTF-16 text"),
    "utf8.jsonl": (json.dumps(case("a")).encode() + b'\n{"id": "b", "input": "\xff"}\n', "2: is not UTF-8"),
}


def test_a_file_that_cannot_be_used_says_why_and_where(project: Project):
    """NUL, wrong encodings, nesting without end, emptiness, prose: exit 4, a sentence for each, no traceback, nothing run."""
    project.write("agent.py", "raise SystemExit('it was called')\n")
    for name, (text, _) in UNUSABLE.items():
        project.write(f"suites/{name}", text)
    ended = project.test("-i", "suites", code=4)  # N2, N35
    said = ended.err.splitlines()
    assert len(said) == len(UNUSABLE), ended
    for line, (name, (_, what)) in zip(said, UNUSABLE.items(), strict=True):
        assert line.startswith(f"suites/{name}:{what}"), line


def test_a_line_of_five_megabytes_loads_and_runs(project: Project):
    """Also pretty-printed, and also with every character escaped."""
    long = 'é"\\' * 1_250_000
    project.write("agent.py", "def agent(messages):\n    return f\"{len(messages[-1]['content'])}\"\n")
    both = {"assertions": [{"type": "equals", "value": "3750000"}]}
    project.suite({"id": "one", "input": long, **both}, name="a.jsonl")
    project.write("b.jsonl", json.dumps({"id": "two", "input": long, **both}, indent=1))
    assert project.run_passing("-i", "a.jsonl", "-i", "b.jsonl", "-q") == ["one", "two"]


def test_a_large_json_or_yaml_file_loads_in_linear_time(project: Project):
    """2,000 cases with a mistake in each: their lines are found without reading the file again and again."""
    project.write("s.json", "[\n" + ",\n".join(json.dumps({"id": f"c{i}", "inptu": "x"}) for i in range(2000)) + "\n]")
    project.write("s.yaml", "".join(f"- id: c{i}\n  inptu: x\n" for i in range(2000)))
    ended = project.viva("check", "s.json", "s.yaml")
    said = ended.out.splitlines()
    assert len(said) == 4000
    assert said[1999].startswith("s.json:2001: $[1999]: unknown key 'inptu'")
    assert said[3999].startswith("s.yaml:4000: $[1999]: unknown key 'inptu'")
