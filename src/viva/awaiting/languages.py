r"""The word tables of the detector: one text file per language in `words/`, read when a reply first needs it.

A table file has sections. Some hold one regular expression: `[answers]`, how a sentence begins that answers the question
before it; `[presents]`, the line above a list that the user asked for; `[direct]`, a bold line that is no heading;
`[settled]`, what rules out an offer. The others hold rows. The first section with a matching row decides what a sentence
means, in this order: `[goodbye]`, `[nothing]` (looks like one of those below, is not), `[closing]` (an offer of more
help), `[question]` (put to the user, so that it stands even when more text follows), `[later]` (a request that is not
urgent), `[request]`, `[wish]` (a wish at parting), `[courtesy]`. `[offer]` has rows too: offers that ask nothing, looked
for last, in two sentences at a time.

    # a comment
    NAME = a part of a pattern        used below as <NAME>
    `needle` pattern                  tried only on a sentence that contains the needle; without a pattern it matches
    can may `% i ` \b% i\b            one row for each word, in the place of %
      |more                           an indented line continues the line above

Finding a fixed string costs a hundredth of a search, hence the needles. Spaces at the end of a line are dropped: write
`[ ]`. Sentences come in lower case, without markdown, code and quoted text, with straight apostrophes and with their
closing mark.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

from viva.text.pattern import LazyPattern

Meaning = Literal["goodbye", "nothing", "closing", "question", "later", "request", "wish", "courtesy"]

_MEANINGS: Final[tuple[Meaning, ...]] = get_args(Meaning)
_FOLDER: Final = Path(__file__).with_name("words")
_DEFINITION: Final = re.compile(r"([A-Z_]+) = (.*)")
_NAME: Final = re.compile(r"<([A-Z_]+)>")
_NEVER: Final = "(?!)"
_MARKS: Final = str.maketrans("-,.?!¿¡", " " * 7)
# Rows of one meaning whose search texts share one of these words are grouped, so that most are skipped together.
_SHARED: Final = ("you", " i ", " we ", " me", " us", " u ", "please", "need", "any", "confirm", "to ", "?", "wh", "also", " about")  # fmt: skip


class Rule(NamedTuple):
    needle: str
    pattern: LazyPattern
    meaning: Meaning


class Language(NamedTuple):
    """The patterns of one language."""

    name: str
    rules: tuple[tuple[str, tuple[Rule, ...]], ...]
    offers: tuple[tuple[str, LazyPattern], ...]
    answers: LazyPattern
    presents: LazyPattern
    direct: LazyPattern
    settled: LazyPattern

    def meaning_of(self, sentence: str) -> Meaning | None:
        for shared, rules in self.rules:
            if shared in sentence:
                for needle, pattern, meaning in rules:
                    if needle in sentence and pattern.fits(sentence):
                        return meaning
        return None

    def is_offer(self, sentences: str) -> bool:
        return any(needle in sentences and pattern.fits(sentences) for needle, pattern in self.offers)


@cache
def load_language(name: str) -> Language:
    sections = _read_sections(name)
    groups = [
        (shared, tuple(Rule(needle, LazyPattern(pattern), meaning) for needle, pattern in rows))
        for meaning in _MEANINGS
        for shared, rows in groupby(sorted(_rows(sections.get(meaning, ())), key=_shared_word), _shared_word)
    ]
    offers = tuple((needle, LazyPattern(pattern)) for needle, pattern in _rows(sections.get("offer", ())))
    patterns = (
        LazyPattern("".join(sections.get(part, ())) or _NEVER) for part in ("answers", "presents", "direct", "settled")
    )
    return Language(name, tuple(groups), offers, *patterns)


def language_of(text: str) -> Language:
    """The language by script, then by common words of the last sentences; English if it is unclear."""
    end = text[-400:].lower()
    scripts, common = _recognition()
    if not end.isascii():
        for script, name in scripts:
            if script.search(end):
                return load_language(name)
    if " you" in end or " the " in end:
        return load_language("english")
    words = set(end.translate(_MARKS).split())
    return load_language(max(common, key=lambda known: len(known[0] & words))[1])


@cache
def _recognition() -> tuple[tuple[tuple[LazyPattern, str], ...], tuple[tuple[frozenset[str], str], ...]]:
    sections = _read_sections("languages")
    scripts = (line.partition(": ") for line in sections["script"])
    common = (line.partition(": ") for line in sections["common"])
    return (
        tuple((LazyPattern(script), name) for name, _, script in scripts),
        tuple((frozenset(words.split()), name) for name, _, words in common),
    )


def _read_sections(name: str) -> dict[str, list[str]]:
    """The lines of each section of a table file, with its definitions filled in."""
    text = (_FOLDER / f"{name}.txt").read_text(encoding="utf-8")
    sections: dict[str, list[str]] = {}
    definitions: dict[str, str] = {}
    lines: list[str] = []
    for line in _joined(text):
        if line[0] == "[" and line[-1] == "]" and line[1:-1].isalpha():
            lines = sections.setdefault(line[1:-1], [])
            continue
        filled = _NAME.sub(lambda used: definitions[used[1]], line) if "<" in line else line
        if definition := _DEFINITION.fullmatch(filled):
            definitions[definition[1]] = definition[2]
        else:
            lines.append(filled)
    return sections


def _joined(text: str) -> Iterator[str]:
    """The lines without comments, each with the indented ones below it."""
    lines: list[str] = []
    for line in text.splitlines():
        words = line.strip()
        if not words or line[0] == "#":
            continue
        if line[0] == " ":
            lines[-1] += words if words[0] in "|)" else f" {words}"
        else:
            lines.append(words)
    return iter(lines)


def _rows(lines: list[str] | tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for line in lines:
        words, needle, pattern = line.split("`", 2)
        pattern = pattern.strip()
        if not words:
            yield needle, pattern
        for word in words.split():
            yield needle.replace("%", word), pattern.replace("%", word)


def _shared_word(row: tuple[str, str]) -> str:
    return next((word for word in _SHARED if word in row[0]), row[0])
