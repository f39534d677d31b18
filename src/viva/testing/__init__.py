"""Test servers and helpers: stand-ins for model providers and for MCP servers on real sockets, with scripted replies."""

from viva.testing.anthropic_server import AnthropicServer
from viva.testing.gemini_server import GeminiServer
from viva.testing.http_server import HttpServer, ReceivedRequest, StubResponse, json_response
from viva.testing.mcp_server import McpServer
from viva.testing.model_server import Fail, ModelRequest, Say, When
from viva.testing.openai_server import OpenAIServer, error_response
from viva.testing.script_file import load_script

__all__ = [
    "AnthropicServer",
    "Fail",
    "GeminiServer",
    "HttpServer",
    "McpServer",
    "ModelRequest",
    "OpenAIServer",
    "ReceivedRequest",
    "Say",
    "StubResponse",
    "When",
    "error_response",
    "json_response",
    "load_script",
]
