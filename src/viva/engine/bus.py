"""The one stream of events: the journal gets each event first, then everybody who listens."""

from collections.abc import Sequence

from viva.errors import VivaError
from viva.model.event import Event, Note, TurnEnded, TurnStarted
from viva.protocols import Sink
from viva.record.journal import Journal


class Bus:
    """Hands events on. A listener that breaks is dropped with a warning; a journal that breaks ends the run."""

    def __init__(self, journal: Journal | None, sinks: Sequence[Sink]) -> None:
        self._journal = journal
        self._sinks = list(sinks)
        self.live = any(sink.live for sink in sinks)

    def without_journal(self) -> "Bus":
        """The same listeners, for what is said after the journal broke."""
        return Bus(None, self._sinks)

    def emit(self, event: Event) -> None:
        turning = isinstance(event, TurnStarted | TurnEnded)
        if self._journal is not None and not turning:
            self._journal.append(event)
        broken: list[tuple[Sink, Exception]] = []
        for sink in self._sinks:
            if turning and not sink.live:
                continue
            try:
                sink.receive((event,))
            except Exception as raised:  # a listener is never worth the run
                broken.append((sink, raised))
        for sink, raised in broken:
            self._sinks.remove(sink)
            said = str(raised) if isinstance(raised, VivaError) else f"{type(raised).__name__}: {raised}"
            self.emit(Note(f"{type(sink).__name__} broke and is left out: {said}", "warning"))

    def __contains__(self, sink: Sink) -> bool:
        """Is it still listening?"""
        return sink in self._sinks
