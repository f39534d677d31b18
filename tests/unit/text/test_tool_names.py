"""When two names mean the same tool."""

import pytest

from viva.text.tool_names import is_same_tool


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("lookup", "lookup", True),
        ("lookup", "acme:lookup", True),
        ("acme:orders.lookup", "orders.lookup", True),
        ("acme__lookup", "acme:lookup", True),  # as an API takes what a suite calls otherwise
        ("acme__orders__lookup", "acme:orders.lookup", True),
        ("globex__lookup", "acme:lookup", False),
        ("look", "acme:look_up", False),
        ("up", "acme:lookup", False),
        ("__lookup", "lookup", False),
        ("", "lookup", False),
        ("", "", True),
    ],
)
def test_a_namespace_may_be_there_and_be_set_off_in_any_way(one: str, other: str, same: bool):
    """N25, W3."""
    assert is_same_tool(one, other) is same
    assert is_same_tool(other, one) is same
