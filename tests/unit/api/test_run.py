"""`viva.run`: the command line as a function."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

import viva
from running import run_cases
from viva import catalog
from viva.agents.scripted import ScriptedAgent
from viva.reporters.report import Report
from viva.types import SequentialTest


def echo(messages):
    return f"You said: {messages[-1]['content']}"


def case(case_id="one", said="hello", **fields):
    return {"id": case_id, "input": said, "assertions": [viva.check.contains(said)], **fields}


def run(inputs, agent: Any = echo, **options: Any):
    asked: dict[str, Any] = {"history": False, **options}
    return run_cases(inputs, agent, **asked)


def test_cases_as_values_run_like_those_of_a_file():
    result = run([case("one"), case("two", assertions=[viva.check.contains("bye")])])
    assert not result.passed
    assert result.exit_code == 1
    assert [(record.id, record.status) for record in result.records()] == [("one", "passed"), ("two", "failed")]
    assert (result.summary.total, result.summary.passed, result.summary.failed) == (2, 1, 1)


def test_one_case_needs_no_list():
    assert run(case()).passed


def test_values_are_checked_as_strictly_as_a_file():  # N2
    with pytest.raises(viva.errors.BadInput) as raised:
        run([case(inputt="x"), case("two", assertions=[viva.check.regex("(")]), case("two", said="x")])
    told = str(raised.value)
    assert "cases:1: $: unknown key 'inputt'; did you mean 'input'?" in told
    assert "cases:2: $.assertions[0]: '(' is not a regular expression" in told


def test_what_no_file_could_hold_is_refused():
    with pytest.raises(viva.errors.BadInput, match=r"inputs\[1\] is not a valid case"):
        run([case(), case("two", metadata={"x": object()})])
    with pytest.raises(viva.errors.BadInput, match="No input given"):
        run([])


def test_python_values_are_read_like_values_of_a_file():
    seen = []

    def agent(messages, options):
        seen.append(options["metadata"])
        return "hello"

    assert run(case(tags=("a", "b"), metadata={1: (2, 3)}), agent, tags=["b"]).passed
    assert seen == [{"1": [2, 3]}]


def test_files_folders_and_globs_are_found_from_the_folder(folder):  # N7
    (folder / "cases").mkdir()
    for name in ("a", "b"):
        (folder / "cases" / f"{name}.jsonl").write_text(json.dumps(case(name)) + "\n")
    for inputs in ("cases", "cases/*.jsonl", [folder / "cases" / "a.jsonl", "cases/b.jsonl"]):
        result = run(inputs, "assistants.expense", folder=folder)
        assert [record.id for record in result.records()] == ["a", "b"]
    with pytest.raises(viva.errors.BadInput, match=r"did you mean cases/a\.jsonl"):
        run("cases/aa.jsonl", folder=folder)


def test_a_message_is_sent_and_has_no_verdict():  # N11
    result = run("Good morning, all")
    (record,) = result.records()
    assert (record.status, record.error) == ("skipped", "nothing was checked")
    assert record.turns[0].output == "You said: Good morning, all"
    assert result.exit_code == 5


def test_messages_are_one_case_of_which_the_last_is_sent():  # N5
    def count(messages):
        return str(len(messages))

    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    (record,) = run(said, count).records()
    assert (record.turns[0].input, record.turns[0].output) == ("c", "3")


class Polite:
    def reply(self, messages):
        return f"Please: {messages[-1]['content']}"


@pytest.mark.parametrize(
    "agent", [echo, Polite(), Polite, ScriptedAgent(("hello",))], ids=["function", "object", "class", "agent"]
)
def test_anything_that_answers_can_be_the_agent(agent):
    assert run(case(), agent).passed


def test_what_cannot_answer_is_bad_input():
    with pytest.raises(viva.errors.BadInput, match="an int is not an agent"):
        run(case(), 5)


def test_flags_are_arguments(tmp_path):
    turns = []

    def slow(messages):
        turns.append(1)
        return "You said: hello"

    report = tmp_path / "report.json"
    result = run([case("one"), case("two")], slow, runs=3, only="^one$", outputs=report, parallel=1)
    assert (len(turns), result.summary.total, result.passed) == (3, 1, True)
    assert json.loads(report.read_text())["summary"]["passed"] == 1
    with pytest.raises(viva.errors.BadInput, match="is not a duration"):
        run(case(), timeout="soon")


def test_what_failed_last_is_run_again(folder):  # N33
    cases = [case("one"), case("two", assertions=[viva.check.contains("bye")])]
    run(cases, folder=folder, history=True)
    again = run(cases, folder=folder, last_failed=True)
    assert [record.id for record in again.records()] == ["two"]


def test_faults_are_tried_again_as_often_as_asked():
    for retries in (0, 2):
        asked = []

        def away(messages, asked=asked):
            asked.append(1)
            raise viva.errors.Unreachable("nobody there")

        assert run(case(), away, retry_faults=retries).summary.errors == 1
        assert len(asked) == retries + 1


def test_a_cassette_says_what_becomes_of_what_it_lacks(tmp_path):
    tape = tmp_path / "tape.jsonl"
    run(case("one"), record=tape)
    both = [case("one"), case("two", said="bye")]
    assert [record.status for record in run(both, replay=tape).records()] == ["passed", "error"]
    assert [record.status for record in run(both, replay=tape, replay_missing="skip").records()] == [
        "passed",
        "skipped",
    ]
    assert run(both, replay=tape, replay_missing="live").passed


def test_a_reporter_writes_the_report(folder):
    (folder / "vv_reporter.py").write_text("def write(messages):\n    return 'all is well'\n")
    with (folder / "viva.toml").open("a") as config:
        config.write('\n[agents.writer]\nuse = "python:./vv_reporter.py:write"\n')
    report = folder / "report.md"
    run(case(), folder=folder, outputs=report, reporter="writer")
    assert report.read_text() == "all is well"


def test_a_function_writes_the_report_or_grades_a_playbook(folder):
    """Functions work wherever a reference does."""

    def write_report(message: str):
        return f"{json.loads(message)['summary']['passed']} passed"

    assert run(case(), reporter=write_report).report_text == "1 passed"

    modes: list[str] = []

    def evaluate(messages, options):
        metadata = options["metadata"]
        modes.append(metadata["test_mode"])
        if modes[-1] == "simulator":
            return {"input": "thanks"}
        return "simulator" in modes or metadata["criteria"] == "it answers"

    (folder / "a.yaml").write_text(
        "name: hello\nsteps: [{user_input: hi, expected_outcome: it answers}]\n"
        "persona: {context: You are polite., max_turns: 2, success_criteria: {llm_checks: [it is polite]}}\n"
    )
    result = run("a.yaml", folder=folder, evaluator=evaluate, workspace="empty")
    assert result, result
    assert {*modes} == {"simulator", "validator"}


def test_reports_of_objects_name_the_call_that_runs_a_case_again(tmp_path):
    """No command can name an object of a program."""
    suite = tmp_path / "a.jsonl"
    suite.write_text(json.dumps({"id": "one", "input": "hi", "assertions": [{"type": "contains", "value": "bye"}]}))
    (tmp_path / "echo.py").write_text("def reply(message): return message\n")
    for agent, inputs, expected in (
        (echo, "a.jsonl", "viva.run(..., only='^one$')"),
        ("python:./echo.py:reply", case(assertions=[viva.check.contains("bye")]), "viva.run(..., only='^one$')"),
        ("python:./echo.py:reply", "a.jsonl", "viva test -i a.jsonl -k '^one$' -v -n python:./echo.py:reply"),
    ):
        outputs = [tmp_path / "r.md", tmp_path / "r.xml"]
        run(inputs, agent, outputs=outputs, folder=tmp_path)
        for output in outputs:
            lines = [line.partition("<")[0] for line in output.read_text().splitlines()]
            assert [line for line in lines if line.startswith(("viva test", "viva.run"))] == [expected]


def test_a_format_an_env_file_and_people_can_be_asked_for(folder, monkeypatch):  # N7
    (folder / "keys.env").write_text("VV_API_TONE=warm\n")
    monkeypatch.setenv("VV_API_TONE", "cold")  # and so it is put back
    warm = case(assertions=[viva.check.equals("warm")])
    assert run(warm, lambda messages: os.environ["VV_API_TONE"], env_file=folder / "keys.env").passed
    (record,) = run(case(interactive={"enabled": True}), folder=folder, skip_interactive=True).records()
    assert "--skip-interactive" in str(record.error)
    (folder / "cases.jsonl").write_text(json.dumps(case()) + "\n")
    with pytest.raises(viva.errors.BadInput):
        run("cases.jsonl", folder=folder, format="playbook")


def test_a_case_runs_until_it_is_decided():  # N33
    test = SequentialTest(min_pass=0.9, max_runs=40, margin=0.4)
    result = run(case(), sequential=test)
    assert result.passed
    assert len(list(result.records())) == test.min_passes < 40
    with pytest.raises(viva.errors.BadInput, match="sequential and runs exclude each other"):
        run(case(), sequential=test, runs=5)
    with pytest.raises(viva.errors.BadInput, match="raise max_runs"):
        run(case(), sequential=SequentialTest(min_pass=0.9, max_runs=2))


def test_time_is_limited():  # N18
    async def never(messages):
        await asyncio.Event().wait()

    (record,) = run(case(), never, timeout="20ms").records()
    assert (record.status, record.error) == ("failed", "timeout after 20ms")
    (record,) = run(case(), never, turn_timeout=0.02).records()
    assert record.turns[0].error == "timeout after 20ms"


def test_it_can_be_called_where_a_loop_runs_already():
    async def notebook():
        return run(case()).passed

    assert asyncio.run(notebook())


def test_what_was_run_is_kept_unless_told_otherwise(folder):
    run("Hello there", "assistants.expense", folder=folder)
    assert not (folder / ".viva").exists()
    kept = run(case(), "assistants.expense", folder=folder, history=True)
    assert kept.folder
    assert kept.folder.parent == folder / ".viva" / "runs"


def test_hooks_may_be_functions():  # N32
    seen = []

    def before(ctx, cases):
        seen.append([each.id for each in cases])
        return {"name": "Ada"}

    def after(ctx, results, data):
        seen.append(([each.status for each in results], data))

    assert run(case(said="I am {{name}}", assertions=[viva.check.contains("Ada")]), before=before, after=after).passed
    assert seen == [["one"], (["passed"], {"name": "Ada"})]


def test_the_id_of_a_case_may_be_left_out():
    result = run([{"input": "a", "assertions": [viva.check.contains("a")]}, case("two")])
    assert [record.id for record in result] == ["case-1", "two"]


def test_what_is_not_an_input_is_named():
    for wrong in (Polite(), [Polite()], 5):
        with pytest.raises(viva.BadInput, match="pass a path, a message, or a case as a dict"):
            run(wrong)


def test_arun_stays_on_the_loop_of_its_caller():
    async def scenario():
        loop = asyncio.get_running_loop()
        lock = asyncio.Lock()

        async def agent(messages):
            assert asyncio.get_running_loop() is loop
            async with lock:
                return "hello"

        return await viva.arun([case("one"), case("two")], agent, history=False)

    result = asyncio.run(scenario())
    assert result, result


@pytest.fixture
def slow_report():
    """A report of a plugin, `.slow`, that is being written until `go_on` is set."""

    class SlowReport(Report):
        is_being_written = threading.Event()
        go_on = threading.Event()

        def write(self, out, ended):
            self.is_being_written.set()
            assert self.go_on.wait(20), "the loop stood still"
            out.write(b"complete")

    yield viva.plugins.register("reporter", ".slow")(SlowReport)
    del catalog._registered_components["reporter", ".slow"]


def test_arun_writes_reports_while_its_loop_goes_on(slow_report, tmp_path):
    path = tmp_path / "run.slow"

    async def scenario():
        running = asyncio.ensure_future(viva.arun([case()], echo, history=False, outputs=path))
        while not slow_report.is_being_written.is_set():
            await asyncio.sleep(0.001)
        slow_report.go_on.set()
        return await running

    result = asyncio.run(scenario())
    assert (result.exit_code, path.read_text()) == (0, "complete")


def test_a_run_that_is_cancelled_while_it_writes_reports_still_ends(slow_report, tmp_path):  # N35
    """The report is whole, and the journal says that the run ended."""
    (tmp_path / "viva.toml").write_text("")
    path = tmp_path / "run.slow"

    async def scenario():
        running = asyncio.ensure_future(viva.arun([case()], echo, config=tmp_path / "viva.toml", outputs=path))
        while not slow_report.is_being_written.is_set():
            await asyncio.sleep(0.001)
        for _ in range(2):
            running.cancel()
            await asyncio.sleep(0)
        slow_report.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())
    (journal,) = tmp_path.glob(".viva/runs/*/journal.jsonl")
    last = json.loads(journal.read_text().splitlines()[-1])
    assert (last["event"], last["exit_code"], path.read_text()) == ("run_ended", 0, "complete")


def test_a_sync_conversation_works_with_and_without_a_running_loop():
    def talk():
        with viva.SyncConversation(echo, timeout="5s") as chat:
            assert chat.say("hi").text == "You said: hi"
            chat.expect(viva.check.contains("hi"), lambda turn: turn.number == 1)
        chat.expect(lambda turn: turn.input == "hi")
        assert [message.role for message in chat.messages] == ["user", "assistant"]
        with pytest.raises(RuntimeError, match="is closed"):
            chat.say("again")

    async def in_a_loop():
        talk()

    talk()
    asyncio.run(in_a_loop())
    with pytest.raises(viva.BadInput, match="is not an agent"):
        viva.SyncConversation(5).__enter__()


def test_a_conversation_survives_any_exception_of_the_agent():
    class Hostile(BaseException):
        pass

    class Own:
        provides: frozenset[str] = frozenset()

        @contextlib.asynccontextmanager
        async def open(self, context):
            yield self

        async def send(self, message, options):
            raise {"hostile": Hostile, "exit": SystemExit, "interrupt": KeyboardInterrupt}[message.text]

    with viva.SyncConversation(Own()) as chat:
        for text in ("hostile", "exit", "interrupt"):
            with pytest.raises(viva.AgentFailed):
                chat.say(text)


def test_a_program_without_a_guard_can_name_its_own_functions(tmp_path):
    """The module that runs is not loaded a second time; a module that calls `viva.run` at its top level is refused."""
    (tmp_path / "program.py").write_text(
        "import viva\n"
        "def reply(message: str): return message\n"
        "def is_short(output): return len(output) < 9\n"
        "case = {'input': 'hi', 'assertions': [{'type': 'script', 'use': 'scripts:program.is_short'}]}\n"
        "result = viva.run(case, 'python:./program.py:reply', history=False)\n"
        "assert result, result\n"
        "try:\n"
        "    viva.run(case, 'python:./program.py:later', history=False)\n"
        "except viva.BadInput as error:\n"
        "    print(error)\n"
        "try:\n"
        "    viva.run(case, 'python:./other.py:reply', history=False)\n"
        "except viva.BadInput as error:\n"
        "    print(error)\n"
        "def later(message): return message\n"
    )
    (tmp_path / "other.py").write_text("import viva\nviva.run('Hello there', len)\n")
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done
    later, other = done.stdout.splitlines()
    assert "has to define it above the call of viva.run" in later
    assert 'imports other, which would never end; put the call below `if __name__ == "__main__":`' in other


@pytest.mark.parametrize("command", [["program.py"], ["-m", "program"], ["-c", "import program"]], ids=" ".join)
def test_a_program_without_a_guard_can_name_itself_as_a_module(tmp_path, command):
    """No deadlock, whether it runs or is imported."""
    (tmp_path / "program.py").write_text(
        "import viva\n"
        "def reply(message: str): return message\n"
        "case = {'input': 'hi', 'assertions': [viva.check.contains('hi')]}\n"
        "assert viva.run(case, 'python:program:reply', history=False)\n"
        "with viva.SyncConversation('python:program:reply') as chat:\n"
        "    print(chat.say('hello').content)\n"
        "try:\n"
        "    viva.run(case, 'python:other:reply', history=False)\n"
        "except viva.BadInput as error:\n"
        "    print(error)\n"
    )
    (tmp_path / "other.py").write_text(
        "import viva\n"
        "def reply(message: str): return message\n"
        "with viva.SyncConversation('python:other:reply') as chat:\n"
        "    chat.say('Hello')\n"
    )
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done
    hello, other = done.stdout.splitlines()
    assert hello == "hello"
    assert "viva.Conversation was called while Viva imports other, which would never end" in other


@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_ctrl_c_ends_a_sync_conversation_at_once(tmp_path, keyword):
    """Closing the conversation does not wait for the reply that was interrupted."""
    wait = "time.sleep(600)" if keyword == "def" else "await asyncio.sleep(600)"
    (tmp_path / "program.py").write_text(
        "import asyncio, time, viva\n"
        f"{keyword} reply(message: str):\n"
        "    print('started', flush=True)\n"
        f"    {wait}\n"
        "try:\n"
        "    with viva.SyncConversation(reply) as chat:\n"
        "        try:\n"
        "            chat.say('hello')\n"
        "        except KeyboardInterrupt:\n"
        "            try:\n"
        "                chat.say('again')\n"
        "            except RuntimeError as error:\n"
        "                print(error)\n"
        "            raise\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    command = [sys.executable, "program.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        try:
            output, _ = process.communicate(timeout=300)
        finally:
            process.kill()
    assert output.splitlines() == ["the session with the agent was interrupted", "interrupted"]


def test_user_code_that_ends_the_process_ends_only_its_step(folder):
    class Hostile(BaseException):
        pass

    def raises(*arguments):
        raise Hostile("inner")

    (record,) = run(case(before=lambda ctx, each: raises()))
    assert (record.status, "Hostile: inner" in (record.error or "")) == ("error", True)
    (record,) = run(case(after=lambda ctx, each, result, data: raises()))
    assert "Hostile: inner" in str(record.warnings)
    (record,) = run(case(assertions=[lambda turn: raises()]))
    assert record.status == "error"


def test_messages_name_the_keyword_instead_of_the_flag(tmp_path):
    options = viva.RunOptions(folder=tmp_path)
    with pytest.raises(viva.BadInput, match=r"no agent given. Give agent=NAME"):
        viva.run({"input": "hello"}, options=options)
    with pytest.raises(viva.BadInput, match=r"^only="):
        viva.run({"input": "hello"}, echo, only="(", options=options)
    with pytest.raises(viva.BadInput, match=r"^outputs=a\.what: unknown report format"):
        viva.run({"input": "hello"}, echo, outputs="a.what", options=options)


def test_several_agents_are_one_run_with_a_matrix():
    cases = [case(f"c{number}", f"say {number}") for number in range(7)]

    def deaf(messages: Any) -> str:
        return "what?"

    result = run(cases, [echo, deaf])
    assert (len(result), result.agents) == (14, (echo.__qualname__, deaf.__qualname__))
    first, second = result.matrix.columns
    assert (first.rate, second.rate) == (1.0, 0.0)
    assert second.difference is not None
    assert second.difference.verdict == "worse"
    assert result.matrix.has_worse_agent
    with pytest.raises(KeyError, match="several agents"):
        result.trials("c1")
    assert [record.status for record in result.trials("c1", agent=deaf.__qualname__)] == ["failed"]
    assert f"c1 [{deaf.__qualname__}]" in str(result)
    named = run(cases[:1], {"loud": echo, "lambda": lambda messages: "what?"})
    assert [(row["agent"], row["status"]) for row in named.to_dicts()] == [("loud", "passed"), ("lambda", "failed")]
    with pytest.raises(viva.BadInput, match="two agents have this name"):
        run(cases, [echo, echo])
    with pytest.raises(viva.BadInput, match="at least one agent"):
        run(cases, [])
