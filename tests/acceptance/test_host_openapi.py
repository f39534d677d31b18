"""Responses match the OpenAPI document for generated requests."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from running_host import ACME, Client, run_host, write_project
from viva.host.discovery import build_openapi

DOCUMENT = build_openapi("http://127.0.0.1:1")
OPERATIONS = [
    (path, method) for path, methods in DOCUMENT["paths"].items() for method in methods if method != "parameters"
]
SETTINGS = settings(
    max_examples=12,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("host")
    write_project(folder)
    with run_host(folder) as client:
        yield client


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_response_matches_the_openapi_document(path: str, method: str, client: Client):
    import schemathesis  # here: it takes a second to import
    from schemathesis.specs.openapi import checks

    # The document has no 500, so the first check finds internal errors too; 501 is expected.
    applied = [checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance]
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method.upper()]

    @SETTINGS
    @given(st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode)))
    def check(case: Any) -> None:
        case.call_and_validate(
            base_url=f"http://127.0.0.1:{client.port}",
            headers={"Authorization": f"Bearer {ACME}"},
            checks=applied,
            timeout=300,
        )

    check()
