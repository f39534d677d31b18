"""Flags of `viva test`, exit codes, and the small commands."""

import json
import os

import click
import pytest

from project import Project, case, contains
from viva.cli.run_flags import list_flags_of_action
from viva.cli.test import command


def test_cases_are_selected_by_id_and_tag(project: Project):
    """`-k` searches in the id; one of several tags is enough; no match is exit 5 with the known names."""
    project.suite(
        case("refund-1", tags=["money", "slow"]), case("refund-2"), case("greet", tags=["talk"]), case("pre-refund")
    )

    def chosen(*arguments: str) -> list[str]:
        (project.folder / "report.jsonl").unlink(missing_ok=True)
        return [record["id"] for record in project.report(*arguments)[1]]

    assert chosen("-k", "refund") == ["refund-1", "refund-2", "pre-refund"]  # N33
    assert chosen("--run", "^refund") == ["refund-1", "refund-2"]
    assert chosen("--tag", "talk", "--tag", "money") == ["refund-1", "greet"]
    assert chosen("-k", "refund", "--tag", "money") == ["refund-1"]
    (project.folder / "report.jsonl").unlink()
    ended = project.test("-k", "refnd", "--tag", "monye", "-o", "report.jsonl")
    assert (ended.code, ended.out) == (5, "")  # N35
    assert ended.err.splitlines() == [
        "-k 'refnd' matches no id; ids: refund-1, refund-2, greet, pre-refund",
        "--tag 'monye' matches no case; tags: money, slow, talk",
    ]
    assert not (project.folder / "report.jsonl").exists()
    assert "remove one of them" in project.test("-k", "greet", "--tag", "slow").err
    assert "is not a regular expression" in project.test("-k", "(", code=4).err


def test_a_dry_run_lists_and_writes_the_cases_and_runs_nothing(project: Project):
    """The file that it writes can be loaded."""
    project.write("agent.py", "def agent(messages):\n    raise SystemExit('it was called')\n")
    project.write(
        "suite.yaml",
        "- {id: a, input: x, tags: [t], assert: {type: contains, value: x}}\n- {id: b-{{n}}, for: [{n: 1}, {n: 2}], turns: [{input: '{{n}}'}]}\n".replace(
            "b-{{n}}", "'b-{{n}}'"
        ),
    )
    ended = project.test("-i", "suite.yaml", "--dry-run", "-o", "cases.jsonl", code=0)  # N30
    assert [line.split()[0] for line in ended.out.splitlines()[:3]] == ["a", "b-1", "b-2"]
    assert "nothing was run" in ended.out
    assert not (project.folder / ".viva").exists()
    assert project.viva("check", "cases.jsonl").out == "3 cases in 1 file: no problems\n"
    assert project.test("-i", "suite.yaml", "--dry-run", "-o", "cases.xml").code == 4
    message = project.test("-i", "Hello", "--dry-run")
    assert (message.code, message.out) == (0, "1 message; nothing sent\n")


def test_a_dry_run_prints_one_line_for_each_case_whatever_its_texts_are(project: Project):
    project.suite(case("a\nb\x1b[2J", name="n\x07", skip="why\nnot\x1b[31m"), case("c"))
    ended = project.test("--dry-run", "-o", "cases.jsonl", code=0)
    assert len(ended.out.splitlines()) == 4  # two cases, the counts, the file
    assert ended.out.replace("\n", "").isprintable()
    assert "a␊b␛[2J" in ended.out


def test_a_dry_run_writes_only_cases_that_load(project: Project):  # N30
    one, other = project.suite(case("same"), name="a.jsonl"), project.suite(case("same"), name="b.jsonl")
    ended = project.viva(
        "test", "-n", "python:./agent.py:agent", "-i", one, "-i", other, "--dry-run", "-o", "c.jsonl", code=4
    )
    assert "id 'same' is taken" in ended.err
    assert not (project.folder / "c.jsonl").exists()


def test_a_dry_run_writes_the_simulator_of_the_flag(project: Project):  # N30
    project.write("viva.toml", '[agents.sim]\nuse = "python:./agent.py:agent"\n')
    project.suite({"id": "a", "checkpoints": [{"id": "c", "assertion": contains("x")}]}, case("b"))
    project.test("--simulator", "agents:sim", "--dry-run", "-o", "cases.jsonl", code=0)
    assert [written.get("simulator") for written in project.records("cases.jsonl")] == [{"use": "sim"}, None]
    assert project.viva("check", "cases.jsonl").out == "2 cases in 1 file: no problems\n"


def test_quiet_shows_only_failures_and_a_summary(project: Project):
    project.suite(case("fine"), case("bad", assertions=[contains("no")]))
    ended = project.test("-q", code=1)
    assert "fine" not in ended.out
    assert "✗ bad" in ended.out
    assert "2 tests: 1 passed, 1 failed · " in ended.out.splitlines()[-1]


def test_plain_output_has_lines_and_a_summary(project: Project):
    """Without a terminal: no colour, no cursor movements; all counts of the specification's sample."""
    project.suite(
        {"id": "two", "name": "Two turns", "turns": [{"input": "a", "assertions": [contains("a")]}, {"input": "b"}]},
        case("x", skip=True),
    )
    ended = project.test()
    assert "\x1b" not in ended.out
    assert "\r" not in ended.out
    for line in ("  Total turns: 2\n", "  Avg turns/test: ", "\n✓ 2 tests: 1 passed, 1 skipped · "):
        assert line in ended.out, line  # N34
    assert "0 " not in ended.out.partition("✓ 2 tests:")[2].partition(" · ")[0], "zeros are left out"
    assert "ℹ Agent: python:./agent.py:agent" in ended.out
    assert "ℹ Input: suite.jsonl (2 test cases)" in ended.out


def test_exit_codes(project: Project):
    """0 passed, 1 failed, 4 bad input, 5 nothing to run or nothing checked; 2 is Ctrl-C, 3 a bug in Viva."""
    project.suite(case("a"))
    assert project.test().code == 0  # N35
    assert project.viva("test").code == 4
    assert project.test("--no-such-flag").code == 4
    assert project.viva("tset").code == 4
    assert project.test("--timeout", "soon").code == 4
    assert project.test("--parallel", "0").code == 4
    assert project.test("--config", "absent.toml").code == 4


def test_repeats_count_as_one_case_and_have_a_record_per_trial(project: Project):
    project.write("agent.py", "n = 0\ndef agent(messages):\n    global n\n    n += 1\n    return f'call {n}'\n")
    project.suite(
        {"id": "flaky", "input": "x", "assertions": [{"type": "regex", "pattern": "[13579]$"}]},
        {"id": "own", "runs": 1, "input": "x", "assertions": [contains("call")]},
    )
    ended, records = project.report("--runs", "3", "--parallel", "1", code=1)
    assert [(r["id"], r["trial"], r["status"]) for r in records] == [  # N33
        ("flaky", 1, "passed"),
        ("flaky", 2, "failed"),
        ("flaky", 3, "passed"),
        ("own", 1, "passed"),
    ]
    assert "2 tests: " in ended.out
    project.test("--runs", "4", "--min-pass", "0.5", "--parallel", "1", code=0)


def test_repeats_without_checks_are_exit_5(project: Project):
    project.suite({"id": "bare", "input": "hello."})
    assert project.test("--runs", "3").code == 5  # N11
    project.suite({"id": "bare", "input": "hello."}, case("off", skip=True))
    assert project.test("--runs", "2").code == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_line_for_the_shell(project: Project, shell: str):
    assert f"_VIVA_COMPLETE={shell}_source" in project.viva("completion", shell, code=0).out


def test_the_shell_gets_completions(project: Project):
    env = {"_VIVA_COMPLETE": "bash_complete", "COMP_WORDS": "viva comp", "COMP_CWORD": "1"}
    ended = project.as_process.viva(env=env, code=0)
    assert (ended.out.split(), ended.err) == (["plain,compare", "plain,completion"], "")


def test_viva_schema_prints_the_json_schema(project: Project):
    native = json.loads(project.viva("schema", "native").out)
    assert native["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert {"id", "input", "turns", "assertions"} <= native["properties"].keys()
    assert "agents" in json.loads(project.viva("schema", "config").out)["properties"]
    assert project.viva("schema", "nothing").code == 4


def test_parallel_is_limited_by_the_flag_and_by_the_agent(project: Project):
    project.write(
        "agent.py",
        "import asyncio\nnow = most = 0\n"
        "async def agent(messages):\n"
        "    global now, most\n    most = most if now else 0\n    now += 1\n    most = max(most, now)\n"
        "    await asyncio.sleep(0.05)\n    now -= 1\n    return f'at most {most}'\n",
    )
    project.write(
        "viva.toml",
        '[agents.capped]\nuse = "python:./agent.py:agent"\nparallel = 2\n[agents.free]\nuse = "python:./agent.py:agent"\n',
    )
    project.suite(*({"id": f"c{i}", "input": "x", "assertions": [contains("at most")]} for i in range(9)))

    def most(*arguments: str) -> str:
        _, records = project.report(*arguments, agent=None)
        return max(record["turns"][0]["output"] for record in records)

    assert most("-n", "free") == "at most 4"  # N19: the default
    assert most("-n", "free", "--parallel", "7") == "at most 7"
    assert most("-n", "capped", "--parallel", "7") == "at most 2"
    assert most("-n", "free", "--parallel", "1") == "at most 1"


def test_a_report_does_not_overwrite_files_of_the_run(project: Project):
    """Suite, env file and cassette, by any path to them."""
    project.suite(case("a"))
    before = (project.folder / "suite.jsonl").read_bytes()
    (project.folder / "link.jsonl").symlink_to("suite.jsonl")
    for output in ("suite.jsonl", "./suite.jsonl", str(project.folder / "suite.jsonl"), "link.jsonl"):
        assert "the run itself needs" in project.test("-o", output, code=4).err  # N35
    project.write("env.json", "A=b\n")
    assert project.test("--env-file", "env.json", "-o", "env.json").code == 4
    assert project.test("--record", "tape.jsonl", "-o", "tape.jsonl").code == 4
    assert not (project.folder / "tape.jsonl").exists()
    assert project.test("--dry-run", "-o", "suite.jsonl").code == 4
    assert (project.folder / "suite.jsonl").read_bytes() == before


def test_a_report_follows_links_and_does_not_replace_pipes(project: Project):
    project.suite(case("a"))
    os.mkfifo(project.folder / "pipe.md")
    (project.folder / "device.md").symlink_to("/dev/null")
    for output in ("pipe.md", "device.md"):
        assert "not a regular file" in project.test("-o", output, code=4).err  # N35
    assert (project.folder / "pipe.md").is_fifo()
    target = project.write("there/report.md", "old")
    (project.folder / "linked.md").symlink_to(target)
    assert project.test("-o", "linked.md").code == 0
    assert (project.folder / "linked.md").is_symlink()
    assert target.read_text() != "old"


def test_prints_of_an_agent_are_not_in_the_events(project: Project):
    project.suite(case("a"))
    project.write(
        "agent.py", "print('loud')\ndef agent(messages):\n    print('louder')\n    return messages[-1]['content']\n"
    )
    for arguments in (("--json",), ("-i", "Hello", "--json")):
        ended = project.test(*arguments, code=0)
        assert all(json.loads(line) for line in ended.out.splitlines())
        assert "louder" in ended.err


def test_a_reference_of_a_flag_starts_in_the_working_folder(project: Project):
    """One of the config starts in the folder of the config."""
    project.write("viva.toml", '[agents.kept]\nuse = "python:./mine.py:agent"\n')
    project.write("mine.py", "def agent(messages):\n    return 'beside the config'\n")
    project.write("deep/mine.py", "def agent(messages):\n    return 'in the working folder'\n")
    project.write("deep/lines.jsonl", '{"content": "written down"}\n')
    deep = type(project).__new__(type(project))
    deep.__dict__.update(project.__dict__, folder=project.folder / "deep")
    for agent, said in (
        ("python:./mine.py:agent", "in the working folder"),
        ("scripted:lines.jsonl", "written down"),
        ("kept", "beside the config"),
    ):
        assert said in deep.viva("test", "-i", "Hello", "-n", agent).out, agent  # N7
        deep.suite({"id": "a", "input": "x", "assertions": [contains(said)]})
        assert deep.viva("test", "-i", "suite.jsonl", "-n", agent).code == 0, agent


SAMPLES = {"config": "viva.toml", "env_file": "viva.toml", "replay": "viva.toml", "host": "http://127.0.0.1:9"}
FLAGS = {each.name: each for each in command.params if isinstance(each, click.Option) and each.name != "inputs"}


def flag_with_value(option: click.Option) -> list[str]:
    """The flag with a sample value."""
    flag = option.opts[0]
    if option.is_flag:
        return [flag]
    if isinstance(option.type, click.Choice):
        return [flag, str(option.type.choices[0])]
    numbers = {"integer range": "2", "float range": "0.5", "duration": "30s", "modes": "golden"}
    return [flag, SAMPLES.get(str(option.name), numbers.get(option.type.name, "report.md"))]


ACTIONS = {"host", "resume", "interactive"}
"""Flags that start another action, which has its own rules."""


@pytest.mark.parametrize("name", sorted(FLAGS.keys() - list_flags_of_action("message") - ACTIONS))
def test_a_message_refuses_flags_of_a_run(project: Project, name: str):
    project.write("viva.toml", "")
    project.write("agent.py", "raise SystemExit('it was called')\n")
    assert FLAGS[name].opts[0] in project.test("-i", "Hello there", *flag_with_value(FLAGS[name]), code=4).err  # N11


@pytest.mark.parametrize("name", sorted(FLAGS.keys() - list_flags_of_action("chat") - ACTIONS))
def test_a_chat_refuses_flags_of_a_run(project: Project, name: str):
    project.write("viva.toml", "")
    ended = project.viva(
        "test", "-n", "python:./agent.py:agent", "--interactive", *flag_with_value(FLAGS[name]), code=4
    )
    assert FLAGS[name].opts[0] in ended.err


CONNECTORS = "".join(f'[connectors.{name}]\nbase_url = "http://127.0.0.1:9"\nmodel = "m"\n' for name in ("one", "two"))


def test_flags_of_a_message_reach_the_agent(project: Project):
    """Connector and model are in the options; time limits hold for one reply and for all; -q and -v choose the output."""
    project.write(
        "viva.toml", CONNECTORS + '[agents.a]\nuse = "python:./agent.py:agent"\noptions = {connector = "one"}\n'
    )
    project.write(
        "agent.py",
        "import time\n"
        "def agent(messages, options):\n"
        "    time.sleep(60 if 'hang' in messages[-1]['content'] else 0)\n"
        "    said = {key: options.get(key) for key in ('connector', 'model')}\n"
        "    return {'data': said, 'tool_calls': [{'name': 'look', 'arguments': {}, 'result': 'found'}]}\n",
    )

    def said(*flags: str) -> str:
        return project.test("-i", "Hello", "-n", "a", *flags).out

    assert said("-q") == '{"connector":"one","model":null}\n'
    assert said("-q", "-c", "two", "--agent-model", "m2") == '{"connector":"two","model":"m2"}\n'  # N20
    assert "found" not in said()
    assert "  found\n" in said("-v")
    for flag in ("--timeout", "--turn-timeout"):
        ended = project.test("-i", "hang", "-n", "a", flag, "50ms")
        assert (ended.code, ended.err) == (1, "timeout after 50ms\n")  # N18
    assert project.test("-i", "Hello", "-n", "a", "-c", "tow").code == 4


def test_inputs_need_no_flag(project: Project):
    project.suite(case("a"), name="a.jsonl")
    project.suite(case("b"), name="b.jsonl")
    agent = ("-n", "python:./agent.py:agent")
    assert "2 tests: 2 passed" in project.viva("test", "a.jsonl", "b.jsonl", "-q", *agent).out  # N7
    assert "2 tests: 2 passed" in project.viva("test", "-i", "a.jsonl", "b.jsonl", "-q", *agent).out
    assert project.viva("test", "Hello there", "-q", *agent).out == "Hello there\n"
    for words in (("Hello", "there"), ("a.jsonl", "Hello")):
        assert "There is no file 'Hello'. Put a message in quotes" in project.viva("test", *words, *agent, code=4).err
    assert project.viva("test", *agent).code == 4


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--max-runs", "3"), "--max-runs needs --until-decided"),
        (("--replay-missing", "live"), "--replay-missing needs --replay"),
        (("--force",), "--force needs --resume"),
    ],
)
def test_a_flag_that_needs_another_one_is_refused_without_it(project: Project, flags: tuple[str, ...], expected: str):
    project.suite(case("a"))
    assert expected in project.test(*flags, code=4).err
