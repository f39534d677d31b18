"""The real Claude Code, run by `viva test` as a user types it, against the stand-in for the Anthropic API."""

import pytest

from project import Project
from scripted_clis import call_stubbed_tool, use_stub
from viva.model.message import ToolCall
from viva.testing import AnthropicServer, ModelRequest, Say
from viva.testing.model_server import ScriptLine

pytestmark = pytest.mark.soak  # it takes 350 MB on the disk
AGENT = '[agents.coder]\ntype = "claude"\nmodel = "m-1"\n'


def search_and_use(asked: ModelRequest) -> ScriptLine:
    """Tools of MCP servers are hidden until the model has searched for them."""
    if "Look up order" not in asked.text and not asked.tool_results:
        return "A title."
    if asked.tool_results == ["ToolSearch"]:
        return Say(tool_calls=[ToolCall("mcp__viva__lookup", {"id": 7})])
    if asked.tool_results:
        return use_stub(asked)
    return Say(tool_calls=[ToolCall("ToolSearch", {"query": "select:mcp__viva__lookup", "max_results": 1})])


def test_its_tools_are_those_of_the_case(project: Project) -> None:  # W3
    record = call_stubbed_tool(project, AnthropicServer, ".claude", AGENT, search_and_use)
    search, lookup = record["turns"][0]["tool_calls"]
    assert (search["name"], lookup["name"], lookup["args"]) == ("ToolSearch", "lookup", {"id": 7})
    assert record["usage"]["input_tokens"] >= 30
