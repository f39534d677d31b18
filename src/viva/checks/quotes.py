"""Quotes of a judge: which texts may be quoted, and which quotes are long enough to support a verdict."""

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import UNSET, Struct

from viva.model.message import Message
from viva.state.trial_state import TrialState, to_text
from viva.text.pattern import LazyPattern

_IGNORED_CHARACTERS = LazyPattern(r"[\s\"'“”„‘’«»‹›…]|\.{2,}")
_ELLIPSIS = LazyPattern(r"[\[(]?(?:\.{3,}|…)[\])]?")
_WORD = LazyPattern(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")
"""In scripts without spaces between words, each character counts as a word."""
_PUNCTUATION = ".!?,;:"
_MIN_WORDS, _MIN_CHARACTERS = 3, 12
_USER_NOUNS = (
    "user|customer|client|caller|buyer|guest|patient|visitor|human|person|benutzer|benutzerin|nutzer|nutzerin|kunde|kundin"
    "|anwender|utilisateur|utilisatrice|usuario|usuaria|cliente|utente|gebruiker|klant"
)
_ABOUT_USER = LazyPattern(
    rf"""(?: (?: ^ | [.;:,!?\n] ) \W* (?:(?:did|does|do|is|was|has|can)\s+)?
        | \b(?:whether|if|when|that|because|while|since|as|and|but|or)\s+ )
    (?: (?:the|a|an|this|each|every|our|der|die|das|le|la|l|el|il|de)\b [\s'’]* (?:\w+\s+)? )?
    (?:{_USER_NOUNS})s?\b
    | (?: ^ | [.;:,!?，。；：！？\n] ) \s* (?:用户|顾客|客户|ユーザー|お客様|顧客)""",
    re.IGNORECASE | re.VERBOSE,
)


class QuotableTurn(Struct, frozen=True):
    """The texts of one side in one turn that may be quoted: messages, tool calls, changed files. Turn 0 is the history."""

    turn: int
    role: Literal["user", "assistant"]
    texts: tuple[str, ...]
    normalized: str

    @classmethod
    def from_texts(cls, turn: int, role: Literal["user", "assistant"], texts: Iterable[str]) -> "QuotableTurn":
        not_empty = tuple(text for text in texts if text.strip())
        return cls(turn, role, not_empty, normalize_quote("\n".join(not_empty)))

    def contains_quote(self, quote: str) -> bool:
        """Does the turn contain all pieces of the quote, in order? An ellipsis separates pieces; JSON escapes are allowed."""
        return any(_contains_pieces_in_order(each, self.normalized) for each in _list_unescaped_forms(quote))

    def is_whole_text(self, quote: str) -> bool:
        """Is the quote a whole text of the turn?"""
        texts = {normalize_quote(text).strip(_PUNCTUATION) for text in self.texts}
        return any(normalize_quote(each).strip(_PUNCTUATION) in texts for each in _list_unescaped_forms(quote))


def list_quotable_turns(state: TrialState) -> list[QuotableTurn]:
    """All turns so far, with one entry for the user and one for the assistant."""
    history: dict[Literal["user", "assistant"], list[str]] = {"user": [], "assistant": []}
    for message in state.case.history:  # results of tools belong to the assistant
        history["user" if message.role == "user" else "assistant"] += _list_message_texts(message)
    turns = [QuotableTurn.from_texts(0, role, texts) for role, texts in history.items()]
    for turn in state.turns:
        turns.append(QuotableTurn.from_texts(turn.number, "user", _list_message_texts(turn.user_message.message)))
        texts = [change.path for change in turn.files]
        if (reply := turn.reply) is not None:
            texts += _list_message_texts(
                Message("assistant", reply.content, data=reply.data, tool_calls=reply.tool_calls)
            )
        turns.append(QuotableTurn.from_texts(turn.number, "assistant", texts))
    return turns


def _list_message_texts(message: Message) -> list[str]:
    """The texts of a message; arguments and results of tools also as JSON, which is how a judge sees them."""
    texts = [message.text]
    if message.data is not None:
        texts.append(to_text(message.data))
    for call in message.tool_calls:
        result = {} if call.result is UNSET else {"result": call.result}
        texts += [to_text({"name": call.name, "arguments": call.arguments, **result}), call.name]
        texts += [to_text(call.arguments), call.error or "", *(to_text(value) for value in result.values())]
    return texts


def normalize_quote(text: str) -> str:
    """A text without white space, quotation marks, ellipses and capitals: a quote may differ in these."""
    return _IGNORED_CHARACTERS.sub("", text).casefold()


def is_long_enough_quote(quote: str) -> bool:
    """Is the quote long enough to support a verdict? It needs three words or twelve characters."""
    bare = " ".join(_ELLIPSIS.sub(" ", quote).split())
    return len(_WORD.findall(bare)) >= _MIN_WORDS or len(bare.strip("\"'“”„‘’«»‹› ")) >= _MIN_CHARACTERS


def _list_unescaped_forms(quote: str) -> Iterator[str]:
    """The quote as it is, and without the escapes of the JSON that the judge was shown."""
    yield quote
    bare = quote.replace("\\n", " ").replace("\\t", " ").replace('\\"', '"')
    if bare != quote:
        yield bare


def _contains_pieces_in_order(quote: str, text: str) -> bool:
    start = 0
    pieces = [piece for part in _ELLIPSIS.split(quote) if (piece := normalize_quote(part))]
    for piece in pieces:
        index = text.find(piece, start)
        if index < 0:
            return False
        start = index + len(piece)
    return bool(pieces)


def is_about_user(criteria: str) -> bool:
    """Is the criterion about the words or actions of the user? "The user …" is, "tells the user …" is not."""
    return _ABOUT_USER.search(criteria) is not None
