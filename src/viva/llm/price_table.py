"""The table of model prices, `prices.json`. It is made from genai-prices by `make prices` and read on first use."""

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from datetime import time as time_of_day
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from viva.text.pattern import LazyPattern

NameClause = str | list[Any] | dict[str, list[Any]]
"""Which names match: a sign and a text. A list means any of its clauses, an object all of them."""
PriceRate = float | tuple[float, ...] | None
"""USD per million; one that depends on the length of the input is `[base, start, rate, start, rate]`."""

_DAY_S = 86_400
_COMPACT_DATE = LazyPattern(r"(-)(20\d{2})(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?=-|:|$)")


class PriceTier(Struct, frozen=True):
    """USD per token if the input is longer than `start`: of fresh input, of output, of input read from and written to a cache."""

    start: float
    fresh: float
    output: float
    cache_read: float
    cache_write: float


class TieredPrice(Struct, frozen=True):
    """The price of a model at some time: tiers by length of the input, the longest first, and a fee per call."""

    tiers: tuple[PriceTier, ...]
    fee: float

    def compute_cost(self, sent: int, received: int, cache_read: int = 0, cache_written: int = 0) -> float:
        """USD. Tokens read from and written to a cache are part of the sent ones."""
        tier = self.tiers[-1]
        for each in self.tiers:
            if sent > each.start:
                tier = each
                break
        in_cache = cache_read * tier.cache_read + cache_written * tier.cache_write
        return (sent - cache_read - cache_written) * tier.fresh + in_cache + received * tier.output + self.fee


class ModelPrices(Struct, frozen=True):
    """All prices of a model: the usual price, and prices for certain times, of which the last valid one counts."""

    usual: TieredPrice
    timed: tuple[tuple[str, TieredPrice], ...] = ()

    def get_price(self, at: float | None = None) -> TieredPrice:
        """The price at a time, in seconds since 1970; None means now."""
        if not self.timed:
            return self.usual
        at = time.time() if at is None else at
        return next((price for when, price in reversed(self.timed) if _is_price_valid_at(when, at)), self.usual)


class _ProviderPrices(Struct, frozen=True):
    id: str
    url: str
    models: msgspec.Raw
    """Decoded only if it is this provider's."""
    url_start: str = ""
    """The text that the pattern `url` starts with: compiling all patterns takes long."""
    names: NameClause | None = None
    models_named: NameClause | None = None
    fallbacks: tuple[str, ...] = ()


class _PriceTable(Struct, frozen=True):
    source: str
    providers: tuple[_ProviderPrices, ...]


def find_prices(model: str, *, provider: str = "", url: str = "") -> ModelPrices | None:
    """The prices of a model at the provider with this name or URL; without both, at the provider whose model names match."""
    model = model.lower()
    if provider.lower() == "litellm":
        name, _, rest = model.partition("/")
        provider, model = (name, rest) if rest and _find_provider_by_name(name) else ("", model)
    owner = (
        _find_provider_by_name(provider)
        if provider
        else _find_provider_by_url(url)
        if url
        else _find_provider_by_model(model)
    )
    if owner is None:
        return None
    prices = _find_model_prices(owner, model)
    if prices is None and (dashed := _COMPACT_DATE.sub(_add_dashes_to_date, model)) != model:
        prices = _find_model_prices(owner, dashed)
    return prices


def _find_provider_by_name(name: str) -> _ProviderPrices | None:
    name = name.lower().strip()
    providers = _load_table().providers
    exact = next((each for each in providers if each.id == name), None)
    return exact or next((each for each in providers if each.names and _matches_clause(each.names, name)), None)


def _find_provider_by_url(url: str) -> _ProviderPrices | None:
    providers = _load_table().providers
    return next((each for each in providers if url.startswith(each.url_start) and re.match(each.url, url)), None)


def _find_provider_by_model(model: str) -> _ProviderPrices | None:
    providers = _load_table().providers
    return next((each for each in providers if each.models_named and _matches_clause(each.models_named, model)), None)


def _find_model_prices(owner: _ProviderPrices, model: str) -> ModelPrices | None:
    """The prices of a model at a provider, or at one of those whose models it also offers."""
    others = (each for name in owner.fallbacks for each in _load_table().providers if each.id == name)
    for provider in (owner, *others):
        for names, *prices in _decode_models(provider.id):
            if _matches_clause(names, model):
                return _build_prices(prices)
    return None


@cache
def _load_table() -> _PriceTable:
    return msgspec.json.decode(Path(__file__).with_name("prices.json").read_bytes(), type=_PriceTable)


@cache
def _decode_models(provider: str) -> list[list[Any]]:
    return next(msgspec.json.decode(each.models) for each in _load_table().providers if each.id == provider)


def _matches_clause(clause: NameClause, text: str) -> bool:
    if isinstance(clause, list):
        return any(_matches_clause(each, text) for each in clause)
    if isinstance(clause, dict):
        return all(_matches_clause(each, text) for each in clause["all"])
    sign, value = clause[0], clause[1:]
    match sign:
        case "=":
            return text == value
        case "^":
            return text.startswith(value)
        case "$":
            return text.endswith(value)
        case "*":
            return value in text
        case _:
            return re.search(value, text) is not None


def _add_dashes_to_date(match: re.Match[str]) -> str:
    """`-20251211` as `-2025-12-11`."""
    try:
        return "-" + date(int(match[2]), int(match[3]), int(match[4])).isoformat()
    except ValueError:
        return match[0]


def _build_prices(prices: Sequence[Any]) -> ModelPrices:
    usual, *timed = prices
    return ModelPrices(_build_price(usual), tuple((when, _build_price(rates)) for when, rates in timed))


def _build_price(rates: Sequence[PriceRate]) -> TieredPrice:
    """A token read from or written to a cache costs as much as any other, unless it has a rate of its own."""
    fresh, out, read, write, fee = (*rates, *[None] * (5 - len(rates)))
    read, write = fresh if read is None else read, fresh if write is None else write
    rates = (fresh, out, read, write)
    starts = sorted({start for rate in rates for start in _list_tier_starts(rate)}, reverse=True)
    tiers = tuple(PriceTier(start, *(_get_rate_above(rate, start) / 1e6 for rate in rates)) for start in (*starts, -1))
    return TieredPrice(tiers, _get_rate_above(fee, -1) / 1e3)


def _list_tier_starts(rate: PriceRate) -> Iterable[float]:
    return rate[1::2] if isinstance(rate, tuple | list) else ()


def _get_rate_above(rate: PriceRate, start: float) -> float:
    """The rate if the input is longer than `start`."""
    if not isinstance(rate, tuple | list):
        return rate or 0.0
    reached = [each for first, each in _list_tiers(rate) if first <= start]
    return reached[-1] if reached else rate[0]


def _list_tiers(rate: Sequence[float]) -> Iterator[tuple[float, float]]:
    return zip(rate[1::2], rate[2::2], strict=True)


def _is_price_valid_at(when: str, at: float) -> bool:
    """Does a price with this condition hold at a time? `2026-10-01`: from that day on. `16:30-00:30`: daily at these hours. Both are UTC."""
    first, _, last = when.partition("-")
    if ":" not in first:
        return at >= datetime.fromisoformat(f"{when}T00:00Z").timestamp()
    second, start, end = at % _DAY_S, _second_of_day(first), _second_of_day(last)
    return start <= second < end if start <= end else second >= start or second < end


def _second_of_day(text: str) -> int:
    at = time_of_day.fromisoformat(text)
    return at.hour * 3600 + at.minute * 60
