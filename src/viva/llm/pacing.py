"""How many calls each provider takes, learned while a run goes on, and from that how many conversations run in parallel.

A connector whose calls succeed is never slowed down. After a rejection (429, 503) it has a window: a maximum number of calls in
flight, started at even intervals. The window shrinks with each round of rejections and then grows again, first towards the
size that was too large, then slowly beyond it (AIMD with the curve of TCP CUBIC). `Retry-After` and `x-ratelimit-*` headers
stop all calls until the time that they name.

`ConversationLimit` starts at 8, doubles while calls succeed as fast as before and nothing waits, and shrinks on rejections.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

from viva.protocols import Transport
from viva.text.duration import parse_duration

START_CONVERSATIONS = 8
"""Parallel conversations when a run starts."""
MAX_CONVERSATIONS = 1000
_CUT_FACTOR = 0.8
_MIN_CUT_FACTOR = 0.3
_REGROWTH_S = 8.0
_PROBING_GROWTH_PER_S = 0.02
"""How fast the window grows per second beyond the size that was too large."""
_MIN_ROUND_S = 0.5
_MAX_ROUND_REJECTIONS = 4
"""After this many rejections since the last cut the window shrinks again immediately: a bucket that has run empty refuses most calls."""
_CATCH_UP_S = 0.02
_CONVERSATIONS_PER_CALL = 1.25
_SLOW_LATENCY_FACTOR = 1.5
"""Calls that take this much longer than before are a sign of overload."""
_LATENCY_SMOOTHING = 0.1
_MAX_PAUSE_S = 60.0
_LIMIT_HEADERS = tuple(
    (f"x-ratelimit-remaining-{kind}", f"x-ratelimit-reset-{kind}") for kind in ("requests", "tokens")
)

Now = Callable[[], float]
CallLater = Callable[[float, Callable[[], None]], object]


class ConversationLimit:
    """How many conversations may run in parallel, from `START_CONVERSATIONS` up to `maximum`. `fixed` ones do not change."""

    def __init__(self, maximum: int, start: int = START_CONVERSATIONS, *, is_fixed: bool = False) -> None:
        self.maximum = max(1, maximum)
        self.is_fixed = is_fixed
        self._limit = float(self.maximum if is_fixed else min(start, self.maximum))
        self._is_starting = True  # until the first sign of overload
        self._listeners: list[Callable[[], None]] = []

    @property
    def limit(self) -> int:
        return int(self._limit)

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call the listener whenever more conversations may run."""
        self._listeners.append(listener)

    def unsubscribe(self, listener: Callable[[], None]) -> None:
        """Removes a listener. Else a run that has ended would keep its transport, and with it this limit, in memory."""
        self._listeners.remove(listener)

    def grow(self) -> None:
        """Increase the limit after a successful call: at first by one, later by one for each round of calls."""
        if self.is_fixed or self._limit >= self.maximum:
            return
        before = self.limit
        self._limit = min(self.maximum, self._limit + (1.0 if self._is_starting else 1.0 / self._limit))
        if self.limit > before:
            for listener in self._listeners:
                listener()

    def shrink(self, window: float) -> None:
        """Decrease the limit after a round of rejections, but not below what keeps a connector with this window busy."""
        self._is_starting = False
        if not self.is_fixed:
            self._limit = max(
                min(self._limit, 2.0), self._limit * _CUT_FACTOR, min(self._limit, window * _CONVERSATIONS_PER_CALL + 1)
            )

    def stop_doubling(self) -> None:
        """Ends the doubling, because calls have become slower."""
        self._is_starting = False


class ConnectorPace:
    """Paces the calls of one connector. A call begins with `start_call` and ends with `accept_call`, `reject_call` or
    `cancel_call`.
    """

    def __init__(
        self,
        conversations: ConversationLimit | None = None,
        *,
        now: Now = time.monotonic,
        call_later: CallLater | None = None,
    ) -> None:
        self.window = math.inf
        self.latency_s = 0.0
        self.rejected = 0
        self._conversations = conversations or ConversationLimit(1, is_fixed=True)
        self._now = now
        self._call_later = call_later
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._next_start = 0.0
        self._has_timer = False
        self._usual_latency_s = math.inf
        self._too_large_window = math.inf  # the size that was too large
        self._window_after_cut = math.inf  # the size after the last cut
        self._round_start = now()
        self._round_has_hint = False
        self._accepted = 0
        self._refused = 0

    @property
    def rate(self) -> float | None:
        """Calls per second, if they are paced."""
        return self.window / self.latency_s if self.latency_s and not math.isinf(self.window) else None

    @property
    def must_wait(self) -> bool:
        """Would a call have to wait now?"""
        return bool(self._waiting) or self._delay_s() > 0

    async def start_call(self) -> float:
        """Waits until a call may start, in the order of arrival. Returns the time."""
        if not self._waiting and self._delay_s() <= 0:
            return self._count_started_call()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._start_waiting_calls()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.cancel_call()
            else:
                self._waiting.remove(turn)
            raise
        return self._now()

    def cancel_call(self) -> None:
        """Ends a call that was cut off, or that failed without a sign of overload."""
        self._in_flight -= 1
        self._start_waiting_calls()

    def accept_call(self, started: float, headers: Mapping[str, str] | None = None) -> None:
        """Ends a call that the provider answered."""
        now = self._now()
        seconds = now - started
        self.latency_s = self.latency_s + _LATENCY_SMOOTHING * (seconds - self.latency_s) if self.latency_s else seconds
        self._usual_latency_s = min(self._usual_latency_s, self.latency_s)
        self._accepted += 1
        self._in_flight -= 1
        if headers is not None and (pause_s := find_limit_pause_s(headers)):
            self._delay_next_start(pause_s)
        if not math.isinf(self.window):
            self._grow_window(now)
        if self.latency_s > _SLOW_LATENCY_FACTOR * self._usual_latency_s:
            self._conversations.stop_doubling()
        elif not self._waiting:
            self._conversations.grow()
        self._start_waiting_calls()

    def reject_call(self, started: float, retry_after_s: float | None) -> None:
        """Ends a call that the provider refused because there were too many."""
        self.rejected += 1
        self._in_flight -= 1
        if retry_after_s:
            self._delay_next_start(min(retry_after_s, _MAX_PAUSE_S))
        if started >= self._round_start:  # others were sent before the last cut
            self._refused += 1
            self._round_has_hint = self._round_has_hint or bool(retry_after_s)
            is_round_over = (
                self._now() - self._round_start >= max(_MIN_ROUND_S, 2 * self.latency_s)
                or self._refused >= _MAX_ROUND_REJECTIONS
            )
            if math.isinf(self.window) or is_round_over:
                self._shrink_window()
        self._start_waiting_calls()

    def _shrink_window(self) -> None:
        now = self._now()
        used = min(self.window, self._in_flight + 1)
        share = self._accepted / (self._accepted + self._refused)
        new = used * min(_CUT_FACTOR, max(_MIN_CUT_FACTOR, share))
        self._too_large_window = used
        if self._round_has_hint and not math.isinf(self.window):
            # The tokens of a bucket come back while calls wait: what was accepted in this time is what it takes.
            learned = self._accepted / (now - self._round_start) * self.latency_s
            new = min(new, max(learned, used * _MIN_CUT_FACTOR))
            self._too_large_window = new * 1.1
        self.window = self._window_after_cut = max(new, 0.05)
        self._round_start, self._accepted, self._refused, self._round_has_hint = now, 0, 0, False
        self._conversations.shrink(self.window)

    def _grow_window(self, now: float) -> None:
        """Grows the window after a cut: towards the size that was too large, slowly near that size, then beyond it."""
        seconds = now - self._round_start
        missing = max(0.0, 1 - seconds / _REGROWTH_S) ** 3
        beyond = 1 + _PROBING_GROWTH_PER_S * max(0.0, seconds - _REGROWTH_S)
        grown = (self._too_large_window - (self._too_large_window - self._window_after_cut) * missing) * beyond
        if self._waiting or grown < self.window:  # a window that is not used up says nothing
            self.window = max(self.window, grown)

    def _delay_next_start(self, seconds: float) -> None:
        self._next_start = max(self._next_start, self._now() + seconds)

    def _delay_s(self) -> float:
        """The seconds that the next call must wait; infinite if another call must end first."""
        if self._in_flight >= self.window:
            return math.inf
        return self._next_start - self._now()

    def _count_started_call(self) -> float:
        now = self._now()
        self._in_flight += 1
        if not math.isinf(self.window):
            # Timers fire some milliseconds late; the next calls start earlier to make up for it.
            self._next_start = max(self._next_start, now - _CATCH_UP_S) + self.latency_s / self.window
        return now

    def _start_waiting_calls(self) -> None:
        """Starts the calls that may start now, and sets a timer for the next one."""
        while self._waiting:
            delay_s = self._delay_s()
            if delay_s > 0:
                if not math.isinf(delay_s) and not self._has_timer:
                    self._has_timer = True
                    later = self._call_later or asyncio.get_running_loop().call_later
                    later(delay_s, self._on_timer)
                return
            turn = self._waiting.popleft()
            if not turn.done():
                self._count_started_call()
                turn.set_result(None)

    def _on_timer(self) -> None:
        self._has_timer = False
        self._start_waiting_calls()


def find_limit_pause_s(headers: Mapping[str, str]) -> float | None:
    """The seconds until calls are allowed again, if the headers of an answer say that the limit is used up."""
    for remaining, reset in _LIMIT_HEADERS:
        if headers.get(remaining) == "0" and (text := headers.get(reset)):
            try:
                return min(parse_duration(float(text) if text.replace(".", "", 1).isdigit() else text), _MAX_PAUSE_S)
            except ValueError:
                return None
    return None


class RunPacing:
    """The paces of all connectors of a run, and the number of conversations that follows from them."""

    def __init__(self) -> None:
        self.conversations = ConversationLimit(MAX_CONVERSATIONS)
        self._paces: dict[str, ConnectorPace] = {}

    def limit_conversations(self, maximum: int, *, is_fixed: bool) -> ConversationLimit:
        """Called once, before the first call."""
        self.conversations = ConversationLimit(maximum, is_fixed=is_fixed)
        return self.conversations

    def get_pace(self, name: str) -> ConnectorPace:
        if name not in self._paces:
            self._paces[name] = ConnectorPace(self.conversations)
        return self._paces[name]

    def describe_pacing(self) -> str:
        """For the progress line: `12 in parallel, openai 9.4/s`."""
        rates = [f"{name} {rate:.3g}/s" for name, pace in self._paces.items() if (rate := pace.rate) is not None]
        return ", ".join([f"{self.conversations.limit} in parallel", *rates])


_by_transport: WeakKeyDictionary[Transport, RunPacing] = WeakKeyDictionary()


def get_pacing(http: Transport) -> RunPacing:
    """The pacing of a run: a run has one transport."""
    if http not in _by_transport:
        _by_transport[http] = RunPacing()
    return _by_transport[http]
