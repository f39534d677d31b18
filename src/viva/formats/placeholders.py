"""Valid values that replace the invalid parts of a document, for each format, so that the rest can be checked: see `repair`."""

from viva.formats.openwop.modes import MODES
from viva.formats.repair import Placeholders
from viva.schemas.positions import KeyPath

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
