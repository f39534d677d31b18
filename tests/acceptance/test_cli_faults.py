"""Agents that misbehave, disks that are full, people who press Ctrl-C: what is left is a report, and the blame is right."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from project import HANGING, Project, case, contains

MISFITS = """
import asyncio, json, sys, threading, time

class Unshowable(Exception):
    def __str__(self):
        raise RuntimeError("cannot be shown")

circle = []
circle.append(circle)

def raises(): raise ValueError("no such table")
def unshowable(): raise Unshowable
def exits(): sys.exit(0)
def stops(): raise StopIteration
def nothing(): return None
def number(): return 42
def listing(): return [1]
def empty(): return {}
def other_keys(): return {"text": "hello"}
def content_number(): return {"content": 5}
def calls_text(): return {"content": "x", "tool_calls": "create"}
def call_nameless(): return {"content": "x", "tool_calls": [{"arguments": {}}]}
def surrogate(): return "half an emoji \\ud83d"
def in_circles(): return {"content": "x", "data": circle}
async def async_raises(): raise ValueError("no such table")
async def async_exits(): sys.exit(0)
async def async_cancels(): raise asyncio.CancelledError

def agent(messages):
    return globals()[messages[-1]["content"]]()
"""

BLAMED = {
    "raises": "agent error: ValueError: no such table",
    "unshowable": "agent error: Unshowable",
    "exits": "agent error: RuntimeError: SystemExit: 0",
    "stops": "agent error: RuntimeError: StopIteration",
    "nothing": "agent error: returned None instead of a string",
    "number": "agent error: returned an int instead of a string",
    "listing": "agent error: returned a list with an int instead of messages",
    "empty": "agent error: returned a dict with no keys instead of a string",
    "other_keys": "agent error: returned a dict with 'text' instead of a string",
    "content_number": "agent error: returned content of type an int instead of a string",
    "calls_text": "agent error: returned tool_calls of type a str instead of a list",
    "call_nameless": "agent error: returned a tool call without a name",
    "surrogate": "agent error: returned what JSON cannot hold: UnicodeEncodeError",
    "in_circles": "agent error: returned what JSON cannot hold: RecursionError",
    "async_raises": "agent error: ValueError: no such table",
    "async_exits": "agent error: SystemExit: 0",
    "async_cancels": "agent error: it cancelled itself",
}


@pytest.mark.process
def test_an_agent_that_raises_or_returns_rubbish_has_failed(project: Project):
    """Whatever it raises, even SystemExit, and whatever it returns: its failure, and the run goes on to the next case."""
    project.write("agent.py", MISFITS)
    project.suite(*(case(name, name) for name in BLAMED))
    _, records = project.report(code=1)
    assert len(records) == len(BLAMED)
    for record, (name, said) in zip(records, BLAMED.items(), strict=True):
        assert (record["id"], record["status"], record["fault"]) == (name, "failed", "agent")  # N17
        assert record["error"].startswith(said), record["error"]  # N16
        assert record["turns"][0]["error"]


HANGING_POOL = """
import time
from concurrent.futures import ThreadPoolExecutor
import viva.cli.main

viva.cli.main.THREAD_GRACE_S = 0.1
pool = ThreadPoolExecutor(1, "tools")

def agent(messages):
    return pool.submit(time.sleep, 600).result()
"""


@pytest.mark.process
def test_a_tool_that_hangs_in_a_thread_pool_does_not_keep_the_process(project: Project):  # N18
    project.write("agent.py", HANGING_POOL)
    project.suite(case("a", "hello"))
    ended, (record,) = project.report("--turn-timeout", "1s", code=1)
    assert record["error"] == "timeout after 1s"
    assert "threads of the agent did not end: tools_0" in ended.err


@pytest.mark.process
def test_an_agent_that_hangs_is_cut_off_and_the_process_ends(project: Project):
    """Sleeping, spinning, refusing to be interrupted, or awaiting forever: the turn fails and Viva does not wait."""
    project.write("agent.py", HANGING)
    project.suite(*(case(name, name) for name in ("sleeps", "spins", "clings", "waits")))
    began = time.monotonic()
    ended, records = project.report("--turn-timeout", "300ms")
    assert time.monotonic() - began < 90
    assert ended.code == 1, ended
    for record in records:
        assert (record["status"], record["fault"], record["error"]) == ("failed", "agent", "timeout after 300ms")  # N18
        assert record["turns"][0]["error"] == "timeout after 300ms"
        assert 290 <= record["turns"][0]["duration_ms"] < 10_000


def test_a_reply_of_ten_megabytes_is_kept_whole_and_shown_short(project: Project):
    """Checked, journaled and reported in all formats; the console stays readable."""
    project.write("agent.py", "def agent(messages):\n    return 'x' * 10_000_000 + ' END'\n")
    project.suite(case("big", assertions=[contains("END"), {"type": "regex", "pattern": "END$"}, contains("absent")]))
    ended, (record,) = project.report("-v", "-o", "r.json", "-o", "r.xml", "-o", "r.md", code=1)
    assert len(record["turns"][0]["output"]) == 10_000_004
    assert [each["passed"] for each in record["turns"][0]["assertions"]] == [True, True, False]
    assert len(ended.out) < 10_000
    assert (project.folder / "r.xml").stat().st_size < 1_000_000


SLOW = """
import time
from pathlib import Path

def agent(messages):
    text = messages[-1]["content"]
    if text == "slow":
        Path(f"started-{time.monotonic_ns()}").touch()
        time.sleep(600)
    return text
"""


def test_ctrl_c_leaves_a_report_and_no_process(project: Project, interrupted):
    """Exit code 2; what has ended is in every report, the rest is counted as not run; no child is left."""
    project.write("agent.py", SLOW)
    project.suite(case("quick"), case("slow1", "slow"), case("slow2", "slow"), case("never"))
    ended = interrupted(
        "✓ quick",
        "-i",
        "suite.jsonl",
        "-n",
        "python:./agent.py:agent",
        "--parallel",
        "2",
        "-o",
        "report.jsonl",
        "-o",
        "r.xml",
    )
    assert ended.code == 2, ended  # N35
    assert [record["id"] for record in project.records()] == ["quick"]
    assert 'name="quick"' in (project.folder / "r.xml").read_text(encoding="utf-8")
    assert "3 not run" in ended.out  # N19, N34
    assert "interrupted" in ended.out
    assert not _alive(project.folder)


def test_the_second_ctrl_c_ends_the_process_at_once(project: Project, interrupted):
    """Also when an async agent blocks the loop, so that the first one has no effect."""
    project.write("agent.py", "import time\nasync def agent(messages):\n    time.sleep(600)\n")
    project.suite(case("blocked"))
    ended = interrupted("Running Tests", "-i", "suite.jsonl", "-n", "python:./agent.py:agent", times=2)
    assert ended.code == 2, ended


@pytest.mark.parametrize(("number", "times"), [(signal.SIGTERM, 1), (signal.SIGHUP, 1), (signal.SIGHUP, 3)])
def test_other_stop_signals_stop_the_run_too(project: Project, interrupted, number: int, times: int):
    """When a terminal closes, SIGHUP comes from the kernel and again from the shell: only another signal is a second one."""
    project.write("agent.py", SLOW)
    project.suite(case("quick"), case("slow1", "slow"))
    flags = ("-i", "suite.jsonl", "-n", "python:./agent.py:agent", "-o", "report.jsonl")
    ended = interrupted("✓ quick", *flags, number=number, times=times)
    assert ended.code == 2, ended
    assert [record["id"] for record in project.records()] == ["quick"]


def test_a_run_under_nohup_goes_on_when_the_terminal_closes(project: Project):
    project.write(
        "agent.py",
        "import os, signal\ndef agent(messages):\n    os.kill(os.getpid(), signal.SIGHUP)\n    return 'hello'\n",
    )
    project.suite(case("a"), case("b"))
    command = ["nohup", sys.executable, "-m", "viva", "test", "suite.jsonl", "-n", "python:./agent.py:agent"]
    done = subprocess.run(command, cwd=project.folder, env=project.env, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done


def _alive(folder: Path) -> list[str]:
    """Processes that work in this folder."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == folder and (process / "stat").read_text().split()[2] != "Z":
                found.append(process.name)
        except OSError:
            continue
    return found


@pytest.mark.process
def test_fail_fast_cancels_what_runs_and_counts_it_as_not_run(project: Project):
    """In parallel too; on `error` as on `failed`."""
    project.write("agent.py", SLOW)
    bad = {"fails": [contains("no")], "breaks": [{"type": "snapshot", "path": "missing.snap"}]}
    for name, assertions in bad.items():
        project.suite(case("slow1", "slow"), case(name, assertions=assertions), case("slow2", "slow"), case("later"))
        began = time.monotonic()
        ended, records = project.report("--fail-fast", "--parallel", "3")
        assert time.monotonic() - began < 90
        assert ended.code == 1, ended  # N35
        assert [record["id"] for record in records] == [name]  # N19: no outcome, no record
        assert "3 not run" in ended.out


@pytest.mark.process
def test_a_full_disk_stops_the_run_with_what_it_has(project: Project):
    """The journal cannot be written any more: no half record, a report of what is done, exit 1."""
    project.suite(*(case(f"c{i}", "x" * 500) for i in range(50)))

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    ended = project.test("-o", "report.jsonl", preexec_fn=small_files)
    records = project.records()
    assert ended.code == 1, ended
    assert 0 < len(records) < 50
    assert {record["status"] for record in records} == {"passed"}
    assert f"{len(records)} passed" in ended.out
    assert f"{50 - len(records)} not run" in ended.out
    assert "journal" in ended.out


def test_secrets_are_in_no_output(project: Project):
    """A connector's key, a value from a header, and a provider's key: echoed by the agent, they are nowhere to be read."""
    project.write(
        "agent.py",
        "import os\n"
        "def agent(messages, options):\n"
        "    secret = os.environ['ACME_KEY'] + ' ' + os.environ['ACME_HEADER'] + ' ' + os.environ['OPENAI_API_KEY']\n"
        "    if messages[-1]['content'] == 'raise': raise RuntimeError(secret)\n"
        "    return {'content': f'my secret is {secret}', 'data': {secret: [secret]}, 'input_hint': secret,\n"
        "            'tool_calls': [{'name': 'call', 'arguments': {'key': secret}, 'result': secret, 'error': secret}]}\n",
    )
    project.write(
        "viva.toml",
        '[connectors.acme]\nbase_url = "http://localhost:9"\nmodel = "m"\napi_key_env = "ACME_KEY"\nheaders = { X-Acme = "Bearer ${ACME_HEADER}" }\n'
        '[agents.a]\nuse = "python:./agent.py:agent"\n',
    )
    project.write("keys.env", "# keys\nexport ACME_KEY='sk-acme-0123456789'\nACME_HEADER=\"quoted-\\\\-header\"\n")
    provider = {"OPENAI_API_KEY": "sk-openai-abcdef"}
    project.suite(
        {"id": "echo", "turns": [{"input": "tell", "set": {"s": "$.*[0]"}, "assertions": [contains("no")]}]},
        {
            "id": "again",
            "turns": [
                {"input": "tell", "set": {"s": "$.*[0]"}},
                {"input": "you said {{s}}", "assertions": [contains("no")]},
            ],
        },
        case("raise", "raise"),
    )
    outputs = [argument for kind in ("jsonl", "json", "xml", "md") for argument in ("-o", f"r.{kind}")]
    said = ""
    for arguments in (["-v", "--parallel", "1", *outputs], ["--json"]):
        ended = project.test("--env-file", "keys.env", *arguments, agent=None, env=provider, code=1)
        said += ended.out + ended.err
    direct = project.test("-i", "tell me", "--env-file", "keys.env", agent=None, env=provider)
    broken = project.test("-i", "raise", "--env-file", "keys.env", agent=None, env=provider)
    assert (direct.code, broken.code) == (0, 1), (direct, broken)
    said += direct.out + direct.err + broken.out + broken.err
    written = [
        path for path in project.folder.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc", ".env")
    ]
    assert any(path.name == "journal.jsonl" for path in written)
    texts = {str(path): path.read_bytes() for path in written} | {"console": said.encode()}
    for where, text in texts.items():
        for secret in ("sk-acme-0123456789", "quoted-\\\\-header", "quoted-\\\\\\\\-header", "sk-openai-abcdef"):
            assert secret.encode() not in text, (where, secret)
    assert "my secret is *** *** ***" in said


def test_a_reader_that_goes_away_is_not_a_bug(project: Project):
    """`viva test … | head -1`."""
    project.suite(*(case(f"c{i}", assertions=[contains("no")]) for i in range(200)))
    process = project.start("test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent", "-v")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.wait(timeout=300)
    process.stderr.close()


@pytest.mark.parametrize("arguments", [("--help",), ("runs",), ("runs", "show", "latest"), ("schema", "native")])
def test_no_command_takes_a_reader_that_has_gone_for_a_bug(project: Project, arguments: tuple[str, ...]):
    project.suite(case("a"))
    project.test(code=0)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "viva", *arguments]
    process = subprocess.Popen(
        command, stdout=writer, stderr=subprocess.PIPE, cwd=project.folder, env=project.env, text=True
    )
    os.close(writer)
    assert process.communicate(timeout=300) == (None, "")
    assert process.returncode == 1


@pytest.mark.process
def test_no_history_leaves_nothing(project: Project, tmp_path: Path):
    project.suite(case("a"))
    (tmp_path / "tmp").mkdir()
    _, records = project.report("--no-history", env={"TMPDIR": str(tmp_path / "tmp")}, code=0)
    assert len(records) == 1
    assert not (project.folder / ".viva").exists()
    assert os.listdir(tmp_path / "tmp") == []
