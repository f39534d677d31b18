"""The cost of a model call: by the connector's own price, else by the table of genai-prices, else unknown."""

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
    """USD, or None if the price of the model is unknown. Tokens read from and written to a cache are input tokens."""
    if (own := connector.price) is not None:
        return (input_tokens * own.input + output_tokens * own.output) / _PER
    tokens = input_tokens, output_tokens, cached_tokens, cache_write_tokens
    return _cost_by_table(connector.provider, connector.base_url, connector.model or model, *tokens)


def compute_reported_cost(call: ModelCall) -> float | None:
    """USD of a call that an agent reports; None if the model or its price is unknown."""
    if not call.model:
        return None
    return _cost_by_table(call.provider, "", call.model, call.input_tokens, call.output_tokens, call.cached_tokens)


def _cost_by_table(
    provider: str, base_url: str, model: str, sent: int, received: int, cached: int = 0, written: int = 0
) -> float | None:
    """The cost by the price table. Impossible counts and overlong names have no price."""
    if len(model) > _LONGEST_NAME or min(sent, received, cached, written) < 0 or cached + written > sent:
        return None
    cost = _price_function(provider, base_url, model)
    return None if cost is None else cost(sent, received, cached, written)


@lru_cache(maxsize=512)
def _price_function(provider: str, base_url: str, model: str) -> _Cost | None:
    """The price function of a model. The first call loads the table, without network."""
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
    by_name: list[dict[str, Any]] = (
        [{"provider_id": provider}] if provider else [{}]
    )  # without a provider, any that has the model
    for where in by_address + by_name:
        try:
            price = calc_price(Usage(input_tokens=1), model, **where).model_price
        except LookupError:
            continue
        return _fast_price(price, exact) or exact
    return None


def _fast_price(price: Any, exact: _Cost) -> _Cost | None:
    """The same as `exact` in a microsecond instead of a hundred, for prices of the usual shape; None for others.

    Usual: a price per token, which may depend on the length of the input, and a fee per call.
    """
    rates = (price.input_mtok, price.output_mtok, price.cache_read_mtok or price.input_mtok)
    starts = sorted({tier.start for rate in rates for tier in getattr(rate, "tiers", ())}, reverse=True)
    levels = [(start, *(_rate_over(rate, start) for rate in rates)) for start in (*starts, -1)]
    fee = 0.0

    def quick(input_tokens: int, output_tokens: int, cached_tokens: int, written_tokens: int) -> float:
        if written_tokens:  # rare, and with its own price
            return exact(input_tokens, output_tokens, cached_tokens, written_tokens)
        for start, fresh, out, cached in levels:
            if input_tokens > start:
                return (input_tokens - cached_tokens) * fresh + cached_tokens * cached + output_tokens * out + fee
        return fee

    probes = [(start + more, 900 + more, more // 2, 0) for start, *_ in levels for more in (1, 700)]
    fee = round(exact(*probes[0]) - quick(*probes[0]), 9)
    return quick if all(abs(quick(*probe) - exact(*probe)) < 1e-9 for probe in probes) else None


def _rate_over(rate: Any, start: int) -> float:
    """USD per token if the input is longer than `start`."""
    passed = [tier.price for tier in getattr(rate, "tiers", ()) if tier.start <= start]
    return float(passed[-1] if passed else getattr(rate, "base", rate) or 0) / _PER
