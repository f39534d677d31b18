"""Recognises objects of agent frameworks by the module of their type, without an import of any framework."""

import inspect
from typing import Any

from viva import catalog
from viva.agents.agent_config import find_kind
from viva.errors import with_article

FUNCTION_EXAMPLE = '    def agent(messages):\n        return my_object.run(messages[-1]["content"])'
"""A function that is an agent and calls any object, for messages."""


def find_framework(value: Any) -> Any:
    """The FrameworkConfig for an object; None if it is of no known framework. An object with `reply` needs none."""
    if inspect.isclass(value) or inspect.isroutine(value) or callable(getattr(value, "reply", None)):
        return None
    return _find_framework_of_type(type(value))


def _find_framework_of_type(kind: type) -> Any:
    for each in kind.__mro__:
        parts = each.__module__.split(".")
        for length in range(1, len(parts) + 1):
            if name := catalog.AGENT_KIND_BY_TYPE.get(f"{'.'.join(parts[:length])}:{each.__name__}"):
                return find_kind(name)
    return None


def can_reply(value: Any) -> bool:
    """Can an object reply, or the objects of a class?"""
    if callable(getattr(value, "reply", None)):
        return True
    if not inspect.isclass(value):
        return callable(value)
    is_callable = any("__call__" in vars(each) for each in value.__mro__)
    return is_callable or _find_framework_of_type(value) is not None


def explain_no_agent(value: Any) -> str:
    """Says why an object is not an agent, which objects are agents, and how to make an agent of any object."""
    kinds = (find_kind(name) for name in dict.fromkeys(catalog.AGENT_KIND_BY_TYPE.values()))
    titles = ", ".join(kind.session.title for kind in kinds if kind is not None)
    what = f"the class {value.__name__}" if inspect.isclass(value) else with_article(type(value).__name__)
    return (
        f"{what}: neither callable nor an object with `reply`. "
        f"Objects of these frameworks work as they are: {titles}. For any other write a function and name that:\n{FUNCTION_EXAMPLE}"
    )
