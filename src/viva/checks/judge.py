"""Checks that a model (or any other agent) decides: `agent` and `rubric`. What a judge quotes is looked up: see `quotes`."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from viva.checks.formatting import format_label, is_score, quote_value
from viva.checks.quotes import QuotableTurn, is_about_user, is_substantial, list_quotable_turns
from viva.errors import HelperFailed, RunStopped, TrialEnd
from viva.model import codec
from viva.model.component import BuildContext, Component
from viva.model.message import Reply
from viva.model.turn import Quote, Verdict
from viva.state.trial_state import CheckContext, to_text
from viva.text.embedded_json import find_objects

BUILT_IN_JUDGE = "viva.validator"


class Judge(Component, frozen=True, kw_only=True):
    """A validator agent says whether the criteria hold. Without `use`, the built-in judge does, and has to quote what it saw."""

    use: str = BUILT_IN_JUDGE
    criteria: str | None = None
    value: str | None = None
    metadata: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    min_score: float | None = None
    votes: int = 1

    def __post_init__(self) -> None:
        if self.use.startswith("scripts:"):
            raise ValueError(f"{self.use!r} is a script; use the assertion type 'script' for it")
        if not self.question and self.use.removeprefix("agents:") == BUILT_IN_JUDGE:
            raise ValueError("misses 'criteria': what must hold, in words")

    @property
    def costly(self) -> bool:
        return True

    @property
    def question(self) -> str:
        return self.criteria or self.value or str(self.metadata.get("criteria") or "")

    @property
    def label(self) -> str:
        return format_label("agent", quote_value(self.question or self.use))

    @property
    def references(self) -> tuple[str, ...]:
        return (self.use,)

    def check(self, context: CheckContext) -> Awaitable[Verdict]:
        metadata = {**self.metadata, **({"criteria": self.question} if self.question else {})}
        return ask_judge(self.use, context, metadata, self.options, self.min_score, self.votes)


class Criterion(Struct, frozen=True):
    """One line of a rubric."""

    criterion: str
    weight: float = 1.0


class Rubric(Component, frozen=True, kw_only=True):
    """Weighted criteria, each judged by itself; passed when the share that is met reaches `min_score` (all, if not given)."""

    criteria: tuple[Criterion, ...]
    use: str = BUILT_IN_JUDGE
    metadata: Mapping[str, Any] = {}
    options: Mapping[str, Any] = {}
    min_score: float = 1.0
    votes: int = 1

    @classmethod
    def build(cls, fields: Mapping[str, Any], building: BuildContext) -> "Rubric":
        criteria = [{"criterion": c} if isinstance(c, str) else c for c in fields["criteria"]]
        return super().build({**fields, "criteria": criteria}, building)

    def __post_init__(self) -> None:
        if not sum(criterion.weight for criterion in self.criteria):
            raise ValueError("the weights of its criteria add up to nothing")

    @property
    def costly(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return format_label("rubric", f"of {len(self.criteria)} criteria")

    @property
    def references(self) -> tuple[str, ...]:
        return (self.use,)

    async def check(self, context: CheckContext) -> Verdict:
        asked = await asyncio.gather(
            *(
                ask_judge(
                    self.use, context, {**self.metadata, "criteria": each.criterion}, self.options, None, self.votes
                )
                for each in self.criteria
            ),
            return_exceptions=True,  # so that no judge is still at work when this ends
        )
        _stop_if_told(asked)
        verdicts = [_no_error(verdict) for verdict in asked]
        total = sum(each.weight for each in self.criteria)
        met = sum(each.weight for each, verdict in zip(self.criteria, verdicts, strict=True) if verdict.passed)
        score = met / total
        lines = [
            f"{'met' if verdict.passed else 'not met'}: {each.criterion} ({verdict.reason})"
            for each, verdict in zip(self.criteria, verdicts, strict=True)
        ]
        return Verdict(
            "passed" if score >= self.min_score - 1e-9 else "failed",
            f"{score:.2f} of 1, needs {self.min_score:g}; " + "; ".join(lines),
            score=score,
            evidence=tuple(quote for verdict in verdicts for quote in verdict.evidence),
            suggestions=tuple(hint for verdict in verdicts for hint in verdict.suggestions),
        )


async def ask_judge(
    use: str,
    context: CheckContext,
    metadata: Mapping[str, Any],
    options: Mapping[str, Any],
    min_score: float | None = None,
    votes: int = 1,
) -> Verdict:
    """A validator's verdict, or the majority of several. A judge that breaks is an error, unless the others already decide."""
    if votes == 1:
        return await _vote(use, context, metadata, options, min_score)
    ballots = await asyncio.gather(
        *(_vote(use, context, metadata, options, min_score) for _ in range(votes)), return_exceptions=True
    )
    _stop_if_told(ballots)
    cast_votes = [ballot for ballot in ballots if isinstance(ballot, Verdict)]
    for status in ("passed", "failed"):
        side = [ballot for ballot in cast_votes if ballot.status == status]
        if len(side) * 2 > votes:
            scores = [ballot.score for ballot in cast_votes if ballot.score is not None]
            passed = sum(ballot.passed for ballot in cast_votes)
            return Verdict(
                status,
                f"{len(side)} of {votes} votes: {side[0].reason}",
                score=sum(scores) / len(scores) if scores else passed / len(cast_votes),
                evidence=side[0].evidence,
                suggestions=side[0].suggestions,
            )
    broken = next((ballot for ballot in ballots if isinstance(ballot, BaseException)), None)
    raise broken or HelperFailed("judge", f"no majority among {votes} votes")


def _stop_if_told(asked: Sequence[Verdict | BaseException]) -> None:
    """Whatever the others say: a run or a trial that has to end ends."""
    for answer in asked:
        if isinstance(answer, RunStopped | TrialEnd):
            raise answer


def _no_error(verdict: Verdict | BaseException) -> Verdict:
    if isinstance(verdict, BaseException):
        raise verdict
    return verdict


async def _vote(
    use: str, context: CheckContext, metadata: Mapping[str, Any], options: Mapping[str, Any], min_score: float | None
) -> Verdict:
    """One ask in a session of its own, so that no vote knows of another."""
    judge = use.removeprefix("agents:")
    about = {**metadata, **build_judge_metadata(context)}
    async with context.state.helpers.open("judge", judge, context.state, {**options, "metadata": about}) as session:
        criteria = str(metadata.get("criteria", ""))
        parse = _Parser(context, criteria, min_score, session.must_quote)
        return await session.ask(build_judge_prompt(criteria, context), parse.verdict)


def build_judge_metadata(context: CheckContext) -> dict[str, Any]:
    """What a judge is told as metadata, beside what it shall judge by."""
    last = context.state.turns[-1] if context.state.turns else context.turn
    return {
        "output": context.text,
        "input": last.user_message.message.text,
        "turn_number": context.turn.number,
        "turn_count": context.turn.number,
        "files": _files(context),
    }


def _files(context: CheckContext) -> list[dict[str, str]]:
    return [{"path": file.path, "change": file.change} for turn in context.turns for file in turn.files]


def build_judge_prompt(criteria: str, context: CheckContext) -> str:
    """For a validator that reads neither metadata nor the conversation: the criteria, and all that they may be about, as data."""
    parts = [f"Criteria: {criteria}"]
    if context.turn_scope == "case" and len(context.state.turns) > 1:
        said = [{"role": message.role, "text": message.text} for message in context.state.messages()]
        parts.append("The conversation, one JSON object a line:\n" + "\n".join(map(to_text, said)))
    parts.append(f"Reply to judge, as a JSON string: {to_text([context.text])[1:-1]}")
    if calls := context.tool_calls:
        parts.append(
            "Tool calls, one JSON object a line:\n" + "\n".join(to_text(codec.to_plain(call)) for call in calls)
        )
    if files := _files(context):
        parts.append("Changed files, one JSON object a line:\n" + "\n".join(map(to_text, files)))
    return "\n\n".join(parts)


class _Answer(dict[str, Any]):
    """A JSON object of a judge's reply. `verdicts` are all that it gives, even those of a key that stands there twice."""

    def __init__(self, pairs: Iterable[tuple[str, Any]]) -> None:
        pairs = list(pairs)
        super().__init__(pairs)
        self.verdicts = {value for key, value in pairs if key in ("passed", "pass") and isinstance(value, bool)}


class _Parser(Struct, frozen=True):
    """Makes a verdict of a validator's answer, or says why that cannot be done."""

    evidence: CheckContext
    criteria: str
    min_score: float | None
    must_quote: bool

    def verdict(self, reply: Reply) -> Verdict:
        given = _answer_of(reply)
        passed = True in given.verdicts
        score = given.get("score")
        if score is not None and not is_score(score):
            raise ValueError("its `score` is no number")
        reason = str(given.get("reason") or "")
        if self.min_score is not None:
            if passed and score is None:
                raise ValueError(f"it has no `score`, which is needed against the least score {self.min_score:g}")
            if passed and score is not None and score < self.min_score:
                passed, reason = False, f"score {score:g} is below {self.min_score:g}: {reason}"
        return Verdict(
            "passed" if passed else "failed",
            reason,
            score=float(score) if score is not None else None,
            evidence=self._quotes(given.get("evidence")),
            suggestions=_texts(given.get("suggestions")),
        )

    def _quotes(self, given: Any) -> tuple[Quote, ...]:
        if not given:
            if self.must_quote and any(said.texts for said in self._quotable()):
                raise ValueError("it quotes no evidence; quote what the verdict rests on, word for word")
            return ()
        if not isinstance(given, list):
            raise ValueError("its `evidence` is no list of {turn, quote}")
        quotable = self._quotable()
        return tuple(self._quote(item, quotable) for item in cast("list[Any]", given))

    def _quotable(self) -> list[QuotableTurn]:
        """What may be quoted: what the agent said and did and, where the criterion is about the user, the user's words."""
        both = not self.criteria or is_about_user(self.criteria)
        return [said for said in list_quotable_turns(self.evidence.state) if both or said.role == "assistant"]

    def _quote(self, item: Any, quotable: Sequence[QuotableTurn]) -> Quote:
        if not isinstance(item, Mapping) or not isinstance(item.get("quote"), str) or not item["quote"].strip():
            raise ValueError("a piece of `evidence` has no `quote`")
        turn, quote = item.get("turn"), cast("str", item["quote"])
        found = [said for said in quotable if said.has_quote(quote)]
        if not found:
            if any(said.has_quote(quote) for said in list_quotable_turns(self.evidence.state)):
                raise ValueError(
                    f"the quote {quote[:80]!r} is what the user said; quote what the assistant said or did"
                )
            raise ValueError(f"the quote {quote[:80]!r} stands nowhere in the conversation; quote word for word")
        if not is_substantial(quote) and not any(said.is_whole_text(quote) for said in found):
            raise ValueError(f"the quote {quote[:80]!r} is too short to show anything; quote three words or more")
        return Quote(next((said.turn for said in found if said.turn == turn), found[0].turn), quote)


def _answer_of(reply: Reply) -> _Answer:
    """The object with the verdict; there may be others around it, but none with another verdict."""
    if isinstance(reply.data, Mapping):
        found = [_Answer(cast("Mapping[str, Any]", reply.data).items())]
    else:
        found = cast("list[_Answer]", find_objects(reply.content, _Answer)) if reply.data is None else []
    if not found:
        raise ValueError("it is no JSON object with a boolean `passed`")
    answers = [answer for answer in found if answer.verdicts]
    if not answers:
        raise ValueError("it has no boolean `passed`")
    if len(set[bool]().union(*(answer.verdicts for answer in answers))) > 1:
        raise ValueError("it gives two verdicts that contradict each other: `passed` is both true and false")
    return answers[0]


def _texts(given: Any) -> tuple[str, ...]:
    """Suggestions: a list of them, or a single one."""
    several: list[Any] = cast("list[Any]", given) if isinstance(given, list) else [given] if given else []
    return tuple(map(to_text, several))
