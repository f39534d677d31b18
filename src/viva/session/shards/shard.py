"""Shards: `--shard 2/8` runs one of eight parts of the cases, each on a machine of its own; `viva merge` joins them.

Trials are numbered before the shards are shared out, so that the journals of all shards fit together.
"""

import hashlib
import heapq
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import Literal

from msgspec import Struct

from viva.model.case import Case
from viva.protocols import PlannedTrial

ShardBy = Literal["hash", "time"]
CaseName = tuple[str, str]
"""The suite and id of a case."""
SelectCase = Callable[[Case], Case | None]
_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


class Shard(Struct, frozen=True, order=True):
    """One of `count` parts of a run, from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parses `2/8`. Raises ValueError that says what would be right."""
        match = _SHARD.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a shard; the second of eight is 2/8")
        number, count = int(match[1]), int(match[2])
        if count == 0:
            raise ValueError("a run has at least one shard: 1/1")
        if not 1 <= number <= count:
            raise ValueError(f"there is no shard {number} of {count}; the first is 1/{count}, the last {count}/{count}")
        return cls(number, count)


def normalize_shard(text: str) -> str:
    """The normal form of a text such as `02/8`. Raises ValueError if it is not a shard."""
    return str(Shard.parse(text))


def filter_by_hash(select_case: SelectCase, shard: Shard) -> SelectCase:
    """A function that selects the cases of a shard by a hash of suite and id. A case stays in its shard when other cases change."""

    def select(case: Case) -> Case | None:
        return select_case(case) if compute_shard_number(case, shard.count) == shard.number else None

    return select


def compute_shard_number(case: Case, count: int) -> int:
    """The number of the shard that runs the case."""
    name = f"{case.suite}\0{case.id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(name).digest()[:8]) % count + 1


def filter_by_name(select_case: SelectCase, names: Collection[CaseName]) -> SelectCase:
    """A function that selects the cases with these names."""
    names = frozenset(names)

    def select(case: Case) -> Case | None:
        return select_case(case) if (case.suite, case.id) in names else None

    return select


async def select_by_time(
    trials: AsyncIterator[PlannedTrial], times_ms: Mapping[CaseName, float], shard: Shard
) -> tuple[CaseName, ...]:
    """The names of the cases of a shard, such that all shards take about equally long.

    The longest case goes to the shard that has the least to do, and so on. A case without a known time counts as an average
    one. `times_ms` are those of one trial.
    """
    totals = {(each.case.suite, each.case.id): each.total async for each in trials if each.trial == 1}
    known = [times_ms[name] for name in totals if name in times_ms]
    average = sum(known) / len(known) if known else 1.0
    costs = {name: times_ms.get(name, average) * total for name, total in totals.items()}
    loads = [(0.0, number) for number in range(1, shard.count + 1)]  # in order, so it is a heap
    own: set[CaseName] = set()
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + costs[name], number))
        if number == shard.number:
            own.add(name)
    return tuple(name for name in totals if name in own)
