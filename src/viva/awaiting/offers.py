"""Offers without a question: "There is a United flight at 9:10 am for $205.", "Sam's Grill is a nice place in Fremont."

Such a reply waits for a yes or no, though nothing in its grammar asks. English only, only in a reply of a few spoken
sentences, and only of what people book, visit, watch or hear: "There is a test for this." offers nothing.
"""

from typing import Final

from viva.awaiting.languages import Pattern


def either(*ways: str) -> str:
    return "(?:" + "|".join(ways) + ")"


_MAX_CHARS: Final = 400
_WRITTEN: Final = "\n`{}_<>|\\"  # lists, code and tables are written, not spoken

# A thing that is offered by being named.
_THINGS = (
    "flight|bus|train|taxi|cab|car|hotel|hostel|apartment|restaurant|bistro|cafe|salon|movie|film|song|concert|showtime|museum"
    "|attraction|landmark|park|theater|theatre|airport|dentist|doctor|stylist|therapist|psychologist|psychiatrist|counselor"
    "|dermatologist|gynecologist|ophthalmologist"
)
# A thing that is offered only together with a price, an hour, a day, a rating, a hall, or a word about the user.
_OTHERS = "room|place|house|home|condo|ticket|seat|event|show|game|ride|trip|appointment|venue|spot|option|choice|result|sedan|suv"
_HINTS = (
    "buses|airlines|match|matches|property|properties|possibilities|compact|standard|full-size|star|stars|album|available|located"
    "|leaves|leaving|departs|departing|pick|picked|pickup|like|enjoy|interested|interest|consider|suit|work|matching|fit|meets"
    "|booking|reserving|scheduling|renting"
)
# One of these words is in every offer.
_TELLING: Final = frozenset(
    f"{_THINGS}|{_OTHERS}|{_HINTS}|{_THINGS.replace('|', 's|')}s|{_OTHERS.replace('|', 's|')}s".split("|")
)
# One of these speaks against it: the matter is settled, there is none, it is the user's already, or it stands in a file.
_AGAINST = (
    "booked reserved purchased bought confirmed scheduled successful successfully been already cancelled canceled refund refunded"
    " sorry unfortunately unable unavailable sold longer not cannot order orders reservation account itinerary calendar profile"
    " cart fee fees charge image picture photo code file files function query database dataset log logs schema test tests api"
    " version update release patch commit package build download every each history last ago completed"
)
_SETTLED: Final = frozenset(_AGAINST.split())

_THING = f"(?:(?:{_THINGS})s?|buses|airlines)"
_OTHER = f"(?:(?:{_OTHERS})s?|match(?:es)?|propert(?:y|ies)|possibilities)"
_LIKED = either(
    r" you (?:may|might|would|could|will|can) (?:like|enjoy|be interested|consider)\b",
    r" (?:suits?|match(?:es|ing)?|fits?|meets?|meeting) (?:you\b|your|what you)",
    r" (?:may|might|could|would|should) (?:interest|suit|work|be of interest)\b| that (?:match|fit)\b",
)
_SPECIFIC: Final = Pattern(
    either(
        r"\$\d|\d ?[ap]\.?m\b|\d(?:st|nd|rd|th)\b| (?:today|tonight|tomorrow|(?:next|on|this) \w+day)\b",
        r" for you\b| rat(?:ing|ed)\b|\d bed| (?:stadium|arena|ballroom|hall)\b",
        _LIKED,
    )
)
# What may follow a thing. Another noun may not: "a flight delay" is no flight.
_ENDS = either(
    r"(?=[,.:;!]|$| -| (?:with|that|which|who|for|at|on|in|from|to|by|near|and|or|of|via|is|has|it|it's|i|you|there|next|this)\b",
    r" (?:leaving|departing|outbound|inbound|returning|available|matching|meeting|including|around|called|named|titled)\b",
    r" (?:costing|priced|located|showing|playing|beginning|starting)\b)",
)
_WORDS = r"(?: (?!(?:for|of|to|in|on|that|which|who|is|about|from|and)\b)[\w'&$.:/-]+){0,6}?"
_ONE = r"(?: also| only| just| you| for you)* (?:an?|another|one|1)\b(?! few| lot| couple| number)"
_SOME = r"(?: also| only| just| you| for you)* (?:\d+|two|three|four|five|six|seven|eight|nine|ten)\b"
_SINGLED_OUT = r"(?=.*(?:[.:;,-] \w|\.[a-z]| (?:including|one|leaving|departing|called|named) | for \$))"
_READY = r"(?:(?: that| which)? (?:leav|depart)\w+ (?:at|from)| available| pick(?:ed)? ?up| located (?:at|in))\b"
_NICE = "(?:nice|good|great|lovely|popular|wonderful|beautiful|excellent|decent|cool|fun|interesting|comfortable)"
# The start of a sentence about something new. "It is a 4 star hotel." tells of what was offered before.
_A_NAME = (
    r"(?:^|[.!:]) (?:(?:sure|well|okay|ok|great|yes|also|alright)[,.!]? )*"
    r"(?!(?:its?|this|that|they|which|yes|no|there|both)\b|(?:the|your) (?:hotel|place|restaurant|flight|bus|price|total)\b)[^.!?]*"
)
_PROPOSING = either(
    r"i(?:'d| would| can)? (?:also |highly )?(?:recommend|suggest|propose)",
    r"you (?:may|might|could) (?:want to |also )?(?:like|enjoy|try|visit|consider|check out|be interested in)",
    r"(?:other|another|one|good|first) (?:option|choice)(?: for you)? is",
)

# What was found stands after these words, from its article or number on.
_FINDING: Final = Pattern(
    r" (?:there(?:'s|'re| is| are)|found|located|selected|able to (?:find|locate)|(?:i|we|i've|you've|you have)(?: also| can| could)? (?:have|see|show|got)"
    r"|search (?:has )?(?:revealed|yielded|turned up|returned))(?= )"
)
_FOUND: Final = (
    Pattern(
        rf"^{_ONE}{_WORDS} (?:{_THING}{_ENDS}|[1-5][ -]star\b|sedan\b|suv\b|(?:place|spot|venue)\b[^.]* (?:called|named)\b)"
    ),
    Pattern(rf"^{_ONE}[^.]*{_LIKED}{_SINGLED_OUT}"),
    Pattern(rf"^{_SOME}{_SINGLED_OUT}(?:{_WORDS} {_THING}{_ENDS}|[^.]*{_LIKED}| for you\b)"),
    Pattern(rf"^{_SOME}{_SINGLED_OUT}(?:{_WORDS} {_OTHER}{_ENDS}|[.:;,]| of them).* {_THING}\b"),
    Pattern(r"^ [^.]* by [^.]* album\b"),
)
_FOUND_SPECIFIC: Final = (
    Pattern(
        rf"^{_ONE}(?:[^.]*{_READY}|{_WORDS} {_OTHER}{_ENDS}|(?: \w+)? (?:compact|standard|full-size) \w+ (?:at|from|on|in)\b)"
    ),
    Pattern(rf"^{_SOME}{_SINGLED_OUT}(?:{_WORDS} {_OTHER}{_ENDS}|[.:;,]| of them)"),
)
_NAMED: Final = (
    Pattern(
        rf"{_A_NAME}(?: is an? (?:\w+ )?{_NICE}(?:,? [\w-]+){{0,3}}? (?:{_THING}{_ENDS}|place in\b)|\b[1-5][ -]star\b)"
    ),
    Pattern(rf"{_A_NAME} is an? (?:\w+ )?{_THING} in\b"),
    Pattern(rf" {_PROPOSING}\b.* (?:{_THING}{_ENDS}|suv|sedan)"),
)
_NAMED_SPECIFIC: Final = (
    Pattern(
        rf"(?:(?:^|[.!,:;]| and) (?:an?|another|one|(?:the )?\w+ airlines)| has{_ONE})\b[^.]*(?:{_READY}| (?:flight|bus|train){_ENDS})"
    ),
    Pattern(
        r"^ (?:(?:ok|okay|sure|alright|great|so)[,.!]? )*(?:booking|reserving|scheduling|renting) (?:an?|\d+)\b(?!.* now\b)"
    ),
)


def offers(text: str) -> bool:
    """Whether a reply that asks nothing puts something before the user that may be taken or left."""
    if len(text) > _MAX_CHARS or any(mark in text for mark in _WRITTEN):
        return False
    said = " " + text.lower().replace("’", "'")
    words = said.replace(".", " ").replace(",", " ").replace(":", " ").replace("!", " ").split()
    if _TELLING.isdisjoint(words) or not _SETTLED.isdisjoint(words) or "n't" in said:
        return False
    specific = _SPECIFIC.search(said) is not None
    found = _FOUND + _FOUND_SPECIFIC if specific else _FOUND
    for finding in _FINDING.finditer(said):
        rest = said[finding.end() :]
        if any(pattern.match(rest) for pattern in found):
            return True
    return any(pattern.search(said) for pattern in (_NAMED + _NAMED_SPECIFIC if specific else _NAMED))
