"""Tools that were called although the case has canned answers for others only."""

from collections.abc import Iterator, Sequence

from viva.model.case import Fixtures
from viva.model.finding import Finding
from viva.model.message import ToolCall
from viva.text.tool_names import is_same_tool


def unstubbed_tools(calls: Sequence[ToolCall], fixtures: Fixtures | None) -> Iterator[Finding]:
    """Where tools are canned: a call of one that no canned answer stands in for."""
    if fixtures is not None and fixtures.stub_all_tools:
        names = [stub.tool for stub in fixtures.tools]
        for call in calls:
            if not any(is_same_tool(call.name, name) for name in names):
                yield Finding("unstubbed-tool", "low")
