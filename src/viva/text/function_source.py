"""The source of a function that Python code passes where a suite has a name: reports show it in place of the name."""

import ast
import dis
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any

_MAX_NAME = 200
_MAX_SOURCE_LINES = 12


def describe_function(function: Any) -> str:
    """A lambda as its source, another function as `name (file.py:12)`, an object as its type. The text has no `{{`, so it is not a template."""
    name = getattr(function, "__name__", type(function).__name__)
    code = _get_code(function)
    if code is not None and name == "<lambda>":
        text = _find_lambda_source(code) or "lambda"
    elif code is not None:
        text = f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"
    else:
        text = name
    return re.sub(r"\s+", " ", text).replace("{{", "{ {")[:_MAX_NAME]


def read_short_source(function: Callable[..., Any]) -> str:
    """The source of a `def`, if it is short; else empty. It is empty for a lambda: `describe_function` shows its source."""
    if getattr(function, "__name__", "<lambda>") == "<lambda>":
        return ""
    try:
        lines, _ = inspect.getsourcelines(function)
    except (OSError, TypeError, SyntaxError):
        return ""
    return textwrap.dedent("".join(lines)).rstrip() if len(lines) <= _MAX_SOURCE_LINES else ""


def has_assert(function: Callable[..., Any]) -> bool:
    """Does the code of the function contain an `assert`, possibly in the form into which pytest rewrites it?"""
    code = _get_code(function)
    if code is None:
        return False
    return "AssertionError" in code.co_names or b"LOAD_ASSERTION_ERROR" in _list_opcodes(code)


def _get_code(function: Any) -> CodeType | None:
    try:
        return getattr(inspect.unwrap(function), "__code__", None)
    except ValueError:  # it wraps itself
        return None


@lru_cache(maxsize=256)
def _list_opcodes(code: CodeType) -> frozenset[bytes]:
    return frozenset(instruction.opname.encode() for instruction in dis.get_instructions(code))


@lru_cache(maxsize=256)
def _find_lambda_source(code: CodeType) -> str | None:
    """The source of a lambda. Several may stand on one line: the columns of its code tell them apart."""
    source = "".join(linecache.getlines(code.co_filename))
    positions = [place for place in code.co_positions() if place[2] is not None and place[0] == place[1]]
    try:
        nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Lambda)]
    except (SyntaxError, ValueError, RecursionError):
        return None
    nodes = [node for node in nodes if node.lineno == code.co_firstlineno]
    inside = [node for node in nodes if any(_contains_place(node.body, place) for place in positions)]
    best = min(inside or nodes, key=lambda node: len(ast.dump(node)), default=None)
    return ast.get_source_segment(source, best) if best is not None else None


def _contains_place(node: ast.expr, place: tuple[int | None, int | None, int | None, int | None]) -> bool:
    line, _, start, end = place
    assert line is not None
    assert start is not None
    assert end is not None
    first, last = (node.lineno, node.col_offset), (node.end_lineno or line, node.end_col_offset or end)
    return first <= (line, start) and (line, end) <= last and end > start
