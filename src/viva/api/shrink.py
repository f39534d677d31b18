"""Shrinks a failing conversation: runs smaller and smaller candidates with the real agent.

Fewer turns first, then fewer words per message, then fewer attachments, earlier messages, memory entries and tool
stubs, until nothing can be removed. A candidate must fail by the same checks and for the same reason. It runs once if
the conversation always fails, and several times otherwise; the smallest one runs again at the end to confirm it.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, structs

from viva import catalog
from viva.api.failure_causes import RELATED_OVERLAP, FailureCause, are_causes_similar, extract_causes
from viva.engine.event_bus import EventBus
from viva.engine.trial import run_trial
from viva.errors import BadInput
from viva.formats import native
from viva.formats.case_writer import build_static_case
from viva.formats.documents import wrap_values
from viva.formats.load_options import DEFAULT_TIMEOUT_S, LoadOptions
from viva.model import codec
from viva.model.case import Assertion, Case, Fixtures, ToolStub, UserMessage
from viva.model.message import Message, Part, Text
from viva.model.record import TrialRecord, TurnRecord
from viva.protocols import PlannedTrial
from viva.session.run import create_run_context
from viva.session.run_plan import RunPlan
from viva.session.scripts.hooks import add_hooks

T = TypeVar("T")
StillFails = Callable[[Sequence[T]], Awaitable[bool]]
CONFIRM_TRIALS = 3
"""Trials of the whole conversation at the start, and of the smallest one at the end."""
MEASURE_TRIALS, CANDIDATE_TRIALS = 10, 5
"""If the conversation fails only sometimes: trials to measure how often, and trials per candidate."""
ANSWERS_ASSERTION = {"type": "regex", "pattern": "", "message": "the agent answers"}
"""The assertion of the smaller case if the agent itself failed, and no check."""
_PART_DECODER = codec.Decoder[Part](Part)


class FailureRate(Struct, frozen=True):
    """The number of failed trials and of all trials."""

    failed: int
    total: int

    def is_at_least(self, required: "FailureRate") -> bool:
        return self.total > 0 and self.failed * required.total >= required.failed * self.total

    def __str__(self) -> str:
        return f"{self.failed} of {self.total} times"


ALWAYS_FAILS = FailureRate(1, 1)


class ShrinkResult(Struct, frozen=True):
    """The smaller conversation as a native case. `turns`, `words` and `extras` are the counts before and after.

    `is_minimal` is false if the trials ran out, or if something smaller did not fail reliably.
    """

    case: dict[str, Any]
    turns: tuple[int, int]
    words: tuple[int, int]
    extras: tuple[int, int]
    trials: int
    is_minimal: bool
    original_failures: FailureRate
    failures: FailureRate


class FailedConversation(Struct, frozen=True):
    """The case of a failed conversation, and its record."""

    case: Case
    record: TrialRecord


async def minimize_items(items: Sequence[T], fails: StillFails[T]) -> list[T]:
    """Remove items as long as the rest fails (ddmin). No single item of the result can be removed."""
    rest = list(items)
    size = max(1, len(rest) // 2)
    while rest:
        before, start = len(rest), 0
        while start < len(rest):
            fewer = rest[:start] + rest[start + size :]
            if await fails(fewer):
                rest = fewer
            else:
                start += size
        if size == 1 and len(rest) == before:
            break
        size = max(1, size // 2)
    return rest


async def find_recorded_case(plan: RunPlan, record: TrialRecord) -> Case:
    """The case of a record. Raises BadInput if it has changed or cannot be shrunk."""
    async for planned in plan.iterate_trials():
        case = planned.case
        if planned.cell == record.cell:
            if case.digest != (record.digest or ""):
                raise BadInput.of(f"case {case.id!r} has changed since this run; run it again first")
            if case.sessions != "one":
                raise BadInput.of(f"case {case.id!r} is a script test; only conversations in files can be shrunk")
            if any(message.message.data is not None for message in case.user.planned_messages):
                raise BadInput.of(f"case {case.id!r} sends data; only text can be shrunk")
            if case.workspace is not None and case.workspace.env:
                names = ", ".join(case.workspace.env)
                raise BadInput.of(
                    f"case {case.id!r} uses environment variables ({names}), which cannot be written to a file"
                )
            return case
    raise BadInput.of(f"case {record.id!r} is no longer in {record.suite}")


class Shrinker:
    """Shrinks one conversation with at most `max_trials` trials.

    A candidate must reach the `required` failure rate. The default is to fail always or, if the conversation itself
    fails only sometimes, about as often.
    """

    def __init__(
        self, plan: RunPlan, failed: FailedConversation, *, required: FailureRate | None = None, max_trials: int = 300
    ) -> None:
        case = failed.case
        self._failed = failed
        self._load_options = LoadOptions(
            roots=(str(plan.settings.folder), str(Path(case.origin.file if case.origin else "").parent)),
            attachment_roots=plan.settings.attachment_roots,
            simulator=None,
            timeout_s=case.limits.timeout_s or DEFAULT_TIMEOUT_S,
            has_before_run=True,  # a candidate may lack the turn that sets a variable; that is an error of its trial
        )
        run_context = create_run_context(plan, f"shrink-{secrets.token_hex(2)}", EventBus((), ()))
        self._run_context, _hooks = add_hooks(run_context)
        self._plan = plan
        self._agent = failed.record.agent or ""
        self._is_rate_given, self._required, self._max_trials = (
            required is not None,
            required or ALWAYS_FAILS,
            max_trials,
        )
        self._reserved_trials = min(CONFIRM_TRIALS, max_trials // 3)  # for the confirmation at the end
        self._trial_count = 0
        self._verdicts: dict[bytes, bool] = {}
        self._accepted: list[_Candidate] = []
        self._causes = [extract_causes(failed.record)]
        self._assertions, self._final_assertions = _list_failed_definitions(failed)
        kinds = {assertion["type"] for assertion in (*self._assertions, *self._final_assertions)}
        if unknown := kinds - set(catalog.list_components("check")):
            raise BadInput.of(f"a native case cannot contain the failed checks: {', '.join(sorted(unknown))}")

    async def shrink(self, folder: Path) -> ShrinkResult:
        """The smaller case, for a file in `folder`. Raises BadInput if the conversation no longer fails."""
        whole = _Candidate.of(self._failed)
        rate = await self._run_whole_conversation(whole)
        if not self._is_rate_given and rate.failed < rate.total:
            rate = await self._measure_rate(whole, rate)
        smallest, is_minimal = await self._minimize_conversation(whole)
        failures = rate if smallest == whole else await self._confirm_candidate(smallest)
        is_unreliable = failures.total and not failures.is_at_least(self._required)
        if is_unreliable and not self._is_rate_given and self._required == ALWAYS_FAILS:
            rate = await self._measure_rate(whole, rate)
            smallest, is_minimal = await self._minimize_conversation(whole)
            failures = rate if smallest == whole else await self._confirm_candidate(smallest)
        while failures.total and not failures.is_at_least(self._required) and smallest != whole:
            is_minimal = False
            self._accepted.pop()  # it failed by chance: go back to the candidate before
            smallest = self._accepted[-1] if self._accepted else whole
            failures = rate if smallest == whole else await self._confirm_candidate(smallest)
        return ShrinkResult(
            case=self._build_case(smallest, folder),
            turns=(len(whole.messages), len(smallest.messages)),
            words=(whole.word_count, smallest.word_count),
            extras=(whole.extra_count, smallest.extra_count),
            trials=self._trial_count,
            is_minimal=is_minimal,
            original_failures=rate,
            failures=failures,
        )

    async def _run_whole_conversation(self, whole: "_Candidate") -> FailureRate:
        """Run the whole conversation. Returns its failure rate; raises BadInput if that is too low."""
        if self._is_rate_given:
            trials = max(CONFIRM_TRIALS, self._required.total)
        else:
            trials = min(CONFIRM_TRIALS, max(1, self._max_trials // 3))
        rate = await self._run_trials(whole, trials, accepts_new_causes=True)
        if not rate.failed or (self._is_rate_given and not rate.is_at_least(self._required)):
            raise BadInput.of(
                f"case {self._failed.case.id!r} fails in the same way only {rate} when it runs again: "
                "there is nothing to shrink"
            )
        return rate

    async def _confirm_candidate(self, candidate: "_Candidate") -> FailureRate:
        """Run the candidate again with the reserved trials: it may have failed by chance."""
        return await self._run_trials(candidate, max(CONFIRM_TRIALS, self._required.total), uses_reserve=True)

    async def _measure_rate(self, whole: "_Candidate", rate: FailureRate) -> FailureRate:
        """Measure how often the conversation fails, and require about that rate from candidates."""
        more = await self._run_trials(whole, MEASURE_TRIALS - rate.total, accepts_new_causes=True)
        rate = FailureRate(rate.failed + more.failed, rate.total + more.total)
        self._required = FailureRate(max(2, CANDIDATE_TRIALS * rate.failed // rate.total), CANDIDATE_TRIALS)
        self._verdicts.clear()
        self._accepted.clear()
        return rate

    async def _minimize_conversation(self, candidate: "_Candidate") -> tuple["_Candidate", bool]:
        """The smallest candidate, and whether nothing more can be removed."""
        while not self._has_spent_trials:
            before = candidate
            for step in (self._remove_turns, self._remove_words, self._remove_attachments, self._remove_extras):
                candidate = await step(candidate)
            if candidate == before:
                break
        return candidate, not self._has_spent_trials

    @property
    def _has_spent_trials(self) -> bool:
        return self._trial_count >= self._max_trials - self._reserved_trials

    async def _remove_turns(self, candidate: "_Candidate") -> "_Candidate":
        """Remove turns. The last turn stays if its own assertions failed, not only final assertions."""
        messages = candidate.messages
        fixed = () if self._final_assertions else messages[-1:]

        async def fails(some: Sequence[UserMessage]) -> bool:
            return bool(some or fixed) and await self._still_fails(structs.replace(candidate, messages=(*some, *fixed)))

        rest = await minimize_items(messages[: len(messages) - len(fixed)], fails)
        return structs.replace(candidate, messages=(*rest, *fixed))

    async def _remove_words(self, candidate: "_Candidate") -> "_Candidate":
        for index, message in enumerate(candidate.messages):
            if isinstance(message.message.content, str):
                words = message.message.text.split()

                def replace(candidate: "_Candidate", some: Sequence[str], index: int = index) -> "_Candidate":
                    return candidate.replace_content(index, " ".join(some))

                rest = await self._remove_items(candidate, words, replace, min_items=1)
                candidate = candidate if rest == words else replace(candidate, rest)
        return candidate

    async def _remove_attachments(self, candidate: "_Candidate") -> "_Candidate":
        for index, message in enumerate(candidate.messages):
            if not isinstance(message.message.content, str):
                parts = list(message.message.content)

                def replace(candidate: "_Candidate", some: Sequence[Part], index: int = index) -> "_Candidate":
                    return candidate.replace_content(index, tuple(some))

                candidate = replace(candidate, await self._remove_items(candidate, parts, replace, min_items=1))
        return candidate

    async def _remove_extras(self, candidate: "_Candidate") -> "_Candidate":
        """Remove earlier messages, memory entries and tool stubs. A tool without a stub returns an error; it does not run live."""
        for name in ("history", "memory", "tools"):

            def replace(candidate: "_Candidate", some: Sequence[Any], name: str = name) -> "_Candidate":
                return structs.replace(candidate, **{name: tuple(some)})

            candidate = replace(candidate, await self._remove_items(candidate, getattr(candidate, name), replace))
        return candidate

    async def _remove_items(
        self,
        candidate: "_Candidate",
        items: Sequence[T],
        replace: Callable[["_Candidate", Sequence[T]], "_Candidate"],
        min_items: int = 0,
    ) -> list[T]:
        async def fails(some: Sequence[T]) -> bool:
            return len(some) >= min_items and await self._still_fails(replace(candidate, some))

        return await minimize_items(items, fails)

    async def _still_fails(self, candidate: "_Candidate") -> bool:
        """Does the candidate fail often enough and for the same reason? The answer for each candidate is kept."""
        digest = codec.encode_canonically(self._build_case(candidate, Path()))
        if digest not in self._verdicts:
            if self._has_spent_trials:
                return False
            rate = await self._run_trials(candidate, self._required.total, enough=self._required.failed)
            self._verdicts[digest] = rate.is_at_least(self._required)
            if self._verdicts[digest]:
                self._accepted.append(candidate)
        return self._verdicts[digest]

    async def _run_trials(
        self,
        candidate: "_Candidate",
        count: int,
        *,
        enough: int | None = None,
        accepts_new_causes: bool = False,
        uses_reserve: bool = False,
    ) -> FailureRate:
        """Run the candidate, as long as trials are left, or until it is clear whether `enough` trials fail."""
        case = await self._load_case(candidate)
        failed = done = 0
        limit = self._max_trials - (0 if uses_reserve else self._reserved_trials)
        while done < count and self._trial_count < limit:
            self._trial_count += 1
            done += 1
            record = await run_trial(
                self._run_context, PlannedTrial(case, self._trial_count, done, count, self._agent), keep=()
            )
            failed += record.status == "failed" and self._is_same_failure(
                extract_causes(record), accepts_new_causes=accepts_new_causes
            )
            if enough is not None and failed >= enough:
                return FailureRate(enough, count)
            if enough is not None and failed + count - done < enough:
                break
        return FailureRate(failed, done if enough is None else count)

    def _is_same_failure(self, causes: list[FailureCause], *, accepts_new_causes: bool) -> bool:
        """Are the causes those of the recorded failure? With `accepts_new_causes`, related causes count too and are remembered."""
        if any(are_causes_similar(causes, expected) for expected in self._causes):
            return True
        if accepts_new_causes and are_causes_similar(causes, self._causes[0], RELATED_OVERLAP):
            self._causes.append(causes)
            return True
        return False

    async def _load_case(self, candidate: "_Candidate") -> Case:
        definition = self._build_case(candidate, Path())
        suite = native.load(wrap_values([definition], "shrunk"), "shrunk", Path(), self._load_options)
        (case,) = [case async for case in suite.cases()]
        selected = self._plan.select_case(case) or case  # with the options of the run
        return self._plan.workspaces.assign_workspace(selected, self._agent)

    def _build_case(self, candidate: "_Candidate", folder: Path) -> dict[str, Any]:
        """The candidate as a static case with the assertions that failed."""
        case = candidate.apply_to(self._failed.case)
        definition = build_static_case(case, candidate.messages, f"{case.id}-shrunk", Path(), folder, is_filled=True)
        definition.pop("final_assertions", None)
        if self._assertions:
            definition["turns"][-1]["assertions"] = self._assertions
        if self._final_assertions:
            definition["final_assertions"] = self._final_assertions
        return definition


class _Candidate(Struct, frozen=True):
    """The parts of a conversation that can be removed."""

    messages: tuple[UserMessage, ...]
    history: tuple[Message, ...] = ()
    memory: tuple[Any, ...] = ()
    tools: tuple[ToolStub, ...] = ()

    @classmethod
    def of(cls, failed: FailedConversation) -> "_Candidate":
        """The whole conversation up to the failure. Its messages come from a script, a simulator or a person."""
        fixtures = failed.case.fixtures or Fixtures()
        planned = failed.case.user.planned_messages
        messages = [
            _restore_message(turn, planned[index] if index < len(planned) else None)
            for index, turn in enumerate(failed.record.turns)
        ]
        return cls(tuple(messages), failed.case.history, fixtures.memory, fixtures.tools)

    @property
    def word_count(self) -> int:
        return sum(len(message.message.text.split()) for message in self.messages)

    @property
    def extra_count(self) -> int:
        """The number of attachments, earlier messages, memory entries and tool stubs."""
        attachments = sum(len(message.message.attachments) for message in self.messages)
        return attachments + len(self.history) + len(self.memory) + len(self.tools)

    def replace_content(self, index: int, content: str | tuple[Part, ...]) -> "_Candidate":
        message = structs.replace(self.messages[index], message=Message("user", content))
        return structs.replace(self, messages=(*self.messages[:index], message, *self.messages[index + 1 :]))

    def apply_to(self, case: Case) -> Case:
        """The case with the history and fixtures of this candidate."""
        fixtures = case.fixtures and structs.replace(case.fixtures, memory=self.memory, tools=self.tools)
        return structs.replace(case, history=self.history, fixtures=fixtures)


def _restore_message(turn: TurnRecord, planned: UserMessage | None) -> UserMessage:
    content: str | tuple[Part, ...] = turn.input
    if turn.attachments:
        content = (Text(turn.input), *(_PART_DECODER.decode(codec.encode(part)) for part in turn.attachments))
    message = planned or UserMessage(Message("user"))
    return structs.replace(message, message=Message("user", content), source="static", assertions=(), comment=None)


def _list_failed_definitions(failed: FailedConversation) -> tuple[list[Any], list[Any]]:
    """The definitions of the failed assertions of the last turn, and of the failed final assertions or checkpoints."""
    case, record = failed.case, failed.record
    last, planned = len(record.turns), case.user.planned_messages
    turn_assertions = planned[last - 1].assertions if 0 < last <= len(planned) else ()
    of_turn = _select_failed_definitions(turn_assertions, record.turns[-1].assertions if record.turns else [])
    final = _select_failed_definitions(case.final_assertions, record.final_assertions)
    if not of_turn and not final:
        reached = {point.id for point in record.checkpoints or () if point.reached}
        missed = [point for point in case.goal.checkpoints if point.required and point.id not in reached]
        final = [dict(point.assertion.definition) for point in missed]
    return (of_turn, final) if of_turn or final else ([ANSWERS_ASSERTION], [])


def _select_failed_definitions(assertions: Sequence[Assertion], results: Sequence[dict[str, Any]]) -> list[Any]:
    pairs = zip(assertions, results, strict=False)
    return [dict(assertion.definition) for assertion, result in pairs if result["passed"] is False]
