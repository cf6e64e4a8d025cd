"""Both listeners answer as their OpenAPI documents say, whatever is sent to them."""

from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from lakehead.gateway.private_app import openapi_document
from lakehead.gateway.settings import IngestSettings
from tests.support.effort import effort
from tests.unit.gateway.spool_gateway import SpoolGateway
from tests.unit.gateway.support import AUTH, Gateway, as_role
from tests.unit.gateway.test_private import with_conflicts

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
]
"""Not those that take every body of the documented type for one that must be accepted: hardly any bytes are a frame."""

EXAMPLES = settings(max_examples=effort(15, soak=1_000), suppress_health_check=list(HealthCheck))


def operations_of(app: FastAPI) -> dict[str, Any]:
    """The routes of an application, by their method and path."""
    schema: Any = schemathesis.openapi.from_dict(openapi_document(app))
    schema.app = app
    return {each.ok().label: each.ok() for each in schema.get_all_operations()}


INGEST = operations_of(Gateway(IngestSettings(requests_per_second=None)).ingest)
PRIVATE = operations_of(with_conflicts().private)
SPOOL = {name: each for name, each in operations_of(SpoolGateway().private).items() if "/v1/spool" in name}


def check(operation: Any, *headers: dict[str, str]) -> None:
    """Send what the document allows, and what it does not, and compare the answers with the document."""

    @EXAMPLES
    @given(case=st.one_of(operation.as_strategy(), operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)))
    def send(case: Any) -> None:
        for each in headers:
            case.call_and_validate(headers=each, checks=CHECKS)

    send()


@pytest.mark.slow
@pytest.mark.parametrize("name", INGEST)
def test_the_ingest_listener_answers_as_documented(name: str) -> None:
    check(INGEST[name], AUTH, {"Authorization": "Bearer wrong"})


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIVATE)
def test_the_private_listener_answers_as_documented(name: str) -> None:
    check(PRIVATE[name], as_role("operator"), as_role("viewer"), {})


@pytest.mark.slow
@pytest.mark.parametrize("name", SPOOL)
def test_the_routes_of_a_spool_answer_as_documented(name: str) -> None:
    check(SPOOL[name], as_role("admin"), as_role("viewer"), {})


def test_every_route_is_documented() -> None:
    assert list(SPOOL) == [
        "GET /v1/spool",
        "GET /v1/spool/batches/{id_text}",
        "POST /v1/spool/voids/{id_text}",
    ]
    assert list(INGEST) == ["POST /ingest/v1/batch"]
    assert list(PRIVATE) == [
        "GET /healthz",
        "GET /readyz",
        "GET /metrics",
        "GET /v1/conflicts",
        "GET /v1/conflicts/{id_text}",
        "POST /v1/conflicts/{id_text}/accept-existing",
        "POST /v1/conflicts/{id_text}/quarantine",
        "POST /v1/conflicts/{id_text}/release",
        "GET /v1/overlaps",
        "GET /v1/repairs",
    ]
