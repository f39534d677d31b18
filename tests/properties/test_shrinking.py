"""Shrinking finds the planted bug: what is left still fails, and nothing of it can be left out."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from viva.api.shrink import FailedConversation, FailureRate, Shrinker, ShrinkResult, find_recorded_case, minimize_items
from viva.errors import BadInput
from viva.session.options.run_options import AllRunOptions
from viva.session.run import execute
from viva.session.run_plan import build_run_plan

NOISE = st.sampled_from(["please", "now", "the", "order", "again", "thanks"])


@given(st.lists(st.integers(0, 9), max_size=12), st.sets(st.integers(0, 9), max_size=4))
def test_of_what_is_left_no_item_can_be_dropped(items: list[int], needed: set[int]):
    async def fails(some: Sequence[int]) -> bool:
        return needed <= set(some)

    found = asyncio.run(minimize_items(items, fails))
    if needed <= set(items):
        assert sorted(found) == sorted(needed)
    else:
        assert found == items


@given(st.lists(st.integers(0, 30), max_size=15), st.integers(0, 2**15))
def test_that_holds_for_any_failure_whatsoever(items: list[int], seed: int):
    """Even one that comes and goes as items are left out: a hash decides."""

    async def fails(some: Sequence[int]) -> bool:
        return tuple(some) == tuple(items) or hash((seed, tuple(some))) % 3 == 0

    found = asyncio.run(minimize_items(items, fails))
    assert asyncio.run(fails(found))
    assert not any(asyncio.run(fails(found[:at] + found[at + 1 :])) for at in range(len(found)))


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Turns of noise, with the words of a planted bug among them."""
    turns = [list(draw(st.lists(NOISE, min_size=1, max_size=4))) for _ in range(draw(st.integers(1, 6)))]
    triggers = [f"trigger{n}" for n in range(draw(st.integers(0, 3)))]
    for trigger in triggers:
        turn = turns[draw(st.integers(0, len(turns) - 1))]
        turn.insert(draw(st.integers(0, len(turn))), trigger)
    return [" ".join(turn) for turn in turns], triggers


class Planted:
    """An agent that fails once it has got all the words, in any turns."""

    def __init__(self, triggers: Sequence[str]) -> None:
        self.triggers = triggers

    def answer(self, said: Sequence[str]) -> str:
        heard = " ".join(said).split()
        return "broken" if all(trigger in heard for trigger in self.triggers) else "fine"

    def reply(self, messages):
        return self.answer([message["content"] for message in messages if message["role"] == "user"])


def shrunk(turns: list[str], agent: Planted, *, final: bool) -> ShrinkResult:
    check = {"type": "not_contains", "value": "broken"}
    lines: list[dict[str, Any]] = [{"input": turn} for turn in turns]
    if not final:
        lines[-1]["assertions"] = [check]
    case = {"id": "c", "turns": lines, **({"final_assertions": [check]} if final else {})}

    async def scenario() -> ShrinkResult:
        prepared = await build_run_plan(AllRunOptions(inputs=(), cases=(case,), agents=(agent,), history=False))
        (record,) = (await execute(prepared)).records()
        assert record.status == "failed"
        held = FailedConversation(await find_recorded_case(prepared, record), record)
        return await Shrinker(prepared, held).shrink(Path())

    return asyncio.run(scenario())


@settings(max_examples=25, deadline=None)
@given(conversations(), st.booleans())
def test_a_planted_bug_is_all_that_is_left(state: tuple[list[str], list[str]], final: bool):
    """It fails, no turn can be dropped, and each word is one that is needed, or the only one of the turn with the check."""
    turns, triggers = state
    agent = Planted(triggers)
    found = shrunk(turns, agent, final=final)
    said = [turn["input"] for turn in found.case["turns"]]
    assert agent.answer(said) == "broken"
    fixed = 0 if final else 1
    for at in range(len(said) - fixed):
        fewer = said[:at] + said[at + 1 :]
        assert not fewer or agent.answer(fewer) == "fine"
    words = " ".join(said).split()
    assert len(words) - len(triggers) <= 1
    assert found.is_minimal
    assert found.turns == (len(turns), len(said))
    assert found.words[1] == len(words)


class Unsteady(Planted):
    """Fails mostly if it has got all the words, and sometimes if it has not: a seeded random number decides."""

    def __init__(self, triggers: Sequence[str], often: int, seldom: int, seed: int) -> None:
        super().__init__(triggers)
        self.dice = random.Random(seed)
        self.shares = {"broken": often, "fine": seldom}

    def answer(self, said: Sequence[str]) -> str:
        return "broken" if self.dice.randrange(10) < self.shares[super().answer(said)] else "fine"


@settings(max_examples=15, deadline=None)
@given(conversations(), st.integers(5, 10), st.integers(0, 1), st.integers(0, 2**16))
def test_of_an_unsteady_agent_nothing_is_taken_that_fails_by_chance(
    state: tuple[list[str], list[str]], often: int, seldom: int, seed: int
):
    """How often it failed is told as it was; what is left failed in the end about as often as it should."""
    turns, triggers = state
    agent = Unsteady(triggers, often, seldom, seed)
    check = {"type": "not_contains", "value": "broken"}
    case = {"id": "c", "turns": [{"input": turn} for turn in turns], "final_assertions": [check]}

    async def scenario() -> ShrinkResult | None:
        prepared = await build_run_plan(AllRunOptions(inputs=(), cases=(case,), agents=(agent,), history=False))
        (record,) = (await execute(prepared)).records()
        if record.status != "failed":
            return None
        held = FailedConversation(await find_recorded_case(prepared, record), record)
        try:
            return await Shrinker(prepared, held, required=FailureRate(3, 5), max_trials=2000).shrink(Path())
        except BadInput:
            return None

    found = asyncio.run(scenario())
    if found is None:
        return
    assert found.failures.total == 5
    assert found.failures.is_at_least(FailureRate(3, 5))
    assert found.original_failures.is_at_least(FailureRate(3, 5))
    if seldom == 0:
        heard = " ".join(turn["input"] for turn in found.case["turns"]).split()
        assert set(triggers) <= set(heard)


@given(st.integers(0, 20), st.integers(1, 20), st.integers(1, 20), st.integers(1, 20))
def test_as_often_is_a_matter_of_shares(count: int, of: int, wanted: int, wanted_of: int):
    assert FailureRate(count, of).is_at_least(FailureRate(wanted, wanted_of)) == (
        count / of >= wanted / wanted_of - 1e-12
    )


@settings(max_examples=10, deadline=None)
@given(conversations())
def test_what_is_as_small_as_can_be_stays_as_it_is(state: tuple[list[str], list[str]]):
    turns, triggers = state
    found = shrunk(turns, Planted(triggers), final=True)
    said = [turn["input"] for turn in found.case["turns"]]
    again = shrunk(said, Planted(triggers), final=True)
    assert [turn["input"] for turn in again.case["turns"]] == said
    assert again.failures == again.original_failures == FailureRate(3, 3)


ALONG = st.sampled_from(["old news", "weather", "a birthday"])


@settings(max_examples=15, deadline=None)
@given(st.lists(ALONG, max_size=4), st.lists(ALONG, max_size=3), st.integers(0, 3))
def test_of_what_came_along_only_the_cause_is_left(memory: list[str], said_before: list[str], others: int):
    """Prior messages, memory and canned tools become fewer too; no tool runs live for it."""

    def agent(messages, tools, memory):
        answer = tools.call("look_up", order=7) if "poison" in memory else ""
        return "broken" if answer == "rotten" else "fine"

    history = [{"role": "user", "content": text} for text in said_before]
    case = {
        "id": "c",
        "input": [*history, {"role": "user", "content": "go"}],
        "fixtures": {
            "tools": [{"tool": f"other{n}"} for n in range(others)] + [{"tool": "look_up", "response": "rotten"}],
            "memory": [*memory, "poison"],
        },
        "assertions": [{"type": "not_contains", "value": "broken"}],
    }

    async def scenario() -> ShrinkResult:
        prepared = await build_run_plan(AllRunOptions(inputs=(), cases=(case,), agents=(agent,), history=False))
        (record,) = (await execute(prepared)).records()
        assert record.status == "failed", record
        return await Shrinker(prepared, FailedConversation(await find_recorded_case(prepared, record), record)).shrink(
            Path()
        )

    found = asyncio.run(scenario())
    assert found.case["fixtures"] == {"tools": [{"tool": "look_up", "response": "rotten"}], "memory": ("poison",)}
    assert found.case["turns"][0]["input"] == "go"
    assert found.extras == (len(memory) + len(said_before) + others + 2, 2)
