"""A user that an agent plays: it sees the conversation and writes the next message of the user."""

import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from msgspec import Struct, structs

from viva.errors import HelperFailed
from viva.model import codec
from viva.model.case import UserMessage
from viva.model.message import Message, Reply
from viva.state.trial_state import EXAMPLE_INPUT, TrialState, get_reply_text, get_structured_answer
from viva.text.pattern import LazyPattern
from viva.text.reasoning import drop_reasoning
from viva.text.template import fill_variables
from viva.users.script import fill_user_message

_FIRST_PROMPT = "Write the user's first message."
_SPEAKS_AS_ASSISTANT = LazyPattern(r"[\s*_#>(\[\"'“]*(?:ai\s+)?(?:assistant|agent)[\s*_)\]\"'”]*[:：]", re.IGNORECASE)
_SPACE = LazyPattern(r"\s+")
_MARKS = " \"'“”„‘’«».!?…*_`"


class SimulatorReply(Struct, frozen=True):
    """The parsed reply of a simulator."""

    text: str
    goal_achieved: bool = False
    reasoning: str = ""


class Simulator(Struct, frozen=True):
    """A user that sends `planned_messages` (the case's own input), then messages that the agent `use` writes.

    With `can_end` the conversation ends when that agent says `goal_achieved`; without it only the criteria of the case end
    the conversation. Without `has_variables`, `{{braces}}` in messages are literal text.
    """

    use: str
    options: Mapping[str, Any] = {}
    planned_messages: tuple[UserMessage, ...] = ()
    can_end: bool = True
    has_variables: bool = True

    @property
    def simulator(self) -> str | None:
        return self.use

    async def speak(self, state: TrialState) -> AsyncGenerator[UserMessage, None]:
        for message in self.planned_messages:
            yield fill_user_message(message, state) if self.has_variables else message
        options = self._fill_options(state) if self.has_variables else self.options
        options = {**options, "metadata": {**options.get("metadata", {}), "can_end": self.can_end}}
        seen_turns: int | None = None
        async with state.helpers.open("simulator", self.use, state, options) as helper:
            while True:
                guard = SimulatorReplyValidator(
                    state, _get_facts(helper.metadata), may_repeat=helper.may_repeat, can_end=self.can_end
                )
                answer = await helper.ask(_build_prompt(state, options, seen_turns), guard.parse)
                seen_turns = len(state.turns)
                if answer.goal_achieved and self.can_end:
                    if not state.turns:
                        raise HelperFailed(
                            "simulator", "says that the goal is achieved before the agent has said anything"
                        )
                    state.goal_reason = answer.reasoning or "the simulator says so"
                    return
                yield UserMessage(Message("user", answer.text), source="simulated", comment=answer.reasoning or None)

    def _fill_options(self, state: TrialState) -> Mapping[str, Any]:
        """The options, filled with the variables of the case and the facts of this user."""
        facts: Mapping[str, Any] = fill_variables(
            facts_from_options(self.options), state.variables, unset_reasons=state.unset_variables
        )
        return fill_variables(self.options, {**state.variables, **facts}, unset_reasons=state.unset_variables)


def facts_from_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts of a simulated user: `metadata.facts` of its options."""
    metadata: Any = options.get("metadata")
    facts: Any = cast("Mapping[str, Any]", metadata).get("facts") if isinstance(metadata, Mapping) else None
    return cast("Mapping[str, Any]", facts) if isinstance(facts, Mapping) else {}


def _build_prompt(state: TrialState, options: Mapping[str, Any], seen_turns: int | None) -> str:
    """The next prompt for a simulator that has seen the first `seen_turns` turns: the agent's new reply, and messages that a
    person wrote in place of the simulator's. The first prompt has the persona and all turns.
    """
    new = state.turns[seen_turns or 0 :]
    if seen_turns is not None and len(new) == 1 and new[0].user_message.source == "simulated":
        return get_reply_text(new[0].reply) if new[0].reply else ""
    metadata = options.get("metadata", {}) if seen_turns is None else {}
    lines = [f"{key.capitalize()}: {metadata[key]}" for key in ("persona", "goal") if metadata.get(key)]
    for turn in new:
        lines.append(f"You have said: {turn.user_message.message.text}")
        lines.append(f"The assistant answered: {get_reply_text(turn.reply) if turn.reply else ''}")
    return "\n".join([*lines, _FIRST_PROMPT if not state.turns else "Write the user's next message."])


def _get_facts(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts of the simulated user, by slot; empty if they are free text, which cannot be compared."""
    facts: Any = metadata.get("facts")
    return {str(slot): value for slot, value in facts.items()} if isinstance(facts, Mapping) else {}


class SimulatorReplyValidator(Struct, frozen=True):
    """Decides without a model whether a simulator's answer can be used."""

    state: TrialState
    facts: Mapping[str, Any]
    may_repeat: bool = False
    can_end: bool = True

    def parse(self, reply: Reply) -> SimulatorReply:
        """Parse the simulator's reply. Raises ValueError with the reason if it cannot be used."""
        reply = structs.replace(reply, content=drop_reasoning(reply.content))
        answer = parse_simulator_reply(reply)
        if answer.goal_achieved and self.can_end:
            return answer
        if not answer.text.strip():
            raise ValueError("it is empty" + ("" if self.can_end else ", but the conversation continues"))
        if normalize_text(answer.text) == EXAMPLE_INPUT:
            raise ValueError("it copies the example; write the user's own words")
        if _SPEAKS_AS_ASSISTANT.match(answer.text):
            raise ValueError("it speaks for the assistant; write only what the user says")
        if (
            not self.may_repeat
            and (last := normalize_text(self._find_last_agent_text()))
            and normalize_text(answer.text) == last
        ):
            raise ValueError("it repeats the assistant's last reply")
        if not self.may_repeat and self._is_third_repetition(answer.text):
            raise ValueError(
                "it is the same message for the third time in a row, although the assistant answered differently"
            )
        self._check_facts(answer.text, reply)
        return answer

    def _find_last_agent_text(self) -> str:
        """The agent's last text, also from before the first turn."""
        if (last := self.state.last_turn) is not None:
            return get_reply_text(last.reply) if last.reply is not None else ""
        before = [message.text for message in self.state.case.history if message.role == "assistant"]
        return before[-1] if before else ""

    def _is_third_repetition(self, text: str) -> bool:
        turns = self.state.turns[-2:]
        if len(turns) < 2 or any(normalize_text(t.user_message.message.text) != normalize_text(text) for t in turns):
            return False
        first, second = (_build_comparison_key(turn.reply) for turn in turns)
        return first != second

    def _check_facts(self, text: str, reply: Reply) -> None:
        answer = get_structured_answer(reply)
        stated = cast("Mapping[str, Any]", answer).get("facts") if isinstance(answer, Mapping) else None
        for slot, value in self.facts.items():
            if (
                isinstance(stated, Mapping)
                and slot in stated
                and normalize_text(str(stated[slot])) != normalize_text(str(value))
            ):
                raise ValueError(f"it says that {slot} is {stated[slot]!r}, but its facts say {value!r}")
            other = find_contradicting_value(text, slot, str(value))
            if other is not None:
                raise ValueError(f"it says that {slot} is {other!r}, but its facts say {value!r}")


def parse_simulator_reply(reply: Reply) -> SimulatorReply:
    """Parses `{input|message, goal_achieved, reasoning}`, fenced or among words; plain text is the message."""
    if reply.finish_reason == "length":
        raise ValueError("it was cut off at the token limit; answer more briefly")
    answer = get_structured_answer(reply)
    if not isinstance(answer, Mapping):
        text = reply.content.strip() if reply.data is None else ""
        if text.startswith(("{", "```")):
            raise ValueError("it is not valid JSON")
        return SimulatorReply(text)
    fields = cast("Mapping[str, Any]", answer)
    if "input" not in fields and "message" not in fields and "goal_achieved" not in fields:
        is_json = reply.data is not None or reply.content.strip().startswith(("{", "```"))
        if not is_json:  # a message that contains some JSON
            return SimulatorReply(reply.content.strip())
        raise ValueError(f"it has no `input`; it holds {', '.join(map(repr, fields)) or 'nothing'}")
    if "input" in fields and "message" in fields and fields["input"] != fields["message"]:
        raise ValueError("it gives both `input` and `message`")
    text = fields.get("input", fields.get("message"))
    if text is not None and not isinstance(text, str):
        raise ValueError("its `input` is not a text")
    achieved = fields.get("goal_achieved") or False
    if not isinstance(achieved, bool):
        raise ValueError("its `goal_achieved` is neither true nor false")
    return SimulatorReply(text or "", achieved, str(fields.get("reasoning") or ""))


def _build_comparison_key(reply: Reply | None) -> tuple[str, str]:
    """The text and tool calls of a reply, to compare it with another one."""
    if reply is None:
        return "", ""
    calls = [(call.name, call.arguments) for call in reply.tool_calls]
    return normalize_text(get_reply_text(reply)), codec.compact_json(calls)


def normalize_text(text: str) -> str:
    """Normalizes white space, case and surrounding punctuation: "Refund me!" is `refund me`."""
    return _SPACE.sub(" ", text).strip(_MARKS).casefold()


_NUMBER = LazyPattern(r"[$€£]?\s*(\d[\d,]*(?:\.\d+)?)\s*(?:usd|eur|gbp|dollars?|euros?|pounds?|%)?", re.IGNORECASE)
_ID = LazyPattern(r"#?(?=[\w-]*\d)[\w-]+")
_DELAY = LazyPattern(
    r"\d[\d.,]*\s+(?:second|minute|hour|day|week|month|year)s?\s+(?:late|early|ago|overdue|behind|away)\b",
    re.IGNORECASE,
)
"""What is said about a thing, not its value: "My order is 3 days late"."""
_DATE = LazyPattern(r"\d{4}-\d\d-\d\d")


def find_contradicting_value(text: str, slot: str, value: str) -> str | None:
    """The value that the text states for `slot`, if it differs from the fact: `my order id is W-2` if the fact is `W-1`.

    Only sure differences count: amounts by value, ids without hyphens, ISO dates, and one-word names. Anything else may
    be the same in other words.
    """
    words = r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", slot)))
    for match in re.finditer(rf"\b{words}\b\s*(?:is|was|=|:|number is|would be)\s*", text, re.IGNORECASE):
        rest = text[match.end() :]
        stated = _get_first_word(rest)
        if (
            stated is not None
            and _values_differ(stated, value.strip())
            and not _begins_with_value(rest, value)
            and not _DELAY.match(rest)
        ):
            return stated
    return None


def _begins_with_value(text: str, value: str) -> bool:
    """Does the text begin with the value, in pieces? `4111 1111` is `41111111`."""
    return re.match(r"[\s(#-]*" + r"[\s()-]*".join(_strip_punctuation(value)) + r"\b", text, re.IGNORECASE) is not None


def _get_first_word(text: str) -> str | None:
    """The first word, without surrounding punctuation."""
    word = re.match(r"[\"'(]?([$€£#]?\w[\w.,:/@+-]*)", text)
    return word[1].rstrip(".,:") if word else None


def _values_differ(stated: str, value: str) -> bool:
    amount = _NUMBER.fullmatch(value)
    if amount is not None:
        number = _NUMBER.fullmatch(stated)
        return number is not None and _parse_number(number[1]) != _parse_number(amount[1])
    if _DATE.fullmatch(value):
        return _DATE.fullmatch(stated) is not None and stated != value
    if _ID.fullmatch(value):
        return _ID.fullmatch(stated) is not None and _strip_punctuation(stated) != _strip_punctuation(value)
    # A name: one capitalized word, like the fact. "The city is lovely" does not name the city.
    is_name = value.isalpha() and stated.isalpha() and value[:1].isupper() and stated[:1].isupper()
    return is_name and stated.casefold() != value.casefold()


def _parse_number(text: str) -> float:
    return float(text.replace(",", ""))


def _strip_punctuation(value: str) -> str:
    return re.sub(r"\W|_", "", value).casefold()
