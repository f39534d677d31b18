"""`viva.rules`: a simulated user without a model. It answers the agent's questions from facts and rules, deterministically.

start       the first message, where the case gives no input
facts       slot -> value; the answer when the agent asks about the slot
ask         slot -> other words by which an agent asks about it
rules       [{when: pattern of the agent's reply, say: text with {{slots}}, times: maximum uses}]; tried first
done        a pattern: once the agent's reply matches it, the goal is achieved
otherwise   the answer when nothing matches
"""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from msgspec import Struct

from viva.agents.agent_config import AgentConfig, AgentSetup
from viva.model import codec
from viva.model.case import Feature
from viva.model.message import Message, Reply
from viva.protocols import SessionContext
from viva.text.pattern import LazyPattern, compile_pattern, has_pattern_match

_SENTENCE = LazyPattern(r"[^.!?\n。？！]*[.!?。？！]?")
_ASKING = LazyPattern(
    r"[?？]|\b(please|provide|tell me|let me know|need|enter|specify|what|which|how|when|where|who|could you|confirm)\b",
    re.IGNORECASE,
)
_OTHER_WORDS: Mapping[str, tuple[str, ...]] = {
    "amount": ("how much", "cost", "price", "total", "sum"),
    "price": ("how much", "cost", "amount"),
    "date": ("when", "what day", "which day"),
    "time": ("when", "what time"),
    "name": ("who", "called"),
    "reason": ("why", "purpose"),
    "purpose": ("why", "reason", "what for"),
    "destination": ("where",),
    "city": ("where",),
    "address": ("where",),
    "quantity": ("how many",),
    "count": ("how many",),
}
"""Other words by which agents ask for a slot; `ask` adds to them."""
_CONFIRMING = LazyPattern(
    r"\b(confirm\w*|proceed|go ahead|shall i|should i|is (?:this|that|it|everything) (?:right|correct|ok(?:ay)?)|correct\?|yes/no|y/n)\b",
    re.IGNORECASE,
)


class ReplyRule(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer to replies of the agent that match a pattern."""

    when: str
    say: str
    times: int | None = None

    def __post_init__(self) -> None:
        compile_pattern(self.when)


class Rules(Struct, frozen=True, kw_only=True):
    """The behaviour of the user, from `simulator.options.metadata`. Other keys are ignored."""

    start: str | None = None
    goal: str | None = None
    facts: Mapping[str, Any] = {}
    ask: Mapping[str, tuple[str, ...]] = {}
    rules: tuple[ReplyRule, ...] = ()
    done: str | None = None
    confirm: str = "Yes, please."
    otherwise: str = "I don't know."

    def __post_init__(self) -> None:
        if self.done is not None:
            compile_pattern(self.done)
        for slot in self.ask:
            if slot not in self.facts:
                raise ValueError(f"`ask` names {slot!r}, but `facts` does not have this slot")

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Rules":
        """Read the rules from the metadata of a message. Raises ValueError if they are invalid."""
        return codec.convert({key: value for key, value in metadata.items() if key in cls.__struct_fields__}, cls)


class RulesAgent(AgentConfig, frozen=True, kw_only=True):
    """A simulated user that follows rules, without a model."""

    may_repeat: ClassVar[bool] = True

    def build(self, setup: AgentSetup) -> "RulesAgent":
        return self

    @property
    def provides(self) -> frozenset[Feature]:
        return frozenset()

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["RulesSession"]:
        yield RulesSession()


class RulesSession:
    """One conversation. It counts the uses of each rule."""

    def __init__(self) -> None:
        self._used: dict[ReplyRule, int] = {}

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        metadata: Mapping[str, Any] = options.get("metadata", {})
        rules = Rules.from_metadata(metadata)
        reply = str(metadata.get("last_response") or "")
        if metadata.get("turn_number", 1) == 1:
            first = rules.start or rules.goal or ", ".join(map(str, rules.facts.values()))
            return Reply(data={"input": first, "goal_achieved": False})
        if rules.done is not None and has_pattern_match(rules.done, reply):
            return Reply(data={"input": "", "goal_achieved": True, "reasoning": f"the reply matches {rules.done!r}"})
        answer, reason = self._choose_answer(rules, reply)
        return Reply(data={"input": answer, "goal_achieved": False, "reasoning": reason})

    def _choose_answer(self, rules: Rules, reply: str) -> tuple[str, str]:
        for rule in rules.rules:
            if (rule.times is None or self._used.get(rule, 0) < rule.times) and has_pattern_match(rule.when, reply):
                self._used[rule] = self._used.get(rule, 0) + 1
                return rule.say, f"rule {rule.when!r}"
        if slots := _find_asked_slots(rules, reply):
            return ", ".join(str(rules.facts[slot]) for slot in slots), f"asked about {', '.join(slots)}"
        if _CONFIRMING.search(reply):
            return rules.confirm, "asked to confirm"
        return rules.otherwise, "no rule or fact matches"


def _find_asked_slots(rules: Rules, reply: str) -> list[str]:
    """The slots that the agent asks about, in the order of the facts. Only sentences that ask count."""
    questions = " ".join(part for part in _SENTENCE.findall(reply) if _ASKING.search(part)).casefold()
    slots: list[str] = []
    for slot in rules.facts:
        words = (slot.replace("_", " ").replace("-", " "), *_OTHER_WORDS.get(slot, ()), *rules.ask.get(slot, ()))
        if any(re.search(rf"\b{re.escape(word.casefold())}", questions) for word in words):
            slots.append(slot)
    return slots
