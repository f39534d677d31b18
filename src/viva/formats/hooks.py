"""Finds hooks by reference: functions of the project that run before and after a case or a run."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from viva.catalog import find_script
from viva.model.case import Hook

BEFORE_ARGUMENTS = ("ctx", "case")
AFTER_ARGUMENTS = ("ctx", "case", "result", "data")
BEFORE_RUN_ARGUMENTS = ("ctx", "cases")
AFTER_RUN_ARGUMENTS = ("ctx", "results", "data")
_NO_FUNCTIONS: Mapping[str, Callable[..., Any]] = {}


def find_hook(
    reference: str,
    roots: Sequence[str],
    arguments: Sequence[str],
    functions: Mapping[str, Callable[..., Any]] = _NO_FUNCTIONS,
) -> Hook:
    """The function behind `module:function`, or one of the functions that Python code has passed.

    ValueError if it does not exist or cannot take these arguments.
    """
    function = functions.get(reference) or find_script(reference, roots)[1]
    if function is None:
        raise ValueError(f"{reference!r} is a module; name the function in it: {reference}:before")
    return create_hook(reference, function, arguments)


def create_hook(reference: str, function: Callable[..., Any], arguments: Sequence[str]) -> Hook:
    """The hook of a function. ValueError if it cannot take these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise ValueError(f"{reference!r} is called with ({', '.join(arguments)}), but cannot be: {error}") from error
    except ValueError:  # a built-in function has no signature: a wrong call is reported when it happens
        pass
    return Hook(reference, function)
