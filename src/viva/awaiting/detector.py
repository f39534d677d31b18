"""Detects whether the agent waits for the user. In order of trust: its declaration, its protocol, its tools, the finish
reason of the model, and last the wording of the reply.

The wording is read backwards from the last sentence: a question or a request near the end means that the agent waits.
Small talk, options, tables and facts after it change nothing, unless they answer a rhetorical question. A goodbye ends the
conversation. A short reply without a question may contain an offer. There is no model and no state; the word lists are in
`words/`, see `languages`.
"""

import re
from collections.abc import Iterator
from typing import Final, Literal

from msgspec import UNSET

from viva.awaiting.languages import Language, detect_language
from viva.model.message import Reply, ToolCall
from viva.model.turn import AwaitingState
from viva.text.pattern import LazyPattern, cache_short_texts
from viva.text.reasoning import drop_reasoning

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
_NAMESPACE = LazyPattern(r"\.|__|:|/")

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
_NOT_WAITING_REASONS = frozenset(
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
_MAX_PLAIN_SENTENCES = 3  # more plain sentences after a question: the reply is about something else
_MAX_OFFER_CHARS = 400
_MARKUP = "\n`{}_<>|\\"  # lists, code and tables contain no offer without a question

_FENCE = "```"
_CODE = LazyPattern(r"`[^`]*`")
_ADDRESS = LazyPattern(r"(?:https?://|www\.)\S*[\w/=#&-]")
_QUOTED = LazyPattern(r'"[^"]*"|“[^”]*”|„[^“”]*[“”]|«[^»]*»|「[^」]*」|『[^』]*』')
_IN_SINGLE_QUOTES = LazyPattern(r"(?<!\w)'[^']*[.?!]'")
_SYMBOLS = LazyPattern(r"^[^\w\s\"'(\[$€£¿¡«“„「『]+\s*")  # emoji and symbols before the first word
_GLUED_QUESTION = LazyPattern(r"\?(?=[a-z])")
# A drafted letter: from its subject, or from a greeting below "Here is a draft:", to its last line.
_LETTER = LazyPattern(
    r"^subject:|(?<=:)\s*\n\s*(?:dear|hi|hello|hey) [^\n]{1,40}$",
    re.IGNORECASE | re.MULTILINE,
)
_GREETINGS = ("\nDear ", "\nHi ", "\nHello ", "\nHey ")
_LETTER_END = LazyPattern(
    r"^(?:(?:best|kind|warm) (?:regards|wishes)|regards|best|sincerely|yours \w+|cheers|thanks|thank you)[,.!]?\s*\n.{1,60}$|^---",
    re.IGNORECASE | re.MULTILINE,
)
_LIST_ITEM = LazyPattern(r"(?:[-*•+–◦▪·]|\(?\d{1,2}[.):]|\(?[a-zA-Z][.)]|\d\ufe0f?\u20e3)\s+")
_ITEM_STARTS = frozenset("-*•+–◦▪·(0123456789")
_ITEM_ENDS = frozenset(".)")
_BARE_STOPS = tuple(".!?…")
_STOPS = (*_BARE_STOPS, *(mark + closer for mark in ".!?" for closer in ")]"))
_TAG = LazyPattern(r"</?[a-z][^>]*>")
_ASIDE_STARTS = ("eg ", "eg:", "(eg", "example", "(example", "for example", "(for example")
_SENTENCE_END = "\x1f"
_GREEK = LazyPattern(r"[\u0370-\u03ff]")

_SentencePlace = Literal["prose", "heading", "item"]
_SentenceReading = (
    Literal["content_is_question", "content_is_request", "closing_offer", "courtesy", "later", "wish", "goodbye"] | None
)


def detect_awaiting(reply: Reply, more_tools: frozenset[str] = frozenset()) -> AwaitingState:
    """Detects whether the agent waits for the user: the first source with an answer decides. `more_tools` are further tools
    that ask the user for something.
    """
    if reply.declared_state is not None:
        return AwaitingState(reply.declared_state == "awaiting", "agent_declared")
    if reply.protocol_state and (is_waiting := _is_waiting_state(reply.protocol_state)) is not None:
        return AwaitingState(is_waiting, "protocol_state")
    for call in reply.tool_calls:
        if (_has_name_in(call, CONFIRMATION_TOOLS) or _has_name_in(call, more_tools)) and (
            _is_pending(call) or not reply.content.strip()
        ):
            return AwaitingState(True, "tool_requires_confirmation", 0.95)
    if reply.finish_reason and reply.finish_reason.lower().replace("_", "-") in _NOT_WAITING_REASONS:
        return AwaitingState(False, "finish_reason", 0.95)
    return _detect_by_wording(reply.content)


def _is_waiting_state(state: str) -> bool | None:
    """Does a protocol state mean that the agent waits? None if the state does not say (`end_turn`, `unknown`)."""
    name = state.lower().replace("_", "-").removeprefix("task-state-")
    return True if name in _WAITING_STATES else False if name in _OTHER_STATES else None


def _has_name_in(call: ToolCall, names: frozenset[str]) -> bool:
    return call.name in names or _NAMESPACE.split(call.name)[-1] in names


def _is_pending(call: ToolCall) -> bool:
    """Has the call no answer yet? After an answer only the text counts."""
    return call.result is UNSET and call.error is None


@cache_short_texts(1024, 2000)  # the same replies occur often in a run: greetings, questions, repeats
def _detect_by_wording(content: str) -> AwaitingState:
    text = _strip_reply(content)
    language = detect_language(text)
    plain = 0  # plain sentences after this one
    options = closing = parting = False
    list_reading: _SentenceReading = None
    after = ""
    sentences: list[str] = []  # from the last to the first
    for place, sentence in _iterate_sentences_backwards(
        text, in_code=_FENCE in text and content.count(_FENCE) % 2 == 1
    ):
        if not sentence:
            options = True
            continue
        reading = _classify_sentence(sentence, after, language, last=plain <= (2 if place == "item" else 0))
        after = sentence
        if place == "item":
            options = True
            # "2. Enter your name" is a step of instructions; a request in a list says please.
            if reading == "content_is_question" or (reading == "content_is_request" and "please" in sentence):
                list_reading = reading
            continue
        sentences.append(sentence)
        if reading == "goodbye" and not plain and not options:
            return AwaitingState(False, "completed", 0.9)
        if reading == "wish":
            parting = not plain
        elif reading == "later":
            reading = "courtesy" if parting else "content_is_request"
        if list_reading and reading is None and language.presents.search(sentence):
            list_reading = None
        is_heading = place == "heading" and (plain or options) and not language.direct.search(sentence)
        if is_heading and reading == "content_is_question":
            reading = None
        result = list_reading or reading
        if result in ("content_is_question", "content_is_request"):
            return AwaitingState(True, result, 0.85 if plain or options else 0.95)
        if reading == "closing_offer":
            closing = True
        elif reading is None:
            plain += 1
            if plain > _MAX_PLAIN_SENTENCES:
                break
    if list_reading in ("content_is_question", "content_is_request"):
        return AwaitingState(True, list_reading, 0.8)
    if closing:
        return AwaitingState(True, "closing_offer", 0.9)
    if _contains_offer(text, sentences, language):
        return AwaitingState(True, "content_is_request", 0.6)
    return AwaitingState(False, "completed", 0.8 if after else 0.5)


def _classify_sentence(sentence: str, after: str, language: Language, *, last: bool) -> _SentenceReading:
    """The meaning of one sentence for the user, given the sentence after it."""
    meaning = language.classify_sentence(sentence)
    if meaning == "closing":
        return "closing_offer"
    if meaning == "request":
        return "content_is_question" if _ends_with_question_mark(sentence) else "content_is_request"
    if meaning == "question":
        return None if language.answers.match(after) else "content_is_question"
    if meaning == "nothing":
        return None
    return "content_is_question" if last and _ends_with_question_mark(sentence) else meaning


def _contains_offer(text: str, sentences: list[str], language: Language) -> bool:
    """Does a reply without a question offer something to the user?"""
    if not language.offers or len(text) > _MAX_OFFER_CHARS or any(map(text.__contains__, _MARKUP)):
        return False
    patterns = tuple(language.offers.find_rows(" ".join(reversed(sentences))))
    after = ""
    for at, sentence in enumerate(sentences if patterns else ()):
        pair = f"{sentence} {after}"
        for needle, pattern in patterns:
            if needle in pair and pattern.fits(pair):
                return not any(map(language.settled.search, sentences[: at + 1]))
        after = sentence
    return False


def _ends_with_question_mark(sentence: str) -> bool:
    """Does the sentence end with a question mark, apart from brackets and emoji?"""
    if "?" not in sentence and sentence.isascii():
        return False
    for mark in reversed(sentence):
        if mark in "?？؟⁇⁈⁉‽፧":
            return True
        if mark in ";\u037e":
            return _GREEK.search(sentence) is not None
        if mark.isalnum():
            break
    return "՞" in sentence  # in Armenian it is inside the word


def _strip_reply(content: str) -> str:
    """The reply without its reasoning and without a drafted letter; a single quotation or bold line is unwrapped."""
    text = drop_reasoning(content[-_TAIL_CHARS:].strip())
    drafted = "ubject:" in text or (":\n" in text and any(greeting in text for greeting in _GREETINGS))
    if drafted and (letter := _LETTER.search(text)):
        end = _LETTER_END.search(text, letter.end())
        text = text[: letter.start()] + (text[end.end() :] if end else "")
    if text[:1] in "*_" and text[-1:] == text[:1] and "\n" not in text:
        text = text.strip("*_")
    if text[:1] in '"“„«「' and _QUOTED.fullmatch(text):
        return text[1:-1]
    return text


def _iterate_sentences_backwards(text: str, *, in_code: bool) -> Iterator[tuple[_SentencePlace, str]]:
    """The sentences from the last to the first, each with its place, without code, tables, quotations and asides."""
    end = len(text)
    has_options = False
    for _ in range(_MAX_LINES):
        if end < 0:
            return
        start = text.rfind("\n", 0, end)
        if text[start + 1 : start + 2].islower():
            start = _find_paragraph_start(text, start)
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
            for sentence in _split_line_backwards(line[-_MAX_LINE_CHARS:]):
                yield "heading", sentence
        elif not (first in _ITEM_STARTS or line[1:2] in _ITEM_ENDS) or not (item := _LIST_ITEM.match(line)):
            for sentence in _split_line_backwards(line[-_MAX_LINE_CHARS:]):
                yield "prose", sentence
        elif "?" in line or "lease " in line or not line.isascii():
            for sentence in _split_line_backwards(line[item.end() :][-_MAX_LINE_CHARS:]):
                yield "item", sentence
        elif not has_options:
            has_options = True
            yield "item", ""  # an option, a step or a fact


def _find_paragraph_start(text: str, start: int) -> int:
    """The start of a paragraph: a line that starts with a small letter continues the line above."""
    while start > 0 and text[start + 1 : start + 2].islower():
        above = text.rfind("\n", 0, start)
        if text[above + 1] in "\n`#|>":
            break
        start = above
    return start


def _split_line_backwards(line: str) -> Iterator[str]:
    """The sentences of a line, from the last to the first."""
    text = _strip_markup(line.replace("\n", " "))
    for stop in _STOPS if ")" in text or "]" in text else _BARE_STOPS:
        if stop in text:
            text = text.replace(stop + " ", stop + _SENTENCE_END)
    if not text.isascii():
        for stop in "。！？":
            text = text.replace(stop, stop + _SENTENCE_END)
    for sentence in reversed(text.split(_SENTENCE_END)):
        words = sentence.strip(" #_*")
        if not "a" <= words[:1] <= "z":
            if not words[:1].isascii():
                words = _SYMBOLS.sub("", words)
            if (words[:1] in "([" and words[-1:] in ")]") or not any(map(str.isalnum, words)):
                continue
        if not words.startswith(_ASIDE_STARTS):
            yield words


def _strip_markup(line: str) -> str:
    """A line in lower case, without markdown, code, URLs and quotations.

    A single character is found ten times as fast as several, so that it is looked for first.
    """
    text = line.lower().replace("’", "'")
    if "*" in text:
        text = text.replace("*", "")
    if "e.g." in text or "i.e." in text:
        text = text.replace("e.g.", "eg").replace("i.e.", "ie")
    if "<" in text and "</" in text:
        text = _TAG.sub(" ", text)
    if "`" in text:
        text = _CODE.sub("``", text)
    if ("/" in text and "://" in text) or "www." in text:
        text = _ADDRESS.sub("link", text)
    if "'" in text and " '" in text:
        text = _IN_SINGLE_QUOTES.sub('""', text)
    if '"' in text or not text.isascii():
        text = _QUOTED.sub('""', text)
    return _GLUED_QUESTION.sub("? ", text) if "?" in text else text
