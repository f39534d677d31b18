"""Several tenants on one host: limits, turns, and what a waiting run costs."""

import asyncio
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request

from running_host import (
    ACME,
    ECHO,
    OTHER,
    SUITE,
    Client,
    build_suite,
    event_types,
    free_port,
    golden_task,
    run_host,
    start_host,
    write_project,
)
from viva.engine.trial import RunContext
from viva.host.evals import EvalEventWriter
from viva.host.host import Host
from viva.host.operations import cancel_runs
from viva.host.routes import prepare_run
from viva.host.server import open_host
from viva.host.setup import ServeFlags, load_setup
from viva.host.tokens import Principal
from viva.model import codec
from viva.session.run_plan import RunPlan

SLOW = {"workflowId": "viva.agent", "agentId": "local.viva.hang", "inputs": {"input": "x"}}


def find_agents_module(folder: Path) -> Any:
    """The module of the project's agents, as the host has imported it."""
    return next(each for each in sys.modules.values() if getattr(each, "__file__", None) == str(folder / "agents.py"))


LIMITS = "at_once = 4\n[serve.tenant_limits]\nat_once = 4\nmax_unfinished = 30"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    write_project(tmp_path, serve=LIMITS)
    with run_host(tmp_path) as client:
        yield client


def test_a_flooding_tenant_fills_its_own_queue_only(client: Client):
    other = client.with_token(OTHER)
    answers = [client.post("/v1/runs", SLOW) for _ in range(31)]
    assert [answer.status for answer in answers] == [201] * 30 + [429]
    assert answers[-1].json["details"]["scope"] == "tenant"
    assert int(answers[-1].headers["retry-after"]) == answers[-1].json["details"]["retryAfter"] > 0
    # Every slot is taken and 26 runs wait, but not for the other tenant.
    _, events = other.run_eval()
    assert event_types(events)[-1] == "run.completed"
    for answer in answers[:-1]:  # a waiting run is cancelled at once, a running one a moment later
        assert client.post(f"/v1/runs/{answer.json['runId']}/cancel", {}).status == 200
    for answer in answers[:-1]:
        assert client.wait_for_events(answer.json["runId"])[-1]["type"] == "run.cancelled"
    assert client.post("/v1/runs", {"workflowId": "conformance-noop"}).status == 201


def test_requests_are_limited_for_each_tenant(tmp_path: Path):
    limited = "[serve.tenant_limits]\nrequests_per_second = 1"
    write_project(tmp_path, serve=limited)
    config = (tmp_path / "viva.toml").read_text()
    tenant = "[openwop.tenants.other]\n"
    assert tenant in config
    own_limits = f"[openwop.tenants.other.limits]\nrequests_per_second = 1000\n\n{tenant}"
    (tmp_path / "viva.toml").write_text(config.replace(tenant, own_limits))
    with run_host(tmp_path) as client:
        answers = [client.get("/v1/agents") for _ in range(60)]
        assert {answer.status for answer in answers} == {200, 429}
        refused = next(answer for answer in answers if answer.status == 429)
        assert (refused.json["details"]["scope"], refused.headers["retry-after"]) == ("tenant", "1")
        assert client.with_token(OTHER).get("/v1/agents").status == 200
        assert client.with_token(None).get("/v1/agents").status == 401  # without a tenant nothing is counted


def test_waiting_evals_share_one_suite_and_hold_no_plan(tmp_path: Path):
    tasks = [golden_task(f"task-{number}", "say it", "say it") for number in range(200)]
    write_project(tmp_path, build_suite("many", *tasks), serve="at_once = 1\n[serve.tenant_limits]\nat_once = 1")
    setup = load_setup(tmp_path / "viva.toml", tmp_path, ServeFlags(port=0))
    request = codec.encode({"mode": "eval", "evalSuiteRef": "acme.evals.many@1.0.0", "agentId": "local.acme.echo"})

    async def act() -> tuple[int, int, int]:
        host = open_host(setup, asyncio.Event())
        principal = Principal("acme", "acme/1")
        for number in range(20):
            mutation = await prepare_run(host, principal, codec.encode(SLOW) if number == 0 else request)
            mutation.write()
            mutation.start()
        while not (queue := host.store.list_queues()[0]).running:
            await asyncio.sleep(0.01)
        gc.collect()
        plans = sum(isinstance(each, RunPlan) for each in gc.get_objects())
        loaded = len(host.loaded_inputs)
        await host.close()
        return plans, queue.waiting, loaded

    plans, waiting, loaded = asyncio.run(act())
    assert (waiting, loaded) == (19, 1)
    assert plans <= 3  # of the call that executes, and of the check of the first eval


def test_nothing_of_an_eval_that_ended_stays_in_memory(tmp_path: Path):
    write_project(tmp_path)
    setup = load_setup(tmp_path / "viva.toml", tmp_path, ServeFlags(port=0))
    request = codec.encode({"mode": "eval", "evalSuiteRef": SUITE, "agentId": ECHO})

    async def act() -> list[str]:
        host = open_host(setup, asyncio.Event())
        host.runs.open()
        for _ in range(5):
            mutation = await prepare_run(host, Principal("acme", "acme/1"), request)
            mutation.write()
            mutation.start()
        while host.store.count_unfinished() or host.runs.running_count:
            await asyncio.sleep(0.01)
        gc.collect()
        kept = [type(each).__name__ for each in gc.get_objects() if isinstance(each, (EvalEventWriter, RunContext))]
        await host.close()
        return kept

    assert asyncio.run(act()) == []


def test_a_run_that_ends_while_others_are_cancelled_is_not_called_cancelling(tmp_path: Path):
    """An administrator cancels many runs in as many steps, so that others get a response meanwhile."""
    write_project(tmp_path)
    setup = load_setup(tmp_path / "viva.toml", tmp_path, ServeFlags(port=0, conformance_routes=True))
    noop = codec.encode({"workflowId": "conformance-noop"})

    async def act() -> list[str]:
        host = open_host(setup, asyncio.Event())
        names: list[str] = []
        for _ in range(20):
            mutation = await prepare_run(host, Principal("acme", "acme/1"), noop)
            mutation.write()
            mutation.start()
            names.append(codec.decode(mutation.body)["runId"])
        answer = await cancel_runs(make_request(host, {"runIds": names}))
        results = codec.decode(bytes(answer.body))["results"]
        while host.store.count_unfinished():
            await asyncio.sleep(0.01)
        await host.close()
        return [result["error"]["code"] if result.get("error") else result["status"] for result in results]

    said = asyncio.run(act())
    assert said[0] == "cancelling"
    assert said[-1] == "run_terminal"


def make_request(host: Host, body: dict[str, Any]) -> Request:
    """A request of an administrator, as the server passes it on."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": codec.encode(body), "more_body": False}

    app = Starlette()
    app.state.host = host
    principal = Principal("", "host/1", frozenset({"admin"}))
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [],
        "app": app,
        "state": {"principal": principal},
    }
    return Request(scope, receive)


def test_a_changed_suite_is_loaded_again(client: Client, tmp_path: Path):
    before, _ = client.run_eval()
    suite = tmp_path / "evals" / "basic.json"
    suite.write_text(suite.read_text().replace('"nope"', '"world"'))
    after, _ = client.run_eval()
    assert [client.get_summary(run)["passedCount"] for run in (before, after)] == [1, 2]


def test_an_eval_does_not_wait_for_the_flood_of_another_tenant(
    tmp_path: Path, shorten: Callable[[str, float], None]
):  # 20.1
    """Counts how many trials of the flood start until the other tenant's eval has ended: it has about ten steps."""
    shorten("viva.host.turns.MAX_WAIT_S", 1000.0)  # on a loaded machine a step takes any time
    tasks = [golden_task(f"task-{number}", "say it", "say it") for number in range(500)]
    write_project(tmp_path, build_suite("flood", *tasks))
    agents = tmp_path / "agents.py"
    agents.write_text(f"{agents.read_text()}\nstarted = []\nasync def count(messages, options):\n    started.append(messages[-1]['content'])\n    return messages[-1]['content']\n")  # fmt: skip
    config = tmp_path / "viva.toml"
    config.write_text(config.read_text().replace("[agents.second]", '[agents.count]\nuse = "python:./agents.py:count"\n\n[agents.second]'))  # fmt: skip
    setup = load_setup(config, tmp_path, ServeFlags(port=0))

    async def act() -> tuple[list[str], int]:
        host = open_host(setup, asyncio.Event())
        host.runs.open()

        async def create(tenant: str, suite: str, agent: str) -> str:
            request = {"mode": "eval", "evalSuiteRef": f"acme.evals.{suite}@1.0.0", "agentId": agent}
            with host.runs.turns.work_for(tenant):
                mutation = await prepare_run(host, Principal(tenant, f"{tenant}/1"), codec.encode(request))
                mutation.write()
                mutation.start()
            return codec.decode(mutation.body)["runId"]

        await create("other", "basic", ECHO)  # loads the suite
        for _ in range(8):
            await create("acme", "flood", "local.viva.count")
        started = find_agents_module(tmp_path).started
        while len(started) < 100:
            await asyncio.sleep(0)
        before = len(started)
        run = host.store.find_run(await create("other", "basic", ECHO), "other")
        assert run is not None
        await host.runs.wait_for_end(run)
        meanwhile = started[before:]
        scored = len(host.logs.open_log(run.id).events_of_type("eval.scored"))
        await host.close()
        return meanwhile, scored

    meanwhile, scored = asyncio.run(act())
    assert scored == 2
    assert len(meanwhile) <= 30  # it was about 1,700: all trials that were ready, in each pass of the event loop


@pytest.mark.soak
def test_a_flood_at_most_doubles_the_time_of_another_tenant(tmp_path: Path):
    write_project(tmp_path, build_suite("single", golden_task("one", "hello", "hello")))

    def measure(client: Client) -> float:
        times: list[float] = []
        for _ in range(15):
            began = time.perf_counter()
            client.run_eval("acme.evals.single@1.0.0")
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    with start_host(tmp_path, free_port()) as (client, _):
        other = client.with_token(OTHER)
        other.run_eval("acme.evals.single@1.0.0")
        alone = measure(other)
        flood: list[Any] = [client.with_token(ACME).post("/v1/runs", SLOW).status for _ in range(1001)]
        assert flood == [201] * 1000 + [429]
        beside = measure(other)
    print(f"\none-task eval alone {alone * 1e3:.0f} ms, beside a flood {beside * 1e3:.0f} ms")
    assert beside <= 2 * alone
