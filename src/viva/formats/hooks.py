"""Hooks by reference: functions of the project that run before and after a case or a run."""

import inspect
from collections.abc import Sequence

from viva.catalog import find_script
from viva.model.case import Hook

BEFORE_ARGUMENTS = ("ctx", "case")
AFTER_ARGUMENTS = ("ctx", "case", "result", "data")
BEFORE_RUN_ARGUMENTS = ("ctx", "cases")
AFTER_RUN_ARGUMENTS = ("ctx", "results", "data")


def find_hook(reference: str, roots: Sequence[str], arguments: Sequence[str]) -> Hook:
    """The function behind `module:function`. ValueError if it does not exist or cannot take these arguments."""
    _, function = find_script(reference, roots)
    if function is None:
        raise ValueError(f"{reference!r} is a module; name the function in it: {reference}:before")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as wrong:
        raise ValueError(f"{reference!r} is called with ({', '.join(arguments)}), but cannot be: {wrong}") from wrong
    except ValueError:  # a built-in shows no signature: what it takes is found out when it is called
        pass
    return Hook(reference, function)
