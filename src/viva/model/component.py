"""The base of components that users write in files: a struct whose fields are what may be written."""

from collections.abc import Callable, Mapping
from typing import Any, Self

from msgspec import Struct

from viva.model import codec
from viva.model.case import Assertion


class BuildContext(Struct, frozen=True):
    """What a component needs to be built from a file.

    `folder` is the folder of the file; modules are searched in `module_folders`, in order; `build_assertion` builds a
    nested assertion. `functions` are those that Python code has passed, by the text that stands for them.
    """

    folder: str
    module_folders: tuple[str, ...]
    build_assertion: Callable[[Mapping[str, Any]], Assertion]
    update_snapshots: bool = False
    functions: Mapping[str, Callable[..., Any]] = {}


class Component(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A component that a user writes. A ValueError of `__post_init__` becomes a problem with file and line."""

    @classmethod
    def build(cls, fields: Mapping[str, Any], context: BuildContext) -> Self:
        """Builds it from its fields, without `type`, `message`, `negate` and `weight`, which belong to the assertion."""
        return codec.convert(dict(fields), cls)
