"""Delivers the events of a run: stores each event first, then sends it to all sinks."""

import asyncio
from collections.abc import Callable, Sequence

from viva.errors import VivaError
from viva.model.event import Event, Note, TrialEnded, TurnEnded, TurnStarted
from viva.model.tracebacks import format_error
from viva.protocols import EventStore, Sink

_TURN_EVENTS = (TurnStarted, TurnEnded)


class EventBus:
    """Stores each event, then sends it to the sinks. A sink that raises is removed with a warning; a store that raises ends
    the run.

    Trials that end in the same step of the event loop are stored and sent together at the end of the step, because one write
    for each trial would be expensive. Sinks get no trial before it is stored, so a killed run loses only running trials. If
    the store fails at that point, the bus calls `stop_run`, and `flush` raises the error.
    """

    def __init__(
        self, event_stores: Sequence[EventStore], sinks: Sequence[Sink], stop_run: Callable[[], None] = lambda: None
    ) -> None:
        self._event_stores = event_stores
        self._sinks = list(sinks)
        self._stop_run = stop_run
        self._ended_trials: list[TrialEnded] = []
        self._is_flush_scheduled = False
        self._store_error: Exception | None = None
        self.live = any(sink.live for sink in sinks)

    def copy_without_stores(self) -> "EventBus":
        """A bus with the same sinks, for events that are stored already or cannot be stored any more."""
        return EventBus((), self._sinks)

    def emit(self, event: Event) -> None:
        if isinstance(event, TrialEnded) and (loop := _get_running_loop()) is not None:
            if not self._is_flush_scheduled:
                self._is_flush_scheduled = True
                loop.call_soon(self._flush_at_step_end)
            self._ended_trials.append(event)
            return
        self.flush()
        self._store_and_send((event,), is_turn=isinstance(event, _TURN_EVENTS))

    def flush(self) -> None:
        """Stores and sends the ended trials that wait for the end of the step."""
        if self._store_error is not None:
            raise self._store_error
        if self._ended_trials:
            ended, self._ended_trials = self._ended_trials, []
            self._store_and_send(ended)

    def _flush_at_step_end(self) -> None:
        self._is_flush_scheduled = False
        try:
            self.flush()
        except Exception as error:  # no caller could handle it here: `flush` raises it where the run is awaited
            self._store_error = error
            self._stop_run()

    def _store_and_send(self, events: Sequence[Event], *, is_turn: bool = False) -> None:
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
            reason = str(error) if isinstance(error, VivaError) else format_error(error)
            self.emit(Note(f"{type(sink).__name__} failed and gets no more events: {reason}", "warning"))

    def __contains__(self, sink: Sink) -> bool:
        """Does the sink still get events?"""
        return sink in self._sinks


def _get_running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
