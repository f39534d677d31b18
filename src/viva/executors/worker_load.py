"""The load of the workers of a run, for the console."""


class WorkerLoad:
    """How many workers there are, how many trials run on them, and how many workers ended during the run."""

    def __init__(self) -> None:
        self.workers = 0
        self.in_flight = 0
        self.lost = 0

    def describe(self) -> str:
        """Return a text such as `2 workers, 8 in flight, 1 lost`."""
        workers = f"{self.workers} worker{'s' if self.workers != 1 else ''}"
        return f"{workers}, {self.in_flight} in flight" + (f", {self.lost} lost" if self.lost else "")
