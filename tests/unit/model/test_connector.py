"""Which connector reaches a model."""

import pytest

from viva.model.connector import Connector, Connectors, Secret, find_connector


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gemini-2.5-flash", "any"),  # P3
        ("gemini-2.5-pro", "pro"),  # the one that is for it comes before a pattern
        ("Gemini-2.5-flash", None),
        ("judge", "others"),
        ("judges", None),
        ("", None),
    ],
)
def test_a_model_is_reached_by_its_name(model: str, name: str | None):
    connectors = [
        Connector(name="plain"),
        Connector(name="any", models=("gemini-*",)),
        Connector(name="late", models=("gemini-*",)),
        Connector(name="pro", model="gemini-2.5-pro"),
        Connector(name="others", models=("x-?", "judge")),
    ]
    found = find_connector(model, {connector.name: connector for connector in connectors})
    assert (found.name if found else None) == name


DEFAULTS = {
    name: Connector(name=f"{name}'s own", provider=name, is_built_in=True) for name in ("openai", "gemini", "anthropic")
}


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gemini-2.5-flash", "gemini's own"),
        ("gpt-4o", "openai's own"),
        ("o1", "openai's own"),
        ("o3-mini", "openai's own"),
        ("o4-mini-2025", "openai's own"),
        ("claude-haiku-4-5", "anthropic's own"),
        ("claude", None),
        ("gemini", None),
        ("ollama", None),
        ("my-gpt-4o", None),
    ],
)
def test_a_well_known_model_needs_no_connector(model: str, name: str | None):  # P3
    found = find_connector(model, Connectors({}, DEFAULTS))
    assert (found.name if found else None) == name
    assert found is None or found.model == model


@pytest.mark.parametrize(
    ("connectors", "name"),
    [
        ([Connector(name="other", provider="gemini", model="m")], "openai's own"),
        ([Connector(name="of that provider", model="m")], "of that provider"),
        ([Connector(name="for others", models=("llama-*",))], "openai's own"),
        ([Connector(name="of that provider"), Connector(name="fits", provider="gemini", models=("gpt-*",))], "fits"),
    ],
)
def test_a_connector_that_fits_or_is_of_that_provider_goes_first(connectors: list[Connector], name: str):  # P3
    found = find_connector("gpt-4o", Connectors({each.name: each for each in connectors}, DEFAULTS))
    assert found is not None
    assert (found.name, found.model) == (name, "gpt-4o")


@pytest.mark.parametrize(
    ("connector", "lacks"),
    [
        (Connector(name="x"), True),
        (Connector(name="x", api_key=Secret("k")), False),
        (Connector(name="x", headers={"Authorization": "k"}), False),
        (Connector(name="x", base_url="http://127.0.0.1:1"), False),
        (Connector(name="x", base_url="http://127.0.0.1:1", is_built_in=True), True),
    ],
)
def test_whether_a_key_is_missing(connector: Connector, lacks: bool):
    assert connector.lacks_key is lacks
