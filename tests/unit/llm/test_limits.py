"""Requests and tokens per minute, on a clock that the test turns."""

import asyncio

import pytest

from viva.llm.limits import ConnectorLimits, RateLimit, get_limits, use_limit_share
from viva.llm.transport import HttpTransport
from viva.model.connector import Connector


class Clock:
    """Time passes when someone sleeps; sleepers wake in the order of their alarms."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def pause(self, seconds: float) -> None:
        due = self.now + seconds
        while self.now < due:
            await asyncio.sleep(0)


def starts(pace: RateLimit, clock: Clock, calls: int) -> list[float]:
    """When each of many calls at once may start."""
    started: list[tuple[int, float]] = []

    async def one(number: int) -> None:
        await pace.acquire(1)
        started.append((number, round(clock.now, 3)))

    async def scenario() -> None:
        tasks = [asyncio.create_task(one(number)) for number in range(calls)]
        while not all(task.done() for task in tasks):
            for _ in range(3):
                await asyncio.sleep(0)
            clock.now = round(clock.now + 0.5, 3)

    asyncio.run(scenario())
    assert [number for number, _ in started] == list(range(calls)), "first come, first served"
    return [at for _, at in started]


def test_calls_are_spread_evenly_after_a_small_burst():
    clock = Clock()
    assert starts(RateLimit(60, clock.pause, clock), clock, 5) == [0.0, 0.0, 1.0, 2.0, 3.0]


def test_a_slow_pace_starts_with_one_call():
    clock = Clock()
    assert starts(RateLimit(6, clock.pause, clock), clock, 3) == [0.0, 9.0, 19.0]


def test_a_minute_holds_no_more_than_its_number():
    clock = Clock()
    at = starts(RateLimit(120, clock.pause, clock), clock, 300)
    busiest = max(sum(1 for other in at if start <= other < start + 60) for start in at)
    assert busiest <= 120 + 2


def test_time_that_was_not_used_is_not_saved_up():
    clock = Clock()
    pace = RateLimit(60, clock.pause, clock)
    clock.now = 1000.0
    assert starts(pace, clock, 4) == [1000.0, 1000.0, 1001.0, 1002.0]


def test_a_cancelled_wait_gives_its_place_back():
    clock = Clock()
    pace = RateLimit(60, clock.pause, clock)

    async def scenario() -> None:
        await pace.acquire(2)
        waiting = asyncio.create_task(pace.acquire(50))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        following = asyncio.create_task(pace.acquire(1))
        await asyncio.sleep(0)
        clock.now = 1.0
        await following

    asyncio.run(scenario())


def test_tokens_are_settled_after_the_call():
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def scenario() -> None:
        limiter = ConnectorLimits(Connector(name="c", tokens_per_minute=6000), pause, lambda: 0.0)
        await limiter.acquire(100)
        limiter.correct_token_estimate(200)
        await limiter.acquire(100)
        limiter.correct_token_estimate(-100)
        await limiter.acquire(100)

    asyncio.run(scenario())
    assert pauses == [pytest.approx(2.0), pytest.approx(2.0)]


def test_sessions_of_a_run_share_a_limiter_and_runs_do_not():
    limited, free = Connector(name="c", requests_per_minute=1), Connector(name="f")
    one, other = HttpTransport(), HttpTransport()
    assert get_limits(one, limited) is get_limits(one, Connector(name="c", requests_per_minute=1))
    assert get_limits(one, limited) is not get_limits(other, limited)
    assert get_limits(one, limited) is not get_limits(one, Connector(name="d", requests_per_minute=1))
    assert get_limits(one, free) is get_limits(one, free), "its pace is shared too"


def test_a_share_of_a_limit_is_slower():
    clock = Clock()
    pace = RateLimit(60, clock.pause, clock)
    pace.set_share(1 / 2)
    assert starts(pace, clock, 4) == [0, 1, 3, 5]


def test_processes_of_a_run_share_the_limits_of_a_connector():
    """Also of connectors that are not called yet."""
    http = HttpTransport()
    first, second = (get_limits(http, Connector(name=name, requests_per_minute=60)) for name in "ab")
    use_limit_share(http, 1 / 4)
    third = get_limits(http, Connector(name="c", requests_per_minute=60))
    assert [limits._requests and limits._requests._unit_s for limits in (first, second, third)] == [4, 4, 4]
