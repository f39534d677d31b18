"""The console where no terminal is: in a pipe, in the log of a CI service, in sixty columns."""

import shlex

from project import Project, case, contains

LONG = "word " * 60


def test_a_failure_ends_with_a_command_that_shows_the_whole_conversation(project: Project):
    """The turn, the check, expected against actual; and the command, typed as it stands, shows what was cut."""
    project.suite(case("long", said=LONG, assertions=[contains("refunded")]))
    ended = project.test()
    assert 'turn 1: "word word' in ended.out
    assert 'contains "refunded"' in ended.out
    assert 'actual:   "word word' in ended.out
    (command,) = (line for line in ended.out.splitlines() if "viva runs show" in line)
    shown = project.viva(*shlex.split(command, comments=True)[1:])
    assert ended.out.count("word") < shown.out.count("word")
    assert shown.out.count("word") >= 60  # the reply is not cut
    assert "✗ contains" in shown.out


def test_nothing_is_kept_and_nothing_to_show_is_promised_without_history(project: Project):
    project.suite(case("a", assertions=[contains("zzz")]))
    assert "viva runs show" not in project.test("--no-history").out


def test_each_trial_of_a_repeated_case_is_shown_with_its_turns(project: Project):
    project.suite(case("a"))
    project.test("--runs", "3")
    shown = project.viva("runs", "show", "latest", "a").out
    assert [f"trial {n}" in shown for n in (1, 2, 3)] == [True, True, True]
    assert shown.count('Turn 1: "hello" → PASSED') == 3


def test_a_repeated_skip_gives_its_reason_once(project: Project):
    project.suite(case("a"), case("later", skip="waits for the new rates"))
    shown = project.test("--runs", "3").out
    assert shown.count("waits for the new rates") == 1
    assert shown.count("same as trial") == 2


def test_a_pipe_gets_no_escapes_and_no_progress_line(project: Project):
    project.suite(case("a"), case("b", assertions=[contains("zzz")]))
    for arguments in ((), ("-v",), ("-q",)):
        ended = project.test(*arguments)
        assert not {"\x1b", "\r"} & set(ended.out)
        assert "ETA" not in ended.out


def test_a_ci_log_can_have_colours(project: Project):
    project.suite(case("a"))
    assert "\x1b[32m✓\x1b[0m" in project.test(env={"FORCE_COLOR": "1"}).out
    assert "\x1b" not in project.test(env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).out


def test_sixty_columns_are_kept_where_they_are_asked_for(project: Project):
    project.suite(case("long", said=LONG, assertions=[contains(LONG + "x")], name=LONG))
    for arguments in ((), ("-v",)):
        out = project.test(*arguments, env={"COLUMNS": "60"}).out
        to_copy = ("viva ", "Journal:", "at ", "Source:")
        long = [line for line in out.splitlines() if len(line) > 60 and not line.strip().startswith(to_copy)]
        assert long == []


HELPERS = """
def agent(messages, options):
    return "Which one?"
def broken(messages, options):
    raise RuntimeError("its model is overloaded")
def short(messages, options):
    return {"goal_achieved": True, "reasoning": "enough"} if len(messages) > 1 else {"input": "hello", "reasoning": "a start"}
"""


def test_the_evidence_for_a_fault_is_shown_in_every_explanation(project: Project):
    """In the failure block, in the tree, and by the command at the end of the failure block, for every fault."""
    project.write("helpers.py", HELPERS)
    agents = ("agent", "broken", "short")
    project.write("viva.toml", "".join(f'[agents.{name}]\nuse = "python:./helpers.py:{name}"\n' for name in agents))
    sold = {"id": "sold", "description": "it is sold", "assertion": contains("sold")}
    project.suite(
        {
            "id": "judge",
            "input": "hi",
            "assertions": {"type": "agent", "use": "broken", "metadata": {"criteria": "kind"}},
        },
        {"id": "simulator", "simulator": {"use": "broken"}, "input": "hi", "checkpoints": [sold]},
        {"id": "unsold", "simulator": {"use": "short"}, "checkpoints": [sold]},
        {"id": "agent", "input": "hi", "assertions": contains("sold"), "final_assertions": [contains("bought")]},
    )
    wide = {"COLUMNS": "400"}
    flags = ("-n", "agent", "--retry-faults", "0", "-o", "report.jsonl")
    said = project.test(*flags, env=wide).out + project.test(*flags, "-v", env=wide).out
    faults = {record["id"]: record["fault"] for record in project.records("report.jsonl")}
    assert faults == {"judge": "judge", "simulator": "simulator", "unsold": "agent", "agent": "agent"}
    for record in project.records("report.jsonl"):
        shown = project.viva("runs", "show", "latest", record["id"], env=wide).out
        for line in record["fault_evidence"]:
            words = line.rpartition(": ")[2]
            assert said.count(words) >= 1, line
            assert words in shown or words.split(" is not in ")[0].strip('"') in shown, line


def test_failures_and_bad_files_are_annotations_in_github_actions(project: Project):
    """On standard error, so that the output stays what it is. Elsewhere there are none."""
    project.suite(case("a"), case("b", assertions=[contains("zzz")]), name="suites/one.jsonl")
    env = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(project.folder.parent)}
    folder = project.folder.name
    ended = project.test("-i", "suites/one.jsonl", env=env, code=1)
    assert "::error" not in ended.out
    assert ended.err.splitlines() == [
        f'::error file={folder}/suites/one.jsonl,line=2,title=b failed::turn 1: contains "zzz": was "hello"'
    ]
    assert project.test("-i", "suites/one.jsonl", code=1).err == ""
    project.write("bad.jsonl", '{"id": "a", "inptu": "x"}\n')
    (line,) = (x for x in project.test("-i", "bad.jsonl", env=env, code=4).err.splitlines() if x.startswith("::"))
    assert line.startswith(f"::error file={folder}/bad.jsonl,line=1,title=Bad input::")
    assert "inptu" in line
