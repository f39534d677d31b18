"""Worker processes: what a worker runs, and how the coordinator uses it."""
