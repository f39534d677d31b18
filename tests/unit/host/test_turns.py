"""How trials of several tenants share the event loop. The tests count passes of the loop, not seconds."""

import asyncio
from collections.abc import Callable

import pytest

from viva.host.turns import MAX_TURNS_PER_PASS, TenantTurns


@pytest.fixture(autouse=True)
def without_time_limit(shorten: Callable[[str, float], None]) -> None:
    shorten("viva.host.turns.MAX_WAIT_S", 1000.0)
    shorten("viva.host.turns.MAX_WAIT_FOR_TRIAL_S", 1000.0)


class Trials:
    """Trials that reply at once, in the order in which they start."""

    def __init__(self) -> None:
        self.turns = TenantTurns()
        self.started: list[str] = []

    async def run(self, tenant: str, count: int, at_once: int = 4) -> None:
        with self.turns.work_for(tenant) as work:
            left = iter(range(count))

            async def pull() -> None:
                for _ in left:
                    async with work.take_turn():
                        self.started.append(tenant)

            await asyncio.gather(*(pull() for _ in range(at_once)))


def test_tenants_start_trials_in_turns():  # 20.1
    async def act() -> list[str]:
        trials = Trials()
        await asyncio.gather(trials.run("a", 20, at_once=8), trials.run("a", 20, at_once=8), trials.run("b", 10))
        return trials.started

    started = asyncio.run(act())
    assert (started.count("a"), started.count("b")) == (40, 10)
    until_b_ends = started[: len(started) - started[::-1].index("b")]
    assert until_b_ends.count("a") <= 10 + MAX_TURNS_PER_PASS


def test_trials_wait_while_the_host_works_for_a_tenant_that_used_less():  # 20.1
    async def act() -> tuple[int, int]:
        trials = Trials()
        flood = asyncio.create_task(trials.run("a", 1000, at_once=64))
        while len(trials.started) < 100:
            await asyncio.sleep(0)
        before = len(trials.started)
        with trials.turns.work_for("b"):  # a request, the start of a run
            for _ in range(50):
                await asyncio.sleep(0)
        await trials.run("b", 1)
        started = trials.started[before:]
        await flood
        return started.count("a"), trials.started.count("a")

    meanwhile, all_of_them = asyncio.run(act())
    assert meanwhile <= 3 * MAX_TURNS_PER_PASS  # in 50 passes of the loop
    assert all_of_them == 1000


def test_work_that_takes_long_holds_up_nothing(shorten: Callable[[str, float], None]):
    shorten("viva.host.turns.MAX_WAIT_S", 0.0)

    async def act() -> list[str]:
        trials = Trials()
        with trials.turns.work_for("b"):
            await asyncio.wait_for(trials.run("a", 100), 300)
        return trials.started

    assert asyncio.run(act()) == ["a"] * 100


def test_work_of_a_tenant_whose_trials_wait_too_holds_up_nothing():
    """A tenant that always has new runs is not first forever: each of its trials counts."""

    async def act() -> list[str]:
        trials = Trials()

        async def flood_with_runs() -> None:
            for _ in range(100):
                await trials.run("b", 2, at_once=1)

        with trials.turns.work_for("b") as request:
            async with request.take_turn():  # b has work all the time
                await asyncio.gather(trials.run("a", 100), flood_with_runs())
        return trials.started

    started = asyncio.run(act())
    assert 30 <= started[:100].count("a") <= 70


def test_a_tenant_that_sends_requests_all_the_time_does_not_stop_others():  # 20.1
    """Each request counts as a turn, also one that is refused."""

    async def act() -> tuple[int, int]:
        trials, requests = Trials(), 0

        async def send_requests() -> None:
            nonlocal requests
            while requests < 1000 and len(trials.started) < 50:
                requests += 1
                with trials.turns.work_for("b"):
                    for _ in range(5):
                        await asyncio.sleep(0)

        running = asyncio.create_task(trials.run("a", 50))
        await asyncio.gather(*(send_requests() for _ in range(3)))  # b has work at any time
        await running
        return requests, len(trials.started)

    requests, started = asyncio.run(act())
    assert started == 50
    assert requests <= 100


def test_an_agent_of_another_tenant_that_replies_at_once_is_not_held_up():  # 20.1
    """Its trial takes many passes of the loop, too."""

    async def act() -> tuple[int, int]:
        trials = Trials()
        flood = asyncio.create_task(trials.run("a", 1000, at_once=64))
        while len(trials.started) < 100:
            await asyncio.sleep(0)
        before = len(trials.started)
        with trials.turns.work_for("b") as work:
            async with work.take_turn():
                for _ in range(50):
                    await asyncio.sleep(0)
        meanwhile = len(trials.started) - before
        await flood
        return meanwhile, len(trials.started)

    meanwhile, all_of_them = asyncio.run(act())
    assert meanwhile <= 3 * MAX_TURNS_PER_PASS  # in 50 passes of the loop
    assert all_of_them == 1000


def test_a_cancelled_trial_does_not_wait_any_more():
    async def act() -> tuple[int, int]:
        trials = Trials()
        with trials.turns.work_for("b"):
            cancelled = asyncio.create_task(trials.run("a", 10))
            for _ in range(5):
                await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            before = len(trials.started)
        await trials.run("a", 3)
        return before, len(trials.started)

    before, after = asyncio.run(act())
    assert (before < 10, after) == (True, before + 3)
