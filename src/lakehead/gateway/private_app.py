"""The private listener: health, metrics, OpenAPI documents, and the conflicts that operators decide about."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from lakehead.accept.accepted_overlaps import AcceptedOverlaps
from lakehead.accept.repairs import Repairs
from lakehead.accept.spool import Spool
from lakehead.errors import LakeheadError
from lakehead.gateway.conflict_routes import ConflictRequests, add_conflict_routes
from lakehead.gateway.error_codes import ErrorCode
from lakehead.gateway.http_app import CountedAnswers, documented, new_app
from lakehead.gateway.metrics import GatewayMetrics
from lakehead.gateway.overlap_routes import add_overlap_routes
from lakehead.gateway.ports import ConflictDecisions, ConflictReader, RoleTokens
from lakehead.gateway.readiness import Readiness
from lakehead.gateway.repair_routes import add_repair_routes
from lakehead.gateway.roles import require
from lakehead.gateway.spool_routes import add_spool_routes

LISTENER = "private"


class Health(BaseModel):
    """The process answers."""

    status: str


class Ready(BaseModel):
    """Whether the gateway is ready, and what is wrong with each thing it depends on."""

    ready: bool
    checks: dict[str, str]
    """The problem of each; an empty one is none."""

    reconciler_age_seconds: float | None
    """How old the reconciler's last sign of life is; null if it is not known, or there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateListener:
    """What the private listener shows and changes."""

    tokens: RoleTokens
    conflicts: ConflictReader
    decisions: ConflictDecisions
    overlaps: AcceptedOverlaps
    repairs: Repairs
    readiness: Readiness
    metrics: GatewayMetrics
    refusals: Mapping[type[LakeheadError], ErrorCode] = field(default_factory=dict)
    """Errors of `conflicts` and `decisions` that the caller made, with the code of the answer: the one that there is no
    such conflict (`NO_SUCH_CONFLICT`), and that an identity is not in quarantine (`NOT_QUARANTINED`)."""

    spool: Spool | None = None
    """The batches that are accepted on this gateway's disk. None: there is no spool."""

    metrics_need_token: bool = True
    ingest: FastAPI | None = None
    """The ingest listener's application, to show its OpenAPI document."""


def private_app(listener: PrivateListener) -> FastAPI:
    """Return the application of the private listener."""
    app = new_app("Lakehead gateway: private", listener=LISTENER, metrics=listener.metrics)
    app.add_middleware(CountedAnswers, listener=LISTENER, metrics=listener.metrics)
    viewer = require("viewer", listener.tokens)
    secured: dict[str, Any] = {"security": [{"bearer": []}]}

    @app.get("/healthz", summary="Whether the process answers", responses={200: {"model": Health}})
    async def healthz() -> Response:
        """Say that the process runs. It asks nothing else."""
        return JSONResponse({"status": "ok"})

    @app.get(
        "/readyz",
        summary="Whether the gateway is ready for batches",
        responses={200: {"model": Ready}, 503: {"model": Ready}},
    )
    async def readyz() -> Response:
        """Check the store and the reconciler, at most every few seconds."""
        report = await listener.readiness.check()
        shown = Ready(ready=report.is_ready, checks=report.checks, reconciler_age_seconds=report.reconciler_age_seconds)
        return JSONResponse(shown.model_dump(), 200 if report.is_ready else 503)

    @app.get(
        "/metrics",
        summary="Prometheus metrics",
        dependencies=[viewer] if listener.metrics_need_token else [],
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **documented(401, 403, 503)},
        response_class=Response,
        openapi_extra=secured if listener.metrics_need_token else {},
    )
    async def metrics() -> Response:
        """Return all metrics in Prometheus's text format."""
        return Response(listener.metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    requests = ConflictRequests(listener.conflicts, listener.refusals)
    add_conflict_routes(app, requests, listener.decisions, listener.tokens)

    add_overlap_routes(app, listener.overlaps, listener.tokens)
    add_repair_routes(app, listener.repairs, listener.tokens)
    if listener.spool is not None:
        add_spool_routes(app, listener.spool, listener.tokens)

    documents = {"/openapi.json": openapi_document(app)}
    if listener.ingest is not None:
        documents["/openapi/ingest.json"] = openapi_document(listener.ingest)
    for path, document in documents.items():
        _add_document(app, path, document, viewer)
    return app


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of a listener's application."""
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    document.setdefault("components", {})["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    return document


def _add_document(app: FastAPI, path: str, document: dict[str, Any], viewer: Any) -> None:
    @app.get(path, include_in_schema=False, dependencies=[viewer])
    async def show() -> Response:
        return JSONResponse(document)
