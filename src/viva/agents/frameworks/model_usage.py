"""Reads the usage that frameworks report of a model call, under the names of many providers, and guesses the provider."""

from collections.abc import Mapping
from typing import Any, cast

from viva.model.message import MAX_TOKEN_COUNT

_SENT = ("input_tokens", "prompt_tokens", "prompt_token_count", "inputTokens")
_RECEIVED = ("output_tokens", "completion_tokens", "candidates_token_count", "outputTokens")
_THOUGHTS = ("thoughts_token_count",)
"""Gemini counts these in addition to the tokens of the answer; other providers include them there."""
_CACHED = (
    "cache_read_tokens", "cached_prompt_tokens", "cached_content_token_count", "cacheReadInputTokens",
    "input_token_details.cache_read", "input_tokens_details.cached_tokens", "prompt_tokens_details.cached_tokens",
)  # fmt: skip
_SUFFIXES = ("model", "responses", "server", "llm", "_")
_PROVIDERS = {"bedrock": "aws", "bedrockconverse": "aws", "gemini": "google", "googlegenai": "google"}


def read_usage(usage: Any) -> tuple[int, int, int]:
    """The tokens sent, received, and read from a cache, which are part of those sent. What is not reported is 0."""
    received = _find(usage, _RECEIVED) + _find(usage, _THOUGHTS)
    return _find(usage, _SENT), received, _find(usage, _CACHED)


def guess_provider(model: Any) -> str:
    """The provider behind a model, by the name of its class: `OpenAIResponsesModel` is of openai. It may be the name itself."""
    name = (model if isinstance(model, str) else type(model).__name__).lower()
    while suffix := next((each for each in _SUFFIXES if name.endswith(each)), ""):
        name = name.removesuffix(suffix)
    return _PROVIDERS.get(name, name)


def _find(usage: Any, paths: tuple[str, ...]) -> int:
    for path in paths:
        value = usage
        for name in path.split("."):
            value = cast("Any", value.get(name) if isinstance(value, Mapping) else getattr(value, name, None))
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_TOKEN_COUNT:
            return int(value)
    return 0
