"""What a sentence means to the one who reads it as the user: the words behind `awaiting`, in English and how to read them.

A row is a needle and a pattern: the pattern is tried only on a sentence that holds the needle, since finding a fixed
string costs a hundredth of a search; an empty pattern always fits. The first row that fits decides. Sentences come in
lower case, without markdown, code and quoted text, with straight apostrophes and with their closing mark.
"""

import re
from typing import Final, Literal, NamedTuple

# question: put to the user, so that it stands even when more text follows. nothing: looks like one of the others, is not.
Means = Literal["closing", "question", "nothing", "request", "courtesy"]
Rows = tuple[tuple[str, str], ...]


class Rule(NamedTuple):
    """`needle` has to be there, then `pattern` has to be found."""

    needle: str
    pattern: re.Pattern[str] | None
    means: Means


class Language(NamedTuple):
    """How sentences of a language are read. `answers` is how one begins that answers the question before it."""

    rules: tuple[Rule, ...]
    answers: re.Pattern[str]

    def means(self, sentence: str) -> Means | None:
        for needle, pattern, means in self.rules:
            if needle in sentence and (pattern is None or pattern.search(sentence)):
                return means
        return None


def read_as(answers: str, **rows: Rows) -> Language:
    """A language from its rows: `closing=...`, `question=...`, in the order in which they are tried."""
    rules = [
        Rule(needle, re.compile(pattern) if pattern else None, means)  # type: ignore[arg-type]
        for means, pairs in rows.items()
        for needle, pattern in pairs
    ]
    return Language(tuple(rules), re.compile(answers))


def either(*ways: str) -> str:
    return "(?:" + "|".join(ways) + ")"


# --- English ---

# Where a clause may begin: "Sure, could you ...", "... and what time ...".
_START = r"(?:^|[,;:(–—-] ?|\b(?:and|but|so|or|then|also|ok|okay|sure|great|thanks|alright|yes|well|hi|please|now|first|that|it) )"
_ALSO = r"(?:(?:also|still|just|only|first|now|then|do|kindly|really|either|simply|quickly|next) )*"
_I_WILL = r"\b(?:i|we)(?:'ll|'d| will| would| do)? " + _ALSO
_GIVE = either(
    "provide|confirm|tell|share|send|enter|specify|select|choose|pick|reply|respond|answer|indicate|type|verify|clarify",
    "describe|upload|attach|advise|fill (?:in|out)|state|list|say|give (?:me|us (?:your|the))|paste|input|decide|approve",
    "sign|repeat|write|supply|identify|elaborate|rephrase|spell|double-check|name|mention|authori[sz]e|let me|inform me|explain",
)
# What is to be done elsewhere or on another day keeps nobody waiting.
_LATER = either(
    r"\bat (?:the|your) (?:\w+ )?(?:desk|counter|check-?in|airport|gate|reception|door|store|shop|station|hotel|clinic)",
    r"\bwhen you (?:arrive|get|check|pick|come|visit|call|board|meet)|\bto (?:the|your) (?:driver|staff|courier)",
    r"\bsend (?:it|them|the (?:\w+ )?\w+) back\b|\bwith (?:your friends|others)\b",
)
_SMALL = either(
    r"any(?:thing|one)?|else|more|further|other|additional|questions?|help|assistance|issues?|problems?|trouble|changes",
    r"unclear|adjust\w*|tweak\w*|concerns?|assist|again|future",
)
_DECIDE = either(
    "proceed|go ahead|any of (?:these|those|them|the)|either of|one of|instead|which|confirm|correct|book|works?"
)
_YOU_AUX = "(?:would|do|did|could|can|will|are|were|have|is|was) (?:you|u|your)"
_I_AUX = "(?:would|should|shall|can|may|could|will|do|did) (?:i|we)"
_FACT = r"(?:\w+ )?(?:name|number|date|e-?mail|address|zip|postcode|destination|budget|phone)"
_WH = "(?:what|which|when|where|who|whom|whose|how)"
# "How do you fix this?" is a heading in disguise, "How would you like to pay?" is not.
_ANYBODY = either(
    "how (?:do|can|could|would|did) (?:you|we|i)(?! (?:like|prefer|want|help|assist|proceed|wish|contact|reach|refer|spell))",
    "(?:when|why|where) (?:would|do|can|could) you (?:use|choose|need)",
    "what (?:can|do|could) (?:you|we|i) (?:do|get|learn|conclude)(?! for)",
)

ENGLISH: Final = read_as(
    answers=either(
        r"(?:yes|no|nope|yep|well)(?:[,.:;!]|$| [-–—])|because\b|absolutely\b|definitely\b|of course\b|indeed\b|in short\b",
        r"(?:it|that) depends\b|in (?:that|this) case\b|the (?:short )?answer\b|short answer\b|simply put\b",
        r"not (?:really|necessarily|quite|at all|yet)\b|a(?:nswer)?: ",
    ),
    closing=(
        ("else", r"\b(?:any|some)thing else\b(?=.*\?)|\b(?:what|how) else\b(?=.*(?:\?|\bi\b))"),
        ("thing else", r"^(?:\w+,? )?(?:is there|can i|may i|do you|would you|will there|did you|need)\b"),
        ("anything", r"\banything (?:more|further|i can (?:do|help))\b(?=.*\?)"),
        ("any ", r"\bany (?:other|further|more|additional) (?:\w+ ){0,2}(?:questions?|requests?|help|assistance|way|needs?|concerns?|info\w*)\b(?=.*\?)"),
        ("further", r"\bfurther (?:assist|help)\w*\b.*\?|\b(?:if|should) you need .*further\b"),
        ("questions", r"\b(?:any|more) questions\b.*\?"),
        ("answer your question", r"\?"),
        ("be all", r"\b(?:will|would) (?:that|this|it) be all\b"),
        ("that all", r"\?"),
        ("know", rf"^(?=.*\b(?:if|should you|in case)\b)(?=.*\blet (?:me|us) know\b)(?!.*\b{_DECIDE}\b).*\b{_SMALL}\b"),
        ("if you", r"^if you(?:'d| would)? (?:want|like|wish|prefer|need)[^,]{0,20}, (?:i|we) (?:can|could|'ll)\b"),
        ("also", r"\b(?:i|we) (?:can|could) also\b.*\bif you\b"),
    ),
    nothing=(
        ("did you know", ""),
        ("have you ever", ""),
        ("isn't that", r"^isn't that"),
        ("how ", r"^how (?:cool|great|awesome|neat|nice) "),
        ("why not", r"^why not "),
        ("who ", r"^who (?:knew|would have thought)"),
        ("prompted", ""),
        ("if it asks", ""),
        ("need", r"\b(?:everything|all|nothing)(?: that)? (?:i|we) need\b(?! (?:now |from you |to know )?(?:is|are)\b)"),
        ("need", r"^(?!.*\?).*(?:\b(?:nothing|no (?:further|more|additional|other))\b.*\bneed|\b(?:not|n't|no longer) need\b)"),
        ("moment", r"^(?!.*\?).*\b(?:one|a|another) moment\b"),
        ("give me a call", ""),
        (" i ", r"^(?!.*\?).*\b(?:may|can) i (?:suggest|recommend)\b"),
        ("feel free", r"\bfeel free to (?:reach|contact|ask|call|e-?mail|message|write|visit|return|come|use)\b"),
        ("hesitate", ""),
    ),
    question=(
        (" you", rf"{_START}(?:would|do|did|could|can|will|are|were|don't|wouldn't|haven't|aren't|couldn't) you\b"),
        (" you", r"\b(?:would you (?:like|prefer|mind)|do you (?:want|prefer)|could you please|can you please)\b"),
        ("have you", rf"{_START}have you\b.*\?"),
        (" u ", rf"{_START}(?:would|do|did|could|can|will|are) u\b"),
        (" i ", rf"{_START}(?:may|can|could|shall|should|might) i\b"),
        (" we ", rf"{_START}(?:shall|should|can|could|may) we\b"),
        ("want me to", rf"{_START}want me to\b"),
        ("wanna", r"^wanna\b"),
        ("ready to", r"^ready to\b.*\?"),
        ("?", rf"{_START}(?:is|are|was|were|does|do|did|will|would) [^?,.]{{1,60}}\b(?:ok|okay|correct|right|fine|work|suit|acceptable|alright)\b"),
        ("?", rf"{_START}(?:is|are|was|were|does|do|did|will|would) [^?,.]{{1,60}}\b(?:(?:for|with) you|you (?:want|need|have|prefer|would)|you'd|you're)\b"),
        (" or ", r"^(?:\w+, )?(?:is|are|was|were|do|does|did|should|will) .*\bor\b.*\?"),
        ("wh", rf"{_START}(?!{_ANYBODY}\b)(?:\w+ )?{_WH}\b[^.?!:]{{0,60}}?\b(?:{_YOU_AUX}|{_I_AUX})\b"),
        ("how", rf"{_START}(?!{_ANYBODY}\b)(?:\w+ )?{_WH}\b[^.?!:]{{0,60}}?\b(?:{_YOU_AUX}|{_I_AUX})\b"),
        ("wh", rf"{_START}{_WH}(?:'s|s| is| are| was) (?:your|the {_FACT})\b"),
        ("what ", r"^(?:and |at )?what (?:time|day|date|size|city)\b(?! (?:is|are|was) )"),
        ("which ", r"^(?:(?:and|on|in|for|from|to) )?which (?:day|date|city|airport|one|size|colou?r|seat|account|card|of (?:these|them))\b"),
        ("what", r"^(?:\w+,? ){0,2}what (?:time|day|date|area|city|type|kind|size|colou?r|price)\b(?!.*\b(?:is|are|was|depends|it)\b)"),
        ("should", r"^(?:\w+, )?(?:what|where|which|how) (?:\w+ )?should (?!you)[^?]*\?"),
        (" about", rf"{_START}(?:how|what) about\b"),
        ("sound", rf"{_START}how (?:does|do|would|will) .*\bsound\b"),
        ("is there", rf"{_START}is there (?:an?|any|another|some\w*)\b.*\byou\b"),
        ("are we", rf"{_START}are we\b.*\?"),
        (", ", r", (?:correct|right)[.]?$"),
        ("how many", r"^(?:\w+,? ){0,3}how many in your\b|\bhow many (?:\w+ )?(?:people|guests|passengers|nights|tickets|bags|seats|rooms|travell?ers|adults|days)\b.*\?"),
    ),
    request=(
        ("let me know", r"(?<!to )\blet me know\b"),
        ("let us know", ""),
        ("(yes/no)", ""),
        ("y/n", ""),
        ("please", rf"\bplease,? {_ALSO}{_GIVE}\b(?!.*{_LATER})"),
        ("specific", r"\bplease be (?:more )?specific\b"),
        ("please", r"\bplease\b.*\b(?:and|or|then) (?:\w+ )?(?:confirm|tell|paste|reply|report|send (?:me|it|us)|share|say)\b"),
        ("please", r"\bplease\b(?! (?:note|see|refer|contact|find|don't|do not)).*\bto (?:me|us)\b"),
        ("please", r"\b(?:your|number|name|date|code|address|id|city|day|time)\b.*\bplease\b[^a-z]*$"),
        ("kindly", rf"\bkindly {_ALSO}(?:{_GIVE}|ask you)\b(?!.*{_LATER})"),
        ("tell ", r"(?<!you )(?<!can )(?<!can't )(?<!to )\btell (?:me|us)\b"),
        (" me ", rf"{_START}(?:just |simply |please )?(?:send|give|show|e-?mail|forward|read|get|remind) me\b(?!.*\b(?:moment|minute|second|sec|while)\b)"),
        ("need", rf"{_I_WILL}need\b(?! (?:to\b|some time|more time|time to|an? (?:\w+ )?(?:moment|minute|second|little time)))(?<!\bwe need)"),
        ("require", r"\bi(?:'ll| will| would)? require\b"),
        ("to know", rf"(?:{_I_WILL}|\b(?:but|and|will) (?:still |just )?)(?:need|have) to know\b|\ball i need to know is\b"),
        ("need", r"\bbut (?:still |i )?(?:will )?need\b"),
        ("need to", rf"{_I_WILL}need to (?:have|get|collect|ask you|identify|see your|(?:verify|confirm|authenticate) (?:you|a|some|the))"),
        ("to ", r"\byou(?:'ll| will)? (?:have|need) to (?:provide|give|tell|send) (?:me|us)\b"),
        ("without", r"\b(?:can't|cannot|can not|unable)\b.*\bwithout (?:knowing|your|(?:this|that|more|further) information)\b"),
        ("questions", r"(?:^|^just |\b(?:i|we)(?:'ve| have)(?: got)? )(?:a few|a couple of|some|two|three|four) (?:[\w-]+ )?questions\b"),
        ("need ", r"(?<!you )(?<!you'll )(?<!you will )(?<!you would )\bneed (?:you to|your|from you)\b"),
        ("from you", r"\bwe .*\b(?:need|require)\b"),
        ("what i need", ""),
        ("required", r"\b(?:information|details|documents?|data) (?:is|are) (?:still )?required\b"),
        ("missing", r"\bi(?:'m| am) (?:still |only )?missing\b|\bmissing is\b"),
        ("left is", r"\b(?:thing|that's|step) left is\b"),
        ("have your", r"\bi (?:still )?(?:don't|do not) (?:yet )?have your\b"),
        ("once you", r"\bonce you(?:'ve| have)? (?:confirm|approv|decid|agree)|\bonce you\b.*\b(?:i|we)(?:'ll| will| can)\b"),
        ("as soon as you", r"\b(?:i|we)(?:'ll| will| can)\b"),
        ("after you", r"\bafter you(?:'ve| have)? (?:confirm|approv|decid|agree)"),
        ("you're ready", r"\b(?:when|whenever|once|if) you're ready\b"),
        ("if you c", r"\bif you (?:can|could) (?:please )?(?:provide|share|send|tell|give|confirm|let)\b"),
        ("confirm", r"^(?:so|ok|okay|alright|great|sure)?,? ?(?:confirm|verify) (?:that|to|if|whether|your|the|this|these)\b"),
        ("you", r"\b(?:confirm(?:ing)?|clarify|recap|check|so|okay|alright)[,:]? (?:that )?you(?:'d| would)? (?:want|like|wish)\b"),
        ("reply", rf"{_START}(?:just |simply )?reply (?!to)"),
        ("respond", rf"{_START}(?:just |simply )?respond with\b"),
        ("answer", rf"{_START}(?:just |simply )?answer (?:with|the|these|me)\b"),
        ("say ", rf'{_START}(?:just |simply )?say (?:"|yes|no|ok|go|confirm|the word|which|what|when)'),
        ("type ", rf'{_START}(?:just |simply )?type (?:"|yes|no\b|y\b|confirm|your|the (?:word|number|name)|\d)'),
        ("press ", rf"{_START}press (?:y|n|\d|yes|no)\b"),
        ("enter ", rf"{_START}enter (?:your|the (?:code|number|amount)|a (?:number|value|name|date)|y|n|\d)\b"),
        ("choose", r"^choose (?:one|an option|from|between|either|which|your|any)\b|\byou (?:can |may )?choose(?: between| from| one of| either|:)"),
        ("pick", r"^(?:\w+[!,] )?pick (?:one|a number|a (?:date|time|slot|card)|your|from|between|either|which)\b"),
        ("select", r"^select (?:one|an option|your|from)\b"),
        ("your options", r"\b(?:here|these) are your options\b|\byour options are\b"),
        ("await", r"\bawait(?:ing)? (?:your|further)\b"),
        ("your", r"\b(?:wait(?:ing)? (?:for|on)|forward to) your (?:\w+ )?(?:confirm|repl|respon|answer|decision|approv|go|input|choice|instr)"),
        ("if you", r"\b(?:i|we) (?:can|could)\b.*\bif you(?:'d| would)? (?:want|like|wish|prefer)\b"),
        ("if you", r"\bappreciate (?:it )?if you\b|\bwondering if you\b|\bhelp if you\b|(?:would|'d) be \w+ if you\b"),
        ("to know", r"(?:would|'d) (?:like|love|want|help|be \w+) to know\b|\bi want to know\b"),
        ("ask you", r"\b(?:i|we) (?:must |have to |kindly |need to |would )?ask you (?:to|for)\b"),
    ),
    courtesy=(
        ("", either(
            r"^(?:thank|many thanks|have an? |enjoy|take (?:care|your time)|no (?:rush|hurry|problem|worries)|you(?:'re| are) welcome)",
            r"^(?:my pleasure|(?:i'm|i am|i'll be) (?:\w+ )?(?:happy|glad|here|ready|sorry)|i'll wait|i can wait|(?:i )?look(?:ing)? forward)",
            r"^(?:feel free|(?:please )?(?:don't|do not) hesitate|good ?bye|bye|cheers|all the best|(?:kind|best|warm) regards|sorry|apologies)",
            r"^(?:if (?:not|so|yes|no)\b|otherwise\b)",
            r"^(?:great|perfect|sure|of course|certainly|absolutely|okay|ok|got it)\b[^a-z]*$",
        )),
    ),
)  # fmt: skip

# A list under such a line is what the user asked for, not what the agent asks the user.
DELIVERABLE: Final = re.compile(
    r"\bhere(?:'s| is| are)\b|\bthese are\b|\bbelow (?:is|are)\b|\byou (?:could|might|can|should) ask\b"
    r"|\b(?:sample|example|typical|common|suggested|interview|trivia|survey|frequently)\b"
)
