"""Models behind any OpenAI-compatible `/chat/completions`.

The base URL of Azure OpenAI ends with the deployment and the API version, as in
`https://NAME.openai.azure.com/openai/deployments/NAME?api-version=2024-10-21`. Its key is sent as `api-key`, which follows
from the host; for a gateway in front of it, set `headers = {"api-key" = "$AZURE_KEY"}`.
Servers that do not know `json_schema` need `structured = "json"` or `"text"` in their connector.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from viva.agents.completions import parse_completion, parse_completion_stream
from viva.agents.model_session import Completion, Endpoint, ModelAgent, OnText
from viva.agents.openai_messages import encode_message, encode_results
from viva.agents.strict_schema import forbid_additional_properties, is_strict
from viva.agents.tools import Tool
from viva.model import codec
from viva.model.message import Message, ToolCall

__all__ = ["ChatAgent", "Tool"]

_OPENAI = "https://api.openai.com/v1"
_AZURE = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")


class ChatEndpoint(Endpoint):
    """The chat completions API."""

    path: ClassVar[str] = "/chat/completions"

    def build_url(self, agent: ModelAgent) -> str:
        base, mark, query = (self.connector.base_url or _OPENAI).partition("?")
        base = base.rstrip("/")
        return (base if base.endswith(self.path) else base + self.path) + mark + query

    def build_key_header(self, key: str) -> tuple[str, str]:
        return ("api-key", key) if self._host.endswith(_AZURE) else ("Authorization", f"Bearer {key}")

    def build_fields(self, agent: ModelAgent) -> dict[str, Any]:
        connector = self.connector
        # OpenAI's newer models refuse the old name; other servers know only that one.
        openai = self._host == "api.openai.com" or self._host.endswith(_AZURE)
        limit_name = "max_completion_tokens" if openai else "max_tokens"
        settings = {"temperature": connector.temperature, "seed": connector.seed, limit_name: connector.max_tokens}
        fields: dict[str, Any] = {"model": connector.model}
        fields |= {name: value for name, value in settings.items() if value is not None}
        if agent.tools:
            fields["tools"] = [_encode_tool(tool) for tool in agent.tools]
        if agent.output is not None and connector.structured != "text":
            fields["response_format"] = (
                _encode_output_format(agent.output) if connector.structured == "schema" else _ANY_JSON
            )
        if agent.stream:
            fields |= {"stream": True, "stream_options": {"include_usage": True}}
        return fields

    def encode_system(self, system: str) -> tuple[bytes, list[bytes]]:
        return b',"messages":[', [codec.encode({"role": "system", "content": system})] if system else []

    def accepts_system_messages(self) -> bool:
        return True

    def encode_message(self, message: Message) -> bytes:
        return encode_message(message)

    def encode_results(self, calls: Sequence[ToolCall]) -> list[bytes]:
        return encode_results(calls)

    def parse_completion(self, body: bytes) -> Completion:
        return parse_completion(body)

    async def parse_stream(self, chunks: AsyncIterator[bytes], on_text: OnText) -> Completion:
        return await parse_completion_stream(chunks, on_text)

    @property
    def _host(self) -> str:
        return urlsplit(self.url).hostname or ""


class ChatAgent(ModelAgent, frozen=True, kw_only=True, dict=True):
    """A model behind chat completions."""

    endpoint_type: ClassVar[type[Endpoint]] = ChatEndpoint


_ANY_JSON = {"type": "json_object"}


def _encode_output_format(output: Any) -> dict[str, Any]:
    schema = forbid_additional_properties(output)
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": is_strict(schema)}}


def _encode_tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
