"""The methods of `t.assert_` that run a check on a reply: one for each function of `viva.check`.

Generated from the structs in `viva.checks` by `make schemas`; do not edit.
"""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from viva import check

P = ParamSpec("P")


def _create_method(build: Callable[P, check.AssertionDict]) -> Callable[Concatenate["CheckMethods", Any, P], bool]:
    def run(self: "CheckMethods", response: Any, *args: P.args, **kwargs: P.kwargs) -> bool:
        return self.run_check(response, build(*args, **kwargs))

    run.__doc__ = build.__doc__
    return run


class CheckMethods:
    """Each method takes a reply and the arguments of the function of the same name in `viva.check`."""

    def run_check(self, response: Any, assertion: check.AssertionDict) -> bool:
        """Evaluates an assertion on a reply and records the result."""
        raise NotImplementedError

    equals = _create_method(check.equals)
    flow_contains = _create_method(check.flow_contains)
    regex = _create_method(check.regex)
    type_is = _create_method(check.type_is)
    json_schema = _create_method(check.json_schema)
    tool_called = _create_method(check.tool_called)
    tool_calls_contain = _create_method(check.tool_calls_contain)
    tool_not_called = _create_method(check.tool_not_called)
    tool_sequence = _create_method(check.tool_sequence)
    path_contains = _create_method(check.path_contains)
    tool_result = _create_method(check.tool_result)
    file_exists = _create_method(check.file_exists)
    file_contains = _create_method(check.file_contains)
    snapshot = _create_method(check.snapshot)
    max_latency = _create_method(check.max_latency)
    max_first_token = _create_method(check.max_first_token)
    max_cost = _create_method(check.max_cost)
    max_tokens = _create_method(check.max_tokens)
    max_turns = _create_method(check.max_turns)
    golden = _create_method(check.golden)
    safety = _create_method(check.safety)
    script = _create_method(check.script)
    judge = _create_method(check.judge)
    rubric = _create_method(check.rubric)
    all_of = _create_method(check.all_of)
    any_of = _create_method(check.any_of)
    not_ = _create_method(check.not_)
