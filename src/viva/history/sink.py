"""A run on its way into the index."""

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from viva.history.index import History, ResultRow
from viva.model.event import Event, RunEnded, RunStarted, TrialEnded

_BATCH = 5000
"""So many rows at most wait for the end of the run, where writing them is cheapest: until then the loop needs the time."""


class HistorySink:
    """Writes a run into the index, in batches and in a thread of its own, so that the loop never waits for the disk."""

    live = False

    def __init__(self, history: History) -> None:
        self._history = history
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._rows: list[ResultRow] = []
        self._run = ""
        self._trouble: Exception | None = None
        self._thread = threading.Thread(target=self._write, name="viva-history", daemon=True)

    def receive(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case RunStarted():
                    self._run = event.run
                    self._history.add_run(event)
                    self._thread.start()
                case TrialEnded():
                    self._rows.append(ResultRow.of(event.record))
                    if len(self._rows) >= _BATCH:
                        self._flush()
                case RunEnded():
                    self._flush()
                    self._queue.put(lambda event=event: self._history.end_run(event))
                    self._queue.put(None)
                    self._thread.join()
                    if self._trouble is not None:
                        raise self._trouble
                case _:
                    pass

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._queue.put(lambda: self._history.add_results(self._run, rows))

    def _write(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception as wrong:  # whatever it is, the run's own thread says it at its end
                self._trouble = wrong
