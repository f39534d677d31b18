"""What a provider takes is learned from its answers, on a clock that the test turns."""  # N19

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable, Mapping

import pytest

from viva.llm.pacing import START_CONVERSATIONS, ConnectorPace, ConversationLimit, RunPacing, find_limit_pause_s

LATENCY_S = 0.2


class World:
    """A clock, timers, and a provider that takes or refuses calls. Time passes only in `run`."""

    def __init__(self, takes: Callable[["World"], bool], hint_s: float | None = None, maximum: int = 1000) -> None:
        self.now = 0.0
        self.takes, self.hint_s = takes, hint_s
        self.in_flight = 0
        self.tokens, self.filled = 20.0, 0.0
        self.accepted: list[float] = []
        self.limit = ConversationLimit(maximum)
        self.pace = ConnectorPace(self.limit, now=lambda: self.now, call_later=self.call_later)
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now + delay_s, next(self._order), action))

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self.call_later(seconds, woken.set)
        await woken.wait()

    async def call(self) -> None:
        """One call with its retries."""
        while True:
            started = await self.pace.start_call()
            if not self.takes(self):
                self.pace.reject_call(started, self.hint_s)
                await self.sleep(self.hint_s or 0.25)
                continue
            self.in_flight += 1
            await self.sleep(LATENCY_S)
            self.in_flight -= 1
            self.accepted.append(self.now)
            self.pace.accept_call(started)
            return

    def run(self, seconds: float) -> None:
        """Conversations that call again and again, as many as the limit allows."""

        async def converse() -> None:
            while len(workers) <= self.limit.limit:
                await self.call()

        def add_workers() -> None:
            while len(workers) < self.limit.limit:
                worker = asyncio.get_running_loop().create_task(converse())
                workers.add(worker)
                worker.add_done_callback(workers.discard)

        async def scenario() -> None:
            self.limit.subscribe(add_workers)
            add_workers()
            while self._timers or self.now == 0.0:
                for _ in range(4):
                    await asyncio.sleep(0)
                due, _, action = heapq.heappop(self._timers)
                if due > seconds:
                    break
                self.now = max(self.now, due)
                action()
            for worker in tuple(workers):
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

        workers: set[asyncio.Task[None]] = set()
        asyncio.run(scenario())

    def rate_after(self, seconds: float) -> float:
        return sum(at > seconds for at in self.accepted) / (self.accepted[-1] - seconds)

    @property
    def rejected_share(self) -> float:
        return self.pace.rejected / (self.pace.rejected + len(self.accepted))


def fifty_at_once(world: World) -> bool:
    return world.in_flight < 50


def bucket(world: World) -> bool:
    """Ten calls a second, and a burst of twenty."""
    world.tokens = min(20.0, world.tokens + 10 * (world.now - world.filled))
    world.filled = world.now
    if world.tokens < 1:
        return False
    world.tokens -= 1
    return True


@pytest.mark.parametrize(
    ("takes", "hint_s", "rate", "most_rejected"),
    [(fifty_at_once, None, 250.0, 0.05), (bucket, 1.0, 10.0, 0.05), (bucket, None, 10.0, 0.10)],
)
def test_the_rate_of_a_provider_is_found_with_few_rejections(
    takes: Callable[[World], bool], hint_s: float | None, rate: float, most_rejected: float
):
    world = World(takes, hint_s)
    world.run(60)
    assert world.rate_after(10) >= 0.9 * rate
    assert world.rejected_share < most_rejected


def test_few_calls_are_rejected_while_the_rate_of_an_empty_bucket_is_not_known_yet():  # 15
    world = World(bucket)
    world.run(12)
    assert world.rejected_share < 0.10
    assert world.rate_after(5) >= 0.9 * 10.0


def test_conversations_double_while_calls_succeed_and_stop_at_the_maximum():
    world = World(lambda _: True, maximum=100)
    assert world.limit.limit == START_CONVERSATIONS
    world.run(LATENCY_S + 0.01)
    assert world.limit.limit == 2 * START_CONVERSATIONS
    world.run(3)
    assert world.limit.limit == 100
    assert math.isinf(world.pace.window)


def test_conversations_do_not_grow_when_calls_get_slower():
    limit = ConversationLimit(1000)
    now = 0.0
    pace = ConnectorPace(limit, now=lambda: now, call_later=lambda *_: None)
    for number in range(200):
        now += 1.0
        started = asyncio.run(pace.start_call())
        now += 0.2 if number < 20 else 1.0
        pace.accept_call(started)
    assert limit.limit < 40, "28 when it got slow, then none"


def test_a_fixed_number_never_changes():
    limit = ConversationLimit(5, is_fixed=True)
    limit.grow()
    limit.shrink(0.1)
    assert (limit.limit, limit.is_fixed) == (5, True)


def test_a_call_that_is_cut_off_gives_its_place_back():
    async def scenario() -> None:
        pace = ConnectorPace(now=lambda: now)
        first = await pace.start_call()
        pace.reject_call(first, None)
        pace.window, pace.latency_s = 1.0, 0.0
        await pace.start_call()
        waiting = [asyncio.create_task(pace.start_call()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # while it waits
        pace.cancel_call()
        waiting[1].cancel()  # just when its turn came
        await asyncio.gather(*waiting, return_exceptions=True)
        assert waiting[2].done()
        assert not waiting[2].cancelled()

    now = 100.0
    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1.5s"}, 1.5),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0s"}, 60.0),
        ({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "2"}, 2.0),
        ({"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "9s"}, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "soon"}, None),
        ({}, None),
    ],
)
def test_headers_say_when_nothing_is_left(headers: Mapping[str, str], pause_s: float | None):
    assert find_limit_pause_s(headers) == pause_s


def test_the_connectors_of_a_run_share_the_conversations_and_say_what_they_do():
    pacing = RunPacing()
    limit = pacing.limit_conversations(100, is_fixed=False)
    pace = pacing.get_pace("openai")
    assert pacing.get_pace("openai") is pace
    assert pacing.describe_pacing() == "8 in parallel"
    pace.window, pace.latency_s = 2.0, 0.2
    assert pacing.describe_pacing() == "8 in parallel, openai 10/s"
    assert limit.limit == START_CONVERSATIONS
    assert RunPacing().limit_conversations(5, is_fixed=True).limit == 5
