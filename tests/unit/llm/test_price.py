"""What a call costs. Prices change with the version of the table: these tests ask genai-prices, which it is made from."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from genai_prices import Usage, calc_price, types
from genai_prices.data import providers

import price_table
from viva.llm.price import compute_cost
from viva.llm.price_table import find_prices
from viva.model.connector import Connector, Price


def test_a_price_of_the_connector_wins():
    connector = Connector(name="c", model="gpt-4o", price=Price(input=2.0, output=10.0))
    assert compute_cost(connector, "", 1_000_000, 500_000) == pytest.approx(7.0)


def test_an_unknown_model_has_no_price():
    assert compute_cost(Connector(name="c", model="our-own-model"), "", 1, 1) is None
    assert compute_cost(Connector(name="c", provider="our-own-provider", model="gpt-4o"), "", 1, 1) is None


def test_the_answers_model_counts_where_the_connector_names_none():
    assert compute_cost(Connector(name="c"), "gpt-4o", 1000, 0) == compute_cost(
        Connector(name="c", model="gpt-4o"), "", 1000, 0
    )


def test_the_address_tells_the_provider():
    groq = Connector(name="c", base_url="https://api.groq.com/openai/v1", model="llama-3.3-70b-versatile")
    assert compute_cost(groq, "", 1000, 1000) is not None


def test_the_table_is_what_the_installed_genai_prices_gives():
    assert price_table.TABLE.read_text(encoding="utf-8") == price_table.render_table(), "stale: run `make prices`"
    assert price_table.pin_version(price_table.PROJECT.read_text(encoding="utf-8")) == price_table.PROJECT.read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize("provider", providers, ids=lambda each: each.id)
def test_every_model_costs_the_same_as_by_genai_prices(provider: types.Provider):
    """At every change of a price, and on both sides of every length at which one changes."""
    for name in list_names(provider):
        times = list_times(provider, name)
        lengths = list_lengths(provider, name)
        prices = find_prices(name, provider=provider.id)
        for at in times:
            for sent in lengths:
                for tokens in ((sent, 900, 0, 0), (sent, 0, sent // 2, sent // 3)):
                    expected = cost_by_genai_prices(tokens, at, name, provider_id=provider.id)
                    actual = prices and prices.get_price(at.timestamp()).compute_cost(*tokens)
                    assert actual == pytest.approx(expected, abs=1e-9), (name, at, tokens)


def list_names(provider: types.Provider) -> list[str]:
    """A name of each model, as its first rule has it, and some that no rule has."""
    names = [name for model in provider.models if (name := _name_that_matches(model.match))]
    dated = [re.sub(r"(\d{4})-(\d\d)-(\d\d)", r"\1\2\3", name) for name in names]
    return list(dict.fromkeys([*names, *dated, f"{names[0]}-20991231", f"{names[0]}-20259999", "no-such-model"]))


def _name_that_matches(clause: Any) -> str:
    match clause:
        case types.ClauseOr():
            return next(filter(None, map(_name_that_matches, clause.or_)), "")
        case types.ClauseAnd():
            return "".join(map(_name_that_matches, clause.and_))
        case types.ClauseRegex():
            return (
                re.sub(r"\\d\{(\d+)\}", lambda found: "2" * int(found[1]), clause.regex).strip("^$").replace("\\", "")
            )
        case _:
            return next(iter(vars(clause).values()))


def _find_model(provider: types.Provider, name: str) -> types.ModelInfo | None:
    return provider.find_model(name, all_providers=providers)


def list_times(provider: types.Provider, name: str) -> list[datetime]:
    model = _find_model(provider, name)
    times = [datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, 12, tzinfo=UTC)]
    for each in () if model is None or isinstance(model.prices, types.ModelPrice) else model.prices:
        match each.constraint:
            case types.StartDateConstraint(start_date=first):
                start = datetime(first.year, first.month, first.day, tzinfo=UTC)
                times += [start - timedelta(seconds=1), start]
            case types.TimeOfDateConstraint(start_time=start, end_time=end):
                moments = [datetime.combine(date(2026, 11, 1), each, UTC) for each in (start, end)]
                times += [moment + step for moment in moments for step in (timedelta(seconds=-1), timedelta(0))]
            case _:
                pass
    return times


def list_lengths(provider: types.Provider, name: str) -> list[int]:
    model = _find_model(provider, name)
    lengths = [0, 700]
    for each in () if model is None else [model.prices] if isinstance(model.prices, types.ModelPrice) else model.prices:
        price = each if isinstance(each, types.ModelPrice) else each.prices
        for rate in vars(price).values():
            lengths += [tier.start + more for tier in getattr(rate, "tiers", ()) for more in (0, 1)]
    return sorted(set(lengths))


def cost_by_genai_prices(tokens: tuple[int, ...], at: datetime, model: str, **where: Any) -> float | None:
    sent, received, cached, written = tokens
    used = Usage(
        input_tokens=sent,
        output_tokens=received,
        cache_read_tokens=cached or None,
        cache_write_tokens=written or None,
    )
    try:
        return float(calc_price(used, model, genai_request_timestamp=at, **where).total_price)
    except LookupError:
        return None


@pytest.mark.parametrize(
    ("model", "where"),
    [
        ("gpt-4o", {}),
        ("o3-mini", {}),
        ("claude-sonnet-4-5-20250929", {}),
        ("GEMINI-2.5-pro", {}),
        ("no-such-model", {}),
        (
            "claude-sonnet-4-5",
            {"provider": "vertex-ai"},
        ),  # a provider by another name, with a model of another provider
        ("gpt-4o", {"provider": " Azure "}),
        ("gpt-4o", {"provider": "no-such-provider"}),
        ("openai/gpt-4o", {"provider": "litellm"}),
        ("no-such/gpt-4o", {"provider": "litellm"}),
        ("gpt-4o", {"provider": "litellm"}),
        ("gpt-4o", {"url": "https://x.openai.azure.com/openai"}),
        ("meta-llama/Llama-3.3-70B-Instruct", {"url": "https://router.huggingface.co/nebius/v1"}),
        ("gemini-2.5-pro", {"url": "https://us-central1-aiplatform.googleapis.com/v1"}),
        ("gpt-4o", {"url": "http://api.openai.com/v1"}),
    ],
)
def test_a_model_is_found_as_by_genai_prices(model: str, where: dict[str, str]):
    at = datetime(2026, 11, 1, tzinfo=UTC)
    names = {"provider": "provider_id", "url": "provider_api_url"}
    expected = cost_by_genai_prices((9000, 90, 9, 9), at, model, **{names[key]: value for key, value in where.items()})
    prices = find_prices(model, **where)
    actual = prices and prices.get_price(at.timestamp()).compute_cost(9000, 90, 9, 9)
    assert actual == pytest.approx(expected, abs=1e-9)


def test_a_provider_is_found_by_its_address_as_by_genai_prices():
    plain = [each.api_pattern.removesuffix("(?:/|$)").replace("\\", "") for each in providers]
    others = [
        "https://bedrock-runtime.eu-west-1.amazonaws.com/v1",
        "https://api.cloudflare.com/client/v4/accounts/1/ai/run",
        "https://api.cohere.com/v2",
        "https://x.cloud.databricks.com/serving-endpoints",
        "https://api.eu.residency.elevenlabs.io/v1",
        "https://generativelanguage.googleapis.com/v1beta",
        "https://api.minimaxi.com/v1",
        "https://a.modal.run/v1",
        "https://openrouter.ai/api/v1",
        "https://api.openrouter.ai/api/v1",
        "https://llm.example/v1",
    ]
    found = 0
    for url in (*plain, *others):
        owner = next((each for each in providers if re.match(each.api_pattern, url)), None)
        name = list_names(owner or providers[0])[0]
        expected = cost_by_genai_prices((9, 9, 0, 0), datetime.now(UTC), name, provider_api_url=url)
        prices = find_prices(name, url=url)
        assert (prices and prices.get_price().compute_cost(9, 9)) == pytest.approx(expected, abs=1e-9), url
        found += prices is not None
    assert found > 40


def test_counts_that_cannot_be_right_have_no_price():
    connector = Connector(name="c", provider="openai", base_url="")
    assert compute_cost(connector, "gpt-4o", 10, 5, cached_tokens=20) is None
    assert compute_cost(connector, "gpt-4o", -1, 5) is None
    assert compute_cost(connector, "m" * 1000, 1, 5) is None
