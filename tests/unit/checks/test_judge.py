"""judge and rubric: which replies of a judge count, and what several votes give."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from msgspec import structs

from unit.checks.conftest import Bench
from viva.errors import HelperFailed, Role, RunStopped
from viva.model.message import Message, Reply, ToolCall
from viva.model.turn import FileChange, Quote, Verdict
from viva.state.trial_state import CheckContext, TrialState
from viva.testing.check_context import make_check_context

T = TypeVar("T")
Answer = Mapping[str, Any] | str | Exception


class Judges:
    """Judges with canned replies, one for each question. An unusable reply is not asked for again."""

    may_repeat = False

    def __init__(self, *answers: Answer, must_quote: bool = False) -> None:
        self.must_quote = must_quote
        self._answers = list(answers)
        self.asked: list[str] = []
        self.metadata: Mapping[str, Any] = {}
        self.told: list[Mapping[str, Any]] = []
        self.names: list[str] = []
        self.working = 0

    @asynccontextmanager
    async def open(
        self, role: Role, agent: str, state: TrialState | None = None, options: Mapping[str, Any] | None = None
    ) -> AsyncGenerator["Judges"]:
        self.told.append((options or {})["metadata"])
        self.names.append(agent)
        yield self

    async def ask(self, text: str, parse: Callable[[Reply], T], metadata: Mapping[str, Any] | None = None) -> T:
        self.asked.append(text)
        answer = self._answers.pop(0)
        self.working += 1
        if not isinstance(answer, Exception):
            await asyncio.sleep(0)  # those who break do so while the others are at work
        self.working -= 1
        if isinstance(answer, Exception):
            raise answer
        try:
            return parse(Reply(answer) if isinstance(answer, str) else Reply(data=answer))
        except ValueError as unusable:
            raise HelperFailed("judge", str(unusable)) from unusable


CALL = ToolCall("pay", {"id": "W1"}, result={"ok": True})
SAID = Reply('It is «done», he said:\n"Thank you" …', data={"state": "paid"}, tool_calls=(CALL,))


def verdict_of(bench: Bench, judges: Judges, context: CheckContext | None = None, **definition: Any) -> Verdict:
    context = context or make_check_context("First.", SAID, inputs=["Please pay W1 at once", "and now?"])
    context.state.helpers = judges
    assertion = {"type": "agent", "criteria": "It is paid", **definition}
    return asyncio.run(bench.evaluate_async(assertion, context))


def test_a_judges_reply_becomes_the_verdict(bench: Bench):  # N26
    judges = Judges({"passed": True, "score": 0.9, "reason": "paid", "suggestions": ["say so"]})
    verdict = verdict_of(bench, judges, metadata={"tone": "warm"})
    assert verdict == Verdict("passed", "paid", score=0.9, suggestions=("say so",))
    (metadata,) = judges.told
    assert {**metadata, "output": ""} == {
        "tone": "warm", "criteria": "It is paid", "output": "", "input": "and now?", "turn_number": 2, "turn_count": 2, "files": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("use", "name"), [("agents:strict", "strict"), ("strict", "strict"), ("agents:viva.validator", "viva.validator")]
)
def test_a_judge_is_an_agent_of_that_name(bench: Bench, use: str, name: str):  # N28
    judges = Judges({"passed": True})
    assert verdict_of(bench, judges, use=use).passed
    assert judges.names == [name]


def test_the_question_contains_tool_calls_and_files(bench: Bench):
    """P4: of the step; where the whole case is judged, of all of it, with the conversation."""
    judges = Judges({"passed": True}, {"passed": True})
    context = make_check_context("First.", SAID, inputs=["Pay W1", "and now?"])
    context.state.turns[0].files = (FileChange("old.txt", "removed"),)
    context.state.turns[1].files = (FileChange("a.txt", "added", diff="+x"),)
    verdict_of(bench, judges, context)
    verdict_of(bench, judges, CheckContext(context.state, context.turn, turn_scope="case"))
    step, whole = judges.asked
    assert "Criteria: It is paid" in step
    assert '{"name":"pay","arguments":{"id":"W1"},"result":{"ok":true}}' in step
    assert step.endswith('{"path":"a.txt","change":"added"}')
    assert "Pay W1" not in step
    assert '{"role":"user","text":"Pay W1"}' in whole
    assert '{"path":"old.txt","change":"removed"}' in whole
    assert [len(told["files"]) for told in judges.told] == [1, 2]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("fine", "it is not a JSON object with a boolean `passed`"),
        ({}, "it has no boolean `passed`"),
        ({"passed": 1}, "it has no boolean `passed`"),
        ({"passed": True, "score": "high"}, "its `score` is not a number"),
        ({"passed": True, "score": True}, "its `score` is not a number"),
        ({"passed": True, "evidence": "Thank you"}, "its `evidence` is not a list"),
        ({"passed": True, "evidence": [{"turn": 1}]}, "a piece of `evidence` has no `quote`"),
        ({"passed": True, "evidence": [{"quote": "never said"}]}, "the quote 'never said' is not in the conversation"),
        ({"passed": True, "evidence": [{"quote": "Thank you ... It is"}]}, "is not in the conversation"),
        ({"passed": True, "evidence": [{"quote": "..."}]}, "is not in the conversation"),
        ({"passed": True, "evidence": [{"quote": "Thank you"}]}, "is too short to show anything"),
        ({"passed": True, "evidence": [{"quote": "done"}]}, "is too short to show anything"),
        ({"passed": True, "evidence": [{"quote": "Please pay W1 at once"}]}, "is what the user said"),
        ({"passed": True, "pass": False}, "contradict each other"),
        ('{"passed": true, "reason": "a", "passed": false}', "contradict each other"),
        ('{"passed": true}\nOn second thought:\n```json\n{"passed": false}\n```', "contradict each other"),
        ('[{"passed": true}, {"passed": false}]', "contradict each other"),
        (HelperFailed("judge", "down"), "down"),
    ],
)
def test_an_unusable_reply_is_an_error_also_with_negate(bench: Bench, answer: Answer, message: str):
    for negate in (False, True):  # N24
        verdict = verdict_of(bench, Judges(answer), negate=negate)
        assert verdict.status == "error"
        assert message in verdict.reason


@pytest.mark.parametrize(
    ("quote", "turn"),
    [
        ("he said: Thank you", 2),
        ("he  said:\nthank  YOU", 2),
        ("“he said: 'Thank you'”", 2),
        ("It is ... thank you", 2),
        ("It is [...] thank you", 2),
        ("First", 1),
        ("pay", 2),
        ('{"id": "W1"}', 2),
        ('"arguments": {"id": "W1"}', 2),
        ("It is […] thank you".replace("[…]", "…"), 2),
        ('he said:\\n\\"Thank you\\"', 2),
        ('{"name":"pay","arguments":{"id":"W1"},"result":{"ok":true}}', 2),
        ('"state":"paid"', 2),
        ("before all", 0),
    ],
)
def test_quotes_are_found_in_texts_tool_calls_and_files(bench: Bench, quote: str, turn: int):  # N26
    context = make_check_context("First.", SAID, inputs=["Pay W1", "and now?"])
    history = (
        Message("user", "Earlier"),
        Message("assistant", "", tool_calls=(ToolCall("look", result="before all"),)),
    )
    context.state.case = structs.replace(context.state.case, history=history)
    judges = Judges({"passed": True, "evidence": [{"turn": 7, "quote": quote}]})
    assert verdict_of(bench, judges, context).evidence == (Quote(turn, quote),)


@pytest.mark.parametrize(
    ("criteria", "is_about"),
    [
        ("The user gives the number of the order", True),
        ("An impatient customer asks twice", True),
        ("Did the user say goodbye?", True),
        ("It asks again when the user is unclear", True),
        ("The user's tone stays polite", True),
        ("Der Benutzer nennt seine Adresse", True),
        ("L'utilisateur donne son adresse", True),
        ("用户提供了订单号", True),
        ("", True),
        ("The assistant tells the user the price", False),
        ("It answers the customer's question", False),
        ("The reply is user-friendly", False),
        ("It is paid", False),
    ],
)
def test_the_user_may_be_quoted_only_for_criteria_about_the_user(bench: Bench, criteria: str, is_about: bool):  # N26
    judges = Judges({"passed": True, "evidence": [{"turn": 1, "quote": "Please pay W1"}]})
    definition: dict[str, Any] = {"criteria": criteria} if criteria else {"criteria": "", "use": "agents:mine"}
    assert (verdict_of(bench, judges, **definition).status == "passed") == is_about


def test_other_json_around_the_verdict_is_ignored(bench: Bench):  # N26, N29
    message = 'I compared {"state": "paid"} with the criterion.\n{"passed": false, "reason": "no", "steps": [{"passed": true}]}'
    verdict = verdict_of(bench, Judges(message))
    assert (verdict.status, verdict.reason) == ("failed", "no")


def test_an_empty_reply_needs_no_quote(bench: Bench):
    context = make_check_context("", inputs=["Please pay W1"])
    assert verdict_of(bench, Judges({"passed": False}, must_quote=True), context).status == "failed"


def test_a_judge_that_must_quote_is_an_error_without_a_quote(bench: Bench):  # N26
    assert verdict_of(bench, Judges({"passed": True}, must_quote=True)).status == "error"
    assert verdict_of(bench, Judges({"passed": True}, must_quote=False)).status == "passed"


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ({"passed": True, "score": 0.8}, "passed", ""),
        ({"passed": True, "score": 0.7}, "passed", ""),
        ({"passed": True, "score": 0.5, "reason": "so so"}, "failed", "score 0.5 is below 0.7: so so"),
        ({"passed": False, "score": 0.9, "reason": "no"}, "failed", "no"),
        ({"passed": True}, "error", "it has no `score`, which `min_score` 0.7 needs"),
    ],
)
def test_min_score_needs_a_score(bench: Bench, answer: Answer, status: str, reason: str):
    verdict = verdict_of(bench, Judges(answer), min_score=0.7)
    assert (verdict.status, verdict.reason) == (status, reason)


YES, NO, DOWN = {"passed": True, "reason": "yes"}, {"passed": False, "reason": "no"}, HelperFailed("judge", "down")


@pytest.mark.parametrize(
    ("ballots", "status", "reason"),
    [
        ((YES, NO, YES), "passed", "2 of 3 votes: yes"),
        ((NO, NO, YES), "failed", "2 of 3 votes: no"),
        ((YES, DOWN, YES), "passed", "2 of 3 votes: yes"),
        ((YES, DOWN, NO), "error", "down"),
        ((YES, NO), "error", "no majority among 2 votes"),
    ],
)
def test_the_majority_decides_if_there_is_one(bench: Bench, ballots: Sequence[Answer], status: str, reason: str):  # N26
    verdict = verdict_of(bench, Judges(*ballots), votes=len(ballots))
    assert (verdict.status, verdict.reason) == (status, reason)


def test_evidence_and_suggestions_are_those_of_the_vote_that_gives_the_reason(bench: Bench):
    ballots = [
        {"passed": verdict, "reason": quote, "evidence": [{"turn": 2, "quote": quote}], "suggestions": [quote]}
        for verdict, quote in ((False, "It is «done»"), (True, "he said: Thank you"), (True, '"state":"paid"'))
    ]
    verdict = verdict_of(bench, Judges(*ballots), votes=3)
    assert verdict.reason == "2 of 3 votes: he said: Thank you"
    assert (verdict.evidence, verdict.suggestions) == ((Quote(2, "he said: Thank you"),), ("he said: Thank you",))


@pytest.mark.parametrize("definition", [{"votes": 3}, {"type": "rubric", "criteria": ["a", "b", "c"]}])
def test_a_stopped_run_ends_a_vote_at_once(bench: Bench, definition: Mapping[str, Any]):
    with pytest.raises(RunStopped):
        verdict_of(bench, Judges(YES, DOWN, RunStopped("the budget is spent", is_budget=True)), **definition)


CRITERIA = [{"criterion": "a", "weight": 3}, "b"]


@pytest.mark.parametrize(
    ("answers", "min_score", "status", "score"),
    [
        ((YES, YES), 1.0, "passed", 1.0),
        ((YES, NO), 0.75, "passed", 0.75),
        ((YES, NO), 0.76, "failed", 0.75),
        ((NO, NO), 0.0, "passed", 0.0),
    ],
)
def test_the_score_of_a_rubric_is_the_weight_that_holds(
    bench: Bench, answers: Sequence[Answer], min_score: float, status: str, score: float
):
    verdict = verdict_of(bench, Judges(*answers), type="rubric", criteria=CRITERIA, min_score=min_score)
    assert (verdict.status, verdict.score) == (status, score)


@pytest.mark.parametrize(("second", "status"), [(YES, "passed"), (NO, "failed")])
def test_a_rubric_without_min_score_needs_all_its_criteria(bench: Bench, second: Answer, status: str):
    assert verdict_of(bench, Judges(YES, second), type="rubric", criteria=CRITERIA).status == status


def test_the_reason_of_a_rubric_starts_with_what_is_not_met(bench: Bench):
    """Lists and narrow consoles cut a long reason at its end."""
    verdict = verdict_of(bench, Judges(YES, NO), type="rubric", criteria=["is kind", "names the day"])
    assert verdict.reason.index("not met: names the day") < verdict.reason.index("; met: is kind")
    assert [each.criterion for each in verdict.criteria] == ["is kind", "names the day"]


def test_a_quote_that_several_turns_contain_is_of_the_named_one_else_of_the_first(bench: Bench):  # N26
    for named, turn in ((2, 2), (3, 3), (7, 1), (None, 1)):
        context = make_check_context("It is paid now.", "It is paid now.", "It is paid now.")
        judges = Judges({"passed": True, "evidence": [{"turn": named, "quote": "it is paid"}]})
        assert verdict_of(bench, judges, context).evidence == (Quote(turn, "it is paid"),)


def test_each_tool_call_is_a_line_of_the_question(bench: Bench):
    judges = Judges({"passed": True})
    verdict_of(bench, judges, make_check_context(Reply("Done.", tool_calls=(CALL, ToolCall("log", {})))))
    assert judges.asked[0].splitlines()[-2:] == [
        '{"name":"pay","arguments":{"id":"W1"},"result":{"ok":true}}',
        '{"name":"log","arguments":{}}',
    ]


@pytest.mark.parametrize(
    ("definition", "label"),
    [
        ({"type": "agent", "criteria": "It is paid"}, 'judge "It is paid"'),
        ({"type": "agent", "use": "agents:strict"}, 'judge "agents:strict"'),
        ({"type": "agent", "use": "agents:strict", "metadata": {"criteria": "polite"}}, 'judge "polite"'),
        ({"type": "rubric", "criteria": ["a", "b"]}, "rubric of 2 criteria"),
    ],
)
def test_a_judge_is_costly_and_named_by_its_question(bench: Bench, definition: Mapping[str, Any], label: str):  # N14
    check = bench.assertion(definition).check
    assert (check.label, check.costly) == (label, True)


def test_a_rubric_waits_for_all_its_judges(bench: Bench):
    judges = Judges(DOWN, YES, YES)
    verdict = verdict_of(bench, judges, type="rubric", criteria=["a", "b", "c"])
    assert (verdict.status, judges.working, len(judges.asked)) == ("error", 0, 3)


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ({"type": "agent"}, "is missing 'criteria'"),
        ({"type": "agent", "use": "scripts:a.b", "criteria": "x"}, "use the assertion type 'script'"),
        ({"type": "rubric", "criteria": [{"criterion": "a", "weight": 0}]}, "add up to 0"),
        ({"type": "rubric", "criteria": [{"criterion": each, "weight": 1e308} for each in "ab"]}, "give smaller ones"),
    ],
)
def test_misuse_is_refused_at_load(bench: Bench, definition: Mapping[str, Any], message: str):  # N24
    with pytest.raises(ValueError, match=message):
        bench.assertion(definition)
