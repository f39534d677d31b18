"""Functions that Python code passes where a suite names a script, an agent, a hook or the answer of a tool."""

from collections.abc import Mapping
from typing import Any, cast

from viva.model import codec
from viva.text.function_source import describe_function

_ASSERTION_KEYS = frozenset({"assertions", "assert", "assertion", "final_assertions"})
_NAME_KEYS = frozenset({"use", "script", "before", "after"})


class PassedFunctions(dict[str, Any]):
    """Functions and agent objects by the text that stands for them in definitions and reports."""

    def add(self, function: Any) -> str:
        """Add a function. Returns the text that stands for it: its source, or its name and place."""
        text = name = describe_function(function)
        number = 1
        while self.setdefault(name, function) is not function:
            number += 1
            name = f"{text} ({number})"
        return name

    def to_definition(self, value: Any) -> Any:
        """The value as a file could contain it, with names for functions. Raises TypeError or ValueError for other objects."""
        return codec.to_file_value(self._replace_functions(value, ""))

    def _replace_functions(self, value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            if "tool" in value and is_function_or_agent(response := cast("Mapping[str, Any]", value).get("response")):
                items = [(name, item) for name, item in items if name != "response"]
                items.append(("function", self.add(response)))
            return {name: self._replace_functions(item, str(name)) for name, item in items}
        if isinstance(value, list | tuple):
            return [self._replace_functions(item, key) for item in cast("list[Any]", value)]
        if not is_function_or_agent(value):
            return value
        if key in _ASSERTION_KEYS:
            return {"type": "script", "use": self.add(value)}
        if key == "simulator":
            return {"use": self.add(value)}
        if key in _NAME_KEYS:
            return self.add(value)
        raise TypeError(f"{describe_function(value)} is a function, which cannot stand at {key!r}")


def is_function_or_agent(value: Any) -> bool:
    """Is the value a function, or an object with a method `reply`?"""
    return callable(value) or callable(getattr(value, "reply", None))
