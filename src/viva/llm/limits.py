"""Requests and tokens per minute: every call waits for its place, in the order of arrival."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from viva.model.connector import Connector
from viva.protocols import Transport

Pause = Callable[[float], Awaitable[None]]
Now = Callable[[], float]
_BURST_S = 1.0


class Pace:
    """So many units a minute. Places are given out at once and in order; who has to wait sleeps exactly until its own.

    What may go at once is one second's worth (at least one call): providers count in windows shorter than a minute.
    """

    def __init__(self, per_minute: float, pause: Pause = asyncio.sleep, now: Now = time.monotonic) -> None:
        self._unit_s = 60.0 / per_minute
        self._pause = pause
        self._now = now
        self._free_at = now() - _BURST_S

    async def take(self, units: float) -> None:
        """Waits until so many units may be used."""
        now = self._now()
        start = max(self._free_at, now - _BURST_S)
        self._free_at = start + units * self._unit_s
        if start > now:
            try:
                await self._pause(start - now)
            except asyncio.CancelledError:
                self._free_at -= units * self._unit_s
                raise

    def settle(self, units: float) -> None:
        """So many more units were used than taken (or fewer, if negative)."""
        self._free_at += units * self._unit_s


class Limiter:
    """The limits of one connector. Tokens are guessed before a call and settled after it."""

    def __init__(self, connector: Connector, pause: Pause = asyncio.sleep, now: Now = time.monotonic) -> None:
        self._requests = Pace(connector.requests_per_minute, pause, now) if connector.requests_per_minute else None
        self._tokens = Pace(connector.tokens_per_minute, pause, now) if connector.tokens_per_minute else None

    async def take(self, tokens: float) -> None:
        if self._requests is not None:
            await self._requests.take(1)
        if self._tokens is not None:
            await self._tokens.take(tokens)

    def settle(self, tokens: float) -> None:
        if self._tokens is not None:
            self._tokens.settle(tokens)


_of_runs: WeakKeyDictionary[Transport, dict[str, Limiter]] = WeakKeyDictionary()


def limiter_for(http: Transport, connector: Connector) -> Limiter | None:
    """The limiter of a connector, one for all sessions of a run: a run has one transport."""
    if not connector.requests_per_minute and not connector.tokens_per_minute:
        return None
    limiters = _of_runs.setdefault(http, {})
    if connector.name not in limiters:
        limiters[connector.name] = Limiter(connector)
    return limiters[connector.name]
