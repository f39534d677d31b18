"""What the page shows of a run, as data: one overview with a row for each case, and the page itself as it was built.

`report.html` carries this data inside; `viva view` serves the same over HTTP. The types stand a second time in
`viewer/ui/src/data.ts`. A case's trials are not here: they are the JSONL records as they are.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from viva.errors import Fault
from viva.model import codec
from viva.model.event import RunEnded, RunStarted, RunSummary, StopReason
from viva.model.message import Usage
from viva.model.record import Status, TrialRecord
from viva.reporters.failures import explain_failure
from viva.reporters.formatting import fit_line
from viva.reporters.repeats import count_passes, explain_undetermined
from viva.reporters.report import CaseTrials
from viva.stats.proportions import SuiteRate, Tally, estimate_suite_rate
from viva.stats.values import ValueSummary, summarize_values

_ERROR_ROOM = 240
_FILE = Path(__file__).with_name("page.html")
_POLICY = re.compile(rb'<meta http-equiv="Content-Security-Policy" content="([^"]+)">')
_MARKS = (b"<!--viva:overview-->", b"<!--viva:records-->")


class CaseRow(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One case in the list. `index` is its place among the cases that have a record; `turns`, `tokens`, `cost_usd` and
    `checks` add up its trials, `duration_ms` is their mean, and so is `score`, left out where it says no more than the
    status: 0 or 1. `findings` are those of all trials, each once.
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


class Overview(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A run as far as its first screen needs it. Without `ended` it goes on, or was killed; `summary` is there at its end.

    `rate` has the interval of the pass rate, and none where a sequential test chose how often cases ran. `case_ms` and
    `reply_ms` are how long trials and single replies took.
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


class _Verdict(Struct):
    passed: bool | None = None
    reached: bool | None = None


class _TurnHead(Struct):
    duration_ms: float
    assertions: list[_Verdict] = []


class _TrialHead(Struct):
    """As much of a record as a row needs: the rest is skipped, not decoded."""

    status: Status
    duration_ms: float
    turns: list[_TurnHead]
    final_assertions: list[_Verdict] = []
    checkpoints: list[_Verdict] | None = None
    total_turns: int = 0
    checks: int = 0
    fault: Fault | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    tags: tuple[str, ...] = ()
    score: float | None = None

    @property
    def checks_passed(self) -> int:
        """Counted as the run's summary counts them."""
        judged = [each for turn in self.turns for each in turn.assertions] + self.final_assertions
        missed = sum(each.passed is not True for each in judged)
        return self.checks - missed - (sum(not each.reached for each in self.checkpoints or ()) if self.turns else 0)


_heads = codec.Decoder[_TrialHead](_TrialHead, codec.OWN_MAX_DEPTH)


def build_overview(
    started: RunStarted | None, ended: RunEnded | None, cases: Iterable[CaseTrials], run: str = ""
) -> Overview:
    """The overview of a run, from its first and last event (as far as they are there) and its cases in input order."""
    rows: list[CaseRow] = []
    tallies: list[Tally] = []
    trial_ms: list[float] = []
    reply_ms: list[float] = []
    sequential = False
    for case in cases:
        heads: list[_TrialHead] = [_heads.decode(raw) for raw in case.raw]
        rows.append(_row(len(rows), case, heads))
        tallies.append(count_passes(case.statuses))
        sequential = case.rule.test is not None
        trial_ms += [head.duration_ms for head in heads if head.status != "skipped"]
        reply_ms += [turn.duration_ms for head in heads for turn in head.turns]
    return Overview(
        run=started.run if started else ended.run if ended else run,
        agent=started.agent if started else "",
        viva_version=started.viva if started else "",
        inputs=started.inputs if started else (),
        planned_cases=started.cases if started else len(rows),
        started=started.at if started else "",
        ended=ended.at if ended else None,
        exit_code=ended.exit_code if ended else None,
        stopped=ended.stopped if ended else None,
        stop_message=ended.stop_message if ended else None,
        summary=ended.summary if ended else None,
        pass_rate=None if sequential else estimate_suite_rate(tallies),
        case_ms=summarize_values(trial_ms),
        reply_ms=summarize_values(reply_ms),
        cases=rows,
    )


def _row(index: int, case: CaseTrials, heads: Sequence[_TrialHead]) -> CaseRow:
    head, status = case.head, case.status
    telling = next((i for i, each in enumerate(heads) if each.status == status and status != "passed"), None)
    open_ = explain_undetermined(case.statuses, case.rule, case.missing)
    costs = [each.cost_usd for each in heads]
    known = [cost for cost in costs if cost is not None]
    return CaseRow(
        index=index,
        suite=head.suite,
        id=head.id,
        name="" if head.name == head.id else head.name,
        status=status,
        fault=heads[telling].fault if telling is not None else None,
        tags=heads[0].tags,
        reason=fit_line(open_, _ERROR_ROOM) if open_ else "" if telling is None else _short(case.raw[telling]),
        turns=sum(each.total_turns for each in heads),
        duration_ms=round(sum(each.duration_ms for each in heads) / len(heads), 3),
        cost_usd=sum(known) if len(known) == len(costs) else None,
        tokens=sum(each.usage.total_tokens for each in heads if each.usage),
        trials=case.statuses,
        checks=sum(each.checks for each in heads),
        checks_passed=sum(each.checks_passed for each in heads),
        score=_partial([each.score for each in heads if each.score is not None]),
        findings=tuple(case.findings),
    )


def _partial(scores: Sequence[float]) -> float | None:
    mean = round(sum(scores) / len(scores), 4) if scores else 0.0
    return mean if 0.0 < mean < 1.0 else None


def _short(raw: bytes) -> str:
    """Why the trial did not pass, in one line."""
    return fit_line(explain_failure(codec.decode_kept(raw, type=TrialRecord)).headline, _ERROR_ROOM)


@dataclass(frozen=True, slots=True)
class PageTemplate:
    """The page as it was built, cut where data goes in, and the policy that its scripts and styles fit."""

    head: bytes
    middle: bytes
    tail: bytes
    policy: str

    @property
    def content(self) -> bytes:
        """Without data: it asks its server for them."""
        return self.head + self.middle + self.tail


@cache
def load_page() -> PageTemplate:
    built = _FILE.read_bytes()
    head, rest = built.split(_MARKS[0])
    middle, tail = rest.split(_MARKS[1])
    found = _POLICY.search(head)
    assert found is not None, "the build writes it"
    return PageTemplate(head, middle, tail, found[1].decode())


def encode_for_script(value: Any) -> bytes:
    """JSON that stays inside its `<script>`, whatever texts it holds: no `<`, and no line separators."""
    raw = codec.encode(value)
    return raw.replace(b"<", b"\\u003c").replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
