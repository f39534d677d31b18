"""Does the agent wait for the user? Layers in the order of trust: its own word, its protocol's, its tools, how the model
stopped, and at last how the reply ends.

Wording is read backwards from the last sentence: a question or a request near the end means that the task waits. Small
talk, options, tables and facts after it change nothing, unless they answer a question that was not put to the user. A
goodbye ends the conversation, whatever was asked before. A short reply that asks nothing may still offer something. No
model, no state; the words stand in `words/`, see `languages`.
"""

import re
from collections.abc import Iterator
from typing import Final, Literal

from msgspec import UNSET

from viva.awaiting.languages import Language, Pattern, language_of
from viva.model.message import Reply, ToolCall
from viva.model.turn import AwaitingState
from viva.text.pattern import cache_short_texts

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
_NAMESPACE = Pattern(r"\.|__|:|/")

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

_TAIL_CHARS = 6000
_MAX_LINES = 60
_MAX_LINE_CHARS = 700
_MAX_PLAIN = 3  # more plain sentences than that after a question, and the reply has moved on
_MAX_OFFER_CHARS = 400
_WRITTEN = "\n`{}_<>|\\"  # lists, code and tables are written, not spoken: no offer without a question

_FENCE = "```"
_CODE = Pattern(r"`[^`]*`")
_ADDRESS = Pattern(r"(?:https?://|www\.)\S*[\w/=#&-]")
_QUOTED = Pattern(r'"[^"]*"|“[^”]*”|„[^“”]*[“”]|«[^»]*»|「[^」]*」|『[^』]*』')
_IN_SINGLE_QUOTES = Pattern(r"(?<!\w)'[^']*[.?!]'")
_PICTURES = Pattern(r"^[^\w\s\"'(\[$€£¿¡«“„「『]+\s*")  # emoji and other signs before the first word
_GLUED = Pattern(r"\?(?=[a-z])")
# A letter that the agent drafts: from its subject, or from a greeting below "Here is a draft:", to its last line.
_LETTER = Pattern(
    r"^subject:|(?<=:)\s*\n\s*(?:dear|hi|hello|hey) [^\n]{1,40}$",
    re.IGNORECASE | re.MULTILINE,
)
_GREETINGS = ("\nDear ", "\nHi ", "\nHello ", "\nHey ")
_LETTER_END = Pattern(
    r"^(?:(?:best|kind|warm) (?:regards|wishes)|regards|best|sincerely|yours \w+|cheers|thanks|thank you)[,.!]?\s*\n.{1,60}$|^---",
    re.IGNORECASE | re.MULTILINE,
)
_ITEM = Pattern(r"(?:[-*•+–◦▪·]|\(?\d{1,2}[.):]|\(?[a-zA-Z][.)]|\d\ufe0f?\u20e3)\s+")
_ITEM_STARTS = frozenset("-*•+–◦▪·(0123456789")
_ITEM_ENDS = frozenset(".)")
_BARE_STOPS = tuple(".!?…")
_STOPS = (*_BARE_STOPS, *(mark + closer for mark in ".!?" for closer in ")]"))
_TAG = Pattern(r"</?[a-z][^>]*>")
_ASIDES = ("eg ", "eg:", "(eg", "example", "(example", "for example", "(for example")
_SENTENCE_END = "\x1f"
_GREEK = Pattern(r"[\u0370-\u03ff]")

_Place = Literal["prose", "heading", "item"]
_Reading = (
    Literal["content_is_question", "content_is_request", "closing_offer", "courtesy", "later", "wish", "goodbye"] | None
)


def detect(reply: Reply, more_tools: frozenset[str] = frozenset()) -> AwaitingState:
    """The first layer that has something to say decides. `more_tools` ask the user for something too, beside the usual ones."""
    if reply.declared_state is not None:
        return AwaitingState(reply.declared_state == "awaiting", "agent_declared")
    if reply.protocol_state and (waits := _of_state(reply.protocol_state)) is not None:
        return AwaitingState(waits, "protocol_state")
    for call in reply.tool_calls:
        if (_asks(call, CONFIRMATION_TOOLS) or _asks(call, more_tools)) and (
            _is_pending(call) or not reply.content.strip()
        ):
            return AwaitingState(True, "tool_requires_confirmation", 0.95)
    if reply.finish_reason and reply.finish_reason.lower().replace("_", "-") in _CUT_SHORT:
        return AwaitingState(False, "finish_reason", 0.95)
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


@cache_short_texts(1024, 2000)  # in a run the same replies come again and again: greetings, questions, repeats
def _of_wording(content: str) -> AwaitingState:
    text = _own_words(content)
    language = language_of(text)
    plain = 0  # sentences further down that go on about something else
    options = closing = parting = False
    asked_in_list: _Reading = None
    after = ""
    sentences: list[str] = []  # from the last to the first
    for place, sentence in _backwards(text, in_code=_FENCE in text and content.count(_FENCE) % 2 == 1):
        if not sentence:
            options = True
            continue
        reading = _read(sentence, after, language, last=plain <= (2 if place == "item" else 0))
        after = sentence
        if place == "item":
            options = True
            # "2. Enter your name" is a step of some instructions; a request in a list says please.
            if reading == "content_is_question" or (reading == "content_is_request" and "please" in sentence):
                asked_in_list = reading
            continue
        sentences.append(sentence)
        if reading == "goodbye" and not plain and not options:
            return AwaitingState(False, "completed", 0.9)
        if reading == "wish":
            parting = not plain
        elif reading == "later":
            reading = "courtesy" if parting else "content_is_request"
        if asked_in_list and reading is None and language.presents.search(sentence):
            asked_in_list = None
        is_heading = place == "heading" and (plain or options) and not language.direct.search(sentence)
        if is_heading and reading == "content_is_question":
            reading = None
        found = asked_in_list or reading
        if found in ("content_is_question", "content_is_request"):
            return AwaitingState(True, found, 0.85 if plain or options else 0.95)
        if reading == "closing_offer":
            closing = True
        elif reading is None:
            plain += 1
            if plain > _MAX_PLAIN:
                break
    if asked_in_list in ("content_is_question", "content_is_request"):
        return AwaitingState(True, asked_in_list, 0.8)
    if closing:
        return AwaitingState(True, "closing_offer", 0.9)
    if _is_offer(text, sentences, language):
        return AwaitingState(True, "content_is_request", 0.6)
    return AwaitingState(False, "completed", 0.8 if after else 0.5)


def _read(sentence: str, after: str, language: Language, *, last: bool) -> _Reading:
    """What one sentence is to the user, given the sentence after it."""
    meaning = language.meaning_of(sentence)
    if meaning == "closing":
        return "closing_offer"
    asking = _is_asking(sentence)
    if meaning == "request":
        return "content_is_question" if asking else "content_is_request"
    if meaning == "question":
        return None if language.answers.match(after) else "content_is_question"
    if asking and last and meaning != "nothing":
        return "content_is_question"
    return None if meaning == "nothing" else meaning


def _is_offer(text: str, sentences: list[str], language: Language) -> bool:
    """Whether a reply that asks nothing puts something before the user that may be taken or left."""
    if not language.offers or len(text) > _MAX_OFFER_CHARS or any(mark in text for mark in _WRITTEN):
        return False
    after = ""
    for sentence in sentences:
        if language.settled.search(sentence):
            return False
        if language.is_offer(f"{sentence} {after}"):
            return True
        after = sentence
    return False


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


def _own_words(content: str) -> str:
    """The reply without its reasoning and without a letter that it drafts; unwrapped, if it is one quotation or one bold line."""
    text = content[-_TAIL_CHARS:].strip()
    if "</think>" in text:
        text = text.rpartition("</think>")[2].strip()
    drafted = "ubject:" in text or (":\n" in text and any(greeting in text for greeting in _GREETINGS))
    if drafted and (letter := _LETTER.search(text)):
        end = _LETTER_END.search(text, letter.end())
        text = text[: letter.start()] + (text[end.end() :] if end else "")
    if text[:1] in "*_" and text[-1:] == text[:1] and "\n" not in text:
        text = text.strip("*_")
    if text[:1] in '"“„«「' and _QUOTED.fullmatch(text):
        return text[1:-1]
    return text


def _backwards(text: str, *, in_code: bool) -> Iterator[tuple[_Place, str]]:
    """The sentences from the last to the first, each with its place. Code, tables, quotations and asides are left out."""
    end = len(text)
    has_options = False
    for _ in range(_MAX_LINES):
        if end < 0:
            return
        start = text.rfind("\n", 0, end)
        if text[start + 1 : start + 2].islower():
            start = _paragraph_start(text, start)
        line = text[start + 1 : end].strip()
        end = start
        if not line:
            continue
        first = line[0]
        if first == "`" and line.startswith(_FENCE):
            in_code = not in_code
        elif in_code or first in "|>":
            continue
        elif first == "#" or (first == "*" and line.startswith("**") and line.endswith("**")):
            for sentence in _sentences(line[-_MAX_LINE_CHARS:]):
                yield "heading", sentence
        elif not (first in _ITEM_STARTS or line[1:2] in _ITEM_ENDS) or not (item := _ITEM.match(line)):
            for sentence in _sentences(line[-_MAX_LINE_CHARS:]):
                yield "prose", sentence
        elif "?" in line or "lease " in line or not line.isascii():
            for sentence in _sentences(line[item.end() :][-_MAX_LINE_CHARS:]):
                yield "item", sentence
        elif not has_options:
            has_options = True
            yield "item", ""  # an option, a step or a fact: not worth reading


def _paragraph_start(text: str, start: int) -> int:
    """Where a line that begins with a small letter really begins: it goes on from the line above."""
    while start > 0 and text[start + 1 : start + 2].islower():
        above = text.rfind("\n", 0, start)
        if text[above + 1] in "\n`#|>":
            break
        start = above
    return start


def _sentences(line: str) -> Iterator[str]:
    """Its sentences, from the last to the first."""
    text = _plain(line.replace("\n", " "))
    for stop in _STOPS if ")" in text or "]" in text else _BARE_STOPS:
        text = text.replace(stop + " ", stop + _SENTENCE_END)
    if not text.isascii():
        for stop in "。！？":
            text = text.replace(stop, stop + _SENTENCE_END)
    for sentence in reversed(text.split(_SENTENCE_END)):
        words = sentence.strip(" #_*")
        if not words[:1].isascii():
            words = _PICTURES.sub("", words)
        aside = words.startswith(_ASIDES) or (words[:1] in "([" and words[-1:] in ")]")
        if not aside and any(map(str.isalnum, words)):
            yield words


def _plain(line: str) -> str:
    """A line in lower case, without markdown, code, addresses and what it quotes."""
    text = line.lower().replace("’", "'").replace("*", "")
    if "e.g." in text or "i.e." in text:
        text = text.replace("e.g.", "eg").replace("i.e.", "ie")
    if "</" in text:
        text = _TAG.sub(" ", text)
    if "`" in text:
        text = _CODE.sub("``", text)
    if "://" in text or "www." in text:
        text = _ADDRESS.sub("link", text)
    if " '" in text:
        text = _IN_SINGLE_QUOTES.sub('""', text)
    if '"' in text or not text.isascii():
        text = _QUOTED.sub('""', text)
    return _GLUED.sub("? ", text) if "?" in text else text
