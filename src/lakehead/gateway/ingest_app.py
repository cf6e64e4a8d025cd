"""The ingest listener: the one route by which agents upload batches."""

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lakehead.gateway.http_app import ErrorBody, documented, new_app
from lakehead.gateway.uploads import LISTENER, Uploads

PATH = "/ingest/v1/batch"


class BatchAccepted(BaseModel):
    """The batch is accepted, now or before."""

    duplicate: bool
    """Whether it was accepted before: then nothing follows from this request."""

    authority: str
    """The acceptance authority that answers."""

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    frame_sha256: str
    accepted_at_unix_ns: int


class DecidedBody(ErrorBody):
    """What the gateway's acceptance authority says of the identity: agents do not believe another one."""

    authority: str
    """The acceptance authority that answers."""


class ConflictBody(DecidedBody):
    """Another frame was accepted under the identity."""

    submitted_frame_sha256: str
    accepted_frame_sha256: str
    resolution: str | None = None
    """What an operator decided about the submitted frame. Only `accept_existing` allows the agent to drop it."""


def ingest_app(uploads: Uploads) -> FastAPI:
    """Return the application of the ingest listener. Its OpenAPI document is shown by the private listener."""
    app = new_app("Lakehead gateway: ingest", listener=LISTENER, metrics=uploads.metrics)

    @app.post(
        PATH,
        summary="Upload one batch",
        responses={
            200: {"model": BatchAccepted},
            **documented(400, 401, 403, 408, 413, 415, 429, 500, 503),
            409: {"model": ConflictBody},
            410: {"model": DecidedBody},
            423: {"model": DecidedBody},
        },
        openapi_extra={
            "security": [{"bearer": []}],
            "requestBody": {
                "required": True,
                "description": "One frame (`.lmbatch`).",
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            },
            "parameters": [
                {"name": name, "in": "header", "required": False, "schema": {"type": kind}, "description": description}
                for name, kind, description in (
                    ("X-Lightmetrics-Agent", "string", "The frame's agent id. Refused if it is another."),
                    ("X-Lightmetrics-Seq-Start", "integer", "The frame's first sequence number, likewise."),
                    ("X-Lightmetrics-Seq-End", "integer", "The frame's last sequence number, likewise."),
                )
            ],
        },
    )
    async def upload(request: Request) -> Response:
        """Accept the frame in the body, once. Sending the same bytes again is always safe."""
        return await uploads.answer(request)

    app.add_middleware(_UploadsFirst, uploads=uploads)
    return app


class _UploadsFirst:
    """Hands uploads to where they are answered. Routing and what FastAPI does for each request would take longer than
    all checks of an upload before its body; the route above describes it, and every other request goes there.
    """

    def __init__(self, app: ASGIApp, *, uploads: Uploads) -> None:
        self._app = app
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an upload, and pass on everything else."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] == PATH:
            response = await self._uploads.answer(Request(scope, receive))
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)
