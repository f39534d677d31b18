"""Stand-ins for tests of agents and of Viva itself: servers on real sockets that answer, and break, as told."""

from viva.testing.anthropic_server import AnthropicServer
from viva.testing.gemini_server import GeminiServer
from viva.testing.http_server import Answer, HttpServer, Received, json_answer
from viva.testing.model_server import Asked, Fail, Say, When
from viva.testing.openai_server import OpenAIServer, error_answer
from viva.testing.script_file import load_script

__all__ = [
    "Answer",
    "AnthropicServer",
    "Asked",
    "Fail",
    "GeminiServer",
    "HttpServer",
    "OpenAIServer",
    "Received",
    "Say",
    "When",
    "error_answer",
    "json_answer",
    "load_script",
]
