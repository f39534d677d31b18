"""What a sentence means to the user who reads it: how the detector's tables work, and the one for English.

A row is a needle and a pattern: the pattern is tried only on a sentence that holds the needle, since finding a fixed
string costs a hundredth of a search; an empty pattern always fits. The first table with a fitting row decides: what is
none of them, closing offers, questions, requests, small talk. Sentences come in lower case, without markdown, code and
quoted text, with straight apostrophes and with their closing mark.
"""

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

# question: put to the user, so that it stands even when more text follows. nothing: looks like one of the others, is not.
Means = Literal["nothing", "closing", "question", "request", "courtesy"]
Rows = tuple[tuple[str, str], ...]

_SHARED = ("you", " i ", " we ", " me", " us", " u ", "please", "need", "any", "confirm", "to ", "?", "wh", "also", " about")  # fmt: skip


class Pattern:
    """A regular expression that is compiled when it is first used: most of the tables' hundreds never are.

    `fits` is `match` where the pattern is tied to the beginning, since `search` would try it at every place.
    """

    match: Callable[[str], re.Match[str] | None]
    fits: Callable[[str], re.Match[str] | None]
    fullmatch: Callable[[str], re.Match[str] | None]
    search: Callable[..., re.Match[str] | None]
    finditer: Callable[[str], Iterator[re.Match[str]]]
    split: Callable[[str], list[Any]]
    sub: Callable[[str, str], str]

    def __init__(self, source: str, flags: re.RegexFlag = re.NOFLAG) -> None:
        self.source = source
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        """Only asked for what is not yet there; from then on it is an attribute like any other."""
        if name.startswith("__"):
            raise AttributeError(name)
        method = ("match" if self.source.startswith("^") else "search") if name == "fits" else name
        found = getattr(re.compile(self.source, self.flags), method)
        setattr(self, name, found)
        return found


class Rule(NamedTuple):
    needle: str
    pattern: Pattern
    means: Means


class Language(NamedTuple):
    """How sentences of a language are read. `answers` is how one begins that answers the question before it.

    Rules of one meaning that share a word stand together under it, so that most of them are passed over at once.
    """

    rules: tuple[tuple[str, tuple[Rule, ...]], ...]
    answers: Pattern

    def means(self, sentence: str) -> Means | None:
        for shared, rules in self.rules:
            if shared in sentence:
                for needle, pattern, means in rules:
                    if needle in sentence and pattern.fits(sentence):
                        return means
        return None


def language(
    *, answers: str, nothing: Rows, closing: Rows, question: Rows, request: Rows, courtesy: Rows = ()
) -> Language:
    """A language from its rows, which are tried in the order of the parameters."""
    tables: tuple[tuple[Means, Rows], ...] = (
        ("nothing", nothing),
        ("closing", closing),
        ("question", question),
        ("request", request),
        ("courtesy", courtesy),
    )
    groups = [
        (shared, tuple(Rule(needle, Pattern(pattern), means) for needle, pattern in group))
        for means, rows in tables
        for shared, group in groupby(sorted(rows, key=_shared), _shared)
    ]
    return Language(tuple(groups), Pattern(answers))


def _shared(row: tuple[str, str]) -> str:
    return next((word for word in _SHARED if word in row[0]), row[0])


def either(*ways: str) -> str:
    return "(?:" + "|".join(ways) + ")"


def _each(words: str, needle: str, pattern: str) -> Rows:
    """A row for each word, in the place of `%`."""
    return tuple((needle.replace("%", word), pattern.replace("%", word)) for word in words.split())


# --- English ---

# Where a clause may begin: "Sure, could you ...", "... and what time ...".
_START = r"(?:^|[,;:(–—-] ?|\b(?:and|but|so|or|then|also|ok|okay|sure|great|thanks|alright|yes|well|hi|please|now|first|that|it) )"
_OKAY = r"^(?:(?:so|and|ok|okay|alright|great|sure|thanks|well|yes|perfect|now)[,.!]? )*"
_ALSO = r"(?:(?:also|still|just|only|first|now|then|do|kindly|really|either|simply|quickly|next) )*"
_JUST = _START + "(?:just |simply |please )?"
_I_WILL = r"\b(?:i|we)(?:'ll|'d| will| would| do)? " + _ALSO
_CHECKING = r"\b(?:confirm(?:ing)?|clarify|recap|check|make sure|so|okay|alright)[,:]?(?: that)?"
_NOT_ASKED = r"^(?!.*\?).*"  # with a question mark it would be a question after all

_WH = "(?:what|which|when|where|who|whom|whose|how)"
# "How do you fix this?" is a heading in disguise, "How would you like to pay?" is not.
_ANYBODY = either(
    r"how (?:do|can|could|would|did) (?:you|we|i)\b(?! (?:like|prefer|want|help|assist|proceed|wish|contact|reach|refer|spell))",
    r"(?:when|why|where) (?:would|do|can|could) you (?:use|choose|need)\b",
    r"what (?:can|do|could) (?:you|we|i) (?:do|get|learn|conclude)\b(?! for)",
)
_ASKED = rf"{_START}(?!{_ANYBODY})(?:(?:\w+ )?{_WH}\b[^.?!:]{{0,60}} )?"
_FACT = r"(?:\w+ )?(?:name|number|date|e-?mail|address|zip|postcode|destination|budget|phone)"
_SLOT = "(?:time|day|date|area|city|type|kind|size|colou?r|price)"
_COUNTED = r"(?:people|guests|passengers|nights|tickets|bags|seats|rooms|travell?ers|adults|days)"

_GIVE = either(
    "provide|confirm|tell|share|send|enter|specify|select|choose|pick|reply|respond|answer|indicate|type|verify|clarify",
    "describe|upload|attach|advise|fill (?:in|out)|state|list|say|give (?:me|us (?:your|the)|(?:your )?confirmation)|paste|input|decide|approve",
    "sign|repeat|write|supply|identify|elaborate|rephrase|spell|double-check|name|mention|authori[sz]e|let me|inform me",
    "explain|be (?:more )?specific",
)
# What is to be done elsewhere or on another day keeps nobody waiting.
_LATER = either(
    r"\bat (?:the|your) (?:\w+ )?(?:desk|counter|check-?in|airport|gate|reception|door|store|shop|station|hotel|clinic)",
    r"\bwhen you (?:arrive|get|check|pick|come|visit|call|board|meet)|\bto (?:the|your) (?:driver|staff|courier)",
    r"\bsend (?:it|them|the (?:\w+ )?\w+) back\b|\bwith (?:your friends|others)\b",
)
_BREAK = r"(?:moment|minute|second|sec|while|little time)"
_SMALL_TALK = either(
    r"any(?:thing|one)?|else|more|further|other|additional|questions?|help|assist\w*|issues?|problems?|trouble|changes",
    r"unclear|adjust\w*|tweak\w*|concerns?|again|future",
)
_DECISION = either(
    "proceed|go ahead|any of (?:these|those|them|the)|either of|one of|instead|which|confirm|correct|book|works?"
)
_FAREWELL = r"\b(?:in the future|need (?:us|me|help) again|next time|good ?bye|bye)\b"
_LET_ME_KNOW_IF = (
    rf"^(?=.*\b(?:if|should you|in case)\b)(?=.*\blet (?:me|us) know\b)(?!.*\b{_DECISION}\b).*\b{_SMALL_TALK}\b"
)
_MORE = r"\bany (?:other|further|more|additional) (?:\w+ ){0,2}(?:questions?|requests?|help|assistance|way|needs?|concerns?|info\w*)\b(?=.*\?)"

# fmt: off
_NOTHING: Rows = (
    ("did you know", ""),
    ("have you ever", ""),
    ("isn't that", "^"),
    ("how ", r"^how (?:cool|great|awesome|neat|nice) "),
    ("why not", r"^why not "),
    ("who ", r"^who (?:knew|would have thought)"),
    ("prompted", ""),
    ("if it asks", ""),
    ("i need", r"\b(?:everything|all|nothing)(?: that)? i need\b(?! (?:now |from you |to know )?(?:is|are)\b)"),
    (
        "need",
        _NOT_ASKED
        + r"(?:\b(?:nothing|no (?:further|more|additional|other))\b.*\bneed|(?:\bnot|n't|\bno longer) need\b)",
    ),
    ("moment", _NOT_ASKED + r"\b(?:one|a|another) moment\b"),
    ("give me a call", ""),
    ("feel free to", r"\bfeel free to (?:reach|contact|ask|call|e-?mail|message|write|visit|return|come|use)\b"),
    ("hesitate", ""),
    ("let me know", rf"\blet me know\b.*{_FAREWELL}"),
    ("let us know", rf"\blet us know\b.*{_FAREWELL}"),
)

_CLOSING: Rows = (
    ("else", r"\b(?:any|some)thing else\b(?=.*\?)|\b(?:what|how) else\b(?=.*(?:\?|\bi\b))"),
    ("thing else", r"^(?:\w+[,.]? )?(?:is there|can i|may i|do you|would you|will there|did you|need)\b"),
    ("anything", r"\banything (?:more|further|i can (?:do|help))\b(?=.*\?)"),
    *_each("other further more additional", "any %", _MORE),
    ("further", r"\bfurther (?:assist|help)\w*\b.*\?"),
    ("questions", r"\b(?:any|more) questions\b.*\?"),
    ("answer your question", r"\?"),
    ("be all", r"\b(?:will|would) (?:that|this|it) be all\b"),
    ("that all", r"\?"),
    ("let me know", _LET_ME_KNOW_IF),
    ("let us know", _LET_ME_KNOW_IF),
    ("if you", r"^if you(?:'d| would)? (?:want|like|wish|prefer|need)[^,]{0,20}, (?:i|we) (?:can|could|'ll)\b"),
    ("can also", r"\bi can also\b.*\bif you\b"),
    ("could also", r"\bi could also\b.*\bif you\b"),
)

_QUESTION: Rows = (
    *_each("would do did could can will are were", "% you", rf"{_ASKED}% you\b"),
    *_each("don't wouldn't haven't aren't couldn't", "% you", rf"{_ASKED}% you\b"),
    *_each("would do did can", "% u ", rf"{_ASKED}% u\b"),
    *_each("may can could shall should might would do", "% i ", rf"{_ASKED}% i\b(?! need)"),
    *_each("shall should can could may will", "% we ", rf"{_ASKED}% we\b(?! (?:need|require|receive))"),
    ("would you like", ""),
    ("do you want", ""),
    ("you please", r"\b(?:could|can|would) you please\b"),
    ("have you", rf"{_START}have you\b.*\?"),
    ("are we", rf"{_START}are we\b.*\?"),
    ("want me to", rf"{_START}want me to\b"),
    ("wanna", r"^wanna\b"),
    ("ready to", r"^ready to\b.*\?"),
    *_each("is are was 's", "% you", rf"{_START}{_WH} ?% your?\b"),
    ("whats your", ""),
    (" the ", rf"{_OKAY}(?:what|which|who)(?:'s|s| is| are| was) the {_FACT}\b"),
    ("how many", rf"{_OKAY}(?:for )?how many (?:in your|(?:\w+ )?{_COUNTED})\b"),
    ("what", rf"{_OKAY}(?:at |on )?what {_SLOT}\b(?!.*\b(?:is|are|was|depends|it)\b)"),
    ("what ", rf"{_OKAY}(?:and |at |on |in |for )?what (?:(?:kind|type|sort) of )?\w+[.]?$"),
    ("which ", r"^(?:(?:and|on|in|for|from|to) )?which (?:day|date|city|airport|one|size|colou?r|seat|account|card|of (?:these|them))\b"),
    ("should", r"^(?:\w+, )?(?:what|where|which|how) (?:\w+ )?should (?!you)[^?]*\?"),
    ("w about", rf"{_START}how about\b"),
    ("t about", rf"{_START}what about\b"),
    (" you", r"^(?:which|what|when|who) (?:\w+ ){0,3}(?:suits?|works?|fits?|brings?|interests?|bothers?)\b.*\?"),
    ("sound", rf"{_START}how (?:does|do|would|will) .*\bsound\b"),
    ("is there", rf"{_START}is there (?:an?|any|another|some\w*)\b.*\byou\b"),
    (", correct", r", correct[.]?$"),
    (", right", r", right[.]?$"),
    ("?", rf"{_START}(?:is|are|was|were|does|do|did|will|would) [^?,.]{{1,60}}\b(?:ok|okay|correct|right|fine|good|work|suit|do|acceptable|alright)\b"),
    ("?", rf"{_START}(?:is|are|was|were|does|do|did|will|would) [^?,.]{{1,60}}\b(?:(?:for|with) you|you (?:want|need|have|prefer|would)|you'd|you're)\b"),
    ("does ", r"^does (?:that|this|it|everything) (?:sound|look|seem|work|suit)\b"),
    (" work", r"^(?:would|will|does) (?!be |not |love )\S.*\bwork\b"),
    ("you ", r"^(?:\w+[,.] )?(?:is|are|does) .*\byou (?:want|need|prefer|would)\b"),
    (" or ", r"^(?:\w+, )?(?:is|are|was|were|do|does|did|should|will) .*\bor\b.*\?"),
)

_PLEASE: Rows = (
    ("please", rf"\bplease,? {_ALSO}{_GIVE}\b(?!.*{_LATER})"),
    ("please", r"\bplease\b.*\b(?:and|or|then) (?:\w+ )?(?:confirm|tell|paste|reply|report|send (?:me|it|us)|share|say)\b"),
    ("please", r"\bplease\b(?! (?:note|see|refer|contact|find|don't|do not|reach)).*\bto (?:me|us)\b"),
    ("please", r"\b(?:your|number|name|date|code|address|id|city|day|time)\b.*\bplease\b[^a-z]*$"),
    ("kindly", rf"\bkindly {_ALSO}(?:{_GIVE}|ask you)\b(?!.*{_LATER})"),
    ("ask you", r"\b(?:i|we) (?:must |have to |kindly |need to |would )?ask you (?:to|for)\b"),
)

_NEED: Rows = (
    ("i need", rf"\bi need\b(?! (?:to\b|some time|more time|time to|an? (?:\w+ )?{_BREAK}))"),
    ("need", rf"\bi(?:'ll|'d| will| would| do)? {_ALSO}need\b(?! (?:to\b|some time|more time|time to|an? (?:\w+ )?{_BREAK}))"),
    ("need to", rf"{_I_WILL}need to (?:have|get|collect|ask you|identify|see your|(?:verify|confirm|authenticate) (?:you|a|some|the))"),
    ("need", r"(?<!you )(?<!you'll )(?<!you will )(?<!you would )\bneed (?:you to|your|from you)\b|\bbut (?:still |i )?(?:will )?need\b"),
    ("require", r"\bi(?:'ll| will| would)? require\b|\b(?:information|details|documents?|data) (?:is|are) (?:still )?required\b"),
    ("from you", r"\bwe .*\b(?:need|require)\b"),
    ("to know", rf"(?:{_I_WILL}|\b(?:but|and|will) (?:still |just )?)(?:need|have) to know\b|\ball i need to know is\b"),
    ("to know", r"(?:would|'d) (?:like|love|want|help|be \w+) to know\b|\bi want to know\b"),
    ("to hear", r"(?:would|'d) (?:like|love) to hear\b"),
    *_each("provide give tell send", "to %", r"\byou(?:'ll| will)? (?:have|need) to % (?:me|us)\b"),
    ("without", r"\b(?:can't|cannot|can not|unable)\b.*\bwithout (?:knowing|your|(?:this|that|more|further) information)\b"),
    ("questions", r"(?:^|^just |\b(?:i|we)(?:'ve| have)(?: got)? )(?:a few|a couple of|some|two|three|four) (?:[\w-]+ )?questions\b"),
    ("one thing", r"\b(?:except|only|just) (?:for )?one thing\b.*:"),
    ("missing", r"\bi(?:'m| am) (?:still |only )?missing\b|\bmissing is\b"),
    ("left is", r"\b(?:thing|that's|step) left is\b"),
    ("have your", r"\bi (?:still )?(?:don't|do not) (?:yet )?have your\b"),
)

_CONFIRM: Rows = (
    ("once you", r"\bonce you(?:'ve| have)? (?:confirm|approv|decid|agree)|\bonce you\b.*\b(?:i|we)(?:'ll| will| can)\b"),
    ("as soon as you", r"\b(?:i|we)(?:'ll| will| can)\b"),
    ("after you", r"\bafter you(?:'ve| have)? (?:confirm|approv|decid|agree)"),
    ("you're ready", r"\b(?:when|whenever|once|if) you're ready\b"),
    ("if you c", r"\bif you (?:can|could) (?:please )?(?:provide|share|send|tell|give|confirm|let)\b"),
    ("confirm", rf"{_OKAY}(?:confirm|verify) (?:that|to|if|whether|what|your|the|this|these)\b"),
    ("to confirm", r"(?:^|[,.!] )(?:just )?to confirm[,:](?!.*\b(?:i've|i have|has|have|was|were|been|is|are)\b)|\bi(?:'d| would) like to confirm\b"),
    ("to confirm then", r"^(?:\w+[,.] )?(?:just )?to confirm then\b"),
    (": ", r"^(?:\w+[,.] )?(?:so |just )*(?:to (?:be clear|verify|review|recap)|for confirmation): "),
    ("correct", r"\bif (?:that|this|it|everything|this information) is correct\b"),
    ("have this right", ""),
    ("let's ", r"\blet's (?:confirm|review|verify) (?:the|your|these) (?:details|information|reservation|booking)\b"),
    ("with your", r"\bwith your (?:approval|permission|confirmation|go-ahead),? (?:i|we)(?:'ll| will| can)\b"),
    ("confirming", rf"{_OKAY}(?:just )?confirming\b(?!.*\b(?:takes|is|was|will)\b)"),
    ("approval", r"^(?:seeking|requesting) (?:your )?approval\b"),
    ("understand", r"^(?:\w+, )?if i understand (?:\w+ )?correct(?:ly)?,? you\b"),
    ("let", r"\blet(?: me|'s|s) (?:just )?(?:confirm|verify|double-check|make sure|see if i|recap|repeat|go over|read)\b.*(?:: |\byou(?:'d| would| want))"),
    ("you'd like", rf"{_CHECKING} you'd like\b"),
    ("you'd like", rf"{_OKAY}you'd like (?:to|me|an?|the|\d)\b"),
    ("you would like", rf"{_CHECKING} you would like\b"),
    ("you would like", rf"{_OKAY}you would like (?:to|me|an?|the|\d)\b"),
    ("you wish", rf"{_OKAY}you wish (?:to|for)\b"),
    ("you want", rf"{_CHECKING} you want\b"),
    ("await", r"\bawait(?:ing)? (?:your|further)\b"),
    ("wait", r"\bwait(?:ing)? (?:for|on) your (?:\w+ )?(?:confirm|repl|respon|answer|decision|approv|go|input|choice|instr)"),
    ("forward to your", r"\bforward to your (?:\w+ )?(?:confirm|repl|respon|answer|decision|approv|choice)"),
)

_TELL: Rows = (
    ("let me know", r"(?<!to )\blet me know\b"),
    ("let us know", ""),
    ("(yes/no)", ""),
    ("y/n", ""),
    ("tell me", r"(?<!you )(?<!can )(?<!can't )(?<!to )\btell me\b"),
    ("tell us", r"(?<!you )(?<!can )(?<!can't )(?<!to )\btell us\b"),
    *_each("send give show email e-mail forward read get remind", "% me", rf"{_JUST}% me\b(?!.*\b{_BREAK}\b)"),
    ("what i need", ""),
    ("reply", rf"{_JUST}reply (?:with|by|in|here|yes|no|y|n|ok|okay|stop|done|back|below|and|once|if|when|using|directly|\d+ (?:or|to|for)|\"\")"),
    ("respond with", _JUST + "respond"),
    ("answer ", rf"{_JUST}answer (?:with|the|these|me)\b"),
    ("say ", rf'{_JUST}say (?:"|yes|no|ok|go|confirm|the word|which|what|when)'),
    ("type ", rf'{_JUST}type (?:"|it below|yes|no\b|y\b|confirm|your|the (?:word|number|name)|\d)'),
    ("press ", rf"{_START}press (?:y|n|\d|yes|no)\b"),
    ("enter ", rf"{_START}enter (?:your|the (?:code|number|amount)|a (?:number|value|name|date)|y|n|\d)\b"),
    ("choose", r"^choose (?:one|an option|from|between|either|which|your|any)\b"),
    ("choose", r"\byou (?:can |may )?choose(?: between| from| one of| either|:)"),
    ("pick ", r"^(?:\w+[!,] )?pick (?:one|a number|a (?:date|time|slot|card)|your|from|between|either|which)\b"),
    ("select ", r"^select (?:one|an option|your|from)\b"),
    ("your options", r"\b(?:here|these) are your options\b|\byour options are\b"),
    ("if you", r"\b(?:i|we) (?:can|could)\b.*\bif you(?:'d| would)? (?:want|like|wish|prefer)\b"),
    ("if you", r"\bappreciate (?:it )?if you\b|\bwondering if you\b|\bhelp if you\b|(?:would|'d) be \w+ if you\b"),
)
# fmt: on

_SMALL_TALK_STARTS = either(
    r"thank|many thanks|have an? |enjoy|take (?:care|your time)|no (?:rush|hurry|problem|worries)|you(?:'re| are) welcome",
    r"my pleasure|(?:i'm|i am|i'll be) (?:\w+ )?(?:happy|glad|here|ready|sorry)|i'll wait|i can wait|(?:i )?look(?:ing)? forward",
    r"feel free|(?:please )?(?:don't|do not) hesitate|good ?bye|bye|cheers|all the best|(?:kind|best|warm) regards|sorry|apologies",
    r"if (?:not|so|yes|no)\b|otherwise\b",
    r"(?:great|perfect|sure|of course|certainly|absolutely|okay|ok|got it)\b[^a-z]*$",
)

ENGLISH: Final = language(
    answers=either(
        r"(?:yes|no|nope|yep|well)(?:[,.:;!]|$| [-–—])|because\b|absolutely\b|definitely\b|of course\b|indeed\b|in short\b",
        r"(?:it|that) depends\b|in (?:that|this) case\b|the (?:short )?answer\b|short answer\b|simply put\b",
        r"not (?:really|necessarily|quite|at all|yet)\b|a(?:nswer)?: ",
    ),
    nothing=_NOTHING,
    closing=_CLOSING,
    question=_QUESTION,
    request=_TELL + _PLEASE + _NEED + _CONFIRM,
    courtesy=(("", "^" + _SMALL_TALK_STARTS),),
)

# A list under such a line is what the user asked for, not what the agent asks the user.
DELIVERABLE: Final = Pattern(
    r"\bhere(?:'s| is| are)\b|\bthese are\b|\bbelow (?:is|are)\b|\byou (?:could|might|can|should) ask\b|\bask yourself\b"
    r"|\b(?:sample|example|typical|common|suggested|interview|trivia|survey|frequently)\b"
)
