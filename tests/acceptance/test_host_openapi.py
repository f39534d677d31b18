"""Responses match the OpenAPI document for generated requests."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from running_host import ACME, Client, run_host, write_project
from viva.host.openapi import build_openapi

# The document has no 500, so the first check finds internal errors too; 501 is expected.
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
SCHEMA = schemathesis.openapi.from_dict(build_openapi("http://127.0.0.1:1"))
SCHEMA.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("host")
    write_project(folder)
    with run_host(folder) as client:
        yield client


@SCHEMA.parametrize()  # pyright: ignore[reportUntypedFunctionDecorator]
@settings(
    max_examples=12,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)
def test_every_response_matches_the_openapi_document(case: Any, client: Client):
    case.call_and_validate(
        base_url=f"http://127.0.0.1:{client.port}",
        headers={"Authorization": f"Bearer {ACME}"},
        checks=CHECKS,
        timeout=30,
    )
