"""Script tests and hooks from the command line: same reports, same exit codes as any suite."""

from xml.etree import ElementTree as ET

from project import Project, case

CONFIG = '[agents."assistants.expense"]\nuse = "python:./agent.py:agent"\n\n[agents."workers.test.validator"]\nuse = "python:./judge.py:judge"\n'
JUDGE = """
def judge(messages, options):
    passed = "receipt" in options["metadata"]["output"]
    return {"passed": passed, "score": 0.9, "reason": "it names the receipt", "suggestions": ["name the deadline"]}
"""
TESTS = '''
def test_expense_response(t, ctx):
    """Explains what to hand in."""
    response = ctx.call("assistants.expense", [{"role": "user", "content": "a receipt, please"}])
    t.assert_.NotNil(response)
    t.assert_.Contains(response.content, "receipt")
    t.assert_.Agent(response.content, "workers.test.validator", {"metadata": {"criteria": "Names the receipt"}})


def TestMultiTurnExpense(t, ctx):
    messages = [
        {"role": "user", "content": "I need to submit a travel expense"},
        {"role": "assistant", "content": "I'd be happy to help..."},
        {"role": "user", "content": "It's for a flight"},
    ]
    response = ctx.call("assistants.expense", messages)
    t.assert_.Agent(
        response.content,
        "workers.test.validator",
        {"metadata": {"criteria": "Asks for a receipt", "conversation": messages}},
    )
'''


def expense(project: Project) -> Project:
    project.write("viva.toml", CONFIG)
    project.write("judge.py", JUDGE)
    project.write("tests/expense_test.py", TESTS)
    return project


def test_the_samples_of_the_specification_reach_every_report(project: Project):  # N31
    """The specification's two script tests, in Python: one holds, one does not, and each report says why."""
    expense(project)
    ended, records = project.report("-i", "scripts:tests.expense-test", "-o", "report.xml", agent=None, code=1)
    assert [(record["id"], record["status"]) for record in records] == [
        ("test_expense_response", "passed"),
        ("TestMultiTurnExpense", "failed"),
    ]
    assert [each["type"] for each in records[0]["turns"][0]["assertions"]] == ["not_nil", "contains", "judge"]
    assert records[0]["turns"][0]["assertions"][2]["score"] == 0.9
    assert records[1]["turns"][0]["input"] == "It's for a flight"
    assert records[1]["notes"] == ["suggestion: name the deadline"]
    assert "✓ test_expense_response Explains what to hand in.  1 turn" in ended.out
    assert '✗ judge "Asks for a receipt"' in ended.out
    assert "suggestion: name the deadline" in ended.out
    assert "viva test -i scripts:tests.expense-test -k '^TestMultiTurnExpense$' -v" in ended.out
    cases = ET.parse(project.folder / "report.xml").findall(".//testcase")
    assert [found.find("failure") is not None for found in cases] == [False, True]


def test_turns_and_assertions_are_shown_one_at_a_time_too(project: Project):  # N34
    """A test judges a turn after its end; the tree still has each verdict at its turn."""
    expense(project)
    ended = project.test("-i", "scripts:tests.expense_test", "-v", "--parallel", "1", agent=None)
    tree = ended.out.split("Running Tests")[1]
    assert tree.index('Turn 1: "a receipt, please" → PASSED') < tree.index('✓ contains "receipt"')
    assert 'Turn 1: "It\'s for a flight" → FAILED' in tree


def test_hooks_from_the_command_line(project: Project):  # N32
    """`--before` and `--after` wrap the run; one that raises before it ends it with exit 1, one that is not there with 4."""
    project.write(
        "hooks.py",
        "def up(ctx, cases):\n    print('up', len(cases))\n    return {'name': 'Ada'}\n"
        "def down(ctx, results, data):\n    print('down', results[0].status, data)\n"
        "def broken(ctx, cases):\n    raise OSError('no database')\n"
        "def untidy(ctx, results, data):\n    raise OSError('still in use')\n",
    )
    project.suite(case("a", "{{name}}", assertions=[{"type": "contains", "value": "Ada"}]))
    ended = project.test("--before", "hooks:up", "--after", "hooks:down", code=0)
    assert "up 1\n" in ended.out
    assert "down passed {'name': 'Ada'}\n" in ended.out
    stopped = project.test("--before", "hooks:broken", "--after", "hooks:down", code=1)
    assert "--before hooks:broken: OSError: no database" in stopped.out
    assert "1 not run" in stopped.out
    assert (
        "--after hooks:untidy: OSError: still in use"
        in project.test("--before", "hooks:up", "--after", "hooks:untidy", code=0).out
    )
    missing = project.test("--before", "hook:up")
    assert (missing.code, missing.err) == (
        4,
        f"--before 'hook:up': there is no hook.py with a function up in {project.folder}\n",
    )


def test_a_case_with_hooks(project: Project):  # N2, N21, N32
    """What `before` returns can be said; a reference that leads nowhere is a problem of the file."""
    project.write("hooks.py", "def login(ctx, case):\n    return {'token': 'T-1'}\n")
    project.suite(case("a", "{{token}}", before="hooks:login", assertions=[{"type": "equals", "value": "T-1"}]))
    assert project.test().code == 0
    project.suite(case("a"), case("b", before="hooks:logn"), case("c", after="hooks:login"))
    ended = project.test(code=4)
    assert "suite.jsonl:2: $: 'hooks:logn': " in ended.err
    assert "did you mean login?" in ended.err
    assert "suite.jsonl:3: $: 'hooks:login' is called with (ctx, case, result, data), but cannot be" in ended.err


def test_script_tests_and_suites_run_together(project: Project):
    """One run, one report, in the order of the command line: suites first."""
    expense(project)
    project.suite(case("written"))
    _, records = project.report("-i", "scripts:tests.expense_test", "-i", "suite.jsonl", "-n", "assistants.expense")
    assert [record["id"] for record in records] == ["written", "test_expense_response", "TestMultiTurnExpense"]
