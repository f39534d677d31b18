"""The one stream of events: each event is stored first, and then sent to all sinks."""

import asyncio
from collections.abc import Callable, Sequence

from viva.errors import VivaError
from viva.model.event import Event, Note, TrialEnded, TurnEnded, TurnStarted
from viva.model.tracebacks import error_text
from viva.protocols import EventStore, Sink

_TURN_EVENTS = (TurnStarted, TurnEnded)


class EventBus:
    """Passes events on. A sink that raises is removed with a warning; a store that raises ends the run.

    Trials that end in the same step of the event loop are stored and sent together, at the end of the step: one write for
    each costs more than everything else about their end. No sink has seen them before, so a killed run loses only what
    was running. If a store fails then, `stop` is called, and `flush` raises the error.
    """

    def __init__(
        self, event_stores: Sequence[EventStore], sinks: Sequence[Sink], stop: Callable[[], None] = lambda: None
    ) -> None:
        self._event_stores = event_stores
        self._sinks = list(sinks)
        self._stop = stop
        self._ended: list[TrialEnded] = []
        self._is_end_scheduled = False
        self._error: Exception | None = None
        self.live = any(sink.live for sink in sinks)

    def without_stores(self) -> "EventBus":
        """A bus with the same sinks, for events that are stored already or cannot be stored any more."""
        return EventBus((), self._sinks)

    def emit(self, event: Event) -> None:
        if isinstance(event, TrialEnded) and (loop := _running_loop()) is not None:
            if not self._is_end_scheduled:
                self._is_end_scheduled = True
                loop.call_soon(self._end_step)
            self._ended.append(event)
            return
        self.flush()
        self._send((event,), is_turn=isinstance(event, _TURN_EVENTS))

    def flush(self) -> None:
        """Stores and sends the ended trials that wait for the end of the step."""
        if self._error is not None:
            raise self._error
        if self._ended:
            ended, self._ended = self._ended, []
            self._send(ended)

    def _end_step(self) -> None:
        self._is_end_scheduled = False
        try:
            self.flush()
        except Exception as error:  # no caller could handle it here: `flush` raises it where the run is awaited
            self._error = error
            self._stop()

    def _send(self, events: Sequence[Event], *, is_turn: bool = False) -> None:
        if not is_turn:
            for event_store in self._event_stores:
                event_store.append(*events)
        failed: list[tuple[Sink, Exception]] = []
        for sink in self._sinks:
            if is_turn and not sink.live:
                continue
            try:
                sink.receive(events)
            except Exception as error:  # a sink must not end the run
                failed.append((sink, error))
        for sink, error in failed:
            self._sinks.remove(sink)
            reason = str(error) if isinstance(error, VivaError) else error_text(error)
            self.emit(Note(f"{type(sink).__name__} failed and gets no more events: {reason}", "warning"))

    def __contains__(self, sink: Sink) -> bool:
        """Does the sink still get events?"""
        return sink in self._sinks


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
