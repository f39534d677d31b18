"""Finds calls of tools that have no stub, in a case whose tools are all stubbed."""

from collections.abc import Iterator, Sequence

from viva.model.case import Fixtures
from viva.model.finding import Finding
from viva.model.message import ToolCall
from viva.text.tool_names import is_same_tool


def unstubbed_tools(calls: Sequence[ToolCall], fixtures: Fixtures | None) -> Iterator[Finding]:
    """A finding for each call of a tool without a stub, if all tools are stubbed."""
    if fixtures is not None and fixtures.stub_all_tools:
        names = [stub.tool for stub in fixtures.tools]
        for call in calls:
            if not any(is_same_tool(call.name, name) for name in names):
                yield Finding("unstubbed-tool", "low")
