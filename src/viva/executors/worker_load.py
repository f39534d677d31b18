"""How busy the workers of a run are, for the console."""


class WorkerLoad:
    """The workers, the trials that run on them, and the workers that ended while the run went on."""

    def __init__(self) -> None:
        self.workers = 0
        self.in_flight = 0
        self.lost = 0

    def describe(self) -> str:
        """`2 workers, 8 in flight, 1 lost`"""
        workers = f"{self.workers} worker{'s' if self.workers != 1 else ''}"
        return f"{workers}, {self.in_flight} in flight" + (f", {self.lost} lost" if self.lost else "")
