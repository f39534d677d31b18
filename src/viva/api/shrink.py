"""A conversation that failed becomes a smaller one that still fails, by really holding it again and again.

Fewer turns first, then fewer words in each input, then less of what came along: attachments, prior history, memory,
canned tools; until nothing can become less. It has to fail by the same checks and for the same reason as before. Each
candidate is tried once where the conversation always fails, and several times where it does not; the smallest one is
tried again in the end, so that it is not there by chance.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, structs

from viva import catalog
from viva.api.failure_causes import RELATED_OVERLAP, FailureCause, are_similar, extract_causes
from viva.engine.event_bus import EventBus
from viva.engine.trial import RunContext, run_trial
from viva.errors import BadInput
from viva.formats import native
from viva.formats.case_writer import build_static_case
from viva.formats.documents import wrap_values
from viva.formats.load_options import TIMEOUT_S, LoadOptions
from viva.model import codec
from viva.model.case import Assertion, Case, Fixtures, ToolStub, UserMessage
from viva.model.message import Message, Part, Text
from viva.model.record import TrialRecord, TurnRecord
from viva.protocols import PlannedTrial
from viva.session.hooks import ProjectHooks
from viva.session.run import create_run_context
from viva.session.run_plan import RunPlan

T = TypeVar("T")
StillFails = Callable[[Sequence[T]], Awaitable[bool]]
CONFIRM_TRIALS = 3
"""So often the conversation is held before anything is left out, and the smallest one in the end."""
MEASURE_TRIALS, CANDIDATE_TRIALS = 10, 5
"""Where it does not always fail: so often it is held to see how often, and so often each candidate."""
ANSWERS_ASSERTION = {"type": "regex", "pattern": "", "message": "the agent answers"}
"""What is claimed where no check failed, but the agent itself did."""


_PART = codec.Decoder[Part](Part)


class ShrinkResult(Struct, frozen=True):
    """The smaller conversation as a native case: how many turns, words and things that came along there were and are.

    `failed_before` and `failed` say how often the whole and the smaller one failed, of how many trials. It is `minimal`
    unless the trials were used up before, or what was smaller still did not fail reliably.
    """

    case: dict[str, Any]
    turns: tuple[int, int]
    words: tuple[int, int]
    extras: tuple[int, int]
    trials: int
    is_minimal: bool
    original_failures: "FailureRate"
    failures: "FailureRate"


class FailureRate(Struct, frozen=True):
    """How many of how many trials failed."""

    failed: int
    total: int

    def is_at_least(self, wanted: "FailureRate") -> bool:
        """As often, at least?"""
        return self.total > 0 and self.failed * wanted.total >= wanted.failed * self.total

    def __str__(self) -> str:
        return f"{self.failed} of {self.total} times"


ALWAYS_FAILS = FailureRate(1, 1)


class FailedConversation(Struct, frozen=True):
    """A conversation that failed: its case as it is defined, and its record."""

    case: Case
    record: TrialRecord


async def minimize_items(items: Sequence[T], fails: StillFails[T]) -> list[T]:
    """The items less all that can be left out (ddmin): of what is returned, no single item can."""
    left = list(items)
    size = max(1, len(left) // 2)
    while left:
        before, at = len(left), 0
        while at < len(left):
            fewer = left[:at] + left[at + size :]
            if await fails(fewer):
                left = fewer
            else:
                at += size
        if size == 1 and len(left) == before:
            break
        size = max(1, size // 2)
    return left


async def find_case(prepared: RunPlan, record: TrialRecord) -> Case:
    """The case of a record, as it is defined now; a case that has changed since is another one."""
    async for planned in prepared.iterate_trials():
        case = planned.case
        if (case.suite, case.id) == (record.suite, record.id):
            if case.digest != (record.digest or ""):
                raise BadInput.of(f"case {case.id!r} has changed since this run; run it again first")
            if case.sessions != "one":
                raise BadInput.of(f"case {case.id!r} is a script test; only what is written down can become smaller")
            if any(line.message.data is not None for line in case.user.planned_messages):
                raise BadInput.of(f"case {case.id!r} sends data, not a text; only a text can become smaller")
            if case.workspace is not None and case.workspace.env:
                names = ", ".join(case.workspace.env)
                raise BadInput.of(
                    f"case {case.id!r} uses values of the environment ({names}); they cannot be written down"
                )
            return case
    raise BadInput.of(f"case {record.id!r} is no longer in {record.suite}")


class Shrinker:
    """Makes one conversation smaller. `most` trials are held, no more.

    A candidate has to fail `wanted` times; without that, always or, if the conversation itself does not, about as often.
    """

    def __init__(
        self, prepared: RunPlan, held: FailedConversation, *, required: FailureRate | None = None, max_trials: int = 300
    ) -> None:
        self._held = held
        self._reading = LoadOptions(
            roots=(str(prepared.settings.folder), str(_folder(held.case))),
            attachment_roots=prepared.settings.attachment_roots,
            simulator=None,
            timeout_s=held.case.limits.timeout_s or TIMEOUT_S,
            has_before_run=True,  # a try may drop the turn that sets a variable: it is then in error, not wrong
        )
        context = create_run_context(prepared, f"shrink-{secrets.token_hex(2)}", EventBus((), ()))
        self._run_context: RunContext = structs.replace(context, hooks=ProjectHooks(context))
        self._wanted_case = prepared.select_case
        self._given, self._wanted, self._most = required, required or ALWAYS_FAILS, max_trials
        self._reserved = min(CONFIRM_TRIALS, max_trials // 3)  # for the last look at the smallest one
        self._trials = 0
        self._known: dict[bytes, bool] = {}
        self._accepted: list[_Small] = []
        self._causes = [extract_causes(held.record)]
        self._assertions, self._finals = _failed_assertions(held)
        if unknown := {each["type"] for each in (*self._assertions, *self._finals)} - set(
            catalog.list_components("check")
        ):
            raise BadInput.of(f"a native case cannot say what failed: {', '.join(sorted(unknown))}")

    async def shrink(self, folder: Path) -> ShrinkResult:
        """The smaller case, for a file in `folder`. BadInput if the conversation does not fail any more."""
        first = _Small.of(self._held)
        at_first = (
            max(CONFIRM_TRIALS, self._wanted.total) if self._given else min(CONFIRM_TRIALS, max(1, self._most // 3))
        )
        before = await self._hold(first, at_first, learning=True)
        if not before.failed or (self._given is not None and not before.is_at_least(self._given)):
            raise BadInput.of(
                f"case {self._held.case.id!r} fails in the same way only {before} when it is held again: "
                "there is nothing to shrink"
            )
        if self._given is None and before.failed < before.total:
            before = await self._become_patient(first, before)
        small, complete = await self._smallest(first)
        failed = before if small == first else await self._confirm(small)
        if (
            failed.total
            and not failed.is_at_least(self._wanted)
            and self._given is None
            and self._wanted == ALWAYS_FAILS
        ):
            before = await self._become_patient(first, before)
            small, complete = await self._smallest(first)
            failed = before if small == first else await self._confirm(small)
        while failed.total and not failed.is_at_least(self._wanted) and small != first:
            complete = False
            self._accepted.pop()  # it failed by chance: back to the one before
            small = self._accepted[-1] if self._accepted else first
            failed = before if small == first else await self._confirm(small)
        return ShrinkResult(
            case=self._written(small, folder),
            turns=(len(first.lines), len(small.lines)),
            words=(_words(first.lines), _words(small.lines)),
            extras=(first.along, small.along),
            trials=self._trials,
            is_minimal=complete,
            original_failures=before,
            failures=failed,
        )

    async def _confirm(self, small: "_Small") -> FailureRate:
        """Once more, with the trials that were kept for that: what failed once may have failed by chance."""
        return await self._hold(small, max(CONFIRM_TRIALS, self._wanted.total), reserved=True)

    async def _become_patient(self, first: "_Small", before: FailureRate) -> FailureRate:
        """It does not always fail: how often does it, and how often has a candidate to?"""
        more = await self._hold(first, MEASURE_TRIALS - before.total, learning=True)
        found = FailureRate(before.failed + more.failed, before.total + more.total)
        self._wanted = FailureRate(max(2, CANDIDATE_TRIALS * found.failed // found.total), CANDIDATE_TRIALS)
        self._known.clear()
        self._accepted.clear()
        return found

    async def _smallest(self, small: "_Small") -> tuple["_Small", bool]:
        """Less and less of it, and whether nothing more could be left out."""
        while not self._used_up:
            before = small
            for less in (self._fewer_turns, self._fewer_words, self._fewer_attachments, self._less_along):
                small = await less(small)
            if small == before:
                break
        return small, not self._used_up

    @property
    def _used_up(self) -> bool:
        return self._trials >= self._most - self._reserved

    async def _fewer_turns(self, small: "_Small") -> "_Small":
        """A check that belongs to a turn keeps that turn, the last; one of the whole conversation keeps any."""
        lines = small.lines
        fixed = () if self._finals else lines[-1:]

        async def fails(some: Sequence[UserMessage]) -> bool:
            return bool(some or fixed) and await self._still_fails(structs.replace(small, lines=(*some, *fixed)))

        return structs.replace(small, lines=(*await minimize_items(lines[: len(lines) - len(fixed)], fails), *fixed))

    async def _fewer_words(self, small: "_Small") -> "_Small":
        for at, line in enumerate(small.lines):
            if not isinstance(line.message.content, str):
                continue
            words = line.message.text.split()
            left = await self._less(small, words, lambda small, some, at=at: small.saying(at, " ".join(some)), least=1)
            small = small if left == words else small.saying(at, " ".join(left))
        return small

    async def _fewer_attachments(self, small: "_Small") -> "_Small":
        for at, line in enumerate(small.lines):
            if isinstance(line.message.content, str):
                continue
            parts = list(line.message.content)
            left = await self._less(small, parts, lambda small, some, at=at: small.saying(at, tuple(some)), least=1)
            small = small.saying(at, tuple(left))
        return small

    async def _less_along(self, small: "_Small") -> "_Small":
        """Less of what was there before the first word. A tool without a canned answer gets an error, so none runs live."""
        for name in ("history", "memory", "tools"):
            left = await self._less(small, getattr(small, name), lambda small, some, name=name: small.with_(name, some))
            small = small.with_(name, left)
        return small

    async def _less(
        self, small: "_Small", items: Sequence[T], made: Callable[["_Small", Sequence[T]], "_Small"], least: int = 0
    ) -> list[T]:
        """As few of the items as will do."""

        async def fails(some: Sequence[T]) -> bool:
            return len(some) >= least and await self._still_fails(made(small, some))

        return await minimize_items(items, fails)

    async def _still_fails(self, small: "_Small") -> bool:
        """Does it fail often enough, and in the same way? What was tried before is known."""
        value = self._written(small, Path())
        digest = codec.canonical_bytes(value)
        if digest not in self._known:
            if self._used_up:
                return False
            failed = await self._hold(small, self._wanted.total, enough=self._wanted.failed)
            self._known[digest] = failed.is_at_least(self._wanted)
            if self._known[digest]:
                self._accepted.append(small)
        return self._known[digest]

    async def _hold(
        self, small: "_Small", times: int, *, enough: int | None = None, learning: bool = False, reserved: bool = False
    ) -> FailureRate:
        """Holds the conversation so often, as far as trials are left, or until it is known whether `enough` of them fail."""
        case = await self._case(small)
        failed = held = 0
        while held < times and self._trials < self._most - (0 if reserved else self._reserved):
            self._trials += 1
            held += 1
            record = await run_trial(self._run_context, PlannedTrial(case, self._trials, held, times), keep=())
            failed += record.status == "failed" and self._is_same(extract_causes(record), learning=learning)
            if enough is not None and failed >= enough:
                return FailureRate(enough, times)
            if enough is not None and failed + times - held < enough:
                break
        return FailureRate(failed, held if enough is None else times)

    def _is_same(self, found: list[FailureCause], *, learning: bool) -> bool:
        """Is it the failure that was recorded? The whole conversation may find other words for it, which then count too."""
        if any(are_similar(found, wanted) for wanted in self._causes):
            return True
        if learning and are_similar(found, self._causes[0], RELATED_OVERLAP):
            self._causes.append(found)
            return True
        return False

    async def _case(self, small: "_Small") -> Case:
        value = self._written(small, Path())
        suite = native.load(wrap_values([value], "shrunk"), "shrunk", Path(), self._reading)
        (case,) = [self._placed(case) async for case in suite.cases()]
        return case

    def _placed(self, case: Case) -> Case:
        """With what the run's command line said over what cases say themselves."""
        return self._wanted_case(case) or case

    def _written(self, small: "_Small", folder: Path) -> dict[str, Any]:
        """This conversation as a static case, with the checks that failed."""
        case = small.around(self._held.case)
        value = build_static_case(case, small.lines, f"{case.id}-shrunk", Path(), folder, is_filled=True)
        value.pop("final_assertions", None)
        if self._assertions:
            value["turns"][-1]["assertions"] = self._assertions
        if self._finals:
            value["final_assertions"] = self._finals
        return value


class _Small(Struct, frozen=True):
    """What can become less of a conversation."""

    lines: tuple[UserMessage, ...]
    history: tuple[Message, ...] = ()
    memory: tuple[Any, ...] = ()
    tools: tuple[ToolStub, ...] = ()

    @classmethod
    def of(cls, held: FailedConversation) -> "_Small":
        fixtures = held.case.fixtures or Fixtures()
        return cls(tuple(_lines(held)), held.case.history, fixtures.memory, fixtures.tools)

    @property
    def along(self) -> int:
        """How much was there beside the words."""
        attached = sum(len(line.message.attachments) for line in self.lines)
        return attached + len(self.history) + len(self.memory) + len(self.tools)

    def saying(self, at: int, content: str | tuple[Part, ...]) -> "_Small":
        """With another content of one line."""
        line = structs.replace(self.lines[at], message=Message("user", content))
        return structs.replace(self, lines=(*self.lines[:at], line, *self.lines[at + 1 :]))

    def with_(self, name: str, some: Sequence[Any]) -> "_Small":
        return structs.replace(self, **{name: tuple(some)})

    def around(self, case: Case) -> Case:
        """The case with as much of its surroundings as is left."""
        fixtures = case.fixtures and structs.replace(case.fixtures, memory=self.memory, tools=self.tools)
        return structs.replace(case, history=self.history, fixtures=fixtures)


def _folder(case: Case) -> Path:
    return Path(case.origin.file if case.origin else "").parent


def _lines(held: FailedConversation) -> list[UserMessage]:
    """What was said up to the failure, whoever said it."""
    known = held.case.user.planned_messages
    return [_line(turn, known[at] if at < len(known) else None) for at, turn in enumerate(held.record.turns)]


def _line(turn: TurnRecord, written: UserMessage | None) -> UserMessage:
    content: str | tuple[Part, ...] = turn.input
    if turn.attachments:
        content = (Text(turn.input), *(_PART.decode(codec.encode(part)) for part in turn.attachments))
    line = written or UserMessage(Message("user"))
    return structs.replace(line, message=Message("user", content), source="static", assertions=(), comment=None)


def _words(lines: Sequence[UserMessage]) -> int:
    return sum(len(line.message.text.split()) for line in lines)


def _failed_assertions(held: FailedConversation) -> tuple[list[Any], list[Any]]:
    """The checks that failed: those of the last turn, and those of the whole conversation, as they were written."""
    case, record = held.case, held.record
    last = len(record.turns)
    assertions = case.user.planned_messages[last - 1].assertions if 0 < last <= len(case.user.planned_messages) else ()
    failed = _failed(assertions, record.turns[-1].assertions if record.turns else [])
    finals = _failed(case.final_assertions, record.final_assertions)
    if not failed and not finals:
        reached = {each.id for each in record.checkpoints or () if each.reached}
        missing = [c.assertion for c in case.goal.checkpoints if c.required and c.id not in reached]
        finals = [dict(assertion.definition) for assertion in missing]
    return (failed, finals) if failed or finals else ([ANSWERS_ASSERTION], [])


def _failed(assertions: Sequence[Assertion], verdicts: Sequence[dict[str, Any]]) -> list[Any]:
    return [
        dict(assertion.definition)
        for assertion, verdict in zip(assertions, verdicts, strict=False)
        if verdict["passed"] is False
    ]
