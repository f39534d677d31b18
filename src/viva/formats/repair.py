"""Repairs a copy of a document that does not fit its schema, so that one problem does not hide others."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

from msgspec import Struct

from viva.schemas.positions import KeyPath
from viva.schemas.validation import SchemaName, SchemaViolation, find_violations

_ROUNDS = 12
"""How far outwards an object that cannot stay may take its parents along; documents are not nested deeper."""

MakePlaceholder = Callable[[KeyPath], Any]


class Placeholders(Struct, frozen=True):
    """What stands in for a member, or for an item of the list of that name, that does not fit. All else is left out.

    A stand-in must give no reason to complain, here or elsewhere.
    """

    members: Mapping[str, MakePlaceholder]
    items: Mapping[str, MakePlaceholder]


def replace_invalid(
    schema: SchemaName, value: Any, violations: Sequence[SchemaViolation], placeholders: Placeholders
) -> Any:
    """A copy of the value without the parts that do not fit; None if nothing is left to check."""
    value = deepcopy(value)
    for _ in range(_ROUNDS):
        for complaint in violations:
            _mend(value, complaint, placeholders)
        if not (violations := find_violations(schema, value)):
            return value
    return None


def _mend(value: Any, complaint: SchemaViolation, stand_ins: Placeholders) -> None:
    try:
        holder = _at(value, complaint.path)
    except (KeyError, IndexError, TypeError):  # it went with something around it
        return
    if complaint.unknown_key is not None:
        holder.pop(complaint.unknown_key, None)
    missing = complaint.suggestion if complaint.unknown_key is not None else next(iter(complaint.missing), None)
    if missing is not None and missing in stand_ins.members:
        holder.setdefault(missing, stand_ins.members[missing]((*complaint.path, missing)))
    elif complaint.unknown_key is None:
        _replace(value, complaint.path, stand_ins)


def _replace(value: Any, path: KeyPath, stand_ins: Placeholders) -> None:
    """Replace the value at a path by its placeholder, or remove as much as necessary."""
    if not path:
        return
    *around, last = path
    holder = _at(value, tuple(around))
    if isinstance(holder, dict):
        members = cast("dict[str, Any]", holder)
        if isinstance(last, str) and last in stand_ins.members:
            members[last] = stand_ins.members[last](path)
        else:
            members.pop(str(last), None)
    elif around and around[-1] in stand_ins.items:
        holder[last] = stand_ins.items[str(around[-1])](path)
    else:
        _replace(value, tuple(around), stand_ins)


def _at(value: Any, path: KeyPath) -> Any:
    for step in path:
        value = value[step]
    return value
