"""Shows the progress of a run in a notebook, as one line that is updated. IPython is not imported unless it is loaded."""

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from viva.model.event import Event, RunEnded, RunStarted, TrialEnded
from viva.model.record import STATUS_MARKS
from viva.protocols import Sink


def create_notebook_sinks() -> list[Sink]:
    """A list with a NotebookProgress if this process is the kernel of a notebook; else empty."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return [] if getattr(shell, "kernel", None) is None else [NotebookProgress(_display_text)]


def _display_text(text: str, handle: Any) -> Any:
    """Show a text, or replace the one shown before. Returns the handle for the next call."""
    from IPython.display import display  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

    data = {"text/plain": text}
    if handle is not None:
        handle.update(data, raw=True)
        return handle
    return display(data, raw=True, display_id=True)


class NotebookProgress:
    """A Sink that shows the number of ended trials: `3 of 20 · ✓ 2 ✗ 1`."""

    live = False

    def __init__(self, show: Any) -> None:
        self._display_text = show
        self._handle: Any = None
        self._total = 0
        self._counts: Counter[str] = Counter()

    def receive(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, RunStarted):
                self._total = event.trials
            elif isinstance(event, TrialEnded):
                self._counts[event.record.status] += 1
        if any(isinstance(event, RunStarted | TrialEnded | RunEnded) for event in events):
            counts = " ".join(
                f"{mark} {self._counts[status]}" for status, mark in STATUS_MARKS.items() if self._counts[status]
            )
            done = f"{self._counts.total()} of {self._total}"
            self._handle = self._display_text(f"{done} · {counts}" if counts else done, self._handle)
