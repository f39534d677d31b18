"""Checks of structured answers: the reply's data, or JSON found in its text, or (for a whole case) what tools returned."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, cast

from msgspec import UNSET, UnsetType

from viva.checks.base import LocalCheck
from viva.checks.compare import JsonType, is_same_json, json_type
from viva.checks.formatting import format_label, quote_value, truncate_text
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext, documents_to_search, look_up, to_text
from viva.text.embedded_json import whole_json
from viva.text.json_path import compile_path, full_path
from viva.text.pattern import compile_pattern, search

Number = int | float
_SHOWN_ERRORS = 3


class Equals(LocalCheck, frozen=True, kw_only=True):
    """A text is the whole text of the reply; any other value is its data, or a text that is a JSON object or array."""

    value: Any

    @property
    def label(self) -> str:
        return format_label("equals", quote_value(self.value))

    def check(self, context: CheckContext) -> Verdict:
        actual = context.text if isinstance(self.value, str) else _structured(context)
        if actual is not UNSET and is_same_json(self.value, actual):
            return PASSED
        seen = context.text if actual is UNSET else actual
        reason = f"expected {quote_value(self.value)}, was {quote_value(seen)}"
        if actual is UNSET:
            reason += " (a text, not data)"
        return Verdict(
            "failed", reason, expected=self.value, actual=truncate_text(seen) if isinstance(seen, str) else seen
        )


def _structured(context: CheckContext) -> Any:
    """The data or, without any, a text that is JSON as a whole: other words around it make it another answer."""
    return whole_json(context.reply.content) if context.reply.data is None else context.json


class JsonPath(LocalCheck, frozen=True, kw_only=True):
    """What `path` finds fulfils every operator that is given; without one, it finds something."""

    path: str
    value: Any | UnsetType = UNSET
    exists: bool | None = None
    gt: Number | None = None
    gte: Number | None = None
    lt: Number | None = None
    lte: Number | None = None
    matches: str | None = None

    def __post_init__(self) -> None:
        compile_path(self.path)
        if self.matches is not None:
            compile_pattern(self.matches)
        if self.exists is False and any(True for _ in self._operators()):
            raise ValueError("`exists: false` together with another operator can never hold: leave one of them out")

    @property
    def label(self) -> str:
        assertions = [f"{sign} {quote_value(wanted)}" for sign, wanted in self._operators()]
        if not assertions:
            assertions = ["does not exist" if self.exists is False else "exists"]
        return format_label(full_path(self.path), " and ".join(assertions))

    def check(self, context: CheckContext) -> Verdict:
        found = look_up(self.path, context)
        if found is None:
            return _no_json(context)
        path = full_path(self.path)
        if self.exists is False:
            if not found:
                return PASSED
            return Verdict(
                "failed", f"{path} must not exist, but is {quote_value(_single(found))}", actual=_single(found)
            )
        if not found:
            return Verdict(
                "failed",
                f"{path} finds nothing in {quote_value(next(documents_to_search(context)))}",
                expected=self._wanted,
            )
        value = _single(found)
        for sign, wanted in self._operators():
            if (why := _unmet(sign, wanted, value)) is not None:
                return Verdict("failed", f"{path}: {why}", expected=wanted, actual=value)
        return PASSED

    @property
    def _wanted(self) -> Any:
        return next((wanted for _, wanted in self._operators()), UNSET)

    def _operators(self) -> Iterator[tuple[str, Any]]:
        """The operators that are given, each by its sign."""
        if self.value is not UNSET:
            yield "=", self.value
        for sign, wanted in (
            ("matches", self.matches),
            (">", self.gt),
            (">=", self.gte),
            ("<", self.lt),
            ("<=", self.lte),
        ):
            if wanted is not None:
                yield sign, wanted


def _single(values: list[Any]) -> Any:
    """Several nodes are the list of their values."""
    return values[0] if len(values) == 1 else values


def _unmet(sign: str, wanted: Any, value: Any) -> str | None:
    """Why an operator does not hold of a value; None if it does."""
    if sign == "=":
        return _other_value(wanted, value)
    if sign == "matches":
        fits = value is not None and search(wanted, to_text(value))
        return None if fits else f"{quote_value(value)} does not match {quote_value(wanted)}"
    if json_type(value) not in ("number", "integer"):
        return f"expected a number {sign} {wanted}, was {quote_value(value)}"
    holds = (
        value > wanted
        if sign == ">"
        else value >= wanted
        if sign == ">="
        else value < wanted
        if sign == "<"
        else value <= wanted
    )
    return None if holds else f"expected {sign} {wanted}, was {quote_value(value)}"


def _other_value(wanted: Any, value: Any) -> str | None:
    if isinstance(wanted, list) and not isinstance(value, list):
        fits = any(is_same_json(choice, value) for choice in cast("list[Any]", wanted))
        return None if fits else f"expected one of {quote_value(wanted)}, was {quote_value(value)}"
    return None if is_same_json(wanted, value) else f"expected {quote_value(wanted)}, was {quote_value(value)}"


class TypeIs(LocalCheck, frozen=True, kw_only=True):
    """What `path` finds is of that type; without a path, the reply is: data by its type, else a string."""

    value: JsonType
    path: str | None = None

    def __post_init__(self) -> None:
        if self.path is not None:
            compile_path(self.path)

    @property
    def label(self) -> str:
        return format_label("type", "" if self.path is None else full_path(self.path), "is", self.value)

    def check(self, context: CheckContext) -> Verdict:
        if self.path is None:
            reply = context.reply
            value, place = (reply.content, "the reply") if reply.data is None else (context.json, "the data")
        else:
            found, place = look_up(self.path, context), full_path(self.path)
            if found is None:
                return _no_json(context)
            if not found:
                return Verdict(
                    "failed",
                    f"{place} finds nothing in {quote_value(next(documents_to_search(context)))}",
                    expected=self.value,
                )
            value = _single(found)
        actual = json_type(value)
        if actual == self.value or (self.value == "number" and actual == "integer"):
            return PASSED
        reason = f"{place} is of type {actual}, not {self.value}: {quote_value(value)}"
        return Verdict("failed", reason, expected=self.value, actual=actual)


class JsonSchema(LocalCheck, frozen=True, kw_only=True, dict=True):
    """The answer is valid by a JSON Schema (draft 2020-12); for a whole case without JSON in the reply, some tool's result is."""

    schema: dict[str, Any] | bool

    def __post_init__(self) -> None:
        _ = self._validator

    @cached_property
    def _validator(self) -> Any:
        import jsonschema_rs  # loaded with the first schema, not with every run

        try:
            return jsonschema_rs.Draft202012Validator(self.schema, mask="it", retriever=_stay_offline)
        except ValueError as wrong:
            what = getattr(wrong, "message", None) or str(wrong)
            place = _pointer(getattr(wrong, "instance_path", ()))
            raise ValueError(f"not a JSON Schema (draft 2020-12): {place}: {what}") from wrong

    @property
    def label(self) -> str:
        title = self.schema.get("title") if isinstance(self.schema, dict) else None
        return format_label("json_schema", quote_value(title) if isinstance(title, str) else quote_value(self.schema))

    def check(self, context: CheckContext) -> Verdict:
        reason, seen = "", None
        for document in documents_to_search(context):
            wrong = self.describe_errors(document)
            if wrong is None:
                return PASSED
            if not reason:
                reason, seen = wrong, document
            if context.json is not UNSET:
                break
        return Verdict("failed", reason, expected=self.schema, actual=seen) if reason else _no_json(context)

    def describe_errors(self, document: Any) -> str | None:
        """The first few things that are wrong with a value; None if it is valid."""
        errors = [
            f"{_pointer(error.instance_path)}: {error.message}" for error in self._validator.iter_errors(document)
        ]
        more = f"; and {len(errors) - _SHOWN_ERRORS} more" if len(errors) > _SHOWN_ERRORS else ""
        return "; ".join(errors[:_SHOWN_ERRORS]) + more if errors else None


def _no_json(context: CheckContext) -> Verdict:
    return Verdict(
        "failed", f"the reply holds no JSON: {quote_value(context.text)}", actual=truncate_text(context.text)
    )


def _pointer(parts: Any) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _stay_offline(address: str) -> Any:
    raise ValueError(f"{address} is outside the schema; put it under $defs")
