"""Why a trial failed, as data that can be compared: which checks, and what was there instead.

The words of a reason hold numbers, ids, times and the user's own words, which differ between two conversations that fail for one
reason. They are left out; what is left has to be the same, or nearly so where it is prose.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from viva.model import codec
from viva.model.record import TrialRecord
from viva.text.template import has_variables

SIMILAR_OVERLAP, RELATED_OVERLAP = 0.5, 0.25
"""What share of the words two texts have in common that say the same, or that one agent may say of one thing on two days."""
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"?')
_DATA = re.compile(r"[\[{].*[\]}]", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]+")
_TOKEN = re.compile(r"\S+")
_JUDGED = frozenset({"agent", "rubric"})
_FORBIDS = frozenset({"not_contains"})
"""Checks whose label already says what was found."""


_FOUND = frozenset({"label", "passed", "reason", "score", "expected", "actual", "evidence", "suggestions", "live"})
"""What a record adds to a check as it was written."""


class FailureCause(Struct, frozen=True):
    """One way in which a trial failed. `found` is compared as it is, `words` for likeness."""

    check: str
    observed: str = ""
    words: frozenset[str] = frozenset()

    def is_similar(self, other: "FailureCause", min_overlap: float = SIMILAR_OVERLAP) -> bool:
        """Is it the same check, which found the same? Of prose that share of the words has to be the same."""
        if (self.check, self.observed) != (other.check, other.observed):
            return False
        both, either = len(self.words & other.words), len(self.words | other.words)
        return not either or both / either >= min_overlap


def extract_causes(record: TrialRecord) -> list[FailureCause]:
    """Every check that failed, with what it found; without any, the error of the agent's own."""
    said = {word.casefold() for turn in record.turns for word in _WORD.findall(turn.input)}
    verdicts = [*(each for turn in record.turns for each in turn.assertions), *record.final_assertions]
    failed = [each for each in verdicts if each["passed"] is False]
    if not failed:  # else the conversation ended there, and checkpoints are missing because of that
        failed = [each.assertion or {} for each in record.checkpoints or () if each.required and not each.reached]
    tools = {call.name for turn in record.turns for call in turn.tool_calls}
    return [_cause(each, said, tools) for each in failed] or [_error(record)]


def are_similar(
    actual: Sequence[FailureCause], expected: Sequence[FailureCause], min_overlap: float = SIMILAR_OVERLAP
) -> bool:
    """Does every one of the wanted causes have one among the found that is like it?"""
    return all(any(cause.is_similar(each, min_overlap) for each in actual) for cause in expected)


def _cause(verdict: Mapping[str, Any], said: set[str], tools: set[str]) -> FailureCause:
    label, kind, reason = _check_in(verdict), str(verdict.get("type")), str(verdict.get("reason") or "")
    if kind in _JUDGED:  # a judge finds other words each time; which criteria are not met is all that counts
        return FailureCause(label, ", ".join(_unmet(verdict, reason)))
    if kind in _FORBIDS or verdict.get("negate"):
        return FailureCause(label)
    actual = verdict.get("actual")
    if isinstance(actual, str):
        return FailureCause(label, _shape(reason, tools), _telling_words(actual, said))
    if isinstance(actual, list) and all(isinstance(name, str) for name in cast("list[Any]", actual)):
        return FailureCause(label, ", ".join(sorted({*cast("list[str]", actual)})))
    return FailureCause(label, _shape(reason, tools) + _kind_of(actual))


def _check_in(verdict: Mapping[str, Any]) -> str:
    """Which check a verdict is about: its label or, where that shows the values of variables, the check as written."""
    written = {key: value for key, value in verdict.items() if key not in _FOUND}
    return codec.compact_json(written) if has_variables(written) else str(verdict.get("label"))


def _unmet(verdict: Mapping[str, Any], reason: str) -> list[str]:
    criteria = verdict.get("criteria")
    written = [
        str(each["criterion"] if isinstance(each, Mapping) else each)
        for each in (cast("Iterable[Any]", criteria) if isinstance(criteria, list | tuple) else ())
    ]
    return [each for each in written if f"not met: {each}" in reason]


def _shape(reason: str, tools: set[str]) -> str:
    """The words of a reason that are the check's own, and the tools in it: without values, numbers and ids."""
    bare = _DATA.sub(" ", _QUOTED.sub(lambda found: found[0] if found[0].strip('"') in tools else " ", reason))
    return " ".join(word for word in _TOKEN.findall(bare) if not any(char.isdigit() for char in word))


def _kind_of(value: Any) -> str:
    """A value by what it is, not how much: texts and truth values as they are, numbers only as numbers."""
    if isinstance(value, bool) or value is None:
        return f" {codec.compact_json(value)}"
    if isinstance(value, int | float):
        return " number"
    if isinstance(value, Mapping):
        return " " + ", ".join(sorted(map(str, cast("Mapping[Any, Any]", value))))
    return f" {type(value).__name__}"


def _telling_words(text: str, said: set[str]) -> frozenset[str]:
    """The words of what was found, without those that the user had said: an agent may repeat them."""
    tokens = (token for token in _TOKEN.findall(text) if not any(char.isdigit() for char in token))
    words = (word.casefold() for token in tokens for word in _WORD.findall(token))
    return frozenset(word for word in words if word not in said)


def _error(record: TrialRecord) -> FailureCause:
    """The kind of the error, and where in the user's own code it was raised: by function, since lines move."""
    kind = ":".join((record.error or "").split(":")[:2])
    frames = [trace.frames[-1] for trace in record.tracebacks if trace.frames]
    return FailureCause(kind, ", ".join(f"{frame.file}:{frame.function}: {frame.source}" for frame in frames))
