"""The OpenWOP client with a host: remote agents and remote suites."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from project import Ended, Project
from running_host import ACME, ECHO, SUITE, Client, build_suite, golden_task, run_host, write_project
from viva import config
from viva.agents.openwop import OpenwopAgent, parse_reference
from viva.agents.openwop_client import MAX_STREAM_FAILURES, HostClient
from viva.errors import BadInput, Unreachable
from viva.llm.transport import HttpTransport
from viva.model.case import Key
from viva.model.connector import Secret
from viva.model.message import Message
from viva.protocols import SessionContext
from viva.session.remote_run import RemoteRun, RemoteSuite, resolve_remote_suite
from viva.testing import HttpServer, ReceivedRequest, StubResponse

GOOD = build_suite("good", golden_task("one", "hello", "hello"), golden_task("two", "a", "a"), targetAgentId=ECHO)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Path]]:
    folder = tmp_path_factory.mktemp("host")
    write_project(
        folder,
        GOOD,
        build_suite(
            "again", golden_task("one", "hello", "hello"), golden_task("two", "a", "a"), modes=("golden", "regression")
        ),
        build_suite("every", golden_task("one", "hello", "hello"), modes=("golden", "regression", "live-shadow")),
        build_suite("live", golden_task("one", "hello", "hello"), modes=("live-shadow",)),
    )
    with run_host(folder) as client:
        yield client, folder


def here(project: Project, host: tuple[Client, Path], *arguments: str, token: str = ACME) -> Ended:
    """Runs a command in a project with the suites but without the agents."""
    for path in (host[1] / "evals").iterdir():
        project.write(path.name, path.read_text())
    return project.viva("test", *arguments, env={"OPENWOP_TOKEN": token})


def url(host: tuple[Client, Path]) -> str:
    return f"http://127.0.0.1:{host[0].port}"


def test_a_suite_runs_on_a_host_and_passes_here(project: Project, host: tuple[Client, Path]):
    ended = here(project, host, "-i", "good.json", "--host", url(host), "--eval-summary", "summary.json")
    assert ended.code == 0, ended
    assert "passed: score 1, 2 of 2 tasks passed" in ended.out
    assert "one" in ended.out
    summary = json.loads((project.folder / "summary.json").read_text())
    assert (summary["suiteId"], summary["passed"]) == ("acme.evals.good", True)


def test_a_suite_that_misses_its_threshold_on_the_host_fails_here(project: Project, host: tuple[Client, Path]):
    ended = here(project, host, "-i", "basic.json", "-n", ECHO, "--host", url(host), "-q")
    assert ended.code == 1
    assert "failed: score 0.5, 1 of 2 tasks passed" in ended.out
    assert "two" in ended.out
    assert "one " not in ended.out


def test_a_suite_of_the_host_is_named_and_events_are_json(project: Project, host: tuple[Client, Path]):  # fmt: skip
    ended = here(project, host, "-i", SUITE, "-n", ECHO, "--host", url(host), "--json")
    events = [json.loads(line) for line in ended.out.splitlines()]
    assert ended.code == 1
    assert [event["type"] for event in events][-1] == "run.completed"
    assert [event["sequence"] for event in events] == sorted(event["sequence"] for event in events)


def test_an_error_of_the_host_is_bad_input(project: Project, host: tuple[Client, Path]):
    at = ("--host", url(host))
    unknown = here(project, host, "-i", "acme.evals.none@1.0.0", "-n", ECHO, *at)
    assert (unknown.code, "evalSuiteRef" in unknown.err) == (4, True)
    assert here(project, host, "-i", "basic.json", "-n", ECHO, "--runs", "2", *at).code == 4
    regression = here(project, host, "-i", "again.json", "-n", ECHO, "--modes", "regression", "--baseline", "none", *at)
    assert (regression.code, "baselineRunId" in regression.err) == (4, True)


@pytest.mark.parametrize("name", ["every.json", "acme.evals.every@1.0.0"])
def test_modes_of_a_remote_run_are_those_of_a_local_one(project: Project, host: tuple[Client, Path], name: str):
    """Without --modes, neither live-shadow nor regression runs, and a line says so."""  # W2
    ended = here(project, host, "-i", name, "-n", ECHO, "--host", url(host))
    assert ended.code == 0, ended
    first, created = ended.out.splitlines()[:2]
    assert first.startswith("modes: golden; left out: ")
    started = host[0].wait_for_events(created.split()[-1])[1]
    assert (started["type"], started["payload"]["modes"]) == ("eval.started", ["golden"])


@pytest.mark.parametrize("name", ["live.json", "acme.evals.live@1.0.0"])
def test_live_shadow_runs_on_a_host_only_by_name(project: Project, host: tuple[Client, Path], name: str):  # W2
    flags = ("-i", name, "-n", ECHO, "--host", url(host))
    refused = here(project, host, *flags)
    assert (refused.code, "--live" in refused.err) == (4, True)
    assert here(project, host, *flags, "--modes", "live-shadow", "--live").code == 0


def test_suite_and_agent_are_required(host: tuple[Client, Path]):
    folder = host[1] / "evals"
    assert resolve_remote_suite("good.json", folder, None) == RemoteSuite("acme.evals.good@1.0.0", ECHO, ("golden",))
    assert resolve_remote_suite("x.evals.y@1.0.0", folder, "a.b.c") == RemoteSuite("x.evals.y@1.0.0", "a.b.c")
    for text, agent in (("basic.json", None), ("nothing.json", ECHO), (".", ECHO)):
        with pytest.raises(BadInput):
            resolve_remote_suite(text, folder, agent)


@pytest.mark.parametrize("address", ["", "evals.example.com", "127.0.0.1:8765", "ftp://x", "http://", "http://[", "http://x?y", "http://u:p@x"])  # fmt: skip
def test_an_invalid_address_is_refused_before_any_request(project: Project, address: str):
    with pytest.raises(BadInput, match="--host"):
        RemoteRun(address, config.load_settings(None, project.folder), HttpTransport())


def test_missing_input_is_refused_before_any_request(project: Project, host: tuple[Client, Path]):
    flags = ("-i", "good.json", "--host", url(host))
    nowhere = here(project, host, *flags, "--eval-summary", "no/such/folder.json")
    assert (nowhere.code, "no folder" in nowhere.err) == (4, True)
    keyless = here(project, host, *flags, token="")
    assert (keyless.code, "OPENWOP_TOKEN" in keyless.err) == (1, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_the_client_cancels_the_run(project: Project, host: tuple[Client, Path], number: int):
    (project.folder / "basic.json").write_text((host[1] / "evals" / "basic.json").read_text())
    process = subprocess.Popen(
        [sys.executable, "-m", "viva", "test", "-i", "basic.json", "-n", "local.viva.hang", "--host", url(host)],
        cwd=project.folder,
        env={**os.environ, "OPENWOP_TOKEN": ACME},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    run = process.stdout.readline().split()[-1]
    process.send_signal(number)
    _, text = process.communicate(timeout=300)
    assert process.returncode == 2
    assert f"{run}: asked the host to stop it" in text
    assert host[0].wait_for_events(run)[-1]["type"] == "run.cancelled"


def test_a_wrong_token_or_no_host_is_infra_and_the_token_is_never_shown(project: Project, host: tuple[Client, Path]):  # fmt: skip
    wrong = here(project, host, "-i", "basic.json", "-n", ECHO, "--host", url(host), token="wrong-token-SECRETMARK")
    assert wrong.code == 1
    assert "SECRETMARK" not in wrong.out + wrong.err
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = here(
            project, host, "-i", "basic.json", "-n", ECHO, "--host", f"http://127.0.0.1:{free.getsockname()[1]}"
        )
    assert gone.code == 1


def test_a_regression_fails_if_requested(project: Project, host: tuple[Client, Path]):
    before, _ = host[0].run_eval("acme.evals.again@1.0.0", evalModes=["golden"])
    flags = ("-i", "again.json", "-n", "local.viva.second", "--modes", "golden,regression", "--baseline", before)
    ended = here(project, host, *flags, "--host", url(host), "--fail-on-regression")
    assert ended.code == 1
    assert "-1 against the baseline" in ended.out


def test_a_run_that_cannot_be_compared_fails_where_worse_must_fail(project: Project, host: tuple[Client, Path]):
    """W4, as without --host."""
    agent = "local.viva.shaky"
    (host[1] / "down").touch()
    before, _ = host[0].run_eval("acme.evals.again@1.0.0", agent, evalModes=["golden"])
    (host[1] / "down").unlink()
    flags = ("-i", "again.json", "-n", agent, "--modes", "golden,regression", "--host", url(host))
    assert here(project, host, *flags, "--baseline", before).code == 0
    strict = here(project, host, *flags, "--baseline", before, "--fail-on-regression")
    assert strict.code == 1
    assert f"did not compare the run with the baseline {before}" in strict.err
    flags = ("-i", "again.json", "-n", agent, "--modes", "golden", "--host", url(host), "--fail-on-regression")
    assert "needs --baseline" in here(project, host, *flags).err


def test_an_agent_of_a_host_can_be_tested(project: Project, host: tuple[Client, Path]):
    reference = f"openwop:{url(host)}#{ECHO}"
    name = project.suite(
        {
            "id": "talk",
            "turns": [
                {"input": "first", "assertions": {"type": "equals", "value": "first"}},
                {"input": "second {{word}}", "assertions": {"type": "contains", "value": "second"}},
            ],
        },
        {"id": "cost", "input": "hello", "assertions": {"type": "equals", "value": "hello"}},
    )
    project.write("suite.jsonl", (project.folder / name).read_text().replace(" {{word}}", ""))
    ended = project.viva("test", "-i", name, "-n", reference, "-o", "r.jsonl", env={"OPENWOP_TOKEN": ACME}, code=0)
    assert ACME not in ended.out + (project.folder / "r.jsonl").read_text()


def test_an_openwop_agent_has_a_token_in_the_config_and_usage(project: Project, host: tuple[Client, Path]):  # fmt: skip
    project.write(
        "viva.toml", f'[agents.far]\nuse = "openwop:{url(host)}#local.viva.costly"\ntoken = "${{FAR_TOKEN}}"\n'
    )
    name = project.suite({"id": "a", "input": "hello", "assertions": [{"type": "equals", "value": "hello"}, {"type": "max_cost", "value": 0.8}]})  # fmt: skip
    project.viva("test", "-i", name, "-n", "far", "-o", "r.jsonl", env={"FAR_TOKEN": ACME}, code=0)
    record = json.loads((project.folder / "r.jsonl").read_text())
    assert (record["cost_usd"], record["usage"]["calls"]) == (0.75, 2)


def test_faults_of_a_host_are_charged_correctly(project: Project, host: tuple[Client, Path]):
    name = project.suite({"id": "a", "input": "hello", "assertions": {"type": "equals", "value": "hello"}})

    def record(agent: str, token: str = ACME) -> dict[str, str]:
        project.viva(
            "test", "-i", name, "-n", f"openwop:{url(host)}#{agent}", "-o", "r.jsonl", env={"OPENWOP_TOKEN": token}
        )
        return json.loads((project.folder / "r.jsonl").read_text())

    broken = record("local.viva.broken")
    assert (broken["status"], broken["fault"]) == ("failed", "agent")
    cut_off, keyless = record("local.viva.cut_off"), record("local.viva.keyless")  # as if the agent ran here
    assert (cut_off["status"], cut_off["fault"]) == ("error", "undetermined")
    assert (keyless["status"], keyless["fault"]) == ("error", "infra")
    nobody = record("local.viva.nobody")
    assert (nobody["status"], nobody["fault"]) == ("error", "infra")
    assert "has no agent" in nobody["error"]
    stranger = record(ECHO, "a-wrong-token-of-somebody")
    assert (stranger["status"], stranger["fault"]) == ("error", "infra")


def test_a_turn_that_is_cut_off_does_not_wait_for_a_host_that_does_not_cancel():  # N18
    def answer(request: ReceivedRequest) -> StubResponse:
        if request.path == "/v1/runs":
            return StubResponse(body=b'{"runId": "run-1"}', status=201)
        return StubResponse(hold=True)

    async def scenario(url: str) -> None:
        http = HttpTransport()
        try:
            context = SessionContext(key=Key("s", "c"), meter=lambda _: None, http=http)
            async with OpenwopAgent(url=url, agent="x.y.z").open(context) as session:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await session.send(Message("user", "hello"), {})
        finally:
            await http.close()

    with HttpServer(answer) as server:
        began = time.monotonic()
        asyncio.run(asyncio.wait_for(scenario(server.url), 30))
        assert time.monotonic() - began < 10
        assert server.requests[-1].path == "/v1/runs/run-1/cancel"


@pytest.mark.parametrize(
    ("event", "fault"),
    [
        ({"type": "run.failed", "payload": {"error": {"code": "host_restarted", "message": "x"}}}, "infra"),
        ({"type": "run.failed", "payload": {"error": {"code": "agent_gone", "message": "x"}}}, "infra"),
        ({"type": "run.cancelled", "payload": {"cancelledBy": "operator"}}, "infra"),
        ({"type": "run.failed", "payload": {"error": {"code": "tool_not_allowed", "message": "x"}}}, "agent"),
        ({"type": "run.failed", "payload": {"error": {"code": "unknown-to-viva"}}}, "agent"),
    ],
)
def test_what_ends_a_run_on_the_host_is_not_the_agents_failure(project: Project, event: dict[str, Any], fault: str):
    """N17: a restart, an agent that cannot be opened, a cancellation."""

    def answer(request: ReceivedRequest) -> StubResponse:
        if request.method == "POST":
            return StubResponse(body=b'{"runId": "run-1"}', status=201)
        frame = f"data: {json.dumps({**event, 'sequence': 0})}\n\n".encode()
        return StubResponse(chunks=(frame,), headers={"Content-Type": "text/event-stream"})

    name = project.suite({"id": "a", "input": "hello", "assertions": {"type": "equals", "value": "hello"}})
    with HttpServer(answer) as server:
        project.viva("test", "-i", name, "-n", f"openwop:{server.url}#x.y.z", "-o", "r.jsonl", code=1)
    assert json.loads((project.folder / "r.jsonl").read_text())["fault"] == fault


@pytest.mark.parametrize("wrong", ["openwop:", "openwop:ftp://x#a", "openwop:http://x", "openwop:http://u:p@x#a"])
def test_an_invalid_agent_reference_is_refused(wrong: str):
    with pytest.raises(ValueError, match=r"openwop:|token"):
        parse_reference(wrong)


class Cutting:
    """A proxy that cuts every connection after a number of bytes."""

    def __init__(self, port: int, after: int) -> None:
        self._to = port
        self._after = after
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.cuts = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._to)) as host:
            host.sendall(client.recv(65536))
            left = self._after
            while left > 0 and (data := host.recv(min(left, 4096))):
                client.sendall(data)
                left -= len(data)
            self.cuts += left <= 0

    def close(self) -> None:
        self._socket.close()


def test_a_stream_that_breaks_often_loses_and_repeats_nothing(host: tuple[Client, Path]):
    """Connections break between and inside events."""
    run, events = host[0].run_eval()
    proxy = Cutting(host[0].port, 1100)

    async def follow() -> list[dict[str, object]]:
        http = HttpTransport()
        client = HostClient(url=f"http://127.0.0.1:{proxy.port}", token=Secret(ACME), http=http)
        try:
            return [event async for event in client.iterate_events(run, "debug")]
        finally:
            await http.close()

    try:
        assert asyncio.run(follow()) == events
    finally:
        proxy.close()
    assert proxy.cuts > 2


def test_a_host_whose_stream_never_ends_is_given_up(host: tuple[Client, Path]):
    run, _ = host[0].run_eval()
    proxy = Cutting(host[0].port, 40)
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def follow() -> None:
        http = HttpTransport()
        client = HostClient(url=f"http://127.0.0.1:{proxy.port}", token=Secret(ACME), http=http, sleep=pause)
        try:
            async for _ in client.iterate_events(run):
                pass
        finally:
            await http.close()

    try:
        with pytest.raises(Unreachable):
            asyncio.run(follow())
    finally:
        proxy.close()
    assert sum(pauses) >= 45  # a host that is restarted drains for 30 seconds first
    assert pauses == sorted(pauses)


def test_a_run_that_waits_is_followed_across_any_number_of_restarts():
    """A stream that was open for a while has not failed; one that ends at once has, whatever the host sent on it."""
    answers = 3 * MAX_STREAM_FAILURES
    ended = b'data: {"type": "run.completed", "sequence": 0, "payload": {}}\n\n'

    def stream(_: ReceivedRequest) -> StubResponse:
        is_last = len(server.requests) == answers
        chunks = (ended if is_last else b": keep-alive\n\n",)
        return StubResponse(chunks=chunks, headers={"Content-Type": "text/event-stream"})

    async def pause(_: float) -> None:
        return

    async def follow(clock: Callable[[], float]) -> list[str]:
        http = HttpTransport()
        client = HostClient(url=server.url, token=None, http=http, sleep=pause, clock=clock)
        try:
            return [event["type"] async for event in client.iterate_events("run-1")]
        finally:
            await http.close()

    with HttpServer(stream) as server:
        assert asyncio.run(follow(count(0.0, 60.0).__next__)) == ["run.completed"]
    with HttpServer(stream) as server, pytest.raises(Unreachable, match="closes the event stream"):
        asyncio.run(follow(lambda: 0.0))
