"""The agents of several runs as columns that can be compared: one column for each agent of each run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count

from msgspec import Struct

from viva.errors import BadInput
from viva.history.index import ResultRow
from viva.stats.matrix import ALPHA, Matrix, MatrixBuilder, MatrixTrial


class RunResults(Struct, frozen=True):
    """The results of a run. A report file is named by its path."""

    name: str
    read: Callable[[], Iterator[ResultRow]]
    """Reads all rows again each time: a large run does not fit into memory."""
    agents: Sequence[str] = ()
    """The agents in the order of -n, if it is known."""


class RunColumn(Struct, frozen=True):
    """One agent of a run. The label distinguishes it from the other columns."""

    run: str
    agent: str
    label: str
    rows: Iterable[ResultRow]


class AgentRows(Struct, frozen=True):
    """The rows of one agent, read again each time."""

    read: Callable[[], Iterator[ResultRow]]
    agent: str

    def __iter__(self) -> Iterator[ResultRow]:
        return (row for row in self.read() if row.agent == self.agent)


def split_columns(runs: Sequence[RunResults], agents: Sequence[str] = ()) -> list[RunColumn]:
    """The columns of all runs; with `agents`, only the columns of these, in that order. BadInput if no run has one of them."""
    columns: list[tuple[str, str, AgentRows]] = []
    for run in runs:
        order = {agent: number for number, agent in enumerate(agents or run.agents)}
        there = list(dict.fromkeys(row.agent for row in run.read())) or [""]
        there.sort(key=lambda agent: order.get(agent, len(order)))
        columns += [(run.name, agent, AgentRows(run.read, agent)) for agent in there]
    known = {agent for _, agent, _ in columns}
    if missing := [agent for agent in agents if agent not in known]:
        names = ", ".join(sorted(filter(None, known))) or "none"
        raise BadInput.of(f"-n {missing[0]}: not an agent of these runs; they have {names}")
    columns = [each for each in columns if not agents or each[1] in agents]
    names_run, names_agent = len({run for run, _, _ in columns}) > 1, len({agent for _, agent, _ in columns}) > 1
    labels = (
        _format_column_label(run if names_run else "", agent if names_agent else "") or run for run, agent, _ in columns
    )
    return [
        RunColumn(run, agent, label, rows)
        for label, (run, agent, rows) in zip(_number_equal_labels(labels), columns, strict=True)
    ]


def _format_column_label(run: str, agent: str) -> str:
    return f"{agent} ({run})" if run and agent else run or agent


def _number_equal_labels(labels: Iterable[str]) -> Iterator[str]:
    """`a`, `a (2)`: a run that is given twice has columns of its own, so that its trials are not counted as more trials."""
    used = set[str]()
    for label in labels:
        numbered = chain([label], (f"{label} ({number})" for number in count(2)))
        unused = next(text for text in numbered if text not in used)
        used.add(unused)
        yield unused


def compare_columns(columns: Sequence[RunColumn], alpha: float = ALPHA) -> Matrix:
    """The matrix of several columns, each compared with the first."""
    builder = MatrixBuilder([column.label for column in columns])
    for column in columns:
        for row in column.rows:
            trial = MatrixTrial(row.suite, row.case, row.status, row.duration_ms, row.cost_usd, row.digest)
            builder.add(column.label, trial)
    return builder.build(alpha)
