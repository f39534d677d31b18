"""The one stream of events: each is kept first, and then told to everybody who listens."""

import asyncio
from collections.abc import Callable, Sequence

from viva.errors import VivaError
from viva.model.event import Event, Note, TrialEnded, TurnEnded, TurnStarted
from viva.model.tracebacks import error_text
from viva.protocols import EventStore, Sink

_TURNS = (TurnStarted, TurnEnded)


class EventBus:
    """Hands events on. A listener that breaks is dropped with a warning; a ledger that breaks ends the run.

    Trials that end in the same step of the loop are kept and told together, at its end: a write for each would cost more
    than all else about their ending. Until then nobody has heard of them, so a killed run lost nothing but what ran.
    """

    def __init__(self, event_stores: Sequence[EventStore], sinks: Sequence[Sink]) -> None:
        self._event_stores = event_stores
        self._sinks = list(sinks)
        self._ended: list[TrialEnded] = []
        self._broken: Exception | None = None
        self.live = any(sink.live for sink in sinks)
        self.stop: Callable[[], None] = lambda: None
        """Is called when a ledger broke at the end of a step; `settle` then raises what it said."""

    def without_stores(self) -> "EventBus":
        """The same listeners, for what has been kept already, or cannot be kept any more."""
        return EventBus((), self._sinks)

    def emit(self, event: Event) -> None:
        if isinstance(event, TrialEnded) and (loop := _running()) is not None:
            if not self._ended:
                loop.call_soon(self._end_step)
            self._ended.append(event)
            return
        self.flush()
        self._hand_on((event,), turning=isinstance(event, _TURNS))

    def flush(self) -> None:
        """Hands on what waits for the end of the step."""
        if self._broken is not None:
            raise self._broken
        if self._ended:
            ended, self._ended = self._ended, []
            self._hand_on(ended)

    def _end_step(self) -> None:
        try:
            self.flush()
        except Exception as broken:  # nobody would hear of it here: it is raised where the run is waited for
            self._broken = broken
            self.stop()

    def _hand_on(self, events: Sequence[Event], *, turning: bool = False) -> None:
        if not turning:
            for event_store in self._event_stores:
                event_store.append(*events)
        broken: list[tuple[Sink, Exception]] = []
        for sink in self._sinks:
            if turning and not sink.live:
                continue
            try:
                sink.receive(events)
            except Exception as raised:  # a listener is never worth the run
                broken.append((sink, raised))
        for sink, raised in broken:
            self._sinks.remove(sink)
            said = str(raised) if isinstance(raised, VivaError) else error_text(raised)
            self.emit(Note(f"{type(sink).__name__} broke and is left out: {said}", "warning"))

    def __contains__(self, sink: Sink) -> bool:
        """Is it still listening?"""
        return sink in self._sinks


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
