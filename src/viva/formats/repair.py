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

_MAX_ROUNDS = 12
"""Maximum number of rounds: each may remove the parents of invalid parts, and documents are not nested deeper."""

MakePlaceholder = Callable[[KeyPath], Any]


class Placeholders(Struct, frozen=True):
    """Valid values that replace invalid members of objects, and invalid items of lists, by name. Other invalid parts are removed.

    A placeholder must cause no problem itself, here or elsewhere in the document.
    """

    members: Mapping[str, MakePlaceholder]
    items: Mapping[str, MakePlaceholder]


def replace_invalid(
    schema: SchemaName, value: Any, violations: Sequence[SchemaViolation], placeholders: Placeholders
) -> Any:
    """A copy of the value without the parts that do not fit; None if nothing is left to check."""
    value = deepcopy(value)
    for _ in range(_MAX_ROUNDS):
        for violation in violations:
            _repair_violation(value, violation, placeholders)
        if not (violations := find_violations(schema, value)):
            return value
    return None


def _repair_violation(value: Any, violation: SchemaViolation, placeholders: Placeholders) -> None:
    try:
        holder = _get_value(value, violation.path)
    except (KeyError, IndexError, TypeError):  # removed with an object around it
        return
    if violation.unknown_key is not None:
        holder.pop(violation.unknown_key, None)
    missing = violation.suggestion if violation.unknown_key is not None else next(iter(violation.missing), None)
    if missing is not None and missing in placeholders.members:
        holder.setdefault(missing, placeholders.members[missing]((*violation.path, missing)))
    elif violation.unknown_key is None:
        _replace_or_remove(value, violation.path, placeholders)


def _replace_or_remove(value: Any, path: KeyPath, placeholders: Placeholders) -> None:
    """Replace the value at a path by its placeholder, or remove as much as necessary."""
    if not path:
        return
    *around, last = path
    holder = _get_value(value, tuple(around))
    if isinstance(holder, dict):
        members = cast("dict[str, Any]", holder)
        if isinstance(last, str) and last in placeholders.members:
            members[last] = placeholders.members[last](path)
        else:
            members.pop(str(last), None)
    elif around and around[-1] in placeholders.items:
        holder[last] = placeholders.items[str(around[-1])](path)
    else:
        _replace_or_remove(value, tuple(around), placeholders)


def _get_value(value: Any, path: KeyPath) -> Any:
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

_VALID_STEP = {"user_input": "x", "expected_outcome": "x"}
_VALID_CRITERIA = {"flow_contains": ["x"]}
PLAYBOOK_PLACEHOLDERS = Placeholders(
    members={
        "name": lambda _: "x",
        "steps": lambda _: [_VALID_STEP],
        "user_input": lambda _: "x",
        "expected_outcome": lambda _: "x",
        "persona": lambda _: {"context": "x", "success_criteria": _VALID_CRITERIA},
        "context": lambda _: "x",
        "success_criteria": lambda _: _VALID_CRITERIA,
    },
    items={"steps": lambda _: _VALID_STEP, "flow_contains": lambda _: "x", "llm_checks": lambda _: "x"},
)


def _create_unused_task_id(at: KeyPath) -> str:
    """An id that no task of the file has."""
    return "x-viva-" + "-".join(str(step).lower() for step in at)


_VALID_MATCH = {"strategy": "exact", "value": ""}
_VALID_EXPECTED = {"kind": "golden", "match": _VALID_MATCH}
OPENWOP_PLACEHOLDERS = Placeholders(
    members={
        "suiteId": lambda _: "x.evals.x",
        "version": lambda _: "0.0.0",
        "modes": lambda _: list(MODES),
        "tasks": lambda at: [{"taskId": _create_unused_task_id(at), "input": "", "expected": _VALID_EXPECTED}],
        "taskId": _create_unused_task_id,
        "input": lambda _: "",
        "expected": lambda _: _VALID_EXPECTED,
        "match": lambda _: _VALID_MATCH,
        "rubric": lambda _: [{"criterion": "x", "weight": 1}],
        "weight": lambda _: 1,
        "criterion": lambda _: "x",
    },
    items={
        "tasks": lambda at: {"taskId": _create_unused_task_id(at), "input": "", "expected": _VALID_EXPECTED},
        "rubric": lambda _: {"criterion": "x", "weight": 1},
    },
)
