"""`t.assert_`: the soft assertions of script tests, in snake_case and in the names of the specification."""

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, cast

from msgspec import UNSET, Struct, UnsetType

from viva.checks.compare import JsonType, is_same_json, json_type
from viva.checks.formatting import format_label, quote_value, truncate_text
from viva.checks.json import JsonPath
from viva.errors import RunStopped, to_valid_text
from viva.model import codec
from viva.model.case import Assertion, UserMessage
from viva.model.message import Message, Reply
from viva.model.tracebacks import error_text
from viva.model.turn import PASSED, AssertionResult, Turn, Verdict
from viva.state.evaluation import error_verdict
from viva.state.trial_state import CheckContext, TrialState, reply_text
from viva.text.pattern import search

_NO_JSON = (TypeError, ValueError, OverflowError, RecursionError)
_RESULT_FIELDS = ("passed", "score", "reason", "suggestions")


class PrecomputedCheck(Struct, frozen=True):
    """A check whose verdict is known already."""

    label: str
    verdict: Verdict = PASSED

    @property
    def costly(self) -> bool:
        return False

    def check(self, context: CheckContext) -> Verdict:
        return self.verdict


class ValidatorResult(Verdict, frozen=True):
    """The answer of a validator as the specification defines it: `passed`, `score`, `reason`, `suggestions`.

    result.passed, result["passed"], result.get("score"), dict(result)
    """

    def __getitem__(self, name: str) -> Any:
        if name not in _RESULT_FIELDS:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_RESULT_FIELDS)

    def keys(self) -> tuple[str, ...]:
        return _RESULT_FIELDS

    def get(self, name: str, default: Any = None) -> Any:
        """The value of the field, or the default if it is missing or None."""
        return default if name not in _RESULT_FIELDS or (value := self[name]) is None else value


class SoftAssertions:
    """Each method records a result and returns whether it passed. None of them stops the test.

    Values are compared as in a suite: deep and type-strict, `"5"` is not 5, but 1 is 1.0. Of a reply, text assertions
    see the text and path assertions the data.
    """

    def __init__(
        self,
        add_result: Callable[[AssertionResult], None],
        ask_validator: Callable[[Any, str, Mapping[str, Any]], ValidatorResult],
    ) -> None:
        self._add_result = add_result
        self._ask_validator = ask_validator

    def true_(self, value: Any, message: str = "") -> bool:
        """The value is truthy."""
        return self._add("true", "", _verdict(bool(value), f"{_quote(value)} is not true", actual=value), message)

    def false_(self, value: Any, message: str = "") -> bool:
        """The value is falsy."""
        return self._add("false", "", _verdict(not value, f"{_quote(value)} is not false", actual=value), message)

    def equal(self, actual: Any, expected: Any, message: str = "") -> bool:
        """Both values are the same."""
        is_equal = is_same_json(_to_plain(expected), _to_plain(actual))
        reason = f"expected {_quote(expected)}, was {_quote(actual)}"
        return self._add("equal", _quote(expected), _verdict(is_equal, reason, expected, actual), message)

    def not_equal(self, actual: Any, expected: Any, message: str = "") -> bool:
        """The values are different."""
        is_equal = is_same_json(_to_plain(expected), _to_plain(actual))
        reason = f"must not be {_quote(expected)}, but is"
        return self._add("not_equal", _quote(expected), _verdict(not is_equal, reason, actual=actual), message)

    def nil(self, value: Any, message: str = "") -> bool:
        """The value is None."""
        reason = f"expected None, was {_quote(value)}"
        return self._add("nil", "", _verdict(value is None, reason, actual=value), message)

    def not_nil(self, value: Any, message: str = "") -> bool:
        """The value is not None."""
        return self._add("not_nil", "", _verdict(value is not None, "the value is None"), message)

    def contains(self, whole: Any, part: Any, message: str = "") -> bool:
        """A text contains a text, a list an item, a dict a key."""
        reason = f"{_quote(part)} is not in {_quote(whole)}"
        return self._add("contains", _quote(part), _verdict(_contains(whole, part), reason, part, whole), message)

    def not_contains(self, whole: Any, part: Any, message: str = "") -> bool:
        """A text does not contain a text, a list an item, a dict a key."""
        verdict = _verdict(not _contains(whole, part), f"{_quote(part)} must not be in {_quote(whole)}", actual=whole)
        return self._add("not_contains", _quote(part), verdict, message)

    def len(self, value: Any, length: int, message: str = "") -> bool:
        """The value has this number of items or characters."""
        if isinstance(value, Sized):
            actual = value.__len__()
            verdict = _verdict(actual == length, f"expected {length}, was {actual}: {_quote(value)}")
        else:
            verdict = _verdict(False, f"{_quote(value)} has no length", length, value)
        return self._add("len", str(length), verdict, message)

    def greater(self, actual: Any, than: Any, message: str = "") -> bool:
        """The first value is greater than the second."""
        return self._compare(">", actual, than, message)

    def greater_or_equal(self, actual: Any, than: Any, message: str = "") -> bool:
        """The first value is not less than the second."""
        return self._compare(">=", actual, than, message)

    def less(self, actual: Any, than: Any, message: str = "") -> bool:
        """The first value is less than the second."""
        return self._compare("<", actual, than, message)

    def less_or_equal(self, actual: Any, than: Any, message: str = "") -> bool:
        """The first value is not greater than the second."""
        return self._compare("<=", actual, than, message)

    def error(self, what: Any, message: str = "") -> bool:
        """There is an error: an exception, or any value but None. A function is called and must raise."""
        error = _catch_error(what) if callable(what) else what
        return self._add("error", "", _verdict(error is not None, "there was no error"), message)

    def no_error(self, what: Any, message: str = "") -> bool:
        """There is no error. A function is called and must not raise."""
        error = _catch_error(what) if callable(what) else what
        verdict = _verdict(error is None, f"there was an error: {_describe_error(error)}")
        return self._add("no_error", "", verdict, message)

    def panic(self, function: Callable[[], Any], message: str = "") -> bool:
        """The function raises: `t.assert_.panic(lambda: ctx.call("broken", "Hello"))`."""
        return self._add("panic", "", _verdict(_catch_error(function) is not None, "it did not raise"), message)

    def no_panic(self, function: Callable[[], Any], message: str = "") -> bool:
        """The function does not raise."""
        error = _catch_error(function)
        return self._add("no_panic", "", _verdict(error is None, f"it raised {_describe_error(error)}"), message)

    def match(self, value: Any, pattern: str, message: str = "") -> bool:
        """The pattern matches somewhere in the text."""
        return self._search("match", value, pattern, message)

    def not_match(self, value: Any, pattern: str, message: str = "") -> bool:
        """The pattern matches nowhere in the text."""
        return self._search("not_match", value, pattern, message)

    def type(self, value: Any, kind: JsonType | type, message: str = "") -> bool:
        """The value has a JSON type (`"string"`, `"array"`, …), or is an instance of a Python class."""
        if isinstance(kind, type):
            name, actual, fits = kind.__name__, type(value).__name__, isinstance(value, kind)
        else:
            name, actual = kind, json_type(_to_plain(value))
            fits = actual == kind or (kind == "number" and actual == "integer")
        return self._add("type", name, _verdict(fits, f"has type {actual}, not {name}: {_quote(value)}"), message)

    def json_path(self, value: Any, path: str, expected: Any | UnsetType = UNSET, message: str = "") -> bool:
        """The path finds the expected value; without one, it finds something. `$.total` as in a suite."""
        turn = Turn(1, UserMessage(Message("user")), _as_reply(value))
        context = CheckContext(cast("TrialState", None), turn)  # the check reads only the turn
        shown = path if expected is UNSET else f"{path} = {_quote(expected)}"
        value_at_path = UNSET if expected is UNSET else _to_plain(expected)
        check = lambda: JsonPath(path=path, value=value_at_path).check(context)  # noqa: E731 -- an invalid path raises in there
        return self._add("json_path", shown, check, message)

    def agent(self, response: Any, use: str, options: Mapping[str, Any] | None = None) -> ValidatorResult:
        """A validator agent agrees: `t.assert_.agent(reply, "workers.judge", {"metadata": {"criteria": "polite"}})`.

        Returns its answer: `passed`, `score`, `reason`, `suggestions`. The options may contain `min_score` and `votes`.
        """
        return self._ask_validator(response, use, options or {})

    def _add(self, kind: str, shown: str, verdict: Verdict | Callable[[], Verdict], message: str) -> bool:
        if not isinstance(verdict, Verdict):
            try:
                verdict = verdict()
            except Exception as error:  # for example an invalid pattern or path: no verdict on the agent
                verdict = error_verdict(error)
        definition = {"type": kind, **({"message": message} if message else {})}
        check = PrecomputedCheck(format_label(kind, shown), verdict)
        self._add_result(AssertionResult(Assertion(check, definition, message), verdict))
        return verdict.passed

    def _compare(self, sign: str, actual: Any, than: Any, message: str) -> bool:
        try:
            holds = bool(_COMPARISONS[sign](actual, than))
            verdict = _verdict(holds, f"expected {sign} {_quote(than)}, was {_quote(actual)}", actual=actual)
        except TypeError:
            verdict = _verdict(False, f"{_quote(actual)} cannot be compared with {_quote(than)}", actual=actual)
        return self._add(sign, _quote(than), verdict, message)

    def _search(self, kind: str, value: Any, pattern: str, message: str) -> bool:
        text, must_match = _to_text(value), kind == "match"

        def find() -> Verdict:
            if search(pattern, text) is must_match:
                return PASSED
            outcome = "matches nothing" if must_match else "must not match, but does,"
            reason = f"{quote_value(pattern)} {outcome} in {quote_value(text)}"
            return Verdict("failed", reason, expected=pattern, actual=truncate_text(text))

        return self._add(kind, quote_value(pattern), find, message)

    True_, False_, Equal, NotEqual, Nil, NotNil = true_, false_, equal, not_equal, nil, not_nil
    Contains, NotContains, Len, Type = contains, not_contains, len, type  # noqa: A003 -- the specification's names
    Greater, GreaterOrEqual, Less, LessOrEqual = greater, greater_or_equal, less, less_or_equal
    Error, NoError, Panic, NoPanic = error, no_error, panic, no_panic
    Match, NotMatch, JSONPath, Agent = match, not_match, json_path, agent


_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def _verdict(holds: bool, reason: str, expected: Any = UNSET, actual: Any = UNSET) -> Verdict:
    return PASSED if holds else Verdict("failed", reason, expected=_truncate(expected), actual=_truncate(actual))


def _to_json(value: Any) -> Any:
    """The JSON value. Raises one of _NO_JSON if there is none."""
    if isinstance(value, Reply):
        return reply_text(value) if value.data is None else codec.to_plain(value.data)
    return codec.to_definition(value)


def _to_plain(value: Any) -> Any:
    """The JSON value or, if there is none, the value itself."""
    try:
        return _to_json(value)
    except _NO_JSON:
        return value


def _truncate(value: Any) -> Any:
    """The part of a value that a record keeps."""
    if value is UNSET:
        return UNSET
    try:
        plain = _to_json(value)
    except _NO_JSON:
        plain = _repr(value)
    return truncate_text(plain) if isinstance(plain, str) else plain


def _quote(value: Any) -> str:
    try:
        return quote_value(_to_json(value))
    except _NO_JSON:
        return quote_value(_repr(value))[1:-1]


def _repr(value: Any) -> str:
    try:
        return to_valid_text(repr(value))
    except Exception:  # __repr__ of user code may raise anything
        return f"<{type(value).__name__}>"


def _to_text(value: Any) -> str:
    if isinstance(value, Reply):
        return reply_text(value)
    return value if isinstance(value, str) else "" if value is None else codec.compact_json(_to_plain(value))


def _contains(whole: Any, part: Any) -> bool:
    plain = reply_text(whole) if isinstance(whole, Reply) else _to_plain(whole)
    if isinstance(plain, str):
        return isinstance(part, str) and part in plain
    if isinstance(plain, Mapping):
        return part in plain
    plain_part = _to_plain(part)
    return isinstance(plain, list | tuple | set) and any(
        is_same_json(plain_part, item) for item in cast("list[Any]", plain)
    )


def _catch_error(function: Callable[[], Any]) -> Exception | None:
    try:
        result = function()
    except RunStopped:
        raise
    except Exception as error:  # whether user code raises is the question
        return error
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the function is async: await it in a `try`, and pass the exception to t.assert_.error")
    return None


def _describe_error(error: Any) -> str:
    return error_text(error) if isinstance(error, BaseException) else _quote(error)


def _as_reply(value: Any) -> Reply:
    if isinstance(value, Reply):
        return value
    return Reply(value) if isinstance(value, str) else Reply(data=_to_plain(value))
