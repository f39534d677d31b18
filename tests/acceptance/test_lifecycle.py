"""How runs end: interrupted, killed, resumed twice in parallel, on a full disk. Nothing is lost or doubled."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import bubblewrap
from project import Ended, Project, case

HANGING = """
import sys, time

def hang(*arguments):
    print("AT WORK", flush=True)
    time.sleep(600)

def nothing(*arguments):
    return None
"""
ECHO = ("-i", "suite.jsonl", "-n", "python:./agent.py:agent")


def events(project: Project) -> list[dict[str, Any]]:
    journal = project.find_journal()
    return [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("flags", "records", "number"),
    [
        (("--before", "hooks:hang"), 0, signal.SIGINT),
        (("--after", "hooks:hang"), 1, signal.SIGTERM),
        (("-r", "slow"), 1, signal.SIGINT),
    ],
)
def test_the_first_signal_ends_hooks_and_reporters_and_still_writes_all_reports(  # N35
    project: Project, interrupted: Callable[..., Ended], flags: Sequence[str], records: int, number: int
):
    project.write("hooks.py", HANGING)
    project.write("viva.toml", '[agents.slow]\nuse = "python:./hooks.py:hang"\n')
    project.suite(case("a"))
    outputs = ("-o", "report.jsonl", "-o", "r.json", "-o", "r.md")
    ended = interrupted("AT WORK", *ECHO, *flags, *outputs, number=number)
    assert ended.code == 2, ended
    assert len(project.records()) == records
    report = json.loads((project.folder / "r.json").read_text())
    assert (report["run"]["exit_code"], report["run"]["stopped"]) == (2, "interrupted")
    assert (project.folder / "r.md").exists()
    last = events(project)[-1]
    assert (last["event"], last["exit_code"], last["stopped"]) == ("run_ended", 2, "interrupted")
    assert "stopped unexpectedly" not in project.viva("runs").err  # it was interrupted, and that is known


def test_after_an_interruption_the_run_still_clears_up_and_asks_no_reporter(
    project: Project, interrupted: Callable[..., Ended]
):  # N32
    project.write(
        "hooks.py",
        "from pathlib import Path\n"
        "def before(ctx, cases):\n    return {'x': 1}\n"
        "def after(ctx, results, data):\n    Path('cleared').write_text(f'{len(results)} {data}')\n",
    )
    project.write("viva.toml", '[agents.rep]\nuse = "python:./reporter.py:agent"\n')
    project.write("reporter.py", "def agent(messages):\n    open('asked', 'w')\n    return 'text'\n")
    project.write(
        "agent.py", "import time\ndef agent(messages):\n    print('AT WORK', flush=True)\n    time.sleep(600)\n"
    )
    project.suite(case("a"))
    flags = ("--before", "hooks:before", "--after", "hooks:after", "-r", "rep", "-o", "r.md")
    ended = interrupted("AT WORK", *ECHO, *flags)
    assert ended.code == 2, ended
    assert (project.folder / "cleared").read_text() == "0 {'x': 1}"
    assert not (project.folder / "asked").exists()
    assert "not asked: the run was interrupted" in ended.out


CLINGING = """
import asyncio

async def agent(messages):
    print("AT WORK", flush=True)
    while True:
        try:
            await asyncio.sleep(600)
        except BaseException:
            pass
"""


def test_the_second_signal_leaves_a_clinging_reporter_at_once_with_code_2(
    project: Project, interrupted: Callable[..., Ended]
):  # N35
    project.write("reporter.py", CLINGING)
    project.write("viva.toml", '[agents.rep]\nuse = "python:./reporter.py:agent"\n')
    project.suite(case("a"))
    for number in (signal.SIGINT, signal.SIGTERM):
        ended = interrupted("AT WORK", *ECHO, "-r", "rep", "-o", "r.md", times=2, number=number)
        assert ended.code == 2, ended


LATE = """
import atexit, time

def agent(messages):
    return messages[-1]["content"]

def wait():
    print("AT WORK", flush=True)
    time.sleep(600)

atexit.register(wait)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_process_ends_has_its_exit_code(
    project: Project, interrupted: Callable[..., Ended], number: int
):  # N35
    """Code of the agent's may take its time when the interpreter ends."""
    project.write("agent.py", LATE)
    project.suite(case("a"))
    ended = interrupted("AT WORK", *ECHO, number=number)
    assert ended.code == 2, ended
    assert events(project)[-1]["exit_code"] == 0


SIGNALLED = """
import os, sys

class SendSignal:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, SendSignal())
sys.argv = ["viva", "test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent"]
from viva.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["click", "viva.cli.test", "uvloop", "agent"])
def test_a_signal_before_the_run_starts_has_its_exit_code(project: Project, module: str, number: int):  # N35
    """While Viva is imported, while the event loop is made, and while the agent is imported."""
    project.suite(case("a"))
    program = SIGNALLED.format(module=module, number=int(number))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project.folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (2, ""), done


def test_a_generator_that_takes_its_time_is_ended_too(project: Project, interrupted: Callable[..., Ended]):  # N35
    project.write("slow.py", HANGING.replace("def hang(*arguments)", "def generate()"))
    for number in (signal.SIGINT, signal.SIGTERM):
        ended = interrupted("AT WORK", "-i", "scripts:slow", "-n", "python:./agent.py:agent", number=number)
        assert ended.code == 2, ended
        assert "Traceback" not in ended.err


def test_a_reporter_has_a_time_limit(project: Project):  # N28, N18
    project.write("hooks.py", HANGING)
    project.write("viva.toml", '[agents.slow]\nuse = "python:./hooks.py:hang"\n')
    project.suite(case("a"))
    ended = project.test("-r", "slow", "-o", "r.md", "--timeout", "300ms", code=0)
    assert "reporter slow: timeout after 300ms; r.md is the built-in report" in ended.out
    assert "1 passed" in (project.folder / "r.md").read_text()


def test_a_generator_has_a_time_limit_too(project: Project):  # N18
    project.write("hooks.py", HANGING)
    project.write("viva.toml", '[agents.slow]\nuse = "python:./hooks.py:hang"\n')
    ended = project.test("-i", "agents:slow", "--timeout", "300ms")
    assert (ended.code, ended.err) == (1, "generator slow: timeout after 300ms\n")


def test_a_replayed_reporter_that_was_cut_off_is_cut_off_again(project: Project):
    project.write("hooks.py", HANGING)
    names = ("slow", "other")
    project.write("viva.toml", "".join(f'[agents.{name}]\nuse = "python:./hooks.py:hang"\n' for name in names))
    project.suite(case("a"))
    flags = ("-o", "r.md", "--timeout", "300ms")
    assert project.test(*flags, "-r", "slow", "--record", "c.cassette").code == 0
    for name in names:  # nor does one that was not recorded break the run
        ended = project.test(*flags, "-r", name, "--replay-missing", "skip", "--replay", "c.cassette", code=0)
        assert "r.md is the built-in report" in ended.out


PROGRAM = """
import asyncio, os, signal, sys, threading, time
import viva

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored

def agent(messages):
    if messages[-1]["content"] == "slow":
        {send}
        time.sleep(600)
    return "heard"

CASES = [
    {{"id": "a", "input": "quick", "assertions": [viva.check.contains("heard")]}},
    {{"id": "b", "input": "slow", "assertions": [viva.check.contains("heard")]}},
]

def own(number, frame):
    print("own handler")

{run}
"""
CALLED = """
signal.signal(signal.SIGINT, own)
result = viva.run(CASES, agent, parallel=1, outputs="report.jsonl")
print(result.exit_code, result.summary.not_run)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(0)
"""
PLAIN = """
try:
    viva.run(CASES, agent, parallel=1, outputs="report.jsonl")
except KeyboardInterrupt:
    print("interrupted")
"""
IN_A_LOOP = """
async def notebook():
    viva.run(CASES, agent, parallel=1, outputs="report.jsonl")
    print("not reached")

try:
    {loop}(notebook())
except KeyboardInterrupt:
    print("interrupted")
"""
AWAITED = """
async def main():
    await viva.arun(CASES, agent, parallel=1, outputs="report.jsonl")
    await asyncio.sleep(60)
    print("not reached")

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (CALLED, ["own handler", "2 1", "own handler"]),
        (PLAIN, ["interrupted"]),
        (IN_A_LOOP.format(loop="asyncio.new_event_loop().run_until_complete"), ["interrupted"]),
        (IN_A_LOOP.format(loop="asyncio.run"), ["interrupted"]),
        (AWAITED, ["interrupted"]),
    ],
    ids=["own handler", "plain", "in a loop", "in asyncio.run", "awaited"],
)
def test_viva_run_ends_in_order_and_gives_the_signals_back(project: Project, run: str, expected: list[str]):
    """The reports are written, and the program hears of the Ctrl-C; also where its caller has a loop already."""
    project.write("program.py", PROGRAM.format(send="os.kill(os.getpid(), signal.SIGINT)", run=run))
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=project.folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, expected), done
    assert [record["id"] for record in project.records()] == ["a"]
    last = events(project)[-1]
    assert (last["event"], last["stopped"]) == ("run_ended", "interrupted")


@pytest.mark.parametrize(
    ("death", "command"),
    [
        ("os._exit(0)", ("runs",)),
        ("os.kill(os.getpid(), signal.SIGKILL)", ("test", *ECHO[:2], "-n", "python:./echo.py:agent")),
        ("import ctypes; ctypes.string_at(0)", ("compare", "latest", "latest")),  # a segmentation fault
    ],
)
def test_the_next_command_notices_a_run_that_was_cut_off_and_says_how_to_go_on_once(
    project: Project, death: str, command: tuple[str, ...]
):
    project.write("echo.py", "def agent(messages):\n    return messages[-1]['content']\n")
    project.write(
        "agent.py",
        f"import os, signal\ndef agent(messages):\n    if messages[-1]['content'] == 'die' and not os.path.exists('go'):\n"
        f"        {death}\n    return messages[-1]['content']\n",
    )
    project.suite(case("a"), case("b", "die"))
    died = project.as_process.test("--parallel", "1", "-o", "report.jsonl")
    assert died.code not in (1, 2, 3, 4)
    (folder,) = (project.folder / ".viva" / "runs").iterdir()
    line = f"Run {folder.name} stopped unexpectedly; continue with `viva test --resume {folder.name}`\n"
    noticed = project.viva(*command)
    assert noticed.err == line, noticed
    again = project.viva(*command)
    assert line not in again.err, again  # once
    project.write("go", "")
    assert "stopped unexpectedly" not in project.viva("test", "--resume", folder.name, code=0).err
    assert [record["id"] for record in project.records()] == ["a", "b"]


def test_several_crashed_runs_are_reported_in_one_line(project: Project):
    project.write("agent.py", "import os\ndef agent(messages):\n    os._exit(7)\n")
    project.suite(case("a"))
    assert [project.as_process.test().code for _ in range(2)] == [7, 7]  # the second one has noticed the first
    project.as_process.test("--no-history")
    assert project.viva("runs", "--json").err.count("\n") == 0
    for path in (project.folder / ".viva" / "runs").glob("*/journal.lock"):
        path.write_text("4194999 1 somewhere\n")
    told = project.viva("runs", "--json").err
    assert told.startswith("2 runs stopped unexpectedly; continue with `viva test --resume ID`: ")
    assert told.count("\n") == 1


COUNTED = """
import os, time
LOG = os.open("calls.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

async def agent(messages, options):
    import asyncio
    os.write(LOG, (messages[-1]["content"] + "\\n").encode())
    while os.path.exists("wait"):
        await asyncio.sleep(0.01)
    return messages[-1]["content"]
"""


def calls(project: Project) -> list[str]:
    path = project.folder / "calls.log"
    return path.read_text().split() if path.exists() else []


def until(condition: Callable[[], bool], process: "subprocess.Popen[str] | None" = None) -> None:
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)


def killed(project: Project, *arguments: str, after: int = 1) -> str:
    """Starts a run, kills it once its agent was called so often, and gives its id."""
    project.write("wait", "")
    process = project.start("test", *arguments)
    until(lambda: len(calls(project)) >= after, process)
    process.kill()
    process.communicate()
    (project.folder / "wait").unlink()
    return max((project.folder / ".viva" / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns).name


def test_a_run_in_progress_is_not_resumed_and_its_process_is_named(project: Project):  # N39
    project.write("agent.py", COUNTED)
    project.suite(case("a", "one"), case("b", "two"))
    project.write("wait", "")
    process = project.start("test", *ECHO, "-o", "report.jsonl")
    until(lambda: len(calls(project)) == 2, process)
    refused = project.viva("test", "--resume", "latest", code=4)
    assert f"is in use by process {process.pid};" in refused.err
    assert "stopped unexpectedly" not in refused.err
    (_, row) = project.viva("runs").out.splitlines()
    assert f"running, process {process.pid}" in row
    removed = project.viva("runs", "rm", "latest", code=4)
    assert f"process {process.pid}" in removed.err
    assert project.viva("runs", "gc", "--keep", "0").out == "removed 0 runs\n"
    (project.folder / "wait").unlink()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, (out, err)
    assert calls(project) == ["one", "two"]


def test_of_two_resumes_at_once_one_runs_and_the_other_names_it(project: Project):  # N39
    """Nothing is asked twice, and no line of a report is broken."""
    project.write("agent.py", COUNTED)
    project.suite(*(case(f"c{n}", f"said-{n}") for n in range(20)))
    run = killed(project, *ECHO, "--parallel", "2", "-o", "report.jsonl", after=2)
    (project.folder / "calls.log").unlink()
    project.write("wait", "")
    both = [project.start("test", "--resume", run, "-o", "report.jsonl") for _ in range(2)]
    until(lambda: any(each.poll() is not None for each in both))  # the one that is refused does not wait
    (project.folder / "wait").unlink()
    ended = {each.pid: (each.communicate(timeout=300), each.returncode) for each in both}
    (winner,) = (pid for pid, (_, code) in ended.items() if code == 0)
    (((_, err), _),) = (each for pid, each in ended.items() if pid != winner and each[1] == 4)
    assert f"is in use by process {winner};" in err
    assert len(calls(project)) == len(set(calls(project))) == 20
    assert len(project.records()) == 20
    assert [event["event"] for event in events(project)].count("run_resumed") == 1


def test_latest_is_the_run_that_started_last(project: Project):  # N39
    """The clock goes back between two runs, and the second one is killed before it is indexed."""
    project.write("agent.py", COUNTED)
    project.suite(case("a", "one"))
    assert project.test().code == 0
    (first,) = (path.name for path in (project.folder / ".viva" / "runs").iterdir())
    second = killed(project, *ECHO, after=2)
    assert second != first
    journal = project.folder / ".viva" / "runs" / second / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    began = json.loads(lines[0])
    assert began["number"] == 2
    lines[0] = json.dumps(began | {"at": "1999-01-01T00:00:00+00:00"}, separators=(",", ":")).encode() + b"\n"
    journal.write_bytes(b"".join(lines))
    (project.folder / ".viva" / "history.sqlite").unlink()  # it is then built again
    rows = project.list_runs()
    assert [(row["id"], row["number"]) for row in rows] == [(second, 2), (first, 1)]
    assert project.viva("test", "--resume", "latest").code == 0
    assert calls(project) == ["one", "one", "one"]
    assert project.list_runs()[0]["exit_code"] == 0


def test_a_report_that_is_lost_is_reported_the_same_everywhere(project: Project):  # N35
    """The process, its last event, the list of runs and the other reports; and a resume writes what is missing."""
    project.write(
        "agent.py",
        "import shutil\ndef agent(messages):\n    shutil.rmtree('gone', ignore_errors=True)\n    return messages[-1]['content']\n",
    )
    project.suite(case("a"))
    (project.folder / "gone").mkdir()
    ended = project.test("-o", "gone/r.md", "-o", "r.json", "-o", "r.md", code=1)
    assert "a bug in Viva" not in ended.err
    assert "report gone/r.md: No such file or directory; not written" in ended.out
    lost = ["gone/r.md: No such file or directory"]
    last = events(project)[-1]
    assert (last["event"], last["exit_code"], last["summary"]["lost_reports"]) == ("run_ended", 1, lost)
    (row,) = project.list_runs()
    assert (row["exit_code"], row["summary"]["lost_reports"]) == (1, lost)
    report = json.loads((project.folder / "r.json").read_text())
    assert (report["run"]["exit_code"], report["summary"]["lost_reports"]) == (1, lost)
    assert (project.folder / "r.md").read_text().startswith("## ❌")
    shown = project.viva("runs", "show", "latest").out
    assert "Report not written: gone/r.md: No such file or directory" in shown
    (project.folder / "gone").mkdir()
    assert project.viva("test", "--resume", "latest").code == 0
    assert (project.folder / "gone" / "r.md").read_text().startswith("## ✅")
    (row,) = project.list_runs()
    assert row["exit_code"] == 0
    assert events(project)[-1]["exit_code"] == 0


def test_what_a_reporter_wrote_is_lost_in_the_same_way(project: Project):
    project.write("viva.toml", '[agents.rep]\nuse = "python:./reporter.py:agent"\n')
    project.write(
        "reporter.py", "import shutil\ndef agent(messages):\n    shutil.rmtree('gone')\n    return 'my words'\n"
    )
    project.suite(case("a"))
    (project.folder / "gone").mkdir()
    ended = project.test("-n", "python:./agent.py:agent", "-r", "rep", "-o", "gone/r.md", code=1)
    assert "a bug in Viva" not in ended.err
    assert events(project)[-1]["exit_code"] == 1


SMALL_DISK = """
import json, os, subprocess, sys

os.chdir("/small")
BIG = "def agent(messages):\\n    return messages[-1]['content'] + ' ' + 'x' * 20_000\\n"
open("agent.py", "w").write(BIG)
with open("suite.jsonl", "w") as suite:
    for n in range(30):
        claim = {"type": "contains", "value": f"said {n}"}
        suite.write(json.dumps({"id": f"c{n}", "input": f"said {n}", "assertions": [claim]}) + "\\n")
free = os.statvfs(".").f_bavail * os.statvfs(".").f_frsize
with open("filler", "wb") as filler:
    filler.write(bytes(free - 600_000))

def viva(*arguments):
    done = subprocess.run([sys.executable, "-m", "viva", "test", *arguments], capture_output=True, text=True)
    return {"code": done.returncode, "out": done.stdout, "err": done.stderr}

flags = ("-i", "suite.jsonl", "-n", "python:./agent.py:agent", "-o", "report.jsonl")
full = viva(*flags, "--record", "chat.cassette")
os.unlink("filler")
resumed = viva("--resume", "latest")
before = open("report.jsonl").read().count("\\n")
os.unlink("agent.py")
open("agent.py", "w").write(BIG)
replayed = viva(*flags, "--replay", "chat.cassette", "--no-history")
print(json.dumps({"full": full, "resumed": resumed, "replayed": replayed, "lines": before}))
"""


def test_a_disk_that_is_full_loses_nothing_that_had_ended(tmp_path: Path):
    """A file system of four megabytes, with a cassette and a journal on it. Later there is space, and the run goes on."""
    if not bubblewrap.works():
        return
    driver = tmp_path / "driver.py"
    driver.write_text(SMALL_DISK)
    sandbox = [
        "bwrap",
        *["--dev-bind", "/", "/", "--size", "4194304", "--tmpfs", "/small", "--unshare-pid", "--die-with-parent"],
    ]
    done = subprocess.run(
        [*sandbox, sys.executable, str(driver)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done
    told = json.loads(done.stdout)
    assert told["full"]["code"] == 1, told["full"]
    assert "No space left on device" in told["full"]["out"] + told["full"]["err"]
    assert "a bug in Viva" not in told["full"]["err"]
    assert told["resumed"]["code"] == 0, told["resumed"]
    assert told["lines"] == 30
    assert told["replayed"]["code"] == 0, told["replayed"]


FAILS_FIRST = """
import os

def agent(messages):
    return {"content": "heard", "usage": {"input_tokens": 10, "output_tokens": 5, "cost_usd": 0.25}}

def judge(messages, options):
    name = "asked-" + options["metadata"]["test_id"]
    if "again" in name and not os.path.exists(name):
        open(name, "w").close()
        raise ConnectionError("the judge is away")
    while os.path.exists("wait"):
        pass
    return {"passed": True, "reason": "as told"}
"""


def retrying(project: Project) -> tuple[str, ...]:
    project.write("agent.py", FAILS_FIRST)
    project.write("viva.toml", '[agents.judge]\nuse = "python:./agent.py:judge"\n')
    judged = [{"type": "agent", "use": "judge", "criteria": "c"}]
    project.suite(
        *({"id": name, "input": "x", "assertions": judged} for name in ("again-1", "quick", "again-2", "last"))
    )
    return (*ECHO, "--parallel", "1", "-o", "r.json", "-o", "r.md", "-o", "r.xml", "-o", "report.jsonl")


def check_totals(project: Project) -> None:
    report = json.loads((project.folder / "r.json").read_text())["summary"]
    keys = ("total_turns", "avg_turns", "input_tokens", "output_tokens", "cost_usd", "retried")
    assert [report[key] for key in keys] == [6, 1.0, 60, 30, 1.5, 2]
    assert "retried: 2 trials" in (project.folder / "r.md").read_text()
    assert (project.folder / "r.xml").read_text().count('name="retried" value="1"') == 2
    assert [record["attempt"] for record in project.records()] == [2, 1, 2, 1]
    shown = project.viva("runs", "show", "latest").out
    assert "Retried: 2 trials" in shown
    assert "2 retried" in project.viva("runs").out


def test_what_retried_trials_used_is_in_the_totals(project: Project):
    flags = retrying(project)
    ended = project.viva("test", *flags, code=0)
    assert "Retried: 2 trials; totals include earlier attempts" in ended.out
    assert "Total turns: 6" in ended.out
    assert "Avg turns/test: 1.0" in ended.out
    check_totals(project)
    retried = [event for event in events(project) if event["event"] == "trial_retried"]
    assert [(event["key"]["case"], event["fault"], event["turns"]) for event in retried] == [
        ("again-1", "judge", 1),
        ("again-2", "judge", 1),
    ]


def test_a_resumed_run_knows_what_retried_trials_used(project: Project):
    """Killed after both of them were tried again, while the second was on its way."""
    flags = retrying(project)
    project.write(
        "agent.py",
        FAILS_FIRST.replace(
            '    return {"passed"',
            "    if 'again-2' in name:\n        os.kill(os.getpid(), 9) if not os.path.exists('go') else None\n    return {\"passed\"",
        ),
    )
    assert project.as_process.viva("test", *flags).code == -signal.SIGKILL
    project.write("go", "")
    project.viva("test", "--resume", "latest", code=0)
    summary = json.loads((project.folder / "r.json").read_text())["summary"]
    assert (summary["retried"], summary["total_turns"]) == (2, 6)
    assert summary["input_tokens"] == 60
