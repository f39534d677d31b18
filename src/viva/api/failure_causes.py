"""The causes of a failed trial as data that can be compared: which checks failed, and what they observed.

Numbers, ids, times and the user's own words are left out, because they differ between two conversations that fail for the
same reason. The rest must be equal or, for prose, similar.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from viva.model import codec
from viva.model.record import ASSERTION_RESULT_FIELDS, TrialRecord
from viva.text.template import has_variables

SIMILAR_OVERLAP, RELATED_OVERLAP = 0.5, 0.25
"""Minimum share of common words of two similar texts, and of two texts that are only related."""
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"?')
_DATA = re.compile(r"[\[{].*[\]}]", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]+")
_TOKEN = re.compile(r"\S+")
_JUDGE_TYPES = frozenset({"agent", "judge", "rubric"})
_LABEL_ONLY_TYPES = frozenset({"not_contains"})
"""Checks whose label alone identifies the failure."""


class FailureCause(Struct, frozen=True):
    """One cause of a failed trial: the failed check and what it observed. `observed` is compared exactly, `words` by similarity."""

    check: str
    observed: str = ""
    words: frozenset[str] = frozenset()

    def is_similar(self, other: "FailureCause", min_overlap: float) -> bool:
        """Have both the same check, the same observation, and at least this share of common words?"""
        if (self.check, self.observed) != (other.check, other.observed):
            return False
        common, all_words = len(self.words & other.words), len(self.words | other.words)
        return not all_words or common / all_words >= min_overlap


def extract_causes(record: TrialRecord) -> list[FailureCause]:
    """One cause per failed check; without failed checks, the agent's own error."""
    user_words = {word.casefold() for turn in record.turns for word in _WORD.findall(turn.input)}
    results = [*(result for turn in record.turns for result in turn.assertions), *record.final_assertions]
    failed = [result for result in results if result["passed"] is False]
    if not failed:  # after a failed assertion the conversation ends, so missed checkpoints mean nothing
        missed = [point for point in record.checkpoints or () if point.required and not point.reached]
        failed = [point.assertion or {} for point in missed]
    tools = {call.name for turn in record.turns for call in turn.tool_calls}
    return [_extract_check_cause(result, user_words, tools) for result in failed] or [_extract_error_cause(record)]


def are_causes_similar(
    actual: Sequence[FailureCause], expected: Sequence[FailureCause], min_overlap: float = SIMILAR_OVERLAP
) -> bool:
    """Is there a similar actual cause for every expected one?"""
    return all(any(cause.is_similar(other, min_overlap) for other in actual) for cause in expected)


def _extract_check_cause(result: Mapping[str, Any], user_words: set[str], tools: set[str]) -> FailureCause:
    label, kind, reason = _identify_check(result), str(result.get("type")), str(result.get("reason") or "")
    if kind in _JUDGE_TYPES:  # a judge words its reason differently each time; only the failed criteria count
        return FailureCause(label, ", ".join(_list_failed_criteria(result, reason)))
    if kind in _LABEL_ONLY_TYPES or result.get("negate"):
        return FailureCause(label)
    actual = result.get("actual")
    if isinstance(actual, str):
        return FailureCause(label, _strip_values(reason, tools), _extract_words(actual, user_words))
    if isinstance(actual, list) and all(isinstance(name, str) for name in cast("list[Any]", actual)):
        return FailureCause(label, ", ".join(sorted({*cast("list[str]", actual)})))
    return FailureCause(label, _strip_values(reason, tools) + _describe_value_type(actual))


def _identify_check(result: Mapping[str, Any]) -> str:
    """The label of an assertion; its definition if the label shows values of variables."""
    definition = {key: value for key, value in result.items() if key not in ASSERTION_RESULT_FIELDS}
    return codec.compact_json(definition) if has_variables(definition) else str(result.get("label"))


def _list_failed_criteria(result: Mapping[str, Any], reason: str) -> list[str]:
    criteria = result.get("criteria")
    texts = [
        str(each["criterion"] if isinstance(each, Mapping) else each)
        for each in (cast("Iterable[Any]", criteria) if isinstance(criteria, list | tuple) else ())
    ]
    return [text for text in texts if f"not met: {text}" in reason]


def _strip_values(reason: str, tools: set[str]) -> str:
    """A reason without quoted values (except names of tools), data, and words with digits."""
    without_quotes = _QUOTED.sub(lambda match: match[0] if match[0].strip('"') in tools else " ", reason)
    words = _TOKEN.findall(_DATA.sub(" ", without_quotes))
    return " ".join(word for word in words if not any(char.isdigit() for char in word))


def _describe_value_type(value: Any) -> str:
    """A value without its details: booleans and None as they are, other values by their type."""
    if isinstance(value, bool) or value is None:
        return f" {codec.compact_json(value)}"
    if isinstance(value, int | float):
        return " number"
    if isinstance(value, Mapping):
        return " " + ", ".join(sorted(map(str, cast("Mapping[Any, Any]", value))))
    return f" {type(value).__name__}"


def _extract_words(text: str, user_words: set[str]) -> frozenset[str]:
    """The words of a text, without words with digits and words that the user said: an agent may repeat these."""
    tokens = (token for token in _TOKEN.findall(text) if not any(char.isdigit() for char in token))
    words = (word.casefold() for token in tokens for word in _WORD.findall(token))
    return frozenset(word for word in words if word not in user_words)


def _extract_error_cause(record: TrialRecord) -> FailureCause:
    """The cause for an error without failed checks: its kind, and the function that raised it, without line numbers."""
    kind = ":".join((record.error or "").split(":")[:2])
    frames = [trace.frames[-1] for trace in record.tracebacks if trace.frames]
    return FailureCause(kind, ", ".join(f"{frame.file}:{frame.function}: {frame.source}" for frame in frames))
