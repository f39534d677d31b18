"""Does the agent wait for the user? Layers in the order of trust: its own word, its protocol's, its tools, how the model
stopped, and at last how the reply ends.

Wording is read backwards from the last sentence: a question or a request near the end means that the task waits. Small
talk, options and tables after it change nothing; an explanation that goes on after a question answers it, unless the
question was put to the user. No model, no state; the words stand in `awaiting_words` and `awaiting_languages`.
"""

import re
from collections.abc import Iterator
from typing import Final, Literal

from msgspec import UNSET

from viva.engine.awaiting_languages import language_of
from viva.engine.awaiting_words import DELIVERABLE, Language
from viva.model.message import Reply, ToolCall
from viva.model.talk import Awaiting

CONFIRMATION_TOOLS: Final = frozenset(
    [
        "request_confirmation",
        "ask_user",
        "get_user_input",
        "ask_followup_question",
        "ask_user_question",
        "AskUserQuestion",
        "ask_human",
        "ask_question",
        "human_input",
        "request_input",
        "request_user_input",
        "request_human_input",
        "request_approval",
        "request_permission",
        "confirm_with_user",
        "exit_plan_mode",
        "ExitPlanMode",
        "adk_request_confirmation",
    ]
)
_NAMESPACE = re.compile(r"\.|__|:|/")

_WAITING_STATES = frozenset(
    [
        "input-required",
        "auth-required",
        "permission-required",
        "permission-requested",
        "permission-request",
        "request-permission",
        "session/request-permission",
        "awaiting-input",
        "waiting-for-input",
        "interrupted",
    ]
)
_OTHER_STATES = frozenset(["submitted", "working", "completed", "failed", "canceled", "cancelled", "rejected"])
_CUT_SHORT = frozenset(
    [
        "length",
        "max-tokens",
        "model-length",
        "max-turns",
        "max-turn-requests",
        "tool-calls",
        "tool-use",
        "function-call",
        "content-filter",
        "safety",
        "recitation",
        "refusal",
        "error",
        "cancelled",
        "pause-turn",
        "malformed-function-call",
    ]
)

_TAIL_CHARS = 1500
_MAX_LINES = 60
_MAX_PLAIN = 4  # more plain sentences than that after a question, and the reply has moved on

_CODE = re.compile(r"`[^`\n]*`")
_ADDRESS = re.compile(r"(?:https?://|www\.)\S*[\w/=#&-]")
_QUOTED = re.compile(r'"[^"\n]*"|“[^”\n]*”|„[^“”\n]*[“”]|«[^»\n]*»|「[^」\n]*」|『[^』\n]*』|(?<!\w)\'[^\'\n]*[.?!]\'')
_LETTER = re.compile(r"^(?:subject|betreff|objet|asunto) ?:", re.IGNORECASE | re.MULTILINE)
_ITEM = re.compile(r"(?:[-*•+–◦▪·]|\(?\d{1,2}[.):]|\(?[a-zA-Z][.)]|\d\ufe0f?\u20e3)\s+")
_STOPS = tuple(mark + closer for mark in ".!?…" for closer in ("", ")", "]"))
_BREAK = "\x1f"  # between the sentences of a line
_GREEK = re.compile(r"[\u0370-\u03ff]")

_Place = Literal["prose", "heading", "item"]
_Reading = Literal["content_is_question", "content_is_request", "closing_offer", "courtesy"] | None


def detect(reply: Reply, confirmation_tools: frozenset[str] = CONFIRMATION_TOOLS) -> Awaiting:
    """The first layer that has something to say decides."""
    if reply.declared is not None:
        return Awaiting(reply.declared == "awaiting", "agent_declared")
    if reply.protocol_state and (waits := _of_state(reply.protocol_state)) is not None:
        return Awaiting(waits, "protocol_state")
    for call in reply.tool_calls:
        if _asks(call, confirmation_tools) and (_is_pending(call) or not reply.content.strip()):
            return Awaiting(True, "tool_requires_confirmation", 0.95)
    if reply.finish_reason and reply.finish_reason.lower().replace("_", "-") in _CUT_SHORT:
        return Awaiting(False, "finish_reason", 0.95)
    return _of_wording(reply.content)


def _of_state(state: str) -> bool | None:
    """What a protocol's state says; None for one that says nothing about waiting (`end_turn`, `unknown`)."""
    name = state.lower().replace("_", "-").removeprefix("task-state-")
    return True if name in _WAITING_STATES else False if name in _OTHER_STATES else None


def _asks(call: ToolCall, names: frozenset[str]) -> bool:
    return call.name in names or _NAMESPACE.split(call.name)[-1] in names


def _is_pending(call: ToolCall) -> bool:
    """A call that has its answer was waited for already: then only the text after it counts."""
    return call.result is UNSET and call.error is None


def _of_wording(content: str) -> Awaiting:
    tail = _tail(content)
    language = language_of(tail)
    plain = 0  # sentences further down that go on about something else
    options = closing = False
    asked_in_list: _Reading = None
    after = ""
    for place, sentence in _backwards(tail):
        reading = _read(sentence, after, language, last=plain == 0)
        after = sentence
        if place == "item":
            options = True
            # "2. Enter your name" is a step of some instructions; a request in a list says please.
            if reading == "content_is_question" or (reading == "content_is_request" and "please" in sentence):
                asked_in_list = reading
            continue
        if asked_in_list and reading is None and DELIVERABLE.search(sentence):
            asked_in_list = None
        if place == "heading" and (plain or options) and reading == "content_is_question":
            reading = None
        found = asked_in_list or reading
        if found == "content_is_question" or found == "content_is_request":
            return Awaiting(True, found, 0.85 if plain or options else 0.95)
        if reading == "closing_offer":
            closing = True
        elif reading is None:
            plain += 1
            if plain > _MAX_PLAIN:
                break
    if asked_in_list == "content_is_question" or asked_in_list == "content_is_request":
        return Awaiting(True, asked_in_list, 0.8)
    if closing:
        return Awaiting(True, "closing_offer", 0.9)
    return Awaiting(False, "completed", 0.8 if after else 0.5)


def _read(sentence: str, after: str, language: Language, *, last: bool) -> _Reading:
    """What one sentence is to the user, given the sentence after it."""
    means = language.means(sentence)
    if means == "closing":
        return "closing_offer"
    asking = _is_asking(sentence)
    if means == "request":
        return "content_is_question" if asking else "content_is_request"
    if means == "question":
        return None if language.answers.match(after) else "content_is_question"
    if asking and last and means != "nothing":
        return "content_is_question"
    return "courtesy" if means == "courtesy" else None


def _is_asking(sentence: str) -> bool:
    """Ends with a question mark, whatever brackets or pictures follow it."""
    for mark in reversed(sentence):
        if mark in "?？؟⁇⁈⁉‽፧":
            return True
        if mark in ";\u037e":
            return _GREEK.search(sentence) is not None
        if mark.isalnum():
            break
    return "՞" in sentence  # Armenian puts it into the word


def _tail(content: str) -> str:
    """The end of a reply as plain text: no code, addresses, letters and quotations."""
    if "```" in content:
        content = "\n".join(content.split("```")[::2])
    text = content[-_TAIL_CHARS:].strip()
    if letter := _LETTER.search(text):
        text = text[: letter.start()] + text[letter.start() :].partition("\n---")[2]
    if "`" in text:
        text = _CODE.sub("``", text)
    if "://" in text or "www." in text:
        text = _ADDRESS.sub("link", text)
    text = text.replace("’", "'")
    if _QUOTED.fullmatch(text):
        return text[1:-1].lower()
    return _QUOTED.sub('""', text).lower()


def _backwards(tail: str) -> Iterator[tuple[_Place, str]]:
    """The sentences from the last to the first, each with its place. Tables, rules, quotations and asides are left out."""
    for line in tail.split("\n")[: -_MAX_LINES - 1 : -1]:
        text = line.strip()
        if not text or text[0] in "|>":
            continue
        place: _Place = "prose"
        if text[0] == "#" or (text.startswith("**") and text.endswith("**")):
            place = "heading"
        elif item := _ITEM.match(text):
            place, text = "item", text[item.end() :]
        for sentence in reversed(_sentences(text.replace("*", "").lstrip("#"))):
            words = sentence.strip(" _")
            if any(map(str.isalnum, words)) and not (words[0] in "([" and words[-1] in ")]"):
                yield place, words


def _sentences(text: str) -> list[str]:
    for stop in _STOPS:
        if stop in text:
            text = text.replace(stop + " ", stop + _BREAK)
    if not text.isascii():
        for stop in "。！？":
            text = text.replace(stop, stop + _BREAK)
    return text.split(_BREAK)
