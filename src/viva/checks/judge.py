"""Checks that a judge decides: `judge` (also called `agent`) and `rubric`. What a judge quotes is looked up: see `quotes`."""

import asyncio
import math
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from viva.checks.base_check import HelperOptions, Spelling
from viva.checks.formatting import format_label, is_score_in_range, quote_value
from viva.checks.quotes import QuotableTurn, is_about_user, is_long_enough_quote, list_quotable_turns
from viva.errors import HelperFailed, RunStopped, TrialEnd
from viva.model import codec
from viva.model.ellipsis import cut_end
from viva.model.message import Reply
from viva.model.turn import CriterionResult, Quote, Verdict
from viva.state.trial_state import CheckContext, to_text
from viva.text.embedded_json import find_json_objects

BUILT_IN_JUDGE = "viva.validator"


class _JudgeCheck(HelperOptions, frozen=True, kw_only=True):
    """A check that asks an agent."""

    default_helper: ClassVar[str | None] = BUILT_IN_JUDGE
    python_types: ClassVar[Mapping[str, str]] = {"use": "str | AgentFunction"}
    use: str = BUILT_IN_JUDGE
    """The judge: an agent of the config, as `agents:name`; in Python also a function."""
    votes: Annotated[int, Meta(ge=1)] = 1
    """How often the judge is asked; the majority decides."""

    @property
    def costly(self) -> bool:
        return True

    @property
    def references(self) -> tuple[str, ...]:
        return (self.use,)


class Judge(_JudgeCheck, frozen=True, kw_only=True):
    """A judge says that the criteria hold. The built-in judge must quote the evidence for its verdict."""

    spellings: ClassVar[Mapping[str, Spelling]] = {"value": Spelling("criteria")}
    example: ClassVar[Mapping[str, Any]] = {"criteria": "what must hold, in words, so that another person can judge it"}
    criteria: str = ""
    """What must hold, in words."""
    min_score: float | UnsetType = UNSET
    """The lowest `score` with which the judge's `passed` counts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use.startswith("scripts:"):
            raise ValueError(f"{self.use!r} is a script; use the assertion type 'script' for it")
        if not self.question and self.use.removeprefix("agents:") == BUILT_IN_JUDGE:
            raise ValueError("is missing 'criteria': what must hold, in words")

    @property
    def question(self) -> str:
        return self.criteria or str(self.all_metadata.get("criteria") or "")

    @property
    def label(self) -> str:
        return format_label("judge", quote_value(self.question or self.use))

    def check(self, context: CheckContext) -> Awaitable[Verdict]:
        criteria = {"criteria": self.question} if self.question else {}
        least = None if self.min_score is UNSET else self.min_score
        return ask_judge(self, context, {**self.all_metadata, **criteria}, least)


class Criterion(Struct, frozen=True, forbid_unknown_fields=True):
    """One criterion of a rubric."""

    criterion: str
    """What must hold, in words."""
    weight: Annotated[float, Meta(ge=0)] = 1.0
    """How much it counts."""


class Rubric(_JudgeCheck, frozen=True, kw_only=True):
    """Weighted criteria, each judged separately. Passes when the share that holds, by weight, reaches `min_score`."""

    criteria: Annotated[tuple[str | Criterion, ...], Meta(min_length=1)]
    """The criteria: texts, or objects with `criterion` and `weight`."""
    min_score: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """The lowest share of the weight that must hold."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not sum(each.weight for each in self._criteria):
            raise ValueError("the weights of its criteria add up to 0: give one a weight above 0")
        if math.isinf(sum(each.weight for each in self._criteria)):
            raise ValueError("the weights of its criteria add up to more than a number can be: give smaller ones")

    @property
    def _criteria(self) -> tuple[Criterion, ...]:
        return tuple(Criterion(each) if isinstance(each, str) else each for each in self.criteria)

    @property
    def label(self) -> str:
        return format_label("rubric", f"of {len(self.criteria)} criteria")

    async def check(self, context: CheckContext) -> Verdict:
        criteria = self._criteria
        answers = await asyncio.gather(
            *(ask_judge(self, context, {**self.all_metadata, "criteria": each.criterion}) for each in criteria),
            return_exceptions=True,  # so that no judge is still at work when this ends
        )
        _raise_if_run_ends(answers)
        verdicts = [_raise_if_error(answer) for answer in answers]
        pairs = list(zip(criteria, verdicts, strict=True))
        score = sum(each.weight for each, verdict in pairs if verdict.passed) / sum(each.weight for each in criteria)
        lines = [  # what is not met comes first: lists cut a long reason at its end
            f"{'met' if verdict.passed else 'not met'}: {each.criterion} ({verdict.reason})"
            for each, verdict in sorted(pairs, key=lambda pair: pair[1].passed is True)
        ]
        return Verdict(
            "passed" if score >= self.min_score - 1e-9 else "failed",
            f"{score:.2f} of 1, needs {self.min_score:g}; " + "; ".join(lines),
            score=score,
            evidence=tuple(quote for verdict in verdicts for quote in verdict.evidence),
            suggestions=tuple(hint for verdict in verdicts for hint in verdict.suggestions),
            criteria=tuple(
                CriterionResult(
                    each.criterion, verdict.passed, verdict.reason, verdict.score, each.weight, verdict.evidence
                )
                for each, verdict in pairs
            ),
        )


async def ask_judge(
    check: _JudgeCheck, context: CheckContext, metadata: Mapping[str, Any], min_score: float | None = None
) -> Verdict:
    """Returns the verdict of a judge, or the majority of several votes.

    A vote that raises is an error, unless the other votes already have a majority.
    """
    if check.votes == 1:
        return await _ask_judge_once(check, context, metadata, min_score)
    ballots = await asyncio.gather(
        *(_ask_judge_once(check, context, metadata, min_score) for _ in range(check.votes)), return_exceptions=True
    )
    _raise_if_run_ends(ballots)
    votes = [ballot for ballot in ballots if isinstance(ballot, Verdict)]
    for status in ("passed", "failed"):
        side = [vote for vote in votes if vote.status == status]
        if len(side) * 2 > check.votes:
            scores = [vote.score for vote in votes if vote.score is not None]
            return Verdict(
                status,
                f"{len(side)} of {check.votes} votes: {side[0].reason}",
                score=sum(scores) / len(scores) if scores else sum(vote.passed for vote in votes) / len(votes),
                evidence=side[0].evidence,
                suggestions=side[0].suggestions,
            )
    error = next((ballot for ballot in ballots if isinstance(ballot, BaseException)), None)
    raise error or HelperFailed("judge", f"no majority among {check.votes} votes")


def _raise_if_run_ends(answers: Sequence[Verdict | BaseException]) -> None:
    """Raise the first answer that is an exception ending the trial or the run: the other answers do not matter then."""
    for answer in answers:
        if isinstance(answer, RunStopped | TrialEnd):
            raise answer


def _raise_if_error(answer: Verdict | BaseException) -> Verdict:
    if isinstance(answer, BaseException):
        raise answer
    return answer


async def _ask_judge_once(
    check: _JudgeCheck, context: CheckContext, metadata: Mapping[str, Any], min_score: float | None
) -> Verdict:
    """Asks the judge once, in a new session, so that votes are independent."""
    state = context.state
    options = {**check.other_options, "metadata": {**metadata, **build_judge_metadata(context)}}
    async with state.helpers.open("judge", check.use.removeprefix("agents:"), state, options) as session:
        criteria = str(metadata.get("criteria", ""))
        parser = _JudgeReplyParser(context, criteria, min_score, session.must_quote)
        return await session.ask(build_judge_prompt(criteria, context), parser.parse)


def build_judge_metadata(context: CheckContext) -> dict[str, Any]:
    """The metadata of a question to a judge, besides the criteria."""
    last = context.state.turns[-1] if context.state.turns else context.turn
    return {
        "output": context.text,
        "input": last.user_message.message.text,
        "turn_number": context.turn.number,
        "turn_count": context.turn.number,
        "files": _list_changed_files(context),
    }


def _list_changed_files(context: CheckContext) -> list[dict[str, str]]:
    return [{"path": file.path, "change": file.change} for turn in context.turns for file in turn.files]


def build_judge_prompt(criteria: str, context: CheckContext) -> str:
    """The question to a judge that reads neither metadata nor the conversation: the criteria, and the case as data."""
    parts = [f"Criteria: {criteria}"]
    if context.turn_scope == "case" and len(context.state.turns) > 1:
        messages = [{"role": message.role, "text": message.text} for message in context.state.list_messages()]
        parts.append("The conversation, one JSON object a line:\n" + "\n".join(map(to_text, messages)))
    parts.append(f"Reply to judge, as a JSON string: {to_text([context.text])[1:-1]}")
    if calls := context.tool_calls:
        lines = (to_text(codec.to_plain(call)) for call in calls)
        parts.append("Tool calls, one JSON object a line:\n" + "\n".join(lines))
    if files := _list_changed_files(context):
        parts.append("Changed files, one JSON object a line:\n" + "\n".join(map(to_text, files)))
    return "\n\n".join(parts)


class _JudgeAnswer(dict[str, Any]):
    """A JSON object in a judge's reply. `verdicts` are all values of `passed` and `pass`, also of a key that occurs twice."""

    def __init__(self, pairs: Iterable[tuple[str, Any]]) -> None:
        pairs = list(pairs)
        super().__init__(pairs)
        self.verdicts = {value for key, value in pairs if key in ("passed", "pass") and isinstance(value, bool)}


class _JudgeReplyParser(Struct, frozen=True):
    """Parses a judge's reply. Raises ValueError for a reply that cannot be used."""

    context: CheckContext
    criteria: str
    min_score: float | None
    must_quote: bool

    def parse(self, reply: Reply) -> Verdict:
        answer = _find_judge_answer(reply)
        passed = True in answer.verdicts
        score = answer.get("score")
        if score is not None and not is_score_in_range(score):
            raise ValueError("its `score` is not a number")
        reason = str(answer.get("reason") or "")
        if self.min_score is not None:
            if passed and score is None:
                raise ValueError(f"it has no `score`, which `min_score` {self.min_score:g} needs")
            if passed and score is not None and score < self.min_score:
                passed, reason = False, f"score {score:g} is below {self.min_score:g}: {reason}"
        return Verdict(
            "passed" if passed else "failed",
            reason,
            score=float(score) if score is not None else None,
            evidence=self._parse_quotes(answer.get("evidence")),
            suggestions=_parse_suggestions(answer.get("suggestions")),
        )

    def _parse_quotes(self, items: Any) -> tuple[Quote, ...]:
        if not items:
            if self.must_quote and any(turn.texts for turn in self._list_quotable_turns()):
                raise ValueError("it quotes no evidence; quote the text that supports the verdict, word for word")
            return ()
        if not isinstance(items, list):
            raise ValueError("its `evidence` is not a list of {turn, quote}")
        turns = self._list_quotable_turns()
        return tuple(self._parse_quote(item, turns) for item in cast("list[Any]", items))

    def _list_quotable_turns(self) -> list[QuotableTurn]:
        """The turns that may be quoted: those of the agent and, for criteria about the user, also those of the user."""
        both = not self.criteria or is_about_user(self.criteria)
        return [turn for turn in list_quotable_turns(self.context.state) if both or turn.role == "assistant"]

    def _parse_quote(self, item: Any, turns: Sequence[QuotableTurn]) -> Quote:
        if not isinstance(item, Mapping) or not isinstance(item.get("quote"), str) or not item["quote"].strip():
            raise ValueError("a piece of `evidence` has no `quote`")
        number, quote = item.get("turn"), cast("str", item["quote"])
        matches = [turn for turn in turns if turn.contains_quote(quote)]
        if not matches:
            if any(turn.contains_quote(quote) for turn in list_quotable_turns(self.context.state)):
                raise ValueError(
                    f"the quote {cut_end(quote, 80)!r} is what the user said; quote what the assistant said or did"
                )
            raise ValueError(f"the quote {cut_end(quote, 80)!r} is not in the conversation; quote word for word")
        if not is_long_enough_quote(quote) and not any(turn.is_whole_text(quote) for turn in matches):
            raise ValueError(
                f"the quote {cut_end(quote, 80)!r} is too short to show anything; quote three words or more"
            )
        return Quote(next((turn.turn for turn in matches if turn.turn == number), matches[0].turn), quote)


def _find_judge_answer(reply: Reply) -> _JudgeAnswer:
    """The object with the verdict. There may be other objects, but none with another verdict."""
    if isinstance(reply.data, bool):  # of a Python function
        objects = [_JudgeAnswer({"passed": reply.data}.items())]
    elif isinstance(reply.data, Mapping):
        objects = [_JudgeAnswer(cast("Mapping[str, Any]", reply.data).items())]
    else:
        objects = (
            cast("list[_JudgeAnswer]", find_json_objects(reply.content, _JudgeAnswer)) if reply.data is None else []
        )
    if not objects:
        raise ValueError("it is not a JSON object with a boolean `passed`")
    answers = [each for each in objects if each.verdicts]
    if not answers:
        raise ValueError("it has no boolean `passed`")
    if len(set[bool]().union(*(answer.verdicts for answer in answers))) > 1:
        raise ValueError("it gives two verdicts that contradict each other: `passed` is both true and false")
    return answers[0]


def _parse_suggestions(value: Any) -> tuple[str, ...]:
    """A list of suggestions, or a single one."""
    items: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value] if value else []
    return tuple(map(to_text, items))
