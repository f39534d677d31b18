"""A conversation that failed becomes a smaller one that still fails, by really holding it again and again.

Fewer turns first, then fewer words in each input, then less of what came along: attachments, prior history, memory,
canned tools; until nothing can become less. What fails is the same check as before; where an agent does not always do
the same, `fails` of `runs` trials have to.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, structs

from viva import catalog
from viva.engine.bus import Bus
from viva.engine.trial import Stage, run_trial
from viva.errors import BadInput
from viva.formats import native
from viva.formats.documents import documents_of
from viva.formats.reading import TIMEOUT_S, Reading
from viva.formats.saved import static_case
from viva.model import codec
from viva.model.case import Case, Claim, Fixtures, ToolStub, Utterance
from viva.model.message import Message, Part, Text
from viva.model.record import TrialRecord, TurnRecord
from viva.protocols import Planned
from viva.session.hooks import ProjectHooks
from viva.session.prepare import Prepared
from viva.session.run import stage_of

T = TypeVar("T")
Fails = Callable[[Sequence[T]], Awaitable[bool]]
ANSWERS = {"type": "regex", "pattern": "", "message": "the agent answers"}
"""What is claimed where no check failed, but the agent itself did."""


_PART = codec.Decoder[Part](Part)


class Shrunk(Struct, frozen=True):
    """The smaller conversation as a native case: how many turns, words and things that came along there were and are.

    It is `minimal` unless the trials were used up before.
    """

    case: dict[str, Any]
    turns: tuple[int, int]
    words: tuple[int, int]
    along: tuple[int, int]
    trials: int
    minimal: bool


class Held(Struct, frozen=True):
    """A conversation that failed: its case as it is defined, and its record."""

    case: Case
    record: TrialRecord


async def fewest(items: Sequence[T], fails: Fails[T]) -> list[T]:
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


async def find_case(prepared: Prepared, record: TrialRecord) -> Case:
    """The case of a record, as it is defined now; a case that has changed since is another one."""
    async for planned in prepared.plan():
        case = planned.case
        if (case.suite, case.id) == (record.suite, record.id):
            if case.digest != (record.digest or ""):
                raise BadInput.saying(f"case {case.id!r} has changed since this run; run it again first")
            if not case.one_session:
                raise BadInput.saying(
                    f"case {case.id!r} is a script test; only what is written down can become smaller"
                )
            if any(line.message.data is not None for line in case.user.lines):
                raise BadInput.saying(f"case {case.id!r} sends data, not a text; only a text can become smaller")
            if case.workspace is not None and case.workspace.env:
                names = ", ".join(case.workspace.env)
                raise BadInput.saying(
                    f"case {case.id!r} uses values of the environment ({names}); they cannot be written down"
                )
            return case
    raise BadInput.saying(f"case {record.id!r} is no longer in {record.suite}")


class Shrinker:
    """Makes one conversation smaller. `most` trials are held, no more."""

    def __init__(self, prepared: Prepared, held: Held, *, runs: int = 1, fails: int = 1, most: int = 300) -> None:
        self._held = held
        self._reading = Reading(
            roots=(str(prepared.settings.folder), str(_folder(held.case))),
            attachment_roots=prepared.settings.attachment_roots,
            simulator=None,
            timeout_s=held.case.limits.timeout_s or TIMEOUT_S,
        )
        self._stage: Stage = stage_of(prepared, f"shrink-{secrets.token_hex(2)}", Bus((), ()))
        self._stage.hooks = ProjectHooks(self._stage)
        self._wanted_case = prepared.wanted
        self._runs, self._fails, self._most = runs, fails, most
        self._trials = 0
        self._known: dict[bytes, bool] = {}
        self._wanted = _signature(held.record)
        self._claims, self._finals = _failed_claims(held)
        if unknown := {each["type"] for each in (*self._claims, *self._finals)} - set(catalog.names("check")):
            raise BadInput.saying(f"a native case cannot say what failed: {', '.join(sorted(unknown))}")

    async def shrink(self, folder: Path) -> Shrunk:
        """The smaller case, for a file in `folder`. BadInput if the conversation does not fail any more."""
        small = first = _Small.of(self._held)
        if not await self._still_fails(small):
            seen = f"{self._fails} of {self._runs} times" if self._runs > 1 else "when it is held again"
            raise BadInput.saying(f"case {self._held.case.id!r} does not fail {seen}: there is nothing to shrink")
        smaller = True
        while smaller and not self._used_up:
            before = small
            for less in (self._fewer_turns, self._fewer_words, self._fewer_attachments, self._less_along):
                small = await less(small)
            smaller = small != before
        return Shrunk(
            case=self._written(small, folder),
            turns=(len(first.lines), len(small.lines)),
            words=(_words(first.lines), _words(small.lines)),
            along=(first.along, small.along),
            trials=self._trials,
            minimal=not self._used_up,
        )

    @property
    def _used_up(self) -> bool:
        return self._trials >= self._most

    async def _fewer_turns(self, small: "_Small") -> "_Small":
        """A check that belongs to a turn keeps that turn, the last; one of the whole conversation keeps any."""
        lines = small.lines
        fixed = () if self._finals else lines[-1:]

        async def fails(some: Sequence[Utterance]) -> bool:
            return bool(some or fixed) and await self._still_fails(structs.replace(small, lines=(*some, *fixed)))

        return structs.replace(small, lines=(*await fewest(lines[: len(lines) - len(fixed)], fails), *fixed))

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

        return await fewest(items, fails)

    async def _still_fails(self, small: "_Small") -> bool:
        """Does it fail often enough, and in the same way? What was tried before is known."""
        value = self._written(small, Path())
        digest = codec.canonical(value)
        if digest not in self._known:
            if self._used_up:
                return False
            self._known[digest] = await self._failed_often(value)
        return self._known[digest]

    async def _failed_often(self, value: dict[str, Any]) -> bool:
        suite = native.load(documents_of([value], "shrunk"), "shrunk", Path(), self._reading)
        (case,) = [self._placed(case) async for case in suite.cases()]
        failed = 0
        for trial in range(self._runs):
            self._trials += 1
            record = await run_trial(self._stage, Planned(case, self._trials, trial + 1, self._runs), keep=())
            failed += record.status == "failed" and bool(_signature(record) & self._wanted)
            if failed >= self._fails:
                return True
            if failed + self._runs - trial - 1 < self._fails:
                return False
        return False

    def _placed(self, case: Case) -> Case:
        """With what the run's command line said over what cases say themselves."""
        return self._wanted_case(case) or case

    def _written(self, small: "_Small", folder: Path) -> dict[str, Any]:
        """This conversation as a static case, with the checks that failed."""
        case = small.around(self._held.case)
        value = static_case(case, small.lines, f"{case.id}-shrunk", Path(), folder)
        value.pop("final_assertions", None)
        if self._claims:
            value["turns"][-1]["assertions"] = self._claims
        if self._finals:
            value["final_assertions"] = self._finals
        return value


class _Small(Struct, frozen=True):
    """What can become less of a conversation."""

    lines: tuple[Utterance, ...]
    history: tuple[Message, ...] = ()
    memory: tuple[Any, ...] = ()
    tools: tuple[ToolStub, ...] = ()

    @classmethod
    def of(cls, held: Held) -> "_Small":
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


def _lines(held: Held) -> list[Utterance]:
    """What was said up to the failure, whoever said it."""
    known = held.case.user.lines
    return [_line(turn, known[at] if at < len(known) else None) for at, turn in enumerate(held.record.turns)]


def _line(turn: TurnRecord, written: Utterance | None) -> Utterance:
    content: str | tuple[Part, ...] = turn.input
    if turn.attachments:
        content = (Text(turn.input), *(_PART.decode(codec.encode(part)) for part in turn.attachments))
    line = written or Utterance(Message("user"))
    return structs.replace(line, message=Message("user", content), by="static", claims=(), remark=None)


def _words(lines: Sequence[Utterance]) -> int:
    return sum(len(line.message.text.split()) for line in lines)


def _failed_claims(held: Held) -> tuple[list[Any], list[Any]]:
    """The checks that failed: those of the last turn, and those of the whole conversation, as they were written."""
    case, record = held.case, held.record
    last = len(record.turns)
    claims = case.user.lines[last - 1].claims if 0 < last <= len(case.user.lines) else ()
    failed = _failed(claims, record.turns[-1].assertions if record.turns else [])
    finals = _failed(case.finals, record.final_assertions)
    if not failed and not finals:
        reached = {each.id for each in record.checkpoints or () if each.reached}
        missing = [c.claim for c in case.goal.checkpoints if c.required and c.id not in reached]
        finals = [dict(claim.written) for claim in missing]
    return (failed, finals) if failed or finals else ([ANSWERS], [])


def _failed(claims: Sequence[Claim], verdicts: Sequence[dict[str, Any]]) -> list[Any]:
    return [dict(claim.written) for claim, verdict in zip(claims, verdicts, strict=False) if verdict["passed"] is False]


def _signature(record: TrialRecord) -> set[str]:
    """In which way it failed: by which checks, or by what kind of error of the agent's own."""
    verdicts = [*(each for turn in record.turns for each in turn.assertions), *record.final_assertions]
    failed = {str(each["label"]) for each in verdicts if each["passed"] is False}
    failed |= {
        str((each.assertion or {}).get("label"))
        for each in record.checkpoints or ()
        if each.required and not each.reached
    }
    return failed or {":".join((record.error or "").split(":")[:2])}
