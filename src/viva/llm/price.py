"""What a model call costs: the connector's own price, else the table of genai-prices, else nobody knows."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from viva.model.connector import Connector
from viva.model.message import ModelCall

_PER = 1_000_000
_LONGEST_NAME = 200
_Cost = Callable[[int, int, int, int], float]


def compute_cost(
    connector: Connector,
    model: str,
    input_tokens: int,
    output_tokens: int,
    cached_tokens: int = 0,
    cache_write_tokens: int = 0,
) -> float | None:
    """USD, or None for a model whose price is not known. Cached and written tokens are among the input tokens."""
    if (own := connector.price) is not None:
        return (input_tokens * own.input + output_tokens * own.output) / _PER
    tokens = input_tokens, output_tokens, cached_tokens, cache_write_tokens
    return _by_table(connector.provider, connector.base_url, connector.model or model, *tokens)


def compute_reported_cost(call: ModelCall) -> float | None:
    """USD of a call that an agent reports itself; None if its model or the price of that is not known."""
    if not call.model:
        return None
    return _by_table(call.provider, "", call.model, call.input_tokens, call.output_tokens, call.cached_tokens)


def _by_table(
    provider: str, base_url: str, model: str, read: int, said: int, cached: int = 0, written: int = 0
) -> float | None:
    """By the table of prices. Counts that cannot be right, and names that no model has, have no price."""
    if len(model) > _LONGEST_NAME or min(read, said, cached, written) < 0 or cached + written > read:
        return None
    cost = _known(provider, base_url, model)
    return None if cost is None else cost(read, said, cached, written)


@lru_cache(maxsize=512)
def _known(provider: str, base_url: str, model: str) -> _Cost | None:
    """How to count for a model. The table is loaded for the first one that asks, and needs no network."""
    from genai_prices import Usage, calc_price

    def exact(input_tokens: int, output_tokens: int, cached_tokens: int, written_tokens: int) -> float:
        usage = Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cache_read_tokens=cached_tokens or None,
            cache_write_tokens=written_tokens or None,
        )
        return float(calc_price(usage, model, **where).total_price)

    by_address: list[dict[str, Any]] = [{"provider_api_url": base_url}] if base_url else []
    by_name: list[dict[str, Any]] = [{"provider_id": provider}] if provider else [{}]  # else whoever has that model
    for where in by_address + by_name:
        try:
            price = calc_price(Usage(input_tokens=1), model, **where).model_price
        except LookupError:
            continue
        return _quick(price, exact) or exact
    return None


def _quick(price: Any, exact: _Cost) -> _Cost | None:
    """The same as `exact` in a microsecond instead of a hundred, for prices of the usual shape; None for any other.

    A price is so much a token, perhaps more for all of them past some length of the input, perhaps with a fee a call.
    """
    rates = (price.input_mtok, price.output_mtok, price.cache_read_mtok or price.input_mtok)
    starts = sorted({tier.start for rate in rates for tier in getattr(rate, "tiers", ())}, reverse=True)
    levels = [(start, *(_rate_over(rate, start) for rate in rates)) for start in (*starts, -1)]
    fee = 0.0

    def quick(input_tokens: int, output_tokens: int, cached_tokens: int, written_tokens: int) -> float:
        if written_tokens:  # rare, and of a price of its own
            return exact(input_tokens, output_tokens, cached_tokens, written_tokens)
        for start, fresh, out, cached in levels:
            if input_tokens > start:
                return (input_tokens - cached_tokens) * fresh + cached_tokens * cached + output_tokens * out + fee
        return fee

    probes = [(start + more, 900 + more, more // 2, 0) for start, *_ in levels for more in (1, 700)]
    fee = round(exact(*probes[0]) - quick(*probes[0]), 9)
    return quick if all(abs(quick(*probe) - exact(*probe)) < 1e-9 for probe in probes) else None


def _rate_over(rate: Any, start: int) -> float:
    """USD for a token when the input is longer than `start`."""
    passed = [tier.price for tier in getattr(rate, "tiers", ()) if tier.start <= start]
    return float(passed[-1] if passed else getattr(rate, "base", rate) or 0) / _PER
