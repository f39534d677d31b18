"""Tokens under the names of many providers, and the provider by the class of a model."""

from types import SimpleNamespace
from typing import Any

import pytest

from viva.agents.frameworks.model_usage import guess_provider, read_usage


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"input_tokens": 10, "output_tokens": 5, "input_token_details": {"cache_read": 4}}, (10, 5, 4)),  # LangChain
        ({"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}, (10, 5, 4)),
        ({"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 4}, (10, 5, 4)),  # Bedrock, Strands
        (
            SimpleNamespace(prompt_token_count=10, candidates_token_count=5, thoughts_token_count=2),
            (10, 7, 0),
        ),  # Gemini
        (SimpleNamespace(input_tokens=10, output_tokens=5, input_tokens_details=None), (10, 5, 0)),
        ({"input_tokens": None, "prompt_tokens": 10, "output_tokens": 1e30}, (10, 0, 0)),
        (None, (0, 0, 0)),
        ("10", (0, 0, 0)),
    ],
)
def test_usage_is_read_under_any_name(usage: Any, counts: tuple[int, int, int]):
    assert read_usage(usage) == counts


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("OpenAIModel", "openai"),
        ("OpenAIResponsesModel", "openai"),
        ("OpenAI", "openai"),
        ("BedrockModel", "aws"),
        ("GeminiModel", "google"),
        ("AnthropicModel", "anthropic"),
        ("GoogleGenAI", "google"),
        ("LLM", ""),
    ],
)
def test_the_class_of_a_model_names_its_provider(name: str, provider: str):
    assert guess_provider(type(name, (), {})()) == provider
