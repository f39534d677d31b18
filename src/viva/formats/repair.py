"""Repairs a copy of a document that does not fit its schema, so that one problem does not hide others.

Each format has placeholders: valid values that replace the invalid parts.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

from msgspec import Struct

from viva.formats.openwop.modes import MODES
from viva.schemas.positions import KeyPath
from viva.schemas.validation import SchemaName, SchemaViolation, find_violations

_ROUNDS = 12
"""How far outwards an object that cannot stay may take its parents along; documents are not nested deeper."""

MakePlaceholder = Callable[[KeyPath], Any]


class Placeholders(Struct, frozen=True):
    """What replaces an invalid member, or an invalid item of the list of that name. Other invalid parts are removed.

    A placeholder must cause no problem itself, here or elsewhere in the document.
    """

    members: Mapping[str, MakePlaceholder]
    items: Mapping[str, MakePlaceholder]


def replace_invalid(
    schema: SchemaName, value: Any, violations: Sequence[SchemaViolation], placeholders: Placeholders
) -> Any:
    """A copy of the value without the parts that do not fit; None if nothing is left to check."""
    value = deepcopy(value)
    for _ in range(_ROUNDS):
        for violation in violations:
            _repair_violation(value, violation, placeholders)
        if not (violations := find_violations(schema, value)):
            return value
    return None


def _repair_violation(value: Any, violation: SchemaViolation, placeholders: Placeholders) -> None:
    try:
        holder = _look_up(value, violation.path)
    except (KeyError, IndexError, TypeError):  # it went with something around it
        return
    if violation.unknown_key is not None:
        holder.pop(violation.unknown_key, None)
    missing = violation.suggestion if violation.unknown_key is not None else next(iter(violation.missing), None)
    if missing is not None and missing in placeholders.members:
        holder.setdefault(missing, placeholders.members[missing]((*violation.path, missing)))
    elif violation.unknown_key is None:
        _replace(value, violation.path, placeholders)


def _replace(value: Any, path: KeyPath, placeholders: Placeholders) -> None:
    """Replace the value at a path by its placeholder, or remove as much as necessary."""
    if not path:
        return
    *around, last = path
    holder = _look_up(value, tuple(around))
    if isinstance(holder, dict):
        members = cast("dict[str, Any]", holder)
        if isinstance(last, str) and last in placeholders.members:
            members[last] = placeholders.members[last](path)
        else:
            members.pop(str(last), None)
    elif around and around[-1] in placeholders.items:
        holder[last] = placeholders.items[str(around[-1])](path)
    else:
        _replace(value, tuple(around), placeholders)


def _look_up(value: Any, path: KeyPath) -> Any:
    for step in path:
        value = value[step]
    return value


_VALID_ASSERTION = {"type": "contains", "value": "x"}
NATIVE_PLACEHOLDERS = Placeholders(
    members={
        "id": lambda at: f"?{at}",
        "input": lambda _: "x",
        "turns": lambda _: [{"input": "x"}],
        "checkpoints": lambda at: [{"id": f"?{at}", "assertion": _VALID_ASSERTION}],
        "simulator": lambda _: {"use": "viva.rules", "options": {"metadata": {"rules": []}}},
        "assertion": lambda _: _VALID_ASSERTION,
        "assertions": lambda _: _VALID_ASSERTION,
    },
    items={
        "turns": lambda _: {"input": "x"},
        "checkpoints": lambda at: {"id": f"?{at}", "assertion": _VALID_ASSERTION},
        "assertions": lambda _: _VALID_ASSERTION,
        "assert": lambda _: _VALID_ASSERTION,
        "final_assertions": lambda _: _VALID_ASSERTION,
    },
)

_STEP = {"user_input": "x", "expected_outcome": "x"}
_VALID_CRITERIA = {"flow_contains": ["x"]}
PLAYBOOK_PLACEHOLDERS = Placeholders(
    members={
        "name": lambda _: "x",
        "steps": lambda _: [_STEP],
        "user_input": lambda _: "x",
        "expected_outcome": lambda _: "x",
        "persona": lambda _: {"context": "x", "success_criteria": _VALID_CRITERIA},
        "context": lambda _: "x",
        "success_criteria": lambda _: _VALID_CRITERIA,
    },
    items={"steps": lambda _: _STEP, "flow_contains": lambda _: "x", "llm_checks": lambda _: "x"},
)


def _create_free_id(at: KeyPath) -> str:
    """An id that no task of the file has."""
    return "x-viva-" + "-".join(str(step).lower() for step in at)


_MATCH = {"strategy": "exact", "value": ""}
_EXPECTED = {"kind": "golden", "match": _MATCH}
OPENWOP_PLACEHOLDERS = Placeholders(
    members={
        "suiteId": lambda _: "x.evals.x",
        "version": lambda _: "0.0.0",
        "modes": lambda _: list(MODES),
        "tasks": lambda at: [{"taskId": _create_free_id(at), "input": "", "expected": _EXPECTED}],
        "taskId": _create_free_id,
        "input": lambda _: "",
        "expected": lambda _: _EXPECTED,
        "match": lambda _: _MATCH,
        "rubric": lambda _: [{"criterion": "x", "weight": 1}],
        "weight": lambda _: 1,
        "criterion": lambda _: "x",
    },
    items={
        "tasks": lambda at: {"taskId": _create_free_id(at), "input": "", "expected": _EXPECTED},
        "rubric": lambda _: {"criterion": "x", "weight": 1},
    },
)
