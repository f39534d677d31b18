"""`t.assert_`: the soft assertions of script tests, in snake_case and with the names of the specification."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, cast

from msgspec import UNSET, Struct, UnsetType

from viva.checks.compare import JsonType, get_json_type, is_same_json
from viva.checks.formatting import cut_to_verdict_length, format_label, quote_value
from viva.checks.json import JsonPath
from viva.concurrency.threads import ThreadAbandoned
from viva.errors import RunStopped, to_valid_text
from viva.model import codec
from viva.model.case import Assertion, UserMessage
from viva.model.message import Message, Reply
from viva.model.tracebacks import format_error
from viva.model.turn import PASSED, AssertionResult, Turn, Verdict
from viva.session.loop import EndTest
from viva.session.scripts.check_methods import CheckMethods
from viva.state.evaluation import create_error_verdict
from viva.state.trial_state import CheckContext, TrialState, get_reply_text
from viva.text.pattern import has_pattern_match


class PrecomputedCheck(Struct, frozen=True):
    """A check whose verdict is known before it is evaluated."""

    label: str
    verdict: Verdict = PASSED

    @property
    def costly(self) -> bool:
        return False

    def check(self, context: CheckContext) -> Verdict:
        return self.verdict


class ValidatorResult(Verdict, frozen=True):
    """The verdict of a validator with the members of the specification: `passed`, `score`, `reason`, `suggestions`.

    result.passed, result["passed"], result.get("score"), dict(result)
    """

    def __getitem__(self, name: str) -> Any:
        if name not in _RESULT_MEMBERS:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(_RESULT_MEMBERS)

    def keys(self) -> tuple[str, ...]:
        return _RESULT_MEMBERS

    def get(self, name: str, default: Any = None) -> Any:
        """The member of that name; the default if it is missing or None."""
        return default if name not in _RESULT_MEMBERS or (value := self[name]) is None else value


_JUDGE_FIELDS = ("criteria", "min_score", "votes", "message", "weight")
_RESULT_MEMBERS = ("passed", "score", "reason", "suggestions")


class SoftAssertions(CheckMethods):
    """Each method records its result and returns whether it passed; none of them stops the test.

    Values are compared as in a suite: deep and type-strict, `"5"` is not 5, but 1 is 1.0. Of a reply, the text is used where
    a text is expected, and the data where a path is.
    """

    def __init__(
        self, add_result: Callable[[AssertionResult], None], evaluate: Callable[[Any, Mapping[str, Any]], Verdict]
    ) -> None:
        self._add_result = add_result
        self._evaluate = evaluate

    def run_check(self, response: Any, assertion: Mapping[str, Any]) -> bool:
        """Evaluates an assertion of `viva.check` on a reply: `t.assert_.run_check(reply, check.contains("x"))`."""
        return self._evaluate(response, assertion).passed

    def true_(self, value: Any, message: str = "") -> bool:
        """The value is truthy."""
        return self._record(
            "true", "", message, _build_verdict(bool(value), f"{_quote(value)} is not true", actual=value)
        )

    def false_(self, value: Any, message: str = "") -> bool:
        """The value is falsy."""
        return self._record(
            "false", "", message, _build_verdict(not value, f"{_quote(value)} is not false", actual=value)
        )

    def equal(self, actual: Any, expected: Any, message: str = "") -> bool:
        """Both values are the same."""
        reason = f"expected {_quote(expected)}, was {_quote(actual)}"
        same = is_same_json(_to_plain_json(expected), _to_plain_json(actual))
        return self._record("equal", _quote(expected), message, _build_verdict(same, reason, expected, actual))

    def not_equal(self, actual: Any, expected: Any, message: str = "") -> bool:
        """The values are different."""
        differ = not is_same_json(_to_plain_json(expected), _to_plain_json(actual))
        reason = f"must not be {_quote(expected)}, but is"
        return self._record("not_equal", _quote(expected), message, _build_verdict(differ, reason, actual=actual))

    def nil(self, value: Any, message: str = "") -> bool:
        """The value is None."""
        return self._record(
            "nil", "", message, _build_verdict(value is None, f"expected nothing, was {_quote(value)}", actual=value)
        )

    def not_nil(self, value: Any, message: str = "") -> bool:
        """The value is not None."""
        return self._record("not_nil", "", message, _build_verdict(value is not None, "expected a value, was None"))

    def contains(self, whole: Any, part: Any, message: str = "") -> bool:
        """A text contains a text, a list an item, a dict a key."""
        reason = f"{_quote(part)} is not in {_quote(whole)}"
        return self._record(
            "contains", _quote(part), message, _build_verdict(_contains(whole, part), reason, part, whole)
        )

    def not_contains(self, whole: Any, part: Any, message: str = "") -> bool:
        """A text does not contain a text, a list an item, a dict a key."""
        reason = f"{_quote(part)} must not be in {_quote(whole)}"
        return self._record(
            "not_contains", _quote(part), message, _build_verdict(not _contains(whole, part), reason, actual=whole)
        )

    def len(self, value: Any, length: int, message: str = "") -> bool:
        """The value has this many items or characters."""
        if not isinstance(value, Sized):
            return self._record(
                "len", str(length), message, _build_verdict(False, f"{_quote(value)} has no length", length, value)
            )
        actual = value.__len__()
        return self._record(
            "len",
            str(length),
            message,
            _build_verdict(actual == length, f"expected {length}, was {actual}: {_quote(value)}"),
        )

    def greater(self, actual: Any, than: Any, message: str = "") -> bool:
        """The first is greater than the second."""
        return self._record_order(">", actual, than, lambda: actual > than, message)

    def greater_or_equal(self, actual: Any, than: Any, message: str = "") -> bool:
        """The first is not less than the second."""
        return self._record_order(">=", actual, than, lambda: actual >= than, message)

    def less(self, actual: Any, than: Any, message: str = "") -> bool:
        """The first is less than the second."""
        return self._record_order("<", actual, than, lambda: actual < than, message)

    def less_or_equal(self, actual: Any, than: Any, message: str = "") -> bool:
        """The first is not greater than the second."""
        return self._record_order("<=", actual, than, lambda: actual <= than, message)

    def error(self, what: Any, message: str = "") -> bool:
        """The value is an error: an exception, or any value but None. A function is called and must raise one."""
        raised = _catch_error(what) if callable(what) else what
        return self._record(
            "error", "", message, _build_verdict(raised is not None, "expected an error, there was none")
        )

    def no_error(self, what: Any, message: str = "") -> bool:
        """The value is None. A function is called and must not raise."""
        raised = _catch_error(what) if callable(what) else what
        return self._record(
            "no_error",
            "",
            message,
            _build_verdict(raised is None, f"expected no error, was {_describe_raised(raised)}"),
        )

    def panic(self, function: Callable[[], Any], message: str = "") -> bool:
        """The function raises: `t.assert_.panic(lambda: ctx.call("broken", "Hello"))`."""
        return self._record(
            "panic", "", message, _build_verdict(_catch_error(function) is not None, "the function did not raise")
        )

    def no_panic(self, function: Callable[[], Any], message: str = "") -> bool:
        """The function does not raise."""
        raised = _catch_error(function)
        return self._record(
            "no_panic", "", message, _build_verdict(raised is None, f"the function raised {_describe_raised(raised)}")
        )

    def match(self, value: Any, pattern: str, message: str = "") -> bool:
        """The pattern matches somewhere in the text."""
        return self._record_pattern_match("match", value, pattern, True, message)

    def not_match(self, value: Any, pattern: str, message: str = "") -> bool:
        """The pattern matches nowhere in the text."""
        return self._record_pattern_match("not_match", value, pattern, False, message)

    def type(self, value: Any, kind: JsonType | type, message: str = "") -> bool:
        """The value is of a JSON type (`"string"`, `"array"`, …), or of a Python class."""
        if isinstance(kind, type):
            name, actual, fits = kind.__name__, type(value).__name__, isinstance(value, kind)
        else:
            name, actual = kind, get_json_type(_to_plain_json(value))
            fits = actual == kind or (kind == "number" and actual == "integer")
        return self._record(
            "type", name, message, _build_verdict(fits, f"is of type {actual}, not {name}: {_quote(value)}")
        )

    def json_path(self, value: Any, path: str, expected: Any | UnsetType = UNSET, message: str = "") -> bool:
        """The path, such as `$.total`, finds the expected value; without an expected value, it finds anything."""
        turn = Turn(1, UserMessage(Message("user")), _to_reply(value))
        context = CheckContext(cast("TrialState", None), turn)  # a path looks at the turn alone
        label = format_label("json_path", path, "" if expected is UNSET else f"= {_quote(expected)}")
        value = UNSET if expected is UNSET else _to_plain_json(expected)
        return self._evaluate_and_record(
            "json_path", label, lambda: JsonPath(path=path, value=value).check(context), message
        )

    def agent(self, response: Any, use: str, options: Mapping[str, Any] | None = None) -> ValidatorResult:
        """A validator agent agrees: `t.assert_.agent(reply, "workers.judge", {"metadata": {"criteria": "polite"}})`.

        Returns `passed`, `score`, `reason` and `suggestions`. The options may contain `min_score` and `votes`.
        """
        options = options or {}
        fields = {key: value for key, value in options.items() if key in _JUDGE_FIELDS}
        rest = {key: value for key, value in options.items() if key not in _JUDGE_FIELDS}
        verdict = self._evaluate(
            response, {"type": "judge", "use": use, **fields, **({"options": rest} if rest else {})}
        )
        return ValidatorResult(**{name: getattr(verdict, name) for name in Verdict.__struct_fields__})

    def _record(self, kind: str, what: str, message: str, verdict: Verdict) -> bool:
        return self._evaluate_and_record(kind, format_label(kind, what), lambda: verdict, message)

    def _evaluate_and_record(self, kind: str, label: str, evaluate: Callable[[], Verdict], message: str) -> bool:
        try:
            verdict = evaluate()
        except Exception as error:  # such as a pattern that does not compile: not a verdict on the agent
            verdict = create_error_verdict(error)
        definition = {"type": kind, **({"message": message} if message else {})}
        self._add_result(AssertionResult(Assertion(PrecomputedCheck(label, verdict), definition, message), verdict))
        return verdict.passed

    def _record_order(self, sign: str, actual: Any, than: Any, compare: Callable[[], Any], message: str) -> bool:
        try:
            passed, reason = (
                bool(compare()),
                f"expected {sign} {_quote(than)}, was {_quote(actual)}",
            )
        except TypeError:
            passed, reason = False, f"{_quote(actual)} cannot be compared with {_quote(than)}"
        return self._record(sign, _quote(than), message, _build_verdict(passed, reason, actual=actual))

    def _record_pattern_match(self, kind: str, value: Any, pattern: str, must_match: bool, message: str) -> bool:
        text = _to_text(value)
        reason = f"{quote_value(pattern)} {'matches nothing' if must_match else 'must not match, but does,'} in {quote_value(text)}"

        def evaluate() -> Verdict:
            passed = has_pattern_match(pattern, text) is must_match
            return PASSED if passed else Verdict("failed", reason, expected=pattern, actual=cut_to_verdict_length(text))

        return self._evaluate_and_record(kind, format_label(kind, quote_value(pattern)), evaluate, message)

    True_, False_, Equal, NotEqual, Nil, NotNil = true_, false_, equal, not_equal, nil, not_nil
    Contains, NotContains, Len, Type = contains, not_contains, len, type  # noqa: A003 -- the specification's names
    Greater, GreaterOrEqual, Less, LessOrEqual = greater, greater_or_equal, less, less_or_equal
    Error, NoError, Panic, NoPanic = error, no_error, panic, no_panic
    Match, NotMatch, JSONPath, Agent = match, not_match, json_path, agent


_NO_JSON_ERRORS = (TypeError, ValueError, OverflowError, RecursionError)


def _build_verdict(passed: bool, reason: str, expected: Any = UNSET, actual: Any = UNSET) -> Verdict:
    """Passed, or failed with a reason and the compared values."""
    if passed:
        return PASSED
    return Verdict("failed", reason, expected=_shorten(expected), actual=_shorten(actual))


def _to_json_value(value: Any) -> Any:
    """Convert a value to a JSON value. Raises one of _NO_JSON_ERRORS if that is impossible."""
    if isinstance(value, Reply):
        return get_reply_text(value) if value.data is None else codec.to_plain(value.data)
    return codec.to_file_value(value)


def _to_plain_json(value: Any) -> Any:
    """Convert a value to a JSON value; return it unchanged if that is impossible."""
    try:
        return _to_json_value(value)
    except _NO_JSON_ERRORS:
        return value


def _shorten(value: Any) -> Any:
    """A value for the record: as JSON, with long texts shortened."""
    if value is UNSET:
        return UNSET
    try:
        plain = _to_json_value(value)
    except _NO_JSON_ERRORS:
        plain = _safe_repr(value)
    return cut_to_verdict_length(plain) if isinstance(plain, str) else plain


def _quote(value: Any) -> str:
    try:
        return quote_value(_to_json_value(value))
    except _NO_JSON_ERRORS:
        return quote_value(_safe_repr(value))[1:-1]


def _safe_repr(value: Any) -> str:
    """The `repr` of a value of any class."""
    try:
        return to_valid_text(repr(value))
    except Exception:  # an object of the test may have a broken `__repr__`
        return f"<{type(value).__name__}>"


def _to_text(value: Any) -> str:
    if isinstance(value, Reply):
        return get_reply_text(value)
    return value if isinstance(value, str) else "" if value is None else codec.compact_json(_to_plain_json(value))


def _contains(whole: Any, part: Any) -> bool:
    plain = get_reply_text(whole) if isinstance(whole, Reply) else _to_plain_json(whole)
    if isinstance(plain, str):
        return isinstance(part, str) and part in plain
    if isinstance(plain, Mapping):
        return part in plain
    item = _to_plain_json(part)
    return isinstance(plain, list | tuple | set) and any(is_same_json(item, each) for each in cast("list[Any]", plain))


def _catch_error(function: Callable[[], Any]) -> BaseException | None:
    try:
        returned = function()
    except (RunStopped, EndTest, ThreadAbandoned):
        raise
    except BaseException as raised:  # whether the function raises is the question
        return raised
    if inspect.iscoroutine(returned):
        returned.close()
        raise TypeError(
            "a coroutine is never awaited here: await it in a `try`, and pass what it raises to t.assert_.error"
        )
    return None


def _describe_raised(raised: Any) -> str:
    return format_error(raised) if isinstance(raised, BaseException) else _quote(raised)


def _to_reply(value: Any) -> Reply:
    if isinstance(value, Reply):
        return value
    return Reply(value) if isinstance(value, str) else Reply(data=_to_plain_json(value))
