"""What stands in for parts of a document that do not fit its schema, for each format: as good as what should stand there."""

from viva.formats.openwop.modes import MODES
from viva.formats.repair import Placeholders
from viva.schemas.positions import KeyPath

_FINE = {"type": "contains", "value": "x"}
NATIVE_PLACEHOLDERS = Placeholders(
    members={
        "id": lambda at: f"?{at}",
        "input": lambda _: "x",
        "turns": lambda _: [{"input": "x"}],
        "checkpoints": lambda at: [{"id": f"?{at}", "assertion": _FINE}],
        "simulator": lambda _: {"use": "viva.rules", "options": {"metadata": {"rules": []}}},
        "assertion": lambda _: _FINE,
        "assertions": lambda _: _FINE,
    },
    items={
        "turns": lambda _: {"input": "x"},
        "checkpoints": lambda at: {"id": f"?{at}", "assertion": _FINE},
        "assertions": lambda _: _FINE,
        "assert": lambda _: _FINE,
        "final_assertions": lambda _: _FINE,
    },
)

_STEP = {"user_input": "x", "expected_outcome": "x"}
_REACHABLE = {"flow_contains": ["x"]}
PLAYBOOK_PLACEHOLDERS = Placeholders(
    members={
        "name": lambda _: "x",
        "steps": lambda _: [_STEP],
        "user_input": lambda _: "x",
        "expected_outcome": lambda _: "x",
        "persona": lambda _: {"context": "x", "success_criteria": _REACHABLE},
        "context": lambda _: "x",
        "success_criteria": lambda _: _REACHABLE,
    },
    items={"steps": lambda _: _STEP, "flow_contains": lambda _: "x", "llm_checks": lambda _: "x"},
)


def _free_id(at: KeyPath) -> str:
    """An id that no task of the file has."""
    return "x-viva-" + "-".join(str(step).lower() for step in at)


_MATCH = {"strategy": "exact", "value": ""}
_EXPECTED = {"kind": "golden", "match": _MATCH}
OPENWOP_PLACEHOLDERS = Placeholders(
    members={
        "suiteId": lambda _: "x.evals.x",
        "version": lambda _: "0.0.0",
        "modes": lambda _: list(MODES),
        "tasks": lambda at: [{"taskId": _free_id(at), "input": "", "expected": _EXPECTED}],
        "taskId": _free_id,
        "input": lambda _: "",
        "expected": lambda _: _EXPECTED,
        "match": lambda _: _MATCH,
        "rubric": lambda _: [{"criterion": "x", "weight": 1}],
        "weight": lambda _: 1,
        "criterion": lambda _: "x",
    },
    items={
        "tasks": lambda at: {"taskId": _free_id(at), "input": "", "expected": _EXPECTED},
        "rubric": lambda _: {"criterion": "x", "weight": 1},
    },
)
