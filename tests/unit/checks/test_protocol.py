"""Every check implements the protocol; the type checker verifies the typed list too."""

from pathlib import Path

import pytest

from viva import catalog
from viva.checks.combine import All, AnyOf, Not
from viva.checks.files import FileContains, FileExists
from viva.checks.json import Equals, JsonPath, JsonSchema, TypeIs
from viva.checks.limits import MaxCost, MaxLatency, MaxTokens, MaxTurns
from viva.checks.script import ScriptCheck, UserFunction
from viva.checks.snapshot import Snapshot, SnapshotFolder
from viva.checks.text import Contains, FlowContains, NotContains, Regex
from viva.checks.tools import ToolCalled, ToolCallsContain, ToolNotCalled, ToolResult, ToolSequence
from viva.model.case import Assertion
from viva.protocols import Check
from viva.state.evaluation import may_look_outside

ASSERTION = Assertion(Contains(value="a"))
CHECKS: dict[str, Check] = {
    "equals": Equals(value=1),
    "contains": Contains(value="a"),
    "not_contains": NotContains(value="a"),
    "flow_contains": FlowContains(value="a"),
    "regex": Regex(pattern="a"),
    "json_path": JsonPath(path="$.a"),
    "type": TypeIs(value="string"),
    "json_schema": JsonSchema(schema=True),
    "tool_called": ToolCalled(name="a"),
    "tool_not_called": ToolNotCalled(name="a"),
    "tool_sequence": ToolSequence(names=("a",)),
    "tool_result": ToolResult(name="a"),
    "tool_calls_contain": ToolCallsContain(name="a"),
    "file_exists": FileExists(path="a"),
    "file_contains": FileContains(path="a", value="b"),
    "snapshot": Snapshot(path="a", folder=SnapshotFolder(str(Path(__file__).parent), is_updating=False)),
    "max_latency": MaxLatency(value=1),
    "max_cost": MaxCost(value=1),
    "max_tokens": MaxTokens(value=1),
    "max_turns": MaxTurns(value=1),
    "script": ScriptCheck(use="a", function=UserFunction(lambda: True, "a")),
    "all": All(assertions=(ASSERTION,)),
    "any": AnyOf(assertions=(ASSERTION,)),
    "not": Not(assertion=ASSERTION),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_found_by_name_and_has_a_label(name):
    check = CHECKS[name]
    assert catalog.find_component("check", name) is type(check)
    assert check.costly is False
    assert 0 < len(check.label) <= 80
    with pytest.raises(AttributeError):
        check.label = "frozen"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", CHECKS)
def test_only_a_script_looks_outside(name):
    """In a replay its result is marked as live."""
    assert may_look_outside(CHECKS[name]) is (name == "script")


def test_combinations_of_scripts_and_plugins_look_outside():
    script = Assertion(CHECKS["script"])
    assert may_look_outside(All(assertions=(ASSERTION, script)))
    assert may_look_outside(Not(assertion=Assertion(AnyOf(assertions=(script,)))))

    class Plugin:
        costly, label = False, "polite"

    assert may_look_outside(Plugin())
