"""The cost of a model call: by the connector's own price, else by the table of prices, else unknown."""

from functools import lru_cache

from viva.llm.price_table import ModelPrices, find_prices
from viva.model.connector import Connector
from viva.model.message import ModelCall

_TOKENS_PER_PRICE = 1_000_000
_MAX_NAME_LENGTH = 200


def compute_cost(
    connector: Connector,
    model: str,
    input_tokens: int,
    output_tokens: int,
    cached_tokens: int = 0,
    cache_write_tokens: int = 0,
) -> float | None:
    """USD, or None if the price of the model is unknown. Tokens read from and written to a cache are input tokens."""
    if (own := connector.price) is not None:
        return (input_tokens * own.input + output_tokens * own.output) / _TOKENS_PER_PRICE
    prices = _find_prices(connector.provider, connector.base_url, connector.model or model)
    return _apply_prices(prices, input_tokens, output_tokens, cached_tokens, cache_write_tokens)


def compute_reported_cost(call: ModelCall, cache_write_tokens: int = 0) -> float | None:
    """USD of a call that an agent reports; None if the model or its price is unknown. Tokens written to a cache are input tokens."""
    if not call.model:
        return None
    prices = _find_prices(call.provider, "", call.model)
    return _apply_prices(prices, call.input_tokens, call.output_tokens, call.cached_tokens, cache_write_tokens)


def _apply_prices(
    prices: ModelPrices | None, sent: int, received: int, cache_read: int = 0, cache_written: int = 0
) -> float | None:
    """The cost of a call; None for impossible counts."""
    if prices is None or min(sent, received, cache_read, cache_written) < 0 or cache_read + cache_written > sent:
        return None
    return prices.get_price().compute_cost(sent, received, cache_read, cache_written)


def _find_prices(provider: str, base_url: str, model: str) -> ModelPrices | None:
    """The prices of a model. An overlong name has none, and is not kept in the cache."""
    return None if len(model) > _MAX_NAME_LENGTH else _find_prices_in_table(provider, base_url, model)


@lru_cache(maxsize=512)
def _find_prices_in_table(provider: str, base_url: str, model: str) -> ModelPrices | None:
    """The prices of a model: found by a known address, else by the provider, else at any provider that has the model."""
    prices = find_prices(model, url=base_url) if base_url else None
    return prices or find_prices(model, provider=provider)
