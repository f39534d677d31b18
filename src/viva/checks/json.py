"""Checks of structured replies: the reply's data, JSON in its text, or (for a whole case) what tools returned."""

import operator
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar, cast

from msgspec import UNSET, UnsetType

from viva.checks.base_check import LocalCheck, NonEmptyText, Number, Validators
from viva.checks.compare import JsonType, get_json_type, is_same_json
from viva.checks.formatting import cut_to_verdict_length, format_label, quote_value
from viva.model.turn import PASSED, Verdict
from viva.state.trial_state import CheckContext, find_values_in_reply, iterate_json_documents, to_text
from viva.text.embedded_json import parse_whole_json
from viva.text.json_path import add_path_root, compile_path
from viva.text.pattern import compile_pattern, has_pattern_match

_MAX_SHOWN_ERRORS = 3
_ORDER_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class Equals(LocalCheck, frozen=True, kw_only=True):
    """The reply is exactly this: a string is compared with its text, any other value with its data or JSON."""

    value: Any
    """The expected value."""

    @property
    def label(self) -> str:
        return format_label("equals", quote_value(self.value))

    def check(self, context: CheckContext) -> Verdict:
        actual = context.text if isinstance(self.value, str) else _get_reply_value(context)
        if actual is not UNSET and is_same_json(self.value, actual):
            return PASSED
        shown = context.text if actual is UNSET else actual
        reason = f"expected {quote_value(self.value)}, was {quote_value(shown)}"
        if actual is UNSET:
            reason += " (a text, not data)"
        if isinstance(shown, str):
            shown = cut_to_verdict_length(shown)
        return Verdict("failed", reason, expected=self.value, actual=shown)


def _get_reply_value(context: CheckContext) -> Any:
    """The reply's data or, without any, a text that is JSON as a whole."""
    return parse_whole_json(context.reply.content) if context.reply.data is None else context.json


class JsonPath(LocalCheck, frozen=True, kw_only=True):
    """A JSONPath (RFC 9535) finds a value in the reply's data or JSON, and the value meets all given operators."""

    validators: ClassVar[Validators] = {"path": compile_path, "matches": compile_pattern}
    example: ClassVar[Mapping[str, Any]] = {"path": "$.field", "value": "..."}
    path: NonEmptyText
    """The path; without `$` it means `$.path`."""
    value: Any | UnsetType = UNSET
    """The expected value. A list means one of its values, unless the path finds a list."""
    exists: bool | UnsetType = UNSET
    """Whether the path must find something."""
    gt: Number | UnsetType = UNSET
    """A number that the value must be greater than."""
    gte: Number | UnsetType = UNSET
    """A number that the value must be at least."""
    lt: Number | UnsetType = UNSET
    """A number that the value must be less than."""
    lte: Number | UnsetType = UNSET
    """A number that the value must be at most."""
    matches: str | UnsetType = UNSET
    """A regular expression that the value must match."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exists is False and self._list_operators():
            raise ValueError("`exists: false` together with another operator can never hold: leave one of them out")

    @property
    def label(self) -> str:
        parts = [f"{sign} {quote_value(expected)}" for sign, expected in self._list_operators()]
        if not parts:
            parts = ["does not exist" if self.exists is False else "exists"]
        return format_label(add_path_root(self.path), " and ".join(parts))

    def check(self, context: CheckContext) -> Verdict:
        values = find_values_in_reply(self.path, context)
        if values is None:
            return _fail_because_no_json(context)
        path = add_path_root(self.path)
        if self.exists is False:
            if not values:
                return PASSED
            actual = _value_or_list(values)
            return Verdict("failed", f"{path} must not exist, but is {quote_value(actual)}", actual=actual)
        operators = self._list_operators()
        if not values:
            return _fail_because_path_finds_nothing(path, context, operators[0][1] if operators else UNSET)
        value = _value_or_list(values)
        for sign, expected in operators:
            if (reason := _explain_mismatch(sign, expected, value)) is not None:
                return Verdict("failed", f"{path}: {reason}", expected=expected, actual=value)
        return PASSED

    def _list_operators(self) -> list[tuple[str, Any]]:
        """The operators of this check, each with its sign."""
        operators = {
            "=": self.value,
            "matches": self.matches,
            ">": self.gt,
            ">=": self.gte,
            "<": self.lt,
            "<=": self.lte,
        }
        return [(sign, expected) for sign, expected in operators.items() if expected is not UNSET]


def _value_or_list(values: list[Any]) -> Any:
    """Several nodes are the list of their values."""
    return values[0] if len(values) == 1 else values


def _explain_mismatch(sign: str, expected: Any, value: Any) -> str | None:
    """Why a value does not meet an operator; None if it does."""
    if sign == "=":
        return _explain_inequality(expected, value)
    if sign == "matches":
        is_match = value is not None and has_pattern_match(expected, to_text(value))
        return None if is_match else f"{quote_value(value)} does not match {quote_value(expected)}"
    if get_json_type(value) not in ("number", "integer"):
        return f"expected a number {sign} {expected}, was {quote_value(value)}"
    return None if _ORDER_OPERATORS[sign](value, expected) else f"expected {sign} {expected}, was {quote_value(value)}"


def _explain_inequality(expected: Any, value: Any) -> str | None:
    if isinstance(expected, list) and not isinstance(value, list):
        is_choice = any(is_same_json(choice, value) for choice in cast("list[Any]", expected))
        return None if is_choice else f"expected one of {quote_value(expected)}, was {quote_value(value)}"
    same = is_same_json(expected, value)
    return None if same else f"expected {quote_value(expected)}, was {quote_value(value)}"


class TypeIs(LocalCheck, frozen=True, kw_only=True):
    """The type of the reply's data, or of what `path` finds in it. A reply without data is a string."""

    python_name: ClassVar[str] = "type_is"
    validators: ClassVar[Validators] = {"path": compile_path}
    value: JsonType
    """The expected type."""
    path: NonEmptyText | UnsetType = UNSET
    """A JSONPath."""

    @property
    def label(self) -> str:
        return format_label("type", "" if self.path is UNSET else add_path_root(self.path), "is", self.value)

    def check(self, context: CheckContext) -> Verdict:
        if self.path is UNSET:
            reply = context.reply
            value, place = (reply.content, "the reply") if reply.data is None else (context.json, "the data")
        else:
            values, place = find_values_in_reply(self.path, context), add_path_root(self.path)
            if values is None:
                return _fail_because_no_json(context)
            if not values:
                return _fail_because_path_finds_nothing(place, context, self.value)
            value = _value_or_list(values)
        actual = get_json_type(value)
        if actual == self.value or (self.value == "number" and actual == "integer"):
            return PASSED
        reason = f"{place} is of type {actual}, not {self.value}: {quote_value(value)}"
        return Verdict("failed", reason, expected=self.value, actual=actual)


def _compile_schema(schema: dict[str, Any] | bool) -> Any:
    import jsonschema_rs  # loaded with the first schema, not with every run

    try:
        return jsonschema_rs.Draft202012Validator(schema, mask="it", retriever=_refuse_remote_reference)
    except ValueError as error:
        message = getattr(error, "message", None) or str(error)
        path = _format_path(getattr(error, "instance_path", ()))
        raise ValueError(f"not a JSON Schema (draft 2020-12): {path}: {message}") from error


class JsonSchema(LocalCheck, frozen=True, kw_only=True, dict=True):
    """The reply's data or JSON matches a JSON Schema; in a case without JSON in the reply, a tool result matches it."""

    validators: ClassVar[Validators] = {"schema": _compile_schema}
    schema: dict[str, Any] | bool
    """A JSON Schema, draft 2020-12."""

    def __post_init__(self) -> None:
        _ = self._validator

    @cached_property
    def _validator(self) -> Any:
        return _compile_schema(self.schema)

    @property
    def label(self) -> str:
        title = self.schema.get("title") if isinstance(self.schema, dict) else None
        return format_label("json_schema", quote_value(title if isinstance(title, str) else self.schema))

    def check(self, context: CheckContext) -> Verdict:
        reason, actual = "", None
        for document in iterate_json_documents(context):
            errors = self.describe_errors(document)
            if errors is None:
                return PASSED
            if not reason:
                reason, actual = errors, document
            if context.json is not UNSET:
                break
        return Verdict("failed", reason, actual=actual) if reason else _fail_because_no_json(context)

    def describe_errors(self, document: Any) -> str | None:
        """The first errors of a value; None if it is valid."""
        errors = [
            f"{_format_path(error.instance_path)}: {error.message}" for error in self._validator.iter_errors(document)
        ]
        more = f"; and {len(errors) - _MAX_SHOWN_ERRORS} more" if len(errors) > _MAX_SHOWN_ERRORS else ""
        return "; ".join(errors[:_MAX_SHOWN_ERRORS]) + more if errors else None


def _fail_because_no_json(context: CheckContext) -> Verdict:
    text = context.text
    return Verdict("failed", f"the reply has no JSON: {quote_value(text)}", actual=cut_to_verdict_length(text))


def _fail_because_path_finds_nothing(path: str, context: CheckContext, expected: Any) -> Verdict:
    document = quote_value(next(iterate_json_documents(context)))
    return Verdict("failed", f"{path} finds nothing in {document}", expected=expected)


def _format_path(parts: Any) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _refuse_remote_reference(address: str) -> Any:
    raise ValueError(f"{address} is outside the schema; put it under $defs")
