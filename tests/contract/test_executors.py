"""What every executor promises: trials in this process and trials on workers give the same reports."""

import importlib
import json
import platform
import re
import shutil
import signal
import time
from collections.abc import Callable, Collection, Generator, Sequence
from pathlib import Path
from typing import Any

import dask.config as dask_config
import pytest

import bubblewrap
from dask_processes import DaskProcesses, open_processes
from project import InProcessProject, Project, case, contains, remove_times
from viva.testing import HttpServer
from viva.testing.http_server import StubResponse

importlib.import_module("distributed")  # it adds its settings when it is imported, which must outlast the tests

AGENT = """\
import asyncio, os
from pathlib import Path

ATTEMPTS = Path(__file__).parent / "attempts"
SLOW = Path(__file__).parent / "slow"

async def agent(messages, options):
    text = messages[-1]["content"]
    if text == "flaky":
        ATTEMPTS.mkdir(exist_ok=True)
        (ATTEMPTS / f"{os.getpid()}-{len(list(ATTEMPTS.iterdir()))}").touch()
        if len(list(ATTEMPTS.iterdir())) == 1:
            raise ConnectionRefusedError("refused")
    if text == "slow" or (text == "slow once" and not SLOW.exists()):
        SLOW.touch()
        await asyncio.sleep(600)
    while text == "wait for the other" and not SLOW.exists():
        await asyncio.sleep(0.01)
    if text == "expensive":
        return {"content": text, "usage": {"input_tokens": 10, "output_tokens": 10, "cost_usd": 0.4}}
    return text
"""


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Generator[DaskProcesses]:
    """A scheduler and two workers, each a process of its own, that serve one run after the other."""
    with open_processes(tmp_path_factory.mktemp("cluster")) as processes:
        processes.start_workers(2)
        yield processes


@pytest.fixture
def cluster(dask: DaskProcesses) -> str:
    return dask.address


@pytest.fixture
def project(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Project:
    project = InProcessProject(tmp_path, capfd)
    project.write("agent.py", AGENT)
    return project


@pytest.fixture(params=["local", "workers", "cluster"])
def flags(request: pytest.FixtureRequest) -> Sequence[str]:
    """The flags of each executor."""
    if request.param == "local":
        return ()
    if request.param == "workers":
        return ("--workers", "2")
    return ("--cluster", request.getfixturevalue("cluster"), "--cluster-folder", ".")


def test_reports_are_equal_and_in_input_order(project: Project, flags: Sequence[str]) -> None:
    project.suite(*(case(f"case{n}", f"hello {n}") for n in range(9)), case("wrong", assertions=[contains("bye")]))
    ended, records = project.report("--parallel", "4", "--runs", "2", *flags)
    assert ended.code == 1, ended
    _, expected = project.report("--parallel", "1", "--runs", "2")
    assert [(each["id"], each["trial"]) for each in records] == [(each["id"], each["trial"]) for each in expected]
    assert remove_times(records) == remove_times(expected)


def test_fail_fast_stops_the_run(project: Project, flags: Sequence[str]) -> None:
    project.suite(case("wrong", assertions=[contains("bye")]), *(case(f"case{n}") for n in range(40)))
    ended, records = project.report("--parallel", "1", "--fail-fast", *flags)
    assert ended.code == 1
    assert [each["id"] for each in records] == ["wrong"]


def test_the_budget_stops_the_run(project: Project, flags: Sequence[str]) -> None:
    project.suite(*(case(f"case{n}", "expensive") for n in range(10)))
    ended, records = project.report("--parallel", "1", "--max-cost", "1", *flags)
    assert ended.code == 1, ended
    assert "budget of $1 is spent ($1.2000)" in ended.out
    assert ("in flight, at most 1" in ended.out) is bool(flags)  # by how much it can be exceeded
    assert ("without TLS, everybody" in ended.out) is ("--cluster" in flags)
    assert len(records) <= 3


def test_trials_that_are_cancelled_are_charged(project: Project, flags: Sequence[str]) -> None:
    project.suite(
        case("wrong", "wait for the other", assertions=[contains("bye")]),
        {"id": "slow", "turns": [{"input": text, "assertions": [contains(text)]} for text in ("expensive", "slow")]},
    )
    ended, records = project.report("--parallel", "2", "--fail-fast", *flags)
    assert ended.code == 1, ended
    assert [each["id"] for each in records] == ["wrong"]
    assert "Cost: $0.4000" in ended.out


def test_an_error_of_the_provider_is_retried(project: Project, flags: Sequence[str]) -> None:  # N17
    project.suite(case("flaky", "flaky"))
    ended, records = project.report(*flags)
    assert ended.code == 0, ended
    assert records[0]["status"] == "passed"


def test_cases_run_until_they_are_decided(project: Project, flags: Sequence[str]) -> None:  # N37
    project.suite(case("good"), case("bad", assertions=[contains("bye")]))
    ended, records = project.report(
        "--until-decided", "--min-pass", "0.9", "--max-runs", "30", "--parallel", "1", *flags
    )
    _, expected = project.report("--until-decided", "--min-pass", "0.9", "--max-runs", "30", "--parallel", "1")
    assert ended.code == 1
    assert [(each["id"], each["trial"]) for each in records] == [(each["id"], each["trial"]) for each in expected]


def test_hooks_of_the_run_and_of_a_case(project: Project, flags: Sequence[str]) -> None:
    project.write(
        "hooks.py",
        "def set_up(ctx, cases):\n    return {'word': f'{len(cases)} cases'}\n"
        "def before(ctx, case):\n    return {'other': case.id}\n",
    )
    project.suite(
        {"id": "one", "input": "{{word}} {{other}}", "before": "hooks:before", "assertions": [contains("1 cases one")]}
    )
    ended, _ = project.report("--before", "hooks:set_up", *flags)
    assert ended.code == 0, ended


def test_a_cassette_of_workers_replays_anywhere(project: Project, flags: Sequence[str]) -> None:
    project.suite(*(case(f"case{n}", f"hello {n}") for n in range(6)))
    ended, recorded = project.report("--record", "chat.cassette", *flags)
    assert ended.code == 0, ended
    ended, replayed = project.report("--replay", "chat.cassette", *flags)
    assert ended.code == 0, ended
    assert remove_times(replayed) == remove_times(recorded)
    ended, replayed_here = project.report("--replay", "chat.cassette")
    assert ended.code == 0, ended
    assert remove_times(replayed_here) == remove_times(recorded)


def test_a_stopped_run_is_resumed_with_another_executor(project: Project, flags: Sequence[str]) -> None:
    project.suite(case("wrong", assertions=[contains("bye")]), *(case(f"case{n}") for n in range(8)))
    _, records = project.report("--parallel", "1", "--fail-fast", *flags)
    assert len(records) == 1
    ended = project.viva("test", "--resume", "latest", "--workers", "1", "-o", "report.jsonl")
    assert ended.code == 1, ended
    assert [each["id"] for each in project.records()] == ["wrong", *(f"case{n}" for n in range(8))]


def test_ctrl_c_stops_the_run_and_a_resume_completes_it(project: Project, flags: Sequence[str]) -> None:
    project.suite(case("first"), case("second", "slow once"), case("third"))
    process = project.start(
        *("test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent", "--parallel", "1", "-o", "report.jsonl", *flags)
    )
    while not (project.folder / "slow").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 2, (out, err)
    assert [each["id"] for each in project.records()] == ["first"]
    ended = project.viva("test", "--resume", "latest", "-o", "report.jsonl")
    assert ended.code == 0, ended
    assert [each["id"] for each in project.records()] == ["first", "second", "third"]


BLOCKING = """\
import os, time
from pathlib import Path

async def agent(messages, options):
    mark = Path(__file__).with_name("blocks")
    if messages[-1]["content"] == "block" and not mark.exists():
        mark.with_suffix(".new").write_text(str(os.getpid()))
        mark.with_suffix(".new").rename(mark)
        time.sleep(600)
    return messages[-1]["content"]
"""


def test_a_second_ctrl_c_ends_the_run_at_once(project: Project, flags: Sequence[str]) -> None:
    """The first one cannot cancel an agent that blocks its event loop."""
    project.write("agent.py", BLOCKING)
    project.suite(case("first"), case("second", "block"), case("third"))
    process = project.start(
        *("test", "-i", "suite.jsonl", "-n", "python:./agent.py:agent", "--parallel", "1", "-o", "report.jsonl", *flags)
    )
    while not (mark := project.folder / "blocks").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 2, (out, err)
    while Path(f"/proc/{mark.read_text()}").exists():
        time.sleep(0.05)
    ended = project.viva("test", "--resume", "latest", "-o", "report.jsonl")
    assert ended.code == 0, ended
    assert [each["id"] for each in project.records()] == ["first", "second", "third"]


def test_a_terminal_agent_works_in_its_workspace(project: Project, flags: Sequence[str]) -> None:
    project.write("viva.toml", '[agents.scribe]\ntype = "command"\ncommand = ["sh", "scribe.sh", "{input}"]\n')
    project.write("scribe.sh", 'echo "$1" > note.txt; echo "done: $1"\n')
    check = {"type": "file_contains", "path": "note.txt"}
    project.suite(
        *({"id": f"case{n}", "input": f"note {n}", "assertions": [check | {"value": f"note {n}"}]} for n in range(3))
    )
    ended, records = project.report("-n", "scribe", *flags)
    assert ended.code == 0, ended
    ended, elsewhere = project.report("-n", "scribe", *flags[:2])  # with the files of an archive
    assert ended.code == 0, ended
    _, expected = project.report("-n", "scribe")
    assert remove_times(records) == remove_times(elsewhere) == remove_times(expected)


def test_cases_from_standard_input(project: Project, flags: Sequence[str]) -> None:
    ended, records = project.report("-i", "-", *flags, input=json.dumps(case("piped")) + "\n")
    assert ended.code == 0, ended
    assert [each["id"] for each in records] == ["piped"]


def test_workers_without_the_folder_get_the_project(project: Project, cluster: str) -> None:
    project.write("viva.toml", '[agents.echo]\nuse = "python:./agent.py:agent"\n')
    project.write(".env", "SECRET_KEY=do-not-send\n")
    project.write(
        "spy.py",
        "from pathlib import Path\ndef agent(messages, options):\n    return str([p.name for p in Path(__file__).parent.iterdir()])\n",
    )
    project.suite(
        {"id": "one", "input": "list", "assertions": [contains("viva.toml"), {"type": "not_contains", "value": ".env"}]}
    )
    ended, records = project.report("--cluster", cluster, "-n", "python:./spy.py:agent")
    assert ended.code == 0, (ended, records)
    project.suite(*(case(f"case{n}", f"hello {n}") for n in range(4)), name="sub/suite.jsonl")
    project.folder /= "sub"
    ended = project.viva("test", "-i", "suite.jsonl", "-n", "echo", "--cluster", cluster, "--record", "chat.cassette")
    assert ended.code == 0, ended


def test_the_project_is_sent_once_and_its_code_is_never_stale(project: Project, dask: DaskProcesses) -> None:
    def list_archives(earlier: Collection[Path] = ()) -> dict[Path, int]:
        """The archives on the workers beside earlier ones, each with the number of its file."""
        return {path: path.stat().st_ino for path in dask.folder.rglob("*.tar.gz") if path not in earlier}

    before = list_archives()
    project.write("helper.py", "WORD = 'first'\n")
    project.write("worded.py", "from helper import WORD\ndef agent(messages, options):\n    return WORD\n")
    project.suite({"id": "one", "input": "say", "assertions": [contains("first")]})
    flags = ("--cluster", dask.address, "-n", "python:./worded.py:agent")
    assert project.test(*flags).code == 0
    first = list_archives(before)
    assert len(first) == 2  # one on each worker
    assert project.test(*flags).code == 0
    assert list_archives(before) == first
    project.write("helper.py", "WORD = 'second'\n")
    for folder in ((), ("--cluster-folder", str(project.folder))):
        ended, records = project.report(*flags, *folder)
        assert ended.code == 1, ended
        assert records[0]["turns"][0]["output"] == "second"
    assert len(list_archives({*before, *first})) == 2


WRITER = """\
import os
def agent(messages, options):
    folder = options["workspace"]
    with open(f"{folder}/made.txt", "w") as file:
        file.write("made by the agent")
    if messages[-1]["content"] == "much":
        os.truncate(os.open(f"{folder}/large", os.O_CREAT | os.O_RDWR), 1 << 26)
    os.symlink("/etc/hostname", f"{folder}/outside")
    os.mkfifo(f"{folder}/pipe")
    return folder
"""


def test_a_kept_workspace_comes_back_or_its_place_is_named(project: Project, cluster: str) -> None:
    project.write("writer.py", WRITER)
    check = {"type": "file_contains", "path": "made.txt", "value": "by somebody else"}
    project.suite(*({"id": text, "input": text, "assertions": [check]} for text in ("little", "much")))
    ended, records = project.report("--cluster", cluster, "-n", "python:./writer.py:agent", "--workspace", "empty")
    assert ended.code == 1, ended
    little, much = records
    there = little["turns"][0]["output"]
    assert little["workspace"] != there
    assert not Path(there).exists()
    assert [path.name for path in Path(little["workspace"]).iterdir()] == ["made.txt"]
    assert "2 files of the workspace could not be sent" in little["warnings"][0]
    assert much["workspace"] == f"{platform.node()}:{much['turns'][0]['output']}"
    assert "more than 32 MB" in much["warnings"][0]
    shutil.rmtree(Path(much["turns"][0]["output"]).parent)
    assert project.viva("runs", "clean").code == 0  # as one of this machine
    assert not Path(little["workspace"]).exists()


def test_versions_that_differ_are_named(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    project.suite(case("one"))
    packages = tmp_path_factory.mktemp("packages")
    metadata = packages / "msgspec" / "msgspec-0.1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: msgspec\nVersion: 0.1\n")
    (packages / "viva").mkdir()
    (packages / "viva" / "sitecustomize.py").write_text("import viva\nviva.__version__ = '0.0.1'\n")
    with open_processes(tmp_path_factory.mktemp("other")) as processes:
        worker = processes.start_workers(1, path=packages / "msgspec")
        ended = project.test("--cluster", processes.address)
        assert ended.code == 0, ended
        assert re.search(r"worker tcp://127.0.0.1:\d+: msgspec 0.1 instead of \d", ended.out)
        worker.terminate()
        worker.wait(timeout=300)
        processes.start_workers(1, path=packages / "viva")
        ended = project.test("--cluster", processes.address)
        assert ended.code == 4, ended
        assert "the version of Viva: different from the process that started the run" in ended.err


def test_a_run_whose_scheduler_ended_is_resumed(
    project: Project, tmp_path_factory: pytest.TempPathFactory, shorten: Callable[[str, float], None]
) -> None:
    shorten("viva.executors.dask_workers._CONTACT_TIMEOUT_S", 1.0)
    project.suite(*(case(f"case{n}", f"hello {n}") for n in range(12)))
    with open_processes(tmp_path_factory.mktemp("short-lived")) as processes:
        processes.start_workers(1)
        project.write("killer.py", KILLER.format(pid=processes.scheduler.pid))
        flags = ("--cluster", processes.address, "--cluster-folder", str(project.folder), "--parallel", "2")
        ended, records = project.report("-n", "python:./killer.py:agent", *flags)
    assert ended.code == 1, ended
    assert "the scheduler of the cluster is gone" in ended.out
    assert 0 < len(records) < 12
    (project.folder / "calls").unlink()
    resumed = project.viva("test", "--resume", "latest", "--workers", "1", "-o", "report.jsonl")
    assert resumed.code == 0, resumed
    again = set((project.folder / "calls").read_text().split())
    assert not again & {record["turns"][0]["input"].removeprefix("hello ") for record in records}
    _, expected = project.report("-n", "python:./killer.py:agent")
    assert remove_times(project.records("report.jsonl")) == remove_times(expected)


KILLER = """\
import os, signal, time
from pathlib import Path

def agent(messages, options):
    number = messages[-1]["content"].removeprefix("hello ")
    with open(Path(__file__).with_name("calls"), "a") as calls:
        calls.write(number + "\\n")
    if number == "6":
        mark = Path(__file__).with_name("killed")
        if not mark.exists():
            mark.touch()
            os.kill({pid}, signal.SIGKILL)
            time.sleep(3)
    return messages[-1]["content"]
"""


ENDS_ONCE = """\
import os
from pathlib import Path

def agent(messages, options):
    mark = Path(__file__).with_name("ended")
    if not mark.exists():
        mark.touch()
        os._exit(3)
    return messages[-1]["content"]
"""


def test_a_worker_that_takes_long_to_start_again_is_not_given_up(
    project: Project, shorten: Callable[[str, float], None]
) -> None:
    shorten("viva.executors.dask_workers._NO_WORKER_TIMEOUT_S", 30.0)
    project.write("agent.py", ENDS_ONCE)
    project.suite(case("one"))
    with dask_config.set({"distributed.deploy.lost-worker-timeout": "1ms"}):
        ended = project.test("--workers", "1")
    assert ended.code == 0, ended


def test_a_worker_without_disk_space_is_named(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    if not bubblewrap.works():
        return  # said at the end of the run: NOT RUN
    folder = tmp_path_factory.mktemp("full")
    small = folder / "small"
    small.mkdir()
    sandbox = ("bwrap", "--bind", "/", "/", "--dev-bind", "/dev", "/dev", "--size", "65536", "--tmpfs", str(small))
    project.write("large.bin", bytes(range(256)) * 400)
    project.suite(case("one"))
    with open_processes(folder) as processes:
        processes.start_workers(1, scratch=small, before=(*sandbox, "--die-with-parent"))
        ended = project.test("--cluster", processes.address)
    assert ended.code == 4, ended
    assert f"worker on {platform.node()}: [Errno 28] No space left on device" in ended.err


def test_workers_report_what_they_miss(project: Project, cluster: str) -> None:
    project.write(
        "viva.toml",
        '[connectors.one]\nprovider = "openai"\nmodel = "m"\nbase_url = "http://127.0.0.1/${PART}"\napi_key_env = "FIRST_KEY"\n'
        '[agents.chat]\ntype = "chat"\nconnector = "one"\n[agents.web]\nurl = "http://127.0.0.1/"\nheaders.x-key = "${OTHER_KEY}"\n',
    )
    project.suite(case("one"))
    env = {"FIRST_KEY": "secret-value-1", "OTHER_KEY": "secret-value-2", "PART": "v1"}
    ended = project.test("--cluster", cluster, "-n", "chat", "-n", "web", env=env)
    assert ended.code == 4, ended
    missing = "these environment variables are not set: FIRST_KEY, OTHER_KEY, PART"
    assert ended.err.strip() == f"worker on {platform.node()}: {missing}"


def test_a_folder_that_workers_do_not_see_is_named(project: Project, cluster: str) -> None:
    project.suite(case("one"))
    ended = project.test("--cluster", cluster, "--cluster-folder", "/nowhere")
    assert ended.code == 4, ended
    assert f"worker on {platform.node()}: there is no folder /nowhere" in ended.err


@pytest.mark.parametrize(
    ("scheme", "settings", "message"),
    [
        (
            "tls",
            {"tls.ca-file": "/nowhere.pem", "tls.client.cert": "/nowhere.pem"},
            "the files of distributed.comm.tls in Dask's configuration cannot be used",
        ),
        ("tcp", {"require-encryption": True}, "Dask's configuration requires encryption; use a tls:// address"),
    ],
)
def test_wrong_settings_of_dask_are_named(
    project: Project, cluster: str, scheme: str, settings: dict[str, Any], message: str
) -> None:
    project.suite(case("one"))
    address = cluster.replace("tcp:", f"{scheme}:")
    with dask_config.set({f"distributed.comm.{name}": value for name, value in settings.items()}):
        ended = project.test("--cluster", address)
    assert ended.code == 4, ended
    assert f"--cluster {address}: " in ended.err
    assert message in ended.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--cluster", "localhost"), "is not the address of a scheduler"),
        (("--cluster", "tcp://127.0.0.1:9", "--workers", "2"), "exclude each other"),
        (("--cluster", "tls://127.0.0.1:9"), "needs credentials in Dask's configuration: distributed.comm.tls.ca-file"),
        (("--workers", "0"), "0 is not in the range"),
        (("--cluster-folder", "."), "needs --cluster"),
        (("--workers", "2", "--interactive"), "exclude each other"),
        (("--workers", "2", "--workspace", "cwd"), "one trial at a time"),
        (("--dashboard",), "needs --workers"),
    ],
)
def test_misuse(project: Project, flags: Sequence[str], message: str) -> None:
    project.suite(case("one"))
    ended = project.test(*flags)
    assert ended.code == 4
    assert message in ended.err


def test_a_scheduler_that_does_not_exist_is_named(project: Project, shorten: Callable[[str, float], None]) -> None:
    shorten("viva.executors.dask_cluster._CONNECT_TIMEOUT_S", 0.3)
    project.suite(case("wrong", assertions=[contains("bye")]), case("right"))
    ended = project.test("--cluster", "tcp://127.0.0.1:9")
    assert ended.code == 4
    assert "--cluster tcp://127.0.0.1:9: cannot be reached" in ended.err
    assert project.test("--parallel", "1", "--fail-fast").code == 1
    ended = project.viva("test", "--resume", "latest", "--cluster", "tcp://127.0.0.1:9")
    assert ended.code == 4
    assert "tcp://127.0.0.1:9: cannot be reached" in ended.err
    assert project.viva("test", "--resume", "latest").code == 1  # nothing is lost


def test_a_server_that_is_not_a_scheduler_is_named(project: Project, shorten: Callable[[str, float], None]) -> None:
    shorten("viva.executors.dask_cluster._CONNECT_TIMEOUT_S", 0.3)
    project.suite(case("one"))
    with HttpServer(lambda _request: StubResponse(status=404)) as server:
        address = server.url.replace("http:", "tcp:")
        ended = project.test("--cluster", address)
    assert ended.code == 4, ended
    assert f"--cluster {address}: cannot be reached" in ended.err
