"""What a judge may quote: what was said and done in a conversation, and which quotes are enough to rest a verdict on."""

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import UNSET, Struct

from viva.model.message import Message
from viva.state.trial_state import TrialState, to_text

_IGNORED = re.compile(r"[\s\"'“”„‘’«»‹›…]|\.{2,}")
_LEFT_OUT = re.compile(r"[\[(]?(?:\.{3,}|…)[\])]?")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+")
"""Where words are not set apart by blanks, each sign counts as one."""
_STOPS = ".!?,;:"
_TELLING_WORDS, _TELLING_LENGTH = 3, 12
_USER = (
    "user|customer|client|caller|buyer|guest|patient|visitor|human|person|benutzer|benutzerin|nutzer|nutzerin|kunde|kundin"
    "|anwender|utilisateur|utilisatrice|usuario|usuaria|cliente|utente|gebruiker|klant"
)
_ABOUT_USER = re.compile(
    rf"""(?: (?: ^ | [.;:,!?\n] ) \W* (?:(?:did|does|do|is|was|has|can)\s+)?
        | \b(?:whether|if|when|that|because|while|since|as|and|but|or)\s+ )
    (?: (?:the|a|an|this|each|every|our|der|die|das|le|la|l|el|il|de)\b [\s'’]* (?:\w+\s+)? )?
    (?:{_USER})s?\b
    | (?: ^ | [.;:,!?，。；：！？\n] ) \s* (?:用户|顾客|客户|ユーザー|お客様|顧客)""",
    re.IGNORECASE | re.VERBOSE,
)


class QuotableTurn(Struct, frozen=True):
    """What one side said and did in one turn, as the texts that a quote may come from. Turn 0 is what came before."""

    turn: int
    role: Literal["user", "assistant"]
    texts: tuple[str, ...]
    normalized: str

    @classmethod
    def from_texts(cls, turn: int, role: Literal["user", "assistant"], texts: Iterable[str]) -> "QuotableTurn":
        kept = tuple(part for part in texts if part.strip())
        return cls(turn, role, kept, normalize_quote("\n".join(kept)))

    def has_quote(self, quote: str) -> bool:
        """Is each piece of the quote there, in order? An ellipsis leaves something out; escapes of JSON may be left in."""
        return any(_in_order(each, self.normalized) for each in _readings(quote))

    def is_whole_text(self, quote: str) -> bool:
        """Is the quote all of one text?"""
        wholes = {normalize_quote(part).strip(_STOPS) for part in self.texts}
        return any(normalize_quote(each).strip(_STOPS) in wholes for each in _readings(quote))


def list_quotable_turns(state: TrialState) -> list[QuotableTurn]:
    """All that was said and done, by turn and side."""
    found = [
        QuotableTurn.from_texts(
            0, side, (part for message in state.case.history if _side(message) == side for part in _parts(message))
        )
        for side in ("user", "assistant")
    ]
    for turn in state.turns:
        found.append(QuotableTurn.from_texts(turn.number, "user", _parts(turn.user_message.message)))
        done = [change.path for change in turn.files]
        if (reply := turn.reply) is not None:
            done += _parts(Message("assistant", reply.content, data=reply.data, tool_calls=reply.tool_calls))
        found.append(QuotableTurn.from_texts(turn.number, "assistant", done))
    return found


def _side(message: Message) -> Literal["user", "assistant"]:
    """Results of tools are what the assistant did."""
    return "user" if message.role == "user" else "assistant"


def _parts(message: Message) -> list[str]:
    """The texts of a message; what tools got and gave also in the form in which a judge sees it, as JSON."""
    parts = [message.text]
    if message.data is not None:
        parts.append(to_text(message.data))
    for call in message.tool_calls:
        result = {} if call.result is UNSET else {"result": call.result}
        parts += [to_text({"name": call.name, "arguments": call.arguments, **result}), call.name]
        parts += [to_text(call.arguments), call.error or "", *(to_text(value) for value in result.values())]
    return parts


def normalize_quote(text: str) -> str:
    """Without white space, quotation marks, ellipses and capitals: in these a quote may differ from what was said."""
    return _IGNORED.sub("", text).casefold()


def is_substantial(quote: str) -> bool:
    """Does a quote say enough to rest a verdict on: three words, or twelve characters?"""
    bare = " ".join(_LEFT_OUT.sub(" ", quote).split())
    return len(_WORD.findall(bare)) >= _TELLING_WORDS or len(bare.strip("\"'“”„‘’«»‹› ")) >= _TELLING_LENGTH


def _readings(quote: str) -> Iterator[str]:
    """The quote, and what it says if it still has the escapes of the JSON that the judge was shown."""
    yield quote
    bare = quote.replace("\\n", " ").replace("\\t", " ").replace('\\"', '"')
    if bare != quote:
        yield bare


def _in_order(quote: str, text: str) -> bool:
    at = 0
    pieces = [piece for part in _LEFT_OUT.split(quote) if (piece := normalize_quote(part))]
    for piece in pieces:
        found = text.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return bool(pieces)


def is_about_user(criteria: str) -> bool:
    """Is a criterion about what the user says or does, not only the assistant? "The user …" is, "tells the user …" is not."""
    return _ABOUT_USER.search(criteria) is not None
