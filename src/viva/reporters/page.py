"""The overview of a run for the page of `report.html` and `viva view`, and the page itself.

The types are repeated in `viewer/ui/src/data.ts`. The trials of a case reach the page as records.
"""

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from msgspec import Struct

from viva.errors import Fault
from viva.model import codec
from viva.model.event import RunEnded, RunStarted, RunSummary, StopReason
from viva.model.record import Status, TrialRecord
from viva.reporters.breakdown import Breakdown, BreakdownCounter, FailureGroup
from viva.reporters.failures import explain_failure
from viva.reporters.formatting import fit_line
from viva.reporters.matrix import create_matrix_builder
from viva.reporters.repeats import compute_interval, count_passes, explain_undetermined
from viva.reporters.report import CaseTrials
from viva.stats.matrix import Matrix
from viva.stats.pass_k import PassK, estimate_pass_k
from viva.stats.pass_rate import stability
from viva.stats.proportions import Interval, SuiteRate, Tally, estimate_suite_rate
from viva.stats.values import ValueSummary, summarize_values

_REASON_ROOM = 240
_FILE = Path(__file__).with_name("page.html")
_POLICY = re.compile(rb'<meta http-equiv="Content-Security-Policy" content="([^"]+)">')
_PLACEHOLDERS = (b"<!--viva:overview-->", b"<!--viva:records-->")


class CaseRow(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One case of the list. `index` is its position among the cases with records. `turns`, `tokens`, `cost_usd` and
    `checks` are sums over its trials; `duration_ms` and `score` are means. A score of 0 or 1 is left out. `group` is the
    position of its failure in the overview's groups; `failed_types` are the types of its assertions that did not pass.
    Repeated cases have the 95 % interval of their pass rate, and a stability class or the decision of a sequential test.
    """

    index: int
    suite: str
    id: str
    status: Status
    trials: list[Status]
    turns: int
    duration_ms: float
    name: str = ""
    fault: Fault | None = None
    tags: tuple[str, ...] = ()
    reason: str = ""
    cost_usd: float | None = None
    tokens: int = 0
    checks: int = 0
    checks_passed: int = 0
    score: float | None = None
    findings: tuple[str, ...] = ()
    group: int | None = None
    failed_types: tuple[str, ...] = ()
    interval: Interval | None = None
    stability: str = ""
    agent: str = ""
    """In a run of several agents."""


class RowCounts(Struct, frozen=True):
    """The statuses of all cases, one letter each, and the number of cases with each fault and tag: for the page's filters."""

    statuses: str
    faults: list[tuple[str, int]]
    tags: list[tuple[str, int]]


class TurnCost(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A turn, by suite, case, trial and number, and its cost."""

    suite: str
    id: str
    trial: int
    turn: int
    cost_usd: float
    agent: str = ""
    """In a run of several agents."""


class Overview(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The data of a run's first screen. A run of several agents has their `matrix`, and no pass rate of all together. Without `ended` the run is in progress or was killed, and has no `summary`.

    `pass_rate` is None for sequential tests; `pass_k` has pass@k and pass^k of repeated cases for the largest k that all of
    them allow, `classes` how many are in each stability class or `never_passed`. `costliest_turn` is the first of the most expensive turns. `counts` is set for a large run whose rows come
    in pieces: it has no `cases`. `case_ms` and `reply_ms` are the durations of trials and of replies.
    """

    run: str
    cases: list[CaseRow]
    agent: str = ""
    viva_version: str = ""
    inputs: tuple[str, ...] = ()
    planned_cases: int = 0
    started: str = ""
    ended: str | None = None
    exit_code: int | None = None
    stopped: StopReason | None = None
    stop_message: str | None = None
    summary: RunSummary | None = None
    pass_rate: SuiteRate | None = None
    case_ms: ValueSummary | None = None
    reply_ms: ValueSummary | None = None
    pass_k: PassK | None = None
    classes: dict[str, int] = {}
    costliest_turn: TurnCost | None = None
    groups: Sequence[FailureGroup] = ()
    breakdown: Breakdown = Breakdown()
    matrix: Matrix | None = None
    counts: RowCounts | None = None


class _AssertionHead(Struct):
    type: str = ""
    passed: bool | None = None
    reached: bool | None = None


class _ToolHead(Struct):
    name: str
    error: str | None = None


class _TurnHead(Struct):
    turn: int
    duration_ms: float
    cost_usd: float | None = None
    tool_calls: list[_ToolHead] = []
    assertions: list[_AssertionHead] = []


class _TrialDetails(Struct):
    """The fields of a record that a row needs in addition to those of RecordHead."""

    turns: list[_TurnHead]
    trial: int = 1
    final_assertions: list[_AssertionHead] = []
    checkpoints: list[_AssertionHead] | None = None
    checks: int = 0
    fault: Fault | None = None
    tags: tuple[str, ...] = ()
    score: float | None = None

    @property
    def assertions(self) -> list[_AssertionHead]:
        return [*(item for turn in self.turns for item in turn.assertions), *self.final_assertions]

    @property
    def checks_passed(self) -> int:
        """The number of passed checks, counted as in the summary of the run."""
        not_passed = sum(assertion.passed is not True for assertion in self.assertions)
        missed = sum(not checkpoint.reached for checkpoint in self.checkpoints or ()) if self.turns else 0
        return self.checks - not_passed - missed


_details_decoder = codec.Decoder[_TrialDetails](_TrialDetails, codec.OWN_MAX_DEPTH)


def encode_overview(
    started: RunStarted | None,
    ended: RunEnded | None,
    cases: Iterable[tuple[int, CaseTrials]],
    run: str = "",
) -> Iterator[bytes]:
    """The Overview of a run as pieces of JSON, so that the rows of 100,000 cases are never in memory at once.

    It is made from the first and last event, if present, and the cases in input order, each with its index.
    """
    encoder = OverviewEncoder(started)
    yield b'{"cases":['
    separator = b""
    for index, case in cases:
        yield separator + encoder.encode_row(index, case)
        separator = b","
    yield b"]," + encoder.encode_rest(ended, run)[1:]


class OverviewEncoder:
    """Encodes the rows of an overview one by one, and then its other fields."""

    def __init__(self, started: RunStarted | None) -> None:
        self._started = started
        self._figures = _OverviewFigures()
        self._matrix = create_matrix_builder(started)

    def encode_row(self, index: int, case: CaseTrials) -> bytes:
        details: list[_TrialDetails] = [_details_decoder.decode(raw) for raw in case.raw]
        self._figures.add(case, details)
        if self._matrix is not None:
            for head in case.heads:
                self._matrix.add(head)
        return codec.encode(_build_row(index, case, details, self._figures.breakdown))

    def encode_rest(self, ended: RunEnded | None, run: str = "", counts: RowCounts | None = None) -> bytes:
        """The overview without `cases`: a JSON object."""
        figures, matrix, started = self._figures, self._matrix, self._started
        overview = Overview(
            run=started.run if started else ended.run if ended else run,
            agent=started.agent if started else "",
            viva_version=started.viva if started else "",
            inputs=started.inputs if started else (),
            planned_cases=started.cases if started else len(figures.tallies),
            started=started.at if started else "",
            ended=ended.at if ended else None,
            exit_code=ended.exit_code if ended else None,
            stopped=ended.stopped if ended else None,
            stop_message=ended.stop_message if ended else None,
            summary=ended.summary if ended else None,
            pass_rate=None if figures.is_sequential or matrix else estimate_suite_rate(figures.tallies),
            case_ms=summarize_values(figures.trial_ms),
            reply_ms=summarize_values(figures.reply_ms),
            pass_k=None if matrix else figures.estimate_pass_k(),
            classes=dict(figures.classes),
            costliest_turn=figures.costliest_turn,
            groups=figures.breakdown.groups,
            breakdown=figures.breakdown.build(),
            matrix=matrix.build() if matrix is not None else None,
            counts=counts,
            cases=[],
        )
        rest = codec.to_builtins(overview)
        del rest["cases"]
        return codec.encode(rest)


class _OverviewFigures:
    """Collects the figures of an overview that are about all cases together."""

    def __init__(self) -> None:
        self.tallies: list[Tally] = []
        self.trial_ms = array("d")
        self.reply_ms = array("d")
        self.is_sequential = False
        self.breakdown = BreakdownCounter()
        self.classes: Counter[str] = Counter()
        self.costliest_turn: TurnCost | None = None
        self._known: dict[Tally, Tally] = {}  # most cases have the same one

    def add(self, case: CaseTrials, details: Sequence[_TrialDetails]) -> None:
        tally = count_passes(case.statuses)
        self.tallies.append(self._known.setdefault(tally, tally))
        self.is_sequential = case.rule.test is not None
        self.trial_ms.extend(head.duration_ms for head in case.heads if head.status != "skipped")
        self.reply_ms.extend(turn.duration_ms for trial in details for turn in trial.turns)
        self.breakdown.add_case(case.head.suite, details[0].tags, case.status)
        for trial in details:
            self.breakdown.add_checks((item.type, item.passed) for item in trial.assertions if item.type)
            for call in (call for turn in trial.turns for call in turn.tool_calls):
                self.breakdown.add_tool_call(call.name, has_error=call.error is not None)
            self._update_costliest_turn(case, trial)
        if len(case.heads) > 1 and not self.is_sequential and (name := stability(case.statuses)) is not None:
            self.classes[name if tally.passed else "never_passed"] += 1  # what always fails is not unstable

    def _update_costliest_turn(self, case: CaseTrials, trial: _TrialDetails) -> None:
        for turn in trial.turns:
            if turn.cost_usd and (self.costliest_turn is None or turn.cost_usd > self.costliest_turn.cost_usd):
                self.costliest_turn = TurnCost(
                    suite=case.head.suite,
                    id=case.head.id,
                    trial=trial.trial,
                    turn=turn.turn,
                    cost_usd=turn.cost_usd,
                    agent=(case.head.agent or "") if case.names_agent else "",
                )

    def estimate_pass_k(self) -> PassK | None:
        """pass@k and pass^k of the run; None without repeated cases."""
        decided = [tally for tally in self.tallies if tally.decided]
        k = min((tally.decided for tally in decided), default=0)
        return estimate_pass_k(decided, k) if k > 1 and not self.is_sequential else None


def _build_row(index: int, case: CaseTrials, details: Sequence[_TrialDetails], breakdown: BreakdownCounter) -> CaseRow:
    head, heads, status = case.head, case.heads, case.status
    not_passed = case.statuses.index(status) if status != "passed" and status in case.statuses else None
    reason = explain_undetermined(case.statuses, case.rule, case.missing)
    group = None
    if not_passed is not None:
        failure = explain_failure(codec.decode_own(case.raw[not_passed], type=TrialRecord))
        reason = failure.headline if reason is None else reason
        group = breakdown.add_failure(failure) if status != "skipped" else None
    is_repeated = len(heads) > 1
    costs = [head.cost_usd for head in heads if head.cost_usd is not None]
    return CaseRow(
        index=index,
        suite=head.suite,
        id=head.id,
        name="" if head.name == head.id else head.name,
        status=status,
        fault=details[not_passed].fault if not_passed is not None else None,
        tags=details[0].tags,
        reason=fit_line(reason or "", _REASON_ROOM),
        turns=sum(head.total_turns for head in heads),
        duration_ms=round(sum(head.duration_ms for head in heads) / len(heads), 3),
        cost_usd=sum(costs) if len(costs) == len(heads) else None,
        tokens=sum(head.usage.total_tokens for head in heads if head.usage),
        trials=case.statuses,
        checks=sum(trial.checks for trial in details),
        checks_passed=sum(trial.checks_passed for trial in details),
        score=_compute_mean_score([trial.score for trial in details if trial.score is not None]),
        findings=tuple(case.findings),
        group=group,
        failed_types=tuple(
            {item.type: None for trial in details for item in trial.assertions if item.passed is not True}
        ),
        interval=compute_interval(count_passes(case.statuses), case.rule) if is_repeated else None,
        stability=_get_stability(case) if is_repeated else "",
        agent=(head.agent or "") if case.names_agent else "",
    )


def _get_stability(case: CaseTrials) -> str:
    if case.rule.test is not None:
        return case.rule.decided_as(case.statuses) or ""
    return stability(case.statuses) or ""


def _compute_mean_score(scores: Sequence[float]) -> float | None:
    mean = round(sum(scores) / len(scores), 4) if scores else 0.0
    return mean if 0.0 < mean < 1.0 else None


@dataclass(frozen=True, slots=True)
class PageTemplate:
    """The built page, split where data is inserted, and its content security policy."""

    head: bytes
    middle: bytes
    tail: bytes
    policy: str

    @property
    def content(self) -> bytes:
        """The page of `viva view`, which loads its data from the server."""
        return self.head + self.middle + self.tail


@cache
def load_page() -> PageTemplate:
    head, rest = _FILE.read_bytes().split(_PLACEHOLDERS[0])
    middle, tail = rest.split(_PLACEHOLDERS[1])
    policy = _POLICY.search(head)
    assert policy is not None
    return PageTemplate(head, middle, tail, policy[1].decode())


def escape_for_script(raw: bytes) -> bytes:
    """JSON that is safe inside `<script>`: without `<` and line separators."""
    return raw.replace(b"<", b"\\u003c").replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
