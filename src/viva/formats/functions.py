"""Functions that Python code passes where a suite names a script, an agent, a hook or the answer of a tool."""

from collections.abc import Mapping
from typing import Any, cast

from viva.model import codec
from viva.text.function_source import describe_function

_ASSERTION_KEYS = frozenset({"assertions", "assert", "assertion", "final_assertions"})
_NAME_KEYS = frozenset({"use", "script", "before", "after"})


class Functions(dict[str, Any]):
    """Functions and agent objects by the text that stands for them in definitions and reports."""

    def add(self, function: Any) -> str:
        """The text that stands for the function: its source, or its name and place."""
        text = name = describe_function(function)
        number = 1
        while self.setdefault(name, function) is not function:
            number += 1
            name = f"{text} ({number})"
        return name

    def to_definition(self, value: Any) -> Any:
        """The value as a file could contain it, with names for functions. Raises TypeError or ValueError for other objects."""
        return codec.to_file_value(self._replace(value, ""))

    def _replace(self, value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            if "tool" in value and is_function(response := cast("Mapping[str, Any]", value).get("response")):
                items = [(name, item) for name, item in items if name != "response"]
                items.append(("function", self.add(response)))
            return {name: self._replace(item, str(name)) for name, item in items}
        if isinstance(value, list | tuple):
            return [self._replace(item, key) for item in cast("list[Any]", value)]
        if not is_function(value):
            return value
        if key in _ASSERTION_KEYS:
            return {"type": "script", "use": self.add(value)}
        if key == "simulator":
            return {"use": self.add(value)}
        if key in _NAME_KEYS:
            return self.add(value)
        raise TypeError(f"{describe_function(value)} is a function, which cannot stand at {key!r}")


def is_function(value: Any) -> bool:
    """Is it a function, or an object that replies?"""
    return callable(value) or callable(getattr(value, "reply", None))
