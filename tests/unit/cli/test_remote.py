"""One history for a team: `viva runs push` and `pull`, and `remote:RUN`, on a folder and on an S3 server on a socket."""

import asyncio
import gzip
import hashlib
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from project import InProcessProject, case, contains
from viva.errors import BadInput
from viva.history.index import History
from viva.history.remote import RemoteEntry, RemoteHistory
from viva.model.event import RunStarted
from viva.record.journal import read_events
from viva.testing import HttpServer
from viva.testing.http_server import StubResponse
from viva.viewer.launcher import RunLauncher, RunRequest

Config = str
"""The [history] part of a viva.toml."""
KEYS = 'key = "k"\nsecret = "$TEAM_SECRET"\n'


@pytest.fixture(scope="module")
def s3() -> Generator[str]:
    """The URL of an S3 server."""
    from moto.server import ThreadedMotoServer  # slow to import

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["folder", "s3", "memory"])
def remote_config(request: pytest.FixtureRequest, tmp_path: Path) -> Config:
    """A remote history that is empty: a folder, a bucket, or another place that fsspec knows."""
    if request.param == "memory":
        return f'[history]\nremote = "memory://team/{tmp_path.name}"\n'
    if request.param == "folder":
        return '[history]\nremote = "../team/viva"\n'
    endpoint: str = request.getfixturevalue("s3")
    bucket = f"team-{tmp_path.name.replace('_', '-').lower()[-40:]}"
    import s3fs

    s3fs.S3FileSystem(endpoint_url=endpoint, key="k", secret="not-so-secret").mkdir(bucket)
    return f'[history]\nremote = "s3://{bucket}/viva"\n[history.options]\nendpoint_url = "{endpoint}"\n{KEYS}'


class Machines:
    """Two machines with one remote history: `here` runs tests, `there` looks at them."""

    def __init__(self, folder: Path, config: Config, capture: pytest.CaptureFixture[str]) -> None:
        self.here, self.there = (self._create(folder / name, config, capture) for name in ("here", "there"))
        self.here.suite(case("a", "one"), case("b", "two", assertions=[contains("no such words")]))

    def _create(self, folder: Path, config: Config, capture: pytest.CaptureFixture[str]) -> InProcessProject:
        folder.mkdir()
        project = InProcessProject(folder, capture)
        project.env["TEAM_SECRET"] = "not-so-secret"
        project.write("viva.toml", f'[agents.echo]\nuse = "python:./agent.py:agent"\n{config}')
        return project

    def run(self, *arguments: str) -> str:
        """Run the suite here, and return the id of the run."""
        assert self.here.test(*arguments, agent="echo").code == 1
        return self.here.list_runs()[0]["id"]


def journal(project: InProcessProject, run: str) -> bytes:
    return (project.folder / ".viva" / "runs" / run / "journal.jsonl").read_bytes()


@pytest.fixture
def machines(tmp_path: Path, remote_config: Config, capsys: pytest.CaptureFixture[str]) -> Machines:
    return Machines(tmp_path, remote_config, capsys)


@pytest.fixture
def folder_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Machines:
    return Machines(tmp_path, '[history]\nremote = "../team"\n', capsys)


def test_runs_travel_byte_for_byte_and_once(machines: Machines):
    here, there = machines.here, machines.there
    first, second = machines.run(), machines.run("-k", "b")
    pushed = here.viva("runs", "push")
    assert pushed.code == 0, pushed
    assert [line.split()[:2] for line in pushed.out.splitlines()] == [
        ["pushed", first],
        ["pushed", second],
        ["pushed", "2"],
    ]
    assert "pushed 0 runs" in here.viva("runs", "push").out
    assert there.viva("runs", "pull").code == 0
    assert "pulled 0 runs" in there.viva("runs", "pull").out
    for run in (first, second):
        assert journal(there, run) == journal(here, run)
    assert {row["id"]: row["summary"]["total"] for row in there.list_runs()} == {first: 2, second: 1}
    assert there.viva("runs").out.count("  pulled  ") == 2
    # Its own runs are never replaced, and it is the same run if it comes back.
    assert "pulled 0 runs" in here.viva("runs", "pull").out
    there.viva("runs", "reindex")
    assert len(there.list_runs()) == 2


def test_latest_is_a_run_of_this_machine(machines: Machines):
    theirs = machines.run()
    machines.here.viva("runs", "push")
    there = machines.there
    there.suite(case("a", "one"))
    assert there.test(agent="echo").code == 0
    own = there.list_runs()[0]["id"]
    there.viva("runs", "pull")
    assert [row["id"] for row in there.list_runs()] == [own, theirs]  # N39
    assert there.viva("runs", "show", "latest", "--json").out.count("\n") == 1
    there.viva("runs", "reindex")
    assert [row["id"] for row in there.list_runs()] == [own, theirs]


def test_remote_runs_are_compared_and_shown_by_name(machines: Machines):
    here, there = machines.here, machines.there
    first = machines.run()
    here.write("agent.py", "def agent(messages):\n    return 'no such words'\n")
    second = machines.run()
    here.viva("runs", "push")
    compared = there.viva("compare", f"remote:{first}", "remote:latest", "--fail-on", "broken")
    assert compared.code == 1, compared
    assert compared.out.startswith(f"{first} → {second}")
    assert there.viva("runs", "show", "remote:latest~1", "a", "--json").out.count('"output":"one"') == 1
    for command in (("view",), ("compare", "latest"), ("runs", "show")):
        missing = there.viva(*command, "remote:2031")
        assert missing.code == 4
        assert "there is no run '2031'" in missing.err


def test_a_run_without_text_has_results_only(machines: Machines):
    here, there = machines.here, machines.there
    here.write(
        "agent.py",
        "def agent(messages):\n    print('printed')\n    if messages[-1]['content'] == 'asked-a':\n"
        "        raise ValueError('raised')\n    return 'replied'\n",
    )
    here.suite(
        case("a", "asked-a", metadata={"note": "authored"}),
        {"id": "b", "turns": [{"input": "asked-b", "assertions": [contains("expected")]}]},
    )
    run = machines.run()
    assert here.viva("runs", "push", "--without-text").code == 0
    there.viva("runs", "pull")
    content = journal(there, run)
    for text in (b"asked", b"expected", b"raised", b"replied", b"printed", b"authored"):
        assert text in journal(here, run)
        assert text not in content
    assert b'"without_text":true' in content
    (before,), (after,) = (project.list_runs() for project in (here, there))
    assert {**before, "number": 0} == {**after, "number": 0}
    assert "no regression shown" in there.viva("compare", run, "remote:latest").out
    assert there.viva("runs", "show", run, "a").code == 0
    # With the texts it is a better copy of the same run; without them there is nothing to add.
    assert "pushed 1 run" in here.viva("runs", "push").out
    assert "pushed 0 runs" in here.viva("runs", "push", "--without-text").out
    assert "pulled 1 run" in there.viva("runs", "pull").out
    assert journal(there, run) == journal(here, run)


def test_two_that_push_the_same_run_at_once_do_not_disturb_each_other(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
):
    from viva.cli.history import open_remote_history

    run = machines.run()
    monkeypatch.chdir(machines.here.folder)
    monkeypatch.setenv("TEAM_SECRET", "not-so-secret")
    history = History(machines.here.folder / ".viva")

    def push_meanwhile() -> Iterator[str]:
        """The first has looked what is there, and has not written yet."""
        assert list(open_remote_history().push(history, [run])) == [(run, "pushed")]
        yield run

    assert list(open_remote_history().push(history, push_meanwhile())) == [(run, "pushed")]
    machines.there.viva("runs", "pull")
    assert journal(machines.there, run) == journal(machines.here, run)


def test_an_unfinished_run_is_left_out(folder_machines: Machines):
    here = folder_machines.here
    run = folder_machines.run()
    path = here.folder / ".viva" / "runs" / run / "journal.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    ended = here.viva("runs", "push")
    assert (ended.code, ended.out.splitlines()[0]) == (0, f"unfinished {run}")
    assert not (here.folder.parent / "team").exists()


def test_a_push_that_was_interrupted_does_no_harm_and_is_completed_by_the_next(folder_machines: Machines):
    here, there = folder_machines.here, folder_machines.there
    team = here.folder.parent / "team"
    run = folder_machines.run()
    team.mkdir()
    (team / "runs").touch()  # the journal is written, its entry cannot be
    broken = here.viva("runs", "push")
    assert broken.code == 1
    assert "Traceback" not in broken.err
    assert len(list((team / "journals").iterdir())) == 1
    (team / "runs").unlink()
    assert "pulled 0 runs" in there.viva("runs", "pull").out
    # The writer was killed before the first byte of the entry, or in the middle of another journal.
    assert here.viva("runs", "push").code == 0
    (entry,) = (team / "runs").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(b"")
    (team / "journals" / f"{'0' * 64}.00000000.jsonl.gz").write_bytes(b"half")
    assert "pulled 0 runs" in there.viva("runs", "pull").out
    assert "pushed 1 run" in here.viva("runs", "push").out
    assert len(entry.read_bytes()) == len(whole)
    assert "pulled 1 run" in there.viva("runs", "pull").out
    assert journal(there, run) == journal(here, run)


def test_a_damaged_journal_is_refused_and_can_be_pulled_when_it_is_whole_again(folder_machines: Machines):
    here, there = folder_machines.here, folder_machines.there
    run = folder_machines.run()
    here.viva("runs", "push")
    (packed,) = (here.folder.parent / "team" / "journals").iterdir()
    whole = packed.read_bytes()
    for content in (gzip.compress(b"{}\n"), whole[:-20], b"no archive"):
        packed.write_bytes(content)
        failed = there.viva("runs", "pull")
        assert failed.code == 1
        assert len(failed.err.splitlines()) == 1
        assert there.list_runs() == []
    packed.write_bytes(whole)
    assert there.viva("runs", "pull").code == 0
    assert journal(there, run) == journal(here, run)


def test_a_run_that_was_resumed_after_the_push_is_pulled_again(folder_machines: Machines):
    here, there = folder_machines.here, folder_machines.there
    run = folder_machines.run("--fail-fast", "--parallel", "1")
    here.viva("runs", "push")
    there.viva("runs", "pull")
    here.viva("test", "--resume", run)
    assert journal(there, run) != journal(here, run)
    assert "pushed 1 run" in here.viva("runs", "push").out
    assert "pulled 1 run" in there.viva("runs", "pull").out
    assert journal(there, run) == journal(here, run)
    refused = there.viva("test", "--resume", run)
    assert (refused.code, "comes from another machine" in refused.err) == (4, True)


def test_a_remote_run_is_viewed(folder_machines: Machines):
    run = folder_machines.run()
    folder_machines.here.viva("runs", "push")
    process = folder_machines.there.start("view", "remote:latest", "--no-open")
    assert process.stdout is not None
    process.stdout.readline()
    assert process.stdout.readline().rstrip().endswith(f"#/runs/{run}")
    process.terminate()
    process.communicate()


def test_names_on_a_remote_cannot_leave_its_folder():
    digest = "0" * 64
    assert RemoteEntry.parse(f"x/runs/20261116T101112000.a-1.{digest}.whole.json")
    for name in (f"20261116T101112000...{digest}.whole.json", f"20261116T101112000.a\\..{digest}.whole.json", "x.json"):
        assert RemoteEntry.parse(name) is None


def test_merged_runs_may_come_from_the_remote(folder_machines: Machines):
    here, there = folder_machines.here, folder_machines.there
    here.suite(*(case(f"c{number}") for number in range(6)))
    for number in (1, 2):
        here.test("--shard", f"{number}/2", agent="echo")
    here.viva("runs", "push")
    merged = there.viva("merge", "remote:latest", "remote:latest~1", "-q")
    assert merged.code == 0, merged
    assert merged.out.startswith("6 tests: 6 passed")


def test_a_journal_cannot_claim_to_be_another_run(folder_machines: Machines):
    """It would replace that run in the index."""
    here, there = folder_machines.here, folder_machines.there
    run = folder_machines.run()
    here.viva("runs", "push")
    team = here.folder.parent / "team"
    (entry,) = (team / "runs").iterdir()
    entry.rename(entry.with_name(entry.name.replace(run, "20200101-000000-0000")))
    renamed = next((team / "runs").iterdir())
    renamed.write_bytes(renamed.read_bytes().replace(run.encode(), b"20200101-000000-0000"))
    assert there.viva("runs", "pull").code == 1
    assert there.list_runs() == []


def forge(machines: Machines, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Changes the lines of a journal in the remote history, with the right digest."""
    team = machines.here.folder.parent / "team"
    (entry,), (packed,) = (team / "runs").iterdir(), (team / "journals").iterdir()
    content = b"".join(change(gzip.decompress(packed.read_bytes()).splitlines(keepends=True)))
    before, after = entry.name.split(".")[2], hashlib.sha256(content).hexdigest()
    packed.write_bytes(gzip.compress(content))
    packed.rename(packed.with_name(packed.name.replace(before, after)))
    entry.write_bytes(entry.read_bytes().replace(before.encode(), after.encode()))
    entry.rename(entry.with_name(entry.name.replace(before, after)))


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: [*lines, lines[0].replace(b'"run":"', b'"run":"2', 1)],
        lambda lines: [*lines[:-1], lines[-1].replace(b'"run":"', b'"run":"2', 1)],
        lambda lines: [lines[0].replace(b'"options":{', b'"options":5,"more":{'), *lines[1:]],
        lambda lines: [lines[0], b'{"event":"trial_ended"}\n', *lines[1:]],
    ],
)
def test_a_journal_that_another_program_has_changed_is_not_pulled(
    folder_machines: Machines, change: Callable[[list[bytes]], list[bytes]]
):
    """12.9: a second start or end could replace another run in the index."""
    here, there = folder_machines.here, folder_machines.there
    run = folder_machines.run()
    here.viva("runs", "push")
    forge(folder_machines, lambda lines: lines)
    assert there.viva("runs", "pull").code == 0
    there.viva("runs", "rm", run)
    forge(folder_machines, change)
    refused = there.viva("runs", "pull")
    assert (refused.code, "is damaged" in refused.err) == (1, True), refused
    assert there.list_runs() == []


def test_a_journal_that_unpacks_to_more_than_a_disk_holds_is_not_pulled(
    folder_machines: Machines, shorten: Callable[[str, float], None]
):  # 12.9
    folder_machines.run()
    folder_machines.here.viva("runs", "push")
    forge(folder_machines, lambda lines: [*lines, bytes(2_000_000)])
    shorten("viva.record.foreign_journals._ALWAYS_ALLOWED_BYTES", 1_000_000)
    refused = folder_machines.there.viva("runs", "pull")
    assert (refused.code, "unpacks to far more" in refused.err) == (1, True), refused


def test_a_run_of_another_machine_is_not_started_from_the_page(folder_machines: Machines):
    """Its journal names an agent and a folder that are not of this machine."""
    run = folder_machines.run()
    folder_machines.here.viva("runs", "push")
    folder_machines.there.viva("runs", "pull")
    started = next(read_events(folder_machines.there.folder / ".viva" / "runs" / run / "journal.jsonl"))
    assert isinstance(started, RunStarted)
    launcher = RunLauncher(folder_machines.there.folder, None)
    with pytest.raises(BadInput, match="comes from another machine"):
        asyncio.run(launcher.rerun(started))
    rows = History(folder_machines.there.folder / ".viva").list_runs()
    with pytest.raises(BadInput, match=r"inputs: 'suite\.jsonl' is not a file of this project"):
        asyncio.run(launcher.start_run(RunRequest(inputs=["suite.jsonl"]), rows))


# Misuse


def test_without_the_extra_one_sentence_names_the_command(folder_machines: Machines, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "fsspec", None)
        ended = folder_machines.here.viva("runs", "push")
        assert (ended.code, ended.err.splitlines()) == (
            4,
            [
                f"{folder_machines.here.folder.parent}/team: a remote history needs the extra `remote`: pip install 'viva-eval[remote]'"
            ],
        )
    monkeypatch.setitem(sys.modules, "adlfs", None)
    ended = folder_machines.here.viva("runs", "pull", "az://bucket/prefix")
    assert (ended.code, ended.err) == (4, "az://bucket/prefix: az:// needs the package adlfs: pip install adlfs\n")


def test_a_place_that_cannot_be_used_is_refused(folder_machines: Machines):
    here = folder_machines.here
    here.write("viva.toml", "")
    assert "no remote history" in here.viva("runs", "push").err
    assert "Protocol not known: nowhere" in here.viva("runs", "push", "nowhere://x").err
    here.write("viva.toml", '[history]\nremotes = "x"\n')
    refused = here.viva("runs", "pull")
    assert refused.code == 4
    assert "viva.toml:2" in refused.err


class RefusingFiles(MemoryFileSystem):
    """Connects when it is created, as that of ssh does, and is refused."""

    protocol = "refusing"
    cachable = False

    def __init__(self, **_options: Any) -> None:
        raise ConnectionError("Authentication failed")


def test_a_place_that_refuses_the_connection_is_one_sentence(folder_machines: Machines):
    fsspec.register_implementation("refusing", RefusingFiles, clobber=True)
    machines = folder_machines
    run = machines.run()
    ended = machines.here.viva("runs", "push", "refusing://host/place", "--run", run)
    assert ended.code == 1, ended
    assert ended.err.strip() == "refusing://host/place: cannot connect to it: Authentication failed"


def test_a_folder_may_be_a_url_of_this_machine(folder_machines: Machines, tmp_path: Path):
    here, run = folder_machines.here, folder_machines.run()
    assert here.viva("runs", "push", f"file://localhost{tmp_path}/team").code == 0
    assert folder_machines.there.viva("runs", "pull").out.startswith(f"pulled {run}\n")


@pytest.mark.parametrize("url", ["file://share/x", "file://./x", "file:x", "file://localhost", "local://share/x"])
def test_a_folder_of_another_machine_and_a_relative_url_are_refused(folder_machines: Machines, url: str):
    here = folder_machines.here
    before = sorted(here.folder.rglob("*"))
    refused = here.viva("runs", "push", url)
    assert (refused.code, refused.err.count("\n")) == (4, 1)
    assert ":///absolute/path" in refused.err
    assert sorted(here.folder.rglob("*")) == before


def test_a_pull_from_a_folder_that_does_not_exist_is_one_sentence(folder_machines: Machines, tmp_path: Path):
    refused = folder_machines.there.viva("runs", "pull", str(tmp_path / "nothere"))
    assert (refused.code, refused.err.count("\n")) == (4, 1)
    assert "the folder does not exist" in refused.err
    (tmp_path / "empty").mkdir()
    assert folder_machines.there.viva("runs", "pull", str(tmp_path / "empty")).code == 0


def test_a_variable_of_the_remote_is_needed_only_by_those_who_use_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    machines = Machines(tmp_path, f'[history]\nremote = "s3://bucket/viva"\n[history.options]\n{KEYS}', capsys)
    del machines.here.env["TEAM_SECRET"]
    machines.run()
    ended = machines.here.viva("runs", "push")
    assert ended.code == 4
    assert ended.err.endswith("viva.toml:7: the environment variable TEAM_SECRET is not set\n")


def refuse(_request: object) -> StubResponse:
    body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    return StubResponse(status=403, body=body, headers={"Content-Type": "application/xml"})


def test_a_remote_without_rights_is_one_sentence_and_nothing_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with HttpServer(refuse) as server:
        options = f'[history.options]\nendpoint_url = "{server.url}"\n{KEYS}'
        machines = Machines(tmp_path, f'[history]\nremote = "s3://closed/viva"\n{options}', capsys)
        run = machines.run()
        before = journal(machines.here, run)
        for command in (("runs", "push"), ("runs", "pull"), ("compare", "remote:latest", "latest")):
            ended = machines.here.viva(*command)
            assert ended.code == 1
            assert ended.err == "s3://closed/viva: no permission to list it: Access Denied\n"
        assert journal(machines.here, run) == before


def test_a_bucket_that_does_not_exist_is_one_sentence(tmp_path: Path, s3: str, capsys: pytest.CaptureFixture[str]):
    options = f'[history.options]\nendpoint_url = "{s3}"\n{KEYS}'
    machines = Machines(tmp_path, f'[history]\nremote = "s3://absent-bucket/viva"\n{options}', capsys)
    machines.run()
    ended = machines.here.viva("runs", "push")
    assert ended.code == 1
    assert ended.err == "s3://absent-bucket/viva: cannot write to it: The specified bucket does not exist\n"


def test_credentials_in_a_url_are_not_shown():
    with pytest.raises(BadInput) as raised:
        RemoteHistory("nowhere://me:hunter22@127.0.0.1:1/x")
    assert "hunter22" not in str(raised.value)


def test_a_killed_push_does_no_harm(folder_machines: Machines):
    """What others pull meanwhile is whole, and the next push completes the rest."""
    here, there = folder_machines.here, folder_machines.there
    first = folder_machines.run()
    lines = journal(here, first).splitlines(keepends=True)
    padding = b'{"event":"note","text":"%s"}\n' % (b"x" * 1000) * 2000
    runs = [first.replace(first[-8:], f"{number:08x}") for number in range(8)]
    for run in runs:
        text = b"".join([lines[0], padding, *lines[1:]]).replace(first.encode(), run.encode())
        here.write(f".viva/runs/{run}/journal.jsonl", text)
    process = here.start("runs", "push")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("pushed")
    process.kill()
    process.communicate()
    assert there.viva("runs", "pull").code == 0
    assert here.viva("runs", "push").code == 0
    assert there.viva("runs", "pull").code == 0
    assert {row["id"] for row in there.list_runs()} == {first, *runs}
    for run in (first, *runs):
        assert journal(there, run) == journal(here, run)
