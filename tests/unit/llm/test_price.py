"""What a call costs. Prices of the table change with its version: these tests ask the table itself."""

import pytest
from genai_prices import Usage, calc_price

from viva.llm.price import compute_cost
from viva.model.connector import Connector, Price


def test_a_price_of_the_connector_wins():
    connector = Connector(name="c", model="gpt-4o", price=Price(input=2.0, output=10.0))
    assert compute_cost(connector, "", 1_000_000, 500_000) == pytest.approx(7.0)


def test_a_model_that_nobody_knows_has_no_price():
    assert compute_cost(Connector(name="c", model="our-own-model"), "", 1, 1) is None
    assert compute_cost(Connector(name="c", provider="our-own-provider", model="gpt-4o"), "", 1, 1) is None


def test_the_answers_model_counts_where_the_connector_names_none():
    assert compute_cost(Connector(name="c"), "gpt-4o", 1000, 0) == compute_cost(
        Connector(name="c", model="gpt-4o"), "", 1000, 0
    )


def test_the_address_tells_the_provider():
    groq = Connector(name="c", base_url="https://api.groq.com/openai/v1", model="llama-3.3-70b-versatile")
    assert compute_cost(groq, "", 1000, 1000) is not None


@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-4o-mini"),
        ("openai", "gpt-4"),
        ("google", "gemini-2.5-pro"),
        ("anthropic", "claude-sonnet-4-5"),
        ("perplexity", "sonar"),
    ],
)
@pytest.mark.parametrize(
    "tokens", [(0, 0, 0), (1000, 500, 0), (1000, 500, 200), (200_000, 1, 1), (200_001, 7, 100_000), (900_000, 9, 0)]
)
def test_counting_quickly_gives_the_same_as_the_table(provider, model, tokens):
    used = Usage(input_tokens=tokens[0], output_tokens=tokens[1], cache_read_tokens=tokens[2] or None)
    exact = float(calc_price(used, model, provider_id=provider).total_price)
    assert compute_cost(Connector(name="c", provider=provider, model=model), "", *tokens) == pytest.approx(
        exact, abs=1e-9
    )


def test_counts_that_cannot_be_right_have_no_price():
    connector = Connector(name="c", provider="openai", base_url="")
    assert compute_cost(connector, "gpt-4o", 10, 5, cached_tokens=20) is None
    assert compute_cost(connector, "gpt-4o", -1, 5) is None
    assert compute_cost(connector, "m" * 1000, 1, 5) is None
