"""Which agents the code of a script test calls by a name that stands in it as a text."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from viva.errors import Problem

_MAY_FAIL = (ast.Try, ast.With, ast.AsyncWith, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.If)
"""What is called in one of these may be meant to fail, or may never be called."""


def find_unknown_agents(
    function: Callable[..., Any], wrong_with: Callable[[str], Sequence[Problem]]
) -> Iterator[Problem]:
    """`ctx.call("name", …)` and `t.assert_.agent(reply, "name")` with a name that no agent has, where they stand."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        file = inspect.getsourcefile(function) or ""
    except (OSError, TypeError, SyntaxError):  # its text is not to be had
        return
    for test in tree.body:
        for call in _calls_in(getattr(test, "body", ())):
            if (name := _agent_of(call)) is not None:
                for wrong in wrong_with(name.removeprefix("agents:")):
                    yield wrong if wrong.file else Problem(file, first + call.lineno - 1, "", wrong.message)


def _calls_in(nodes: Sequence[ast.AST]) -> Iterator[ast.Call]:
    for node in nodes:
        if isinstance(node, _MAY_FAIL):
            continue
        if isinstance(node, ast.Call):
            yield node
        yield from _calls_in(list(ast.iter_child_nodes(node)))


def _agent_of(call: ast.Call) -> str | None:
    """The name of the agent that is called, if this is such a call."""
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="ctx"), attr="call"), args=[ast.Constant(value=str(name)), *_]
        ):
            return name
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="t")), attr="agent" | "Agent"),
            args=[_, ast.Constant(value=str(name)), *_],
        ):
            return name
        case _:
            return None
