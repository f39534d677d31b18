"""How the tests of checks build them: as a loader does, by type, from what was written."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from viva import catalog
from viva.model.case import Assertion
from viva.model.component import BuildContext
from viva.model.turn import AssertionResult, Verdict
from viva.state.evaluation import evaluate
from viva.state.trial_state import CheckContext

_OURS = ("type", "message", "negate", "weight")


class Bench:
    """Builds claims in a folder and judges them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.roots: tuple[str, ...] = (str(folder),)
        self.update_snapshots = False
        self.own: dict[str, type[Any]] = {}  # checks that no catalog knows

    @property
    def building(self) -> BuildContext:
        return BuildContext(str(self.folder), self.roots, self.assertion, self.update_snapshots)

    def assertion(self, written: Mapping[str, Any]) -> Assertion:
        found = self.own.get(written["type"]) or catalog.find_component("check", written["type"])
        if found is None:
            raise ValueError(f"unknown type {written['type']}")
        fields = {key: value for key, value in written.items() if key not in _OURS}
        return Assertion(
            check=found.build(fields, self.building),
            definition=written,
            negate=written.get("negate", False),
            weight=written.get("weight", 1.0),
        )

    def label(self, type_: str, **fields: Any) -> str:
        return self.assertion({"type": type_, **fields}).check.label

    def judge(self, written: Mapping[str, Any], context: CheckContext) -> Verdict:
        """The verdict of a claim whose check need not wait."""
        found = evaluate(self.assertion(written), context)
        assert isinstance(found, AssertionResult)
        return found.verdict

    async def judge_later(self, written: Mapping[str, Any], context: CheckContext) -> Verdict:
        found = evaluate(self.assertion(written), context)
        return (await found if inspect.isawaitable(found) else found).verdict


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
