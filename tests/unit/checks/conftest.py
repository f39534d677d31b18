"""Builds checks for tests as a loader does: by type, from a definition."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from viva import catalog
from viva.model.case import Assertion
from viva.model.component import BuildContext
from viva.model.turn import AssertionResult, Verdict
from viva.state.evaluation import start_evaluation
from viva.state.trial_state import CheckContext

_OURS = ("type", "message", "negate", "weight")


class Bench:
    """Builds assertions in a folder and evaluates them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.roots: tuple[str, ...] = (str(folder),)
        self.update_snapshots = False
        self.own: dict[str, type[Any]] = {}  # checks that no catalog knows

    @property
    def building(self) -> BuildContext:
        return BuildContext(str(self.folder), self.roots, self.assertion, self.update_snapshots)

    def assertion(self, definition: Mapping[str, Any]) -> Assertion:
        found = self.own.get(definition["type"]) or catalog.find_component("check", definition["type"])
        if found is None:
            raise ValueError(f"unknown type {definition['type']}")
        fields = {key: value for key, value in definition.items() if key not in _OURS}
        return Assertion(
            check=found.build(fields, self.building),
            definition=definition,
            negate=definition.get("negate", False),
            weight=definition.get("weight", 1.0),
        )

    def label(self, type_: str, **fields: Any) -> str:
        return self.assertion({"type": type_, **fields}).check.label

    def evaluate(self, definition: Mapping[str, Any], context: CheckContext) -> Verdict:
        """The verdict of a check that does not wait."""
        found = start_evaluation(self.assertion(definition), context)
        assert isinstance(found, AssertionResult)
        return found.verdict

    async def evaluate_async(self, definition: Mapping[str, Any], context: CheckContext) -> Verdict:
        found = start_evaluation(self.assertion(definition), context)
        return (await found if inspect.isawaitable(found) else found).verdict


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
