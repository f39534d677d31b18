"""Workers: other processes, on this machine or on others, that run trials for a run."""
