"""`viva.rules`: a simulated user without a model. It answers what the agent asks from facts and rules, always the same way.

start       the first message, where the case gives no input
facts       slot -> value; said when the agent asks about the slot
ask         slot -> other words by which an agent asks about it
rules       [{when: pattern of the agent's reply, say: text with {{slots}}, times: at most so often}]; tried first
done        a pattern: once the agent's reply matches it, the goal is achieved
otherwise   what is said when nothing fits
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
from viva.text.pattern import compile_pattern, search

_SENTENCE = re.compile(r"[^.!?\n。？！]*[.!?。？！]?")
_ASKING = re.compile(
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
"""By which other words agents ask for a slot of that name; `ask` adds to it."""
_CONFIRMING = re.compile(
    r"\b(confirm\w*|proceed|go ahead|shall i|should i|is (?:this|that|it|everything) (?:right|correct|ok(?:ay)?)|correct\?|yes/no|y/n)\b",
    re.IGNORECASE,
)


class ReplyRule(Struct, frozen=True, forbid_unknown_fields=True):
    """When the agent's reply matches, say this."""

    when: str
    say: str
    times: int | None = None

    def __post_init__(self) -> None:
        compile_pattern(self.when)


class Rules(Struct, frozen=True, kw_only=True):
    """How this user behaves: what `simulator.options.metadata` may hold (other keys are for people)."""

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
                raise ValueError(f"`ask` names {slot!r}, but `facts` has no such slot")

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Rules":
        """From metadata; raises ValueError with what is wrong."""
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
    """One conversation; it remembers how often each rule has spoken."""

    def __init__(self) -> None:
        self._used: dict[ReplyRule, int] = {}

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        metadata: Mapping[str, Any] = options.get("metadata", {})
        rules = Rules.from_metadata(metadata)
        heard = str(metadata.get("last_response") or "")
        if metadata.get("turn_number", 1) == 1:
            first = rules.start or rules.goal or ", ".join(map(str, rules.facts.values()))
            return Reply(data={"input": first, "goal_achieved": False})
        if rules.done is not None and search(rules.done, heard):
            return Reply(data={"input": "", "goal_achieved": True, "reasoning": f"the reply matches {rules.done!r}"})
        said, why = self._answer(rules, heard)
        return Reply(data={"input": said, "goal_achieved": False, "reasoning": why})

    def _answer(self, rules: Rules, heard: str) -> tuple[str, str]:
        for rule in rules.rules:
            if (rule.times is None or self._used.get(rule, 0) < rule.times) and search(rule.when, heard):
                self._used[rule] = self._used.get(rule, 0) + 1
                return rule.say, f"rule {rule.when!r}"
        if asked := _slots_asked(rules, heard):
            return ", ".join(str(rules.facts[slot]) for slot in asked), f"asked about {', '.join(asked)}"
        if _CONFIRMING.search(heard):
            return rules.confirm, "asked to confirm"
        return rules.otherwise, "nothing fits"


def _slots_asked(rules: Rules, heard: str) -> list[str]:
    """The slots that the agent asks about, in the order of the facts; only sentences that ask count."""
    asking = " ".join(part for part in _SENTENCE.findall(heard) if _ASKING.search(part)).casefold()
    found: list[str] = []
    for slot in rules.facts:
        words = (slot.replace("_", " ").replace("-", " "), *_OTHER_WORDS.get(slot, ()), *rules.ask.get(slot, ()))
        if any(re.search(rf"\b{re.escape(word.casefold())}", asking) for word in words):
            found.append(slot)
    return found
