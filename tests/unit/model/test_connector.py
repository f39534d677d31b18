"""Which connector reaches a model."""

import pytest

from viva.model.connector import Connector, reaching


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
    found = reaching(model, {connector.name: connector for connector in connectors})
    assert (found.name if found else None) == name
