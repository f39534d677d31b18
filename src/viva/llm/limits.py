"""The limits of a connector: requests and tokens per minute as the config says, and the pace that it learns. Calls wait in
the order of arrival.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

from viva.llm.pacing import ConnectorPace, get_pacing
from viva.model.connector import Connector
from viva.protocols import Transport

Sleep = Callable[[float], Awaitable[None]]
Now = Callable[[], float]
_BURST_S = 1.0


class RateLimit:
    """A number of units per minute. A caller that has to wait sleeps exactly until its own slot.

    A burst is one second's worth (at least one call): providers count in windows shorter than a minute.
    """

    def __init__(self, per_minute: float, sleep: Sleep = asyncio.sleep, now: Now = time.monotonic) -> None:
        self._per_minute = per_minute
        self._unit_s = 60.0 / per_minute
        self._pause = sleep
        self._now = now
        self._free_at = now() - _BURST_S

    async def acquire(self, units: float) -> None:
        """Waits until this number of units may be used."""
        now = self._now()
        start = max(self._free_at, now - _BURST_S)
        self._free_at = start + units * self._unit_s
        if start > now:
            try:
                await self._pause(start - now)
            except asyncio.CancelledError:
                self._free_at -= units * self._unit_s
                raise

    def set_share(self, share: float) -> None:
        """Use only this share of the limit from now on: other processes use the rest."""
        self._unit_s = 60.0 / (self._per_minute * share)

    def correct_estimate(self, units: float) -> None:
        """Counts `units` that were used in addition to those acquired; a negative number gives unused units back."""
        self._free_at += units * self._unit_s


class ConnectorLimits:
    """The limits of one connector. Tokens are estimated before a call and adjusted after it."""

    def __init__(
        self,
        connector: Connector,
        sleep: Sleep = asyncio.sleep,
        now: Now = time.monotonic,
        pace: ConnectorPace | None = None,
    ) -> None:
        self.pace = pace or ConnectorPace(now=now)
        self._requests = RateLimit(connector.requests_per_minute, sleep, now) if connector.requests_per_minute else None
        self._tokens = RateLimit(connector.tokens_per_minute, sleep, now) if connector.tokens_per_minute else None

    async def acquire(self, tokens: float) -> float:
        """Waits until a call may start. Returns the time."""
        if self._requests is not None:
            await self._requests.acquire(1)
        if self._tokens is not None:
            await self._tokens.acquire(tokens)
        return await self.pace.start_call()

    def set_share(self, share: float) -> None:
        for limit in (self._requests, self._tokens):
            if limit is not None:
                limit.set_share(share)

    def correct_token_estimate(self, tokens: float) -> None:
        if self._tokens is not None:
            self._tokens.correct_estimate(tokens)


_by_transport: WeakKeyDictionary[Transport, dict[str, ConnectorLimits]] = WeakKeyDictionary()
_shares: WeakKeyDictionary[Transport, float] = WeakKeyDictionary()


def use_limit_share(http: Transport, share: float) -> None:
    """Use only this share of the limits that the config sets: other processes of the run use the rest."""
    _shares[http] = share
    for limits in _by_transport.get(http, {}).values():
        limits.set_share(share)


def get_limits(http: Transport, connector: Connector) -> ConnectorLimits:
    """The limits of a connector, shared by all sessions of a run: a run has one transport."""
    limiters = _by_transport.setdefault(http, {})
    limits = limiters.get(connector.name)
    if limits is None:
        limits = limiters[connector.name] = ConnectorLimits(connector, pace=get_pacing(http).get_pace(connector.name))
        if http in _shares:
            limits.set_share(_shares[http])
    return limits
