"""Runs trials in worker processes: the code of a worker, and the executor that uses workers."""
