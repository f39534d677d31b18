"""What `-i` takes, and what it says about what is wrong."""

import json

from project import Project, case, contains


def test_jsonl_skips_blank_lines_and_comments(project: Project):
    project.write("suite.jsonl", f"// first\n\n{json.dumps(case('a'))}\n   \n  // second\n{json.dumps(case('b'))}")
    assert project.run_passing() == ["a", "b"]  # N1


def test_folders_globs_and_several_inputs_run_in_order(project: Project):
    """A folder is read to its depths, hidden and schema files left out; the same file runs once."""
    project.suite(case("b"), name="tests/b.jsonl")
    project.suite(case("a1"), case("a2"), name="tests/a.jsonl")
    project.suite(case("c"), name="tests/deep/c.jsonl")
    project.write("tests/d.yaml", "- {id: d, input: x, assert: {type: contains, value: x}}\n")
    project.write("tests/.hidden/x.jsonl", "rubbish")
    project.write("tests/native.schema.json", "{}")
    project.write("tests/notes.txt", "not a suite")
    project.suite(case("z"), name="z.jsonl")
    assert project.run_passing("-i", "tests") == ["a1", "a2", "b", "d", "c"]  # N7
    assert project.run_passing("-i", "tests/*.jsonl") == ["a1", "a2", "b"]
    assert project.run_passing("-i", "tests/**/*.jsonl") == ["a1", "a2", "b", "c"]
    assert project.run_passing("-i", "z.jsonl", "-i", "tests/b.jsonl", "-i", "./z.jsonl") == ["z", "b"]
    (project.folder / "linked.jsonl").symlink_to("z.jsonl")
    absolute = str(project.folder / "z.jsonl")
    spellings = ("z.jsonl", absolute, "tests/../z.jsonl", "linked.jsonl", "tests/b.jsonl")
    assert project.run_passing(*(part for path in spellings for part in ("-i", path))) == ["z", "b"]


def test_script_tests_run_once_even_if_several_inputs_name_them(project: Project):  # N7
    project.write("checks.py", "def test_one(t, ctx):\n    t.assert_.true_(True)\n")
    assert project.run_passing("-i", "scripts:checks", "-i", "scripts:checks") == ["test_one"]


def test_a_mistyped_path_is_never_sent_to_a_model(project: Project):
    """No white space, and a slash or a known suffix: a file that is not there, with near names."""
    project.write("agent.py", "raise SystemExit('it was called')\n")
    project.suite(case("a"), name="tests/expense.jsonl")
    for mistyped in ("tests/expence.jsonl", "expense.yaml", "tests/nothing/"):
        assert f"there is no file {mistyped!r}" in project.test("-i", mistyped, code=4).err  # N7, N35
    assert "did you mean tests/expense.jsonl?" in project.test("-i", "tests/expence.jsonl").err


def test_every_wrong_input_is_named_at_once(project: Project):
    project.suite({"id": "x"}, name="bad.jsonl")
    ended = project.test("-i", "nowhere/x.jsonl", "-i", "bad.jsonl", "-i", "nor/", code=4)
    assert [line.split(":")[0] for line in ended.err.splitlines()] == [
        "there is no file 'nowhere/x.jsonl'",
        "there is no file 'nor/'",
        "bad.jsonl",
    ], ended  # N2


def test_a_message_is_sent_as_it_is(project: Project):
    """The reply, its tool calls and whether the agent waits; no verdict; exit 0 if the agent answered."""
    project.write(
        "agent.py",
        "def agent(messages):\n"
        "    return {'content': f'{len(messages)}: What date?', 'awaiting_input': True, 'input_hint': 'like 2024-05-01',\n"
        "            'data': {'a': 1}, 'tool_calls': [{'name': 'look', 'arguments': {'x': 1}}]}\n",
    )
    assert project.test("-i", "Book a table, please", code=0).out.splitlines() == [  # N11
        "1: What date?",
        '{"a":1}',
        '[tool: look({"x":1})]',
        "(awaiting input: agent_declared, hint: like 2024-05-01)",
    ]
    two = project.test("-i", "Hello", "-i", "and/or what?")
    assert [line[:2] for line in two.out.splitlines() if "date" in line] == ["1:", "3:"], two
    as_json = project.test("-i", "Hello", "--json")
    message = json.loads(as_json.out)
    assert message["input_hint"] == "like 2024-05-01"
    assert (message["awaiting_input"], message["awaiting_reason"]) == (True, "agent_declared")


def test_each_command_that_sends_messages_is_a_conversation_of_its_own(project: Project):
    project.write("agent.py", "def agent(messages, session_id):\n    return session_id\n")
    first, second = (json.loads(project.test("-i", "Hello", "--json").out)["content"] for _ in range(2))
    assert first != second  # N11
    both = project.test("-i", "Hello", "-i", "Again", "--json").out.splitlines()
    assert len({json.loads(line)["content"] for line in both}) == 1


def test_a_message_that_cannot_be_answered_is_exit_1(project: Project):
    project.write("agent.py", "def agent(messages):\n    raise KeyError('table')\n")
    ended = project.test("-i", "Hello")
    assert (ended.code, ended.out) == (1, "")  # N11
    assert "agent error: KeyError: 'table'" in ended.err
    assert "agent.py:2 in agent\n    raise KeyError('table')" in ended.err  # N38


def test_messages_and_suites_do_not_mix_and_a_message_has_no_report(project: Project):
    project.suite(case("a"))
    assert project.test("-i", "suite.jsonl", "-i", "Hello there").code == 4
    assert project.test("-i", "Hello there", "-o", "x.md").code == 4


def test_a_problem_in_a_pretty_printed_file_has_its_own_line(project: Project):
    """The line of the member that is wrong, in JSONL, JSON and YAML alike."""
    bad = {"id": "a", "turns": [{"input": "x", "assertions": [contains("x"), {"type": "contains", "valu": "y"}]}]}
    text = json.dumps(bad, indent=2)
    number = next(n for n, line in enumerate(text.splitlines(), 1) if '"valu"' in line)
    project.write("s.jsonl", f"// comment\n{json.dumps(case('ok'))}\n{text}\n")
    project.write("s.json", json.dumps([case("ok"), bad], indent=2))
    project.write(
        "s.yaml", "- id: a\n  turns:\n    - input: x\n      assertions:\n        - type: contains\n          valu: y\n"
    )
    ended = project.viva("check", "s.jsonl", "s.json", "s.yaml", code=4)
    jsonl, json_, yaml = ended.out.splitlines()
    what = "unknown key 'valu'; did you mean 'value'?"
    assert jsonl == f"s.jsonl:{number + 2}: $.turns[0].assertions[1]: {what}"  # N2
    in_json = next(
        n for n, line in enumerate(json.dumps([case("ok"), bad], indent=2).splitlines(), 1) if '"valu"' in line
    )
    assert json_ == f"s.json:{in_json}: $[1].turns[0].assertions[1]: {what}"
    assert yaml == f"s.yaml:6: $[0].turns[0].assertions[0]: {what}"


def test_an_unknown_assertion_type_is_a_load_error_with_the_near_names(project: Project):
    project.suite(case("a", assertions=[{"type": "tool_caled", "name": "x"}, {"type": "vibes"}]))
    ended = project.test(code=4)  # N24, N2
    near, far = ended.err.splitlines()
    assert near.startswith(
        "suite.jsonl:1: $.assertions[0].type: unknown assertion type \"tool_caled\"; did you mean 'tool_called'"
    )
    assert 'unknown assertion type "vibes"; should be one of equals, contains' in far


def test_helpers_that_are_not_there_are_reported_with_all_else_that_is_wrong(project: Project):  # N2
    """Each where it is named; what is wrong with a helper in the config is said there, and once."""
    project.write("viva.toml", '[agents.judge]\nuse = "python:./agent.py:agent"\n[agents.bad]\ndescription = "x"\n')
    project.write(
        "s.yaml",
        """\
- id: a
  input: x
  inptu: y
- id: b
  turns:
    - input: x
      assertions:
        - {type: contains, value: x}
        - type: all
          assertions:
            - type: agent
              criteria: y
              use: agents:jugde
- id: c
  simulator:
    use: ghost
  checkpoints: [{id: c, assertion: {type: agent, criteria: y, use: bad}}]
- id: d
  input: x
  assertions: {type: agent, criteria: y, use: bad}
""",
    )
    for ended in (project.viva("check", "s.yaml"), project.test("-i", "s.yaml")):
        assert ended.code == 4, ended
        message = [line for line in (ended.out + ended.err).splitlines() if ": " in line]
        assert [line.partition(" agent 'bad'")[0].rpartition("/")[2] for line in message if "viva.toml:3" in line] == [
            "viva.toml:3:"
        ]
        assert "s.yaml:3: $[0]: unknown key 'inptu'; did you mean 'input'?" in "\n".join(message)
        assert any(
            line.startswith("s.yaml:9: $[1].turns[0].assertions[1]: there is no agent 'jugde'; did you mean judge?")
            for line in message
        )
        assert any(line.startswith("s.yaml:16: $[2].simulator: there is no agent 'ghost'") for line in message)
        assert len(message) == 4
