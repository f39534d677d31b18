r"""The word tables of the detector: one text file per language in `words/`, read when a reply first needs it.

A table file has sections. Some hold one regular expression: `[answers]`, how a sentence begins that answers the question
before it; `[presents]`, the line above a list that the user asked for; `[direct]`, a bold line that is not a heading;
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

Finding fixed strings costs a hundredth of a search, which is why rows have needles (the rarer, the better): a `RuleIndex`
finds all that are in a sentence in one pass. `^` at the start of a needle is the start of the sentence. Spaces at the end of
a line are dropped: write `[ ]`. Sentences come in lower case, without markdown, code and quoted text, with straight
apostrophes and with their closing mark.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Generic, Literal, NamedTuple, TypeVar, get_args

from viva.text.pattern import LazyPattern

T = TypeVar("T")

Meaning = Literal["goodbye", "nothing", "closing", "question", "later", "request", "wish", "courtesy"]

_MEANINGS: Final[tuple[Meaning, ...]] = get_args(Meaning)
_FOLDER: Final = Path(__file__).with_name("words")
_DEFINITION: Final = re.compile(r"([A-Z_]+) = (.*)")
_NAME: Final = re.compile(r"<([A-Z_]+)>")
_NEVER: Final = "(?!)"
_MARKS: Final = str.maketrans("-,.?!¿¡", " " * 7)
_GROUP_SIGNS: Final = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|[()|]")
_QUANTIFIERS: Final = ("?", "*", "+", "{")


class LetterFirstPattern(LazyPattern):
    """A pattern that does not start with a word boundary, which would make a search slow."""

    def _compile(self) -> re.Pattern[str]:
        return re.compile(_move_boundary_inside(self.source), self.flags)


def _move_boundary_inside(source: str) -> str:
    r"""A pattern that matches the same, but does not start with `\b`: `\b(?:a|be)c` becomes `(?:a(?<=\ba)|b(?<=\bb)e)c`.

    A search for a pattern that starts with letters jumps from one place of these letters to the next. With `\b` before them
    it tries the whole pattern at every place, which takes several times as long.
    """
    return (source.startswith("\\b") and _bind_first_letter(source[2:])) or source


def _bind_first_letter(part: str) -> str | None:
    """The part of a pattern with a word boundary before its first letter; None if it may start with something else."""
    if part.startswith("(?:"):
        *choices, end = _find_choice_ends(part, 3)
        bound = [
            _bind_first_letter(part[start:stop])
            for start, stop in zip((3, *(at + 1 for at in choices)), (*choices, end), strict=True)
        ]
        if None in bound or part[end + 1 :].startswith(_QUANTIFIERS):
            return None
        return f"(?:{'|'.join(filter(None, bound))}){part[end + 1 :]}"
    if not "a" <= part[:1] <= "z" or part[1:].startswith(_QUANTIFIERS):
        return None
    return rf"{part[0]}(?<=\b{part[0]}){part[1:]}"


def _find_choice_ends(part: str, start: int) -> Iterator[int]:
    """The offsets at which the choices of a group `(a|b)` end: its bars and its closing bracket."""
    depth = 0
    for sign in _GROUP_SIGNS.finditer(part, start):
        depth += {"(": 1, ")": -1}.get(sign[0], 0)
        if depth < 0 or (depth == 0 and sign[0] == "|"):
            yield sign.start()
        if depth < 0:
            return


def _find_nothing(_sentence: str) -> tuple[()]:
    return ()


class RuleIndex(Generic[T]):
    """Finds the rows whose needle is in a sentence: an Aho-Corasick automaton finds all needles in one pass."""

    def __init__(self, rows: Sequence[tuple[str, T]]) -> None:
        from ahocorasick import Automaton  # imported with the first reply, to keep start-up fast

        self.rows = rows
        self._rows = [row for _, row in rows]
        numbers = defaultdict[str, tuple[int, ...]](tuple)
        for number, (needle, _) in enumerate(rows):
            numbers[needle.strip() and needle] += (number,)
        self._always = numbers.pop("", ())
        automaton = Automaton()
        for needle, row_numbers in numbers.items():
            automaton.add_word(needle, row_numbers)
        automaton.make_automaton()
        self._find_needles: Callable[[str], Iterable[tuple[int, tuple[int, ...]]]] = (
            automaton.iter if numbers else _find_nothing
        )

    def __bool__(self) -> bool:
        return bool(self._rows)

    def find_rows(self, sentence: str) -> Iterator[T]:
        """The rows whose needle is in the sentence, in order."""
        rows = self._always
        for _, numbers in self._find_needles(f"^{sentence}"):
            rows += numbers  # a new tuple: most sentences have few
        return map(self._rows.__getitem__, sorted(set(rows)) if len(rows) > 1 else rows)


class Language(NamedTuple):
    """The patterns of one language."""

    name: str
    rules: RuleIndex[tuple[LetterFirstPattern, Meaning]]
    offers: RuleIndex[tuple[str, LetterFirstPattern]]
    answers: LetterFirstPattern
    presents: LetterFirstPattern
    direct: LetterFirstPattern
    settled: LetterFirstPattern

    def classify_sentence(self, sentence: str) -> Meaning | None:
        for pattern, meaning in self.rules.find_rows(sentence):
            if pattern.fits(sentence):
                return meaning
        return None


@cache
def load_language(name: str) -> Language:
    sections = _read_sections(name)
    rules: list[tuple[str, tuple[LetterFirstPattern, Meaning]]] = [
        (needle, (LetterFirstPattern(pattern), meaning))
        for meaning in _MEANINGS
        for needle, pattern in _parse_rows(sections.get(meaning, ()))
    ]
    offers = [
        (needle, (needle, LetterFirstPattern(pattern))) for needle, pattern in _parse_rows(sections.get("offer", ()))
    ]
    patterns = (
        LetterFirstPattern("".join(sections.get(part, ())) or _NEVER)
        for part in ("answers", "presents", "direct", "settled")
    )
    return Language(name, RuleIndex(rules), RuleIndex(offers), *patterns)


def detect_language(text: str) -> Language:
    """The language by script, then by common words of the last sentences; English if it is unclear."""
    end = text[-400:].lower()
    scripts, common = _load_language_signs()
    if not end.isascii():
        for script, name in scripts:
            if script.search(end):
                return load_language(name)
    if " you" in end or " the " in end:
        return load_language("english")
    words = set(end.translate(_MARKS).split())
    return load_language(max(common, key=lambda known: len(known[0] & words))[1])


@cache
def _load_language_signs() -> tuple[tuple[tuple[LazyPattern, str], ...], tuple[tuple[frozenset[str], str], ...]]:
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
    for line in _join_continued_lines(text):
        if line[0] == "[" and line[-1] == "]" and line[1:-1].isalpha():
            lines = sections.setdefault(line[1:-1], [])
            continue
        filled = _NAME.sub(lambda used: definitions[used[1]], line) if "<" in line else line
        if definition := _DEFINITION.fullmatch(filled):
            definitions[definition[1]] = definition[2]
        else:
            lines.append(filled)
    return sections


def _join_continued_lines(text: str) -> Iterator[str]:
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


def _parse_rows(lines: list[str] | tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for line in lines:
        words, needle, pattern = line.split("`", 2)
        pattern = pattern.strip()
        if not words:
            yield needle, pattern
        for word in words.split():
            yield needle.replace("%", word), pattern.replace("%", word)
