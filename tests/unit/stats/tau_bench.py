"""Published outcomes of tau-bench's gpt-4o runs: real repeats of real cases, and what others computed from them.

The pass^k rows stand in the leaderboard of github.com/sierra-research/tau-bench. The outcomes of all trials are in its
`historical_trajectories`; issue 57 there confirms that the rows follow from them, and gives the share of tasks that
flip and ICC(1). `tasks_by_passes[c]` tasks passed c of their 4 trials: the only counts that fit the row.
"""

from dataclasses import dataclass

from viva.stats.proportions import Tally


@dataclass(frozen=True)
class Published:
    tasks_by_passes: tuple[int, ...]
    pass_hat: tuple[float, ...]
    flip_share: float
    icc: float

    @property
    def tallies(self) -> list[Tally]:
        return [Tally(passes, 4) for passes, tasks in enumerate(self.tasks_by_passes) for _ in range(tasks)]


AIRLINE = Published((14, 12, 10, 4, 10), (0.420, 0.273, 0.220, 0.200), 0.52, 0.405)
RETAIL = Published((22, 18, 9, 22, 44), (0.604, 0.491, 0.430, 0.383), 0.43, 0.530)
