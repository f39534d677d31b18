"""Every check keeps to the seam; the list is typed, so the type checker holds them to it as well."""

from pathlib import Path

import pytest

from viva import catalog
from viva.checks.combine import All, AnyOf, Not
from viva.checks.json import Equals, JsonPath, JsonSchema, TypeIs
from viva.checks.limits import MaxCost, MaxLatency, MaxTokens, MaxTurns
from viva.checks.script import Function, Script
from viva.checks.snapshot import Shelf, Snapshot
from viva.checks.text import Contains, NotContains, Regex
from viva.checks.tools import ToolCalled, ToolNotCalled, ToolResult, ToolSequence
from viva.model.case import Claim
from viva.protocols import Check

CLAIM = Claim(Contains(value="a"))
CHECKS: dict[str, Check] = {
    "equals": Equals(value=1),
    "contains": Contains(value="a"),
    "not_contains": NotContains(value="a"),
    "regex": Regex(pattern="a"),
    "json_path": JsonPath(path="$.a"),
    "type": TypeIs(value="string"),
    "json_schema": JsonSchema(schema=True),
    "tool_called": ToolCalled(name="a"),
    "tool_not_called": ToolNotCalled(name="a"),
    "tool_sequence": ToolSequence(names=("a",)),
    "tool_result": ToolResult(name="a"),
    "snapshot": Snapshot(path="a", shelf=Shelf(str(Path(__file__).parent), update=False)),
    "max_latency": MaxLatency(value=1),
    "max_cost": MaxCost(value=1),
    "max_tokens": MaxTokens(value=1),
    "max_turns": MaxTurns(value=1),
    "script": Script(use="a", function=Function(lambda: True, "a")),
    "all": All(claims=(CLAIM,)),
    "any": AnyOf(claims=(CLAIM,)),
    "not": Not(claim=CLAIM),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_found_by_its_name_and_can_be_named_and_weighed(name):
    check = CHECKS[name]
    assert catalog.find("check", name) is type(check)
    assert check.costly is False
    assert 0 < len(check.label) <= 80
    with pytest.raises(AttributeError):
        check.label = "frozen"  # pyright: ignore[reportAttributeAccessIssue]
