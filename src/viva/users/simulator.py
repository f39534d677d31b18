"""A user that an agent plays: it sees the conversation and says what the user would say next."""

import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

from msgspec import Struct

from viva.errors import HelperFailed
from viva.model import codec
from viva.model.case import UserMessage
from viva.model.message import Message, Reply
from viva.state.trial_state import EXAMPLE_INPUT, TrialState, reply_text, structured_answer
from viva.text.template import fill_variables
from viva.users.script import fill_user_message

FIRST = "Write the user's first message."
_OTHER_SIDE = re.compile(r"[\s*_#>(\[\"'“]*(?:ai\s+)?(?:assistant|agent)[\s*_)\]\"'”]*[:：]", re.IGNORECASE)
_SPACE = re.compile(r"\s+")
_MARKS = " \"'“”„‘’«».!?…*_`"


class SimulatorReply(Struct, frozen=True):
    """What a simulator answered."""

    text: str
    goal_achieved: bool = False
    reasoning: str = ""


class Simulator(Struct, frozen=True):
    """Says `lines` first (the case's own input), then whatever the agent `use` makes of the conversation.

    `can_end` is false where only the goal ends the talk: its `goal_achieved` is then no more than an opinion.
    `filled` is false where `{{words}}` are what somebody really says, and no variables.
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
        for line in self.planned_messages:
            yield fill_user_message(line, state) if self.has_variables else line
        options = self._filled_options(state) if self.has_variables else self.options
        options = {**options, "metadata": {**options.get("metadata", {}), "can_end": self.can_end}}
        heard: int | None = None
        async with state.helpers.open("simulator", self.use, state, options) as helper:
            while True:
                guard = SimulatorGuard(
                    state, _facts(helper.metadata), may_repeat=helper.may_repeat, can_end=self.can_end
                )
                spoken = await helper.ask(_prompt(state, options, heard), guard.parse)
                heard = len(state.turns)
                if spoken.goal_achieved and self.can_end:
                    if not state.turns:
                        raise HelperFailed(
                            "simulator", "says that the goal is achieved before the agent has said anything"
                        )
                    state.goal_reason = spoken.reasoning or "the simulator says so"
                    return
                yield UserMessage(Message("user", spoken.text), source="simulated", comment=spoken.reasoning or None)

    def _filled_options(self, state: TrialState) -> Mapping[str, Any]:
        """The options with variables filled in: the facts of this user, and those of the case."""
        facts: Mapping[str, Any] = fill_variables(
            facts_from_options(self.options), state.variables, unset_reasons=state.unset_variables
        )
        return fill_variables(self.options, {**state.variables, **facts}, unset_reasons=state.unset_variables)


def facts_from_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a simulated user knows, by `metadata.facts` of its options."""
    metadata: Any = options.get("metadata")
    facts: Any = cast("Mapping[str, Any]", metadata).get("facts") if isinstance(metadata, Mapping) else None
    return cast("Mapping[str, Any]", facts) if isinstance(facts, Mapping) else {}


def _prompt(state: TrialState, options: Mapping[str, Any], heard: int | None) -> str:
    """What is new for the one who plays the user and has `heard` of so many turns: the agent's reply to its own words,
    what a person said in its place or, the first time, who the user is and all that was said.
    """
    new = state.turns[heard or 0 :]
    if heard is not None and len(new) == 1 and new[0].user_message.source == "simulated":
        return reply_text(new[0].reply) if new[0].reply else ""
    metadata = options.get("metadata", {}) if heard is None else {}
    about = [f"{key.capitalize()}: {metadata[key]}" for key in ("persona", "goal") if metadata.get(key)]
    for turn in new:
        about.append(f"You have said: {turn.user_message.message.text}")
        about.append(f"The assistant answered: {reply_text(turn.reply) if turn.reply else ''}")
    return "\n".join([*about, FIRST if not state.turns else "Write the user's next message."])


def _facts(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The facts that the simulator was told, slot by slot; facts in plain words cannot be compared."""
    facts: Any = metadata.get("facts")
    return {str(slot): value for slot, value in facts.items()} if isinstance(facts, Mapping) else {}


class SimulatorGuard(Struct, frozen=True):
    """Tells, without a model, whether a simulator's answer can be used; what cannot is the simulator's fault."""

    state: TrialState
    facts: Mapping[str, Any]
    may_repeat: bool = False
    can_end: bool = True

    def parse(self, reply: Reply) -> SimulatorReply:
        """The answer, or ValueError with the reason."""
        spoken = parse_simulator_reply(reply)
        if spoken.goal_achieved and self.can_end:
            return spoken
        if not spoken.text.strip():
            raise ValueError("it is empty" + ("" if self.can_end else ", but the conversation goes on"))
        if normalize_text(spoken.text) == EXAMPLE_INPUT:
            raise ValueError("it copies the example; the user's own words are wanted")
        if _OTHER_SIDE.match(spoken.text):
            raise ValueError("it speaks for the assistant; only the user's own words are wanted")
        if not self.may_repeat and (last := normalize_text(self._last_reply())) and normalize_text(spoken.text) == last:
            raise ValueError("it repeats the assistant's last reply")
        if not self.may_repeat and self._third_time(spoken.text):
            raise ValueError("it is the same message a third time running, although the assistant answered differently")
        self._check_facts(spoken.text, reply)
        return spoken

    def _last_reply(self) -> str:
        """What the agent said last, be it before the first turn."""
        if (last := self.state.last_turn) is not None:
            return reply_text(last.reply) if last.reply is not None else ""
        before = [message.text for message in self.state.case.history if message.role == "assistant"]
        return before[-1] if before else ""

    def _third_time(self, text: str) -> bool:
        before = self.state.turns[-2:]
        if len(before) < 2 or any(
            normalize_text(turn.user_message.message.text) != normalize_text(text) for turn in before
        ):
            return False
        first, second = (_reaction(turn.reply) for turn in before)
        return first != second

    def _check_facts(self, text: str, reply: Reply) -> None:
        answer = structured_answer(reply)
        claimed = cast("Mapping[str, Any]", answer).get("facts") if isinstance(answer, Mapping) else None
        for slot, value in self.facts.items():
            if (
                isinstance(claimed, Mapping)
                and slot in claimed
                and normalize_text(str(claimed[slot])) != normalize_text(str(value))
            ):
                raise ValueError(f"it says that {slot} is {claimed[slot]!r}, but its facts say {value!r}")
            other = other_value(text, slot, str(value))
            if other is not None:
                raise ValueError(f"it says that {slot} is {other!r}, but its facts say {value!r}")


def parse_simulator_reply(reply: Reply) -> SimulatorReply:
    """`{input|message, goal_achieved, reasoning}`, fenced or with words around it; a plain text is the message."""
    if reply.finish_reason == "length":
        raise ValueError("it was cut off at its longest; answer more briefly")
    answer = structured_answer(reply)
    if not isinstance(answer, Mapping):
        text = reply.content.strip() if reply.data is None else ""
        if text.startswith(("{", "```")):
            raise ValueError("it is no valid JSON")
        return SimulatorReply(text)
    given = cast("Mapping[str, Any]", answer)
    if "input" not in given and "message" not in given and "goal_achieved" not in given:
        whole = reply.data is not None or reply.content.strip().startswith(("{", "```"))
        if not whole:  # a message that happens to hold some JSON
            return SimulatorReply(reply.content.strip())
        raise ValueError(f"it has no `input`; it holds {', '.join(map(repr, given)) or 'nothing'}")
    if "input" in given and "message" in given and given["input"] != given["message"]:
        raise ValueError("it gives both `input` and `message`")
    text = given.get("input", given.get("message"))
    if text is not None and not isinstance(text, str):
        raise ValueError("its `input` is not a text")
    achieved = given.get("goal_achieved") or False
    if not isinstance(achieved, bool):
        raise ValueError("its `goal_achieved` is neither true nor false")
    return SimulatorReply(text or "", achieved, str(given.get("reasoning") or ""))


def _reaction(reply: Reply | None) -> tuple[str, str]:
    """What an agent said and did, to tell whether it did the same again."""
    if reply is None:
        return "", ""
    calls = [(call.name, call.arguments) for call in reply.tool_calls]
    return normalize_text(reply_text(reply)), codec.compact_json(calls)


def normalize_text(text: str) -> str:
    """Without differences in white space and case, and without marks around the whole: "Refund me!" is `refund me`."""
    return _SPACE.sub(" ", text).strip(_MARKS).casefold()


_NUMBER = re.compile(r"[$€£]?\s*(\d[\d,]*(?:\.\d+)?)\s*(?:usd|eur|gbp|dollars?|euros?|pounds?|%)?", re.IGNORECASE)
_ID = re.compile(r"#?(?=[\w-]*\d)[\w-]+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def other_value(text: str, slot: str, value: str) -> str | None:
    """Another value than the fact's, given for that very slot: `my order id is W-2` where the fact is `W-1`.

    Only what is surely another one counts: amounts by their value, ids and numbers without their hyphens, ISO dates,
    and names that are a single word. Anything else may be the same in other words.
    """
    words = r"[\s_-]+".join(map(re.escape, re.split(r"[\s_-]+", slot)))
    for found in re.finditer(rf"\b{words}\b\s*(?:is|was|=|:|number is|would be)\s*", text, re.IGNORECASE):
        given = _token(text[found.end() :])
        if given is not None and _differs(given, value.strip()):
            return given
    return None


def _token(text: str) -> str | None:
    """The first word behind `is`, without marks around it."""
    word = re.match(r"[\"'(]?([$€£#]?\w[\w.,:/@+-]*)", text)
    return word[1].rstrip(".,:") if word else None


def _differs(given: str, value: str) -> bool:
    amount = _NUMBER.fullmatch(value)
    if amount is not None:
        said = _NUMBER.fullmatch(given)
        return said is not None and _number(said[1]) != _number(amount[1])
    if _DATE.fullmatch(value):
        return _DATE.fullmatch(given) is not None and given != value
    if _ID.fullmatch(value):
        return _ID.fullmatch(given) is not None and _bare(given) != _bare(value)
    # A name: one word, in capitals like the fact itself. "The city is lovely" says nothing about its name.
    one_word = value.isalpha() and given.isalpha() and value[:1].isupper() and given[:1].isupper()
    return one_word and given.casefold() != value.casefold()


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _bare(value: str) -> str:
    return re.sub(r"\W|_", "", value).casefold()
