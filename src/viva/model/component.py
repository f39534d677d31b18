"""The root of components that users write in files: a struct whose fields are exactly what may be written."""

from collections.abc import Callable, Mapping
from typing import Any, Self

from msgspec import Struct

from viva.model import codec
from viva.model.case import Assertion


class BuildContext(Struct, frozen=True):
    """What a component may need while it is built from a file.

    `folder` is where the file stands; `roots` is where modules are looked for, in order; `claim` builds a nested claim.
    """

    folder: str
    module_folders: tuple[str, ...]
    build_assertion: Callable[[Mapping[str, Any]], Assertion]
    update_snapshots: bool = False


class Component(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A component that a user writes. `__post_init__` may raise ValueError: it becomes a problem with file and line."""

    @classmethod
    def build(cls, fields: Mapping[str, Any], context: BuildContext) -> Self:
        """From what was written, less `type`, `message`, `negate` and `weight`, which belong to the claim."""
        return codec.convert(dict(fields), cls)
