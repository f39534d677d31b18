"""Assertions for Python code. Each function returns what a suite file would contain.

    chat.expect(check.contains("submitted"), check.tool_called("submit_expense", arguments={"amount": 3500}))
    chat.expect(lambda turn: "Friday" in turn.text)         # a function is an assertion, too
    viva.run([{"input": "Hello", "assertions": [check.contains("name?")]}], agent)

Generated from the structs in `viva.checks` by `make schemas`; do not edit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from msgspec import UNSET, UnsetType

from viva.checks.script import TurnView
from viva.formats.assertions import build_assertion as build_assertion  # noqa: PLC0414 -- part of this module

AssertionDict = dict[str, Any]
"""An assertion as a suite file contains it: `{"type": "contains", "value": "hello"}`."""

AgentFunction = Callable[[Any], Any] | Callable[[Any, Any], Any]
"""A function that replies: to the message or the messages, or to the messages with the options. A lambda has these types."""

CheckFunction = Callable[[TurnView], object]
"""A function that checks a turn: it returns True or False, or asserts."""

AssertionInput = Mapping[str, Any] | CheckFunction
"""An assertion, or a function that checks a turn."""


class Common(TypedDict, total=False):
    """Options of every assertion."""

    message: str
    """Shown instead of the check's own label when it fails."""
    negate: bool
    """The check must not pass. A score from 0 to 1 counts as 1 minus the score. A check that cannot be evaluated stays an error."""
    weight: float
    """How much the assertion counts in the case's score."""


def equals(value: Any, **common: Unpack[Common]) -> AssertionDict:
    """The reply is exactly this: a string is compared with its text, any other value with its data or JSON.

    value: The expected value.
    """
    return _create_assertion("equals", locals(), "value")


def contains(value: str, *, ignore_case: bool | None = None, **common: Unpack[Common]) -> AssertionDict:
    """The reply's text contains a text.

    value: The text to find.
    ignore_case: Ignore upper and lower case.
    """
    return _create_assertion("contains", locals(), "value")


def not_contains(value: str, *, ignore_case: bool | None = None, **common: Unpack[Common]) -> AssertionDict:
    """The reply's text does not contain a text.

    value: The text that must be absent.
    ignore_case: Ignore upper and lower case.
    """
    return _create_assertion("not_contains", locals(), "value")


def flow_contains(value: str, *, ignore_case: bool | None = None, **common: Unpack[Common]) -> AssertionDict:
    """The agent's text of all turns so far contains a text.

    value: The text to find.
    ignore_case: Ignore upper and lower case.
    """
    return _create_assertion("flow_contains", locals(), "value")


def regex(pattern: str, **common: Unpack[Common]) -> AssertionDict:
    """A regular expression matches somewhere in the reply's text.

    pattern: The regular expression. Flags are part of it: `(?i)yes`.
    """
    return _create_assertion("regex", locals(), "pattern")


def json_path(
    path: str,
    value: Any | UnsetType = UNSET,
    *,
    exists: bool | None = None,
    gt: float | None = None,
    gte: float | None = None,
    lt: float | None = None,
    lte: float | None = None,
    matches: str | None = None,
    **common: Unpack[Common],
) -> AssertionDict:
    """A JSONPath (RFC 9535) finds a value in the reply's data or JSON, and the value meets all given operators.

    path: The path; without `$` it means `$.path`.
    value: The expected value. A list means one of its values, unless the path finds a list.
    exists: Whether the path must find something.
    gt: A number that the value must be greater than.
    gte: A number that the value must be at least.
    lt: A number that the value must be less than.
    lte: A number that the value must be at most.
    matches: A regular expression that the value must match.
    """
    return _create_assertion("json_path", locals(), "path", "value")


def type_is(
    value: Literal["string", "number", "integer", "boolean", "array", "object", "null"],
    *,
    path: str | None = None,
    **common: Unpack[Common],
) -> AssertionDict:
    """The type of the reply's data, or of what `path` finds in it. A reply without data is a string.

    value: The expected type.
    path: A JSONPath.
    """
    return _create_assertion("type", locals(), "value")


def json_schema(schema: Mapping[str, Any] | bool, **common: Unpack[Common]) -> AssertionDict:
    """The reply's data or JSON matches a JSON Schema; in a case without JSON in the reply, a tool result matches it.

    schema: A JSON Schema, draft 2020-12.
    """
    return _create_assertion("json_schema", locals(), "schema")


def tool_called(
    name: str | Sequence[str],
    *,
    times: int | Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    status: Literal["ok", "error", "pending", "any"] | None = None,
    **common: Unpack[Common],
) -> AssertionDict:
    """The agent called a tool as often as `times` says, with these arguments among others, and with this status.

    name: The tool, by its whole name or by what follows the last `.`, `__`, `:` or `/`; with a list, any of them.
    times: How often: a number, or an object with `min` and `max`. At least once, if left out.
    arguments: Arguments of one call: a deep subset. A value `{"matches": "..."}` is a regular expression.
    status: Which calls count: those that succeeded, that failed, that wait for a result (such as an approval), or all.
    """
    return _create_assertion("tool_called", locals(), "name")


def tool_calls_contain(
    name: str | Sequence[str], *, values: Sequence[str] | None = None, **common: Unpack[Common]
) -> AssertionDict:
    """Each of these texts is in the arguments of some call of a tool, not all in the same call.

    name: The tool, by its whole name or by what follows the last `.`, `__`, `:` or `/`; with a list, any of them.
    values: The texts. Without any, the tool must have been called.
    """
    return _create_assertion("tool_calls_contain", locals(), "name")


def tool_not_called(
    name: str | Sequence[str],
    *,
    arguments: Mapping[str, Any] | None = None,
    status: Literal["ok", "error", "pending", "any"] | None = None,
    **common: Unpack[Common],
) -> AssertionDict:
    """The agent did not call a tool, or not with these arguments or this status.

    name: The tool, by its whole name or by what follows the last `.`, `__`, `:` or `/`; with a list, any of them.
    arguments: Arguments of one call: a deep subset. A value `{"matches": "..."}` is a regular expression.
    status: Which calls count: those that succeeded, that failed, that wait for a result (such as an approval), or all.
    """
    return _create_assertion("tool_not_called", locals(), "name")


def tool_sequence(*names: str, exact: bool | None = None, **common: Unpack[Common]) -> AssertionDict:
    """The agent called these tools in this order.

    names: The names of the tools, in order.
    exact: No other calls before, between or after.
    """
    return _create_assertion("tool_sequence", locals(), "names")


def path_contains(*names: str, exact: bool | None = None, **common: Unpack[Common]) -> AssertionDict:
    """The agent passed through these graph nodes or agents in this order, as its framework reports them.

    names: The names of the nodes or agents, in order.
    exact: No others before, between or after.
    """
    return _create_assertion("path_contains", locals(), "names")


def tool_result(name: str, result: Any | UnsetType = UNSET, **common: Unpack[Common]) -> AssertionDict:
    """Some call of a tool did not fail and returned this.

    name: The tool's name.
    result: A deep subset of the result. A text `regex:...` is a regular expression.
    """
    return _create_assertion("tool_result", locals(), "name", "result")


def file_exists(path: str, **common: Unpack[Common]) -> AssertionDict:
    """A file or folder is in the workspace.

    path: The path, relative to the workspace.
    """
    return _create_assertion("file_exists", locals(), "path")


def file_contains(value: str | Sequence[str], path: str, **common: Unpack[Common]) -> AssertionDict:
    """A file of the workspace contains a text, or all of several.

    value: The text, or a list of texts.
    path: The path, relative to the workspace.
    """
    return _create_assertion("file_contains", locals(), "value", "path")


def snapshot(path: str, *, of: Literal["reply", "tool_calls"] | None = None, **common: Unpack[Common]) -> AssertionDict:
    """The reply, or its tool calls, are the same as in a file. `--update-snapshots` writes the file.

    path: The file, relative to the suite's folder.
    of: What is compared: the reply's text or data, or the names and arguments of its tool calls.
    """
    return _create_assertion("snapshot", locals(), "path")


def max_latency(value: str | float, **common: Unpack[Common]) -> AssertionDict:
    """The agent took no longer than this in the turn or case.

    value: A duration such as `2s` or `2m30s`; a bare number is seconds.
    """
    return _create_assertion("max_latency", locals(), "value")


def max_first_token(value: str | float, **common: Unpack[Common]) -> AssertionDict:
    """The first text of a streamed reply arrived within this time: of the turn's reply or of each reply of the case.

    value: A duration such as `800ms` or `2s`; a bare number is seconds.
    """
    return _create_assertion("max_first_token", locals(), "value")


def max_cost(value: float, **common: Unpack[Common]) -> AssertionDict:
    """The agent's model calls in the turn or case cost no more USD than this.

    value: USD. An unknown price makes the check an error.
    """
    return _create_assertion("max_cost", locals(), "value")


def max_tokens(value: int, **common: Unpack[Common]) -> AssertionDict:
    """The agent's model calls in the turn or case used no more tokens than this.

    value: Input and output tokens together.
    """
    return _create_assertion("max_tokens", locals(), "value")


def max_turns(value: int, **common: Unpack[Common]) -> AssertionDict:
    """The conversation took no more turns than this: up to this turn or, as a final assertion, in all.

    value: The number of turns.
    """
    return _create_assertion("max_turns", locals(), "value")


def golden(strategy: Literal["exact", "contains", "json-match"], value: Any, **common: Unpack[Common]) -> AssertionDict:
    """The output (the reply's data or, without data, its text) equals a value, contains it, or is the same JSON: OpenWOP's golden strategies.

    strategy: Equal as text, contained in it, or equal as JSON. As text, what is not a string is JSON with sorted keys and no spaces.
    value: The expected value.
    """
    return _create_assertion("golden", locals(), "strategy", "value")


def safety(
    fail_at: Literal["low", "medium", "high", "critical"] | None = None,
    *,
    expected: str | None = None,
    prompts: Sequence[str] | None = None,
    secrets: Sequence[str] | None = None,
    allowed_tools: Sequence[str] | None = None,
    **common: Unpack[Common],
) -> AssertionDict:
    """The built-in detectors find no leak of secrets, personal data or prompts, no jailbreak, no unsafe tool call or reply.

    fail_at: How severe a finding must be to fail the check; others are only noted.
    expected: A text in the reply that is never a finding.
    prompts: Instructions of the agent that it must not reveal.
    secrets: Values that it must not reveal.
    allowed_tools: All tools that the agent may call; any tool, if left out.
    """
    return _create_assertion("safety", locals())


def script(
    use: str | CheckFunction | Callable[..., object],
    *,
    metadata: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **common: Unpack[Common],
) -> AssertionDict:
    """A Python function of the project accepts the reply. It gets `output`, `input`, `metadata`, `transcript` and `turn` by parameter name.

    use: The function: `scripts:module.function`; in Python also the function itself.
    metadata: Metadata of the call. Another spelling of `options.metadata`.
    options: Options of the call, with `metadata` among them.
    """
    return _create_assertion("script", locals(), "use")


def judge(
    criteria: str | None = None,
    *,
    min_score: float | None = None,
    use: str | AgentFunction | None = None,
    votes: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **common: Unpack[Common],
) -> AssertionDict:
    """A judge says that the criteria hold. The built-in judge must quote the evidence for its verdict.

    criteria: What must hold, in words.
    min_score: The lowest `score` with which the judge's `passed` counts.
    use: The judge: an agent of the config, as `agents:name`; in Python also a function.
    votes: How often the judge is asked; the majority decides.
    metadata: Metadata of the call. Another spelling of `options.metadata`.
    options: Options of the call, with `metadata` among them.
    """
    return _create_assertion("judge", locals())


def rubric(
    *criteria: str | Mapping[str, Any],
    min_score: float | None = None,
    use: str | AgentFunction | None = None,
    votes: int | None = None,
    metadata: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **common: Unpack[Common],
) -> AssertionDict:
    """Weighted criteria, each judged separately. Passes when the share that holds, by weight, reaches `min_score`.

    criteria: The criteria: texts, or objects with `criterion` and `weight`.
    min_score: The lowest share of the weight that must hold.
    use: The judge: an agent of the config, as `agents:name`; in Python also a function.
    votes: How often the judge is asked; the majority decides.
    metadata: Metadata of the call. Another spelling of `options.metadata`.
    options: Options of the call, with `metadata` among them.
    """
    return _create_assertion("rubric", locals(), "criteria")


def all_of(*assertions: AssertionInput, **common: Unpack[Common]) -> AssertionDict:
    """All of these assertions pass.

    assertions: The assertions: a list, or a single one.
    """
    return _create_assertion("all", locals(), "assertions")


def any_of(*assertions: AssertionInput, **common: Unpack[Common]) -> AssertionDict:
    """At least one of these assertions passes.

    assertions: The assertions: a list, or a single one.
    """
    return _create_assertion("any", locals(), "assertions")


def not_(assertion: AssertionInput, **common: Unpack[Common]) -> AssertionDict:
    """The assertion does not pass. An error stays an error.

    assertion: The assertion.
    """
    return _create_assertion("not", locals(), "assertion")


def _create_assertion(type_: str, arguments: dict[str, Any], *required: str) -> AssertionDict:
    """The assertion, without options that are not given."""
    common = arguments.pop("common")
    fields = {key: value for key, value in arguments.items() if value is not None or key in required}
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}
    return {"type": type_, **{key: value for key, value in values.items() if value is not UNSET}, **common}
