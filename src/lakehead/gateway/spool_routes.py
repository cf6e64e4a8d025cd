"""The routes of a gateway's spool: what it has accepted before the object store has it, and voids of GC."""

from typing import Annotated

from fastapi import FastAPI, Path, Query
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from lakehead.accept.spool import Spool
from lakehead.accept.spool_voids import NotAudited, SpoolVoids
from lakehead.accept.spooled_batch import IdentityInSpool, SpooledBatch
from lakehead.errors import LakeheadError
from lakehead.gateway.batch_ids import batch_id, parse_batch_id
from lakehead.gateway.conflict_routes import MOST_PER_PAGE, SECURED
from lakehead.gateway.error_codes import ErrorCode, Refusal
from lakehead.gateway.http_app import documented
from lakehead.gateway.ports import RoleTokens
from lakehead.gateway.roles import require
from lakehead.wire.batch_identity import BatchIdentity

BatchId = Annotated[str, Path(description="The id of a batch, as in the listing.", max_length=1_000)]
MOST_ASIDE = 100


class WaitingBatch(BaseModel):
    """A batch that is accepted, and not in the object store yet."""

    id: str
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    frame_bytes: int
    accepted_at_unix_ns: int


class SpoolPage(BaseModel):
    """What is in the spool, by pages of batches in the order of their identities."""

    spool_id: str
    batches: list[WaitingBatch]
    next_after: str | None
    """Ask for the next page with `after` set to this; null if there is none."""

    total_batches: int
    total_bytes: int
    oldest_seconds: float
    set_aside: list[str]
    """Files of the spool that an operator must look at, the first 100."""


class VoidedIdentity(BaseModel):
    """The spool accepts nothing more under the identity."""

    id: str


def add_spool_routes(app: FastAPI, spool: Spool, tokens: RoleTokens) -> None:
    """Add the routes: viewers read batches, and garbage collection voids identities as an admin."""

    @app.get(
        "/v1/spool",
        summary="List the batches that are accepted and not in the object store yet",
        dependencies=[require("viewer", tokens)],
        responses={200: {"model": SpoolPage}, **documented(400, 401, 403, 500, 503)},
        openapi_extra=SECURED,
    )
    async def list_spool(
        after: Annotated[str, Query(description="`next_after` of the page before.", max_length=1_024)] = "",
        limit: Annotated[int, Query(ge=1, le=MOST_PER_PAGE)] = 100,
    ) -> Response:
        """List them, without asking the object store."""
        start = parse_batch_id(after)
        if after and start is None:
            raise Refusal(ErrorCode.BAD_REQUEST, "`after` must be `next_after` of the page before.")
        found = spool.page(after=start, limit=limit + 1)
        page = SpoolPage(
            spool_id=spool.spool_id,
            batches=[_shown(each) for each in found[:limit]],
            next_after=batch_id(found[limit - 1].identity) if len(found) > limit else None,
            total_batches=spool.count,
            total_bytes=spool.total_bytes,
            oldest_seconds=spool.oldest_seconds,
            set_aside=spool.aside[:MOST_ASIDE],
        )
        return JSONResponse(page.model_dump())

    @app.get(
        "/v1/spool/batches/{id_text}",
        summary="Return the frame of a batch in the spool",
        dependencies=[require("viewer", tokens)],
        responses={
            200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}},
            **documented(400, 401, 403, 404, 500, 503),
        },
        response_class=Response,
        openapi_extra=SECURED,
    )
    async def read_batch(id_text: BatchId) -> Response:
        """Return the bytes that were accepted. A batch that has reached the object store is 404 here."""
        try:
            found = await spool.read(_parsed(id_text))
        except LakeheadError as error:
            raise Refusal(ErrorCode.SPOOL_UNAVAILABLE, str(error), retry_after=5) from error
        if found is None:
            raise _not_there()
        return Response(found.body, media_type="application/octet-stream")

    _add_void_route(app, spool, tokens)


def _add_void_route(app: FastAPI, spool: Spool, tokens: RoleTokens) -> None:
    admin, voids = require("admin", tokens), SpoolVoids(spool)

    @app.post(
        "/v1/spool/voids/{id_text}",
        summary="Accept nothing more under an identity: for garbage collection",
        responses={200: {"model": VoidedIdentity}, **documented(400, 401, 403, 404, 409, 421, 500, 503)},
        openapi_extra=SECURED,
    )
    async def void(
        id_text: BatchId,
        spool_id: Annotated[str, Query(alias="spool", description="The spool's id, as the authority record has it.")],
        by: str = admin,
    ) -> Response:
        """Answer when the void is on disk, and the audit trail says who asked for it. 409 if the spool holds the batch:
        then it must not become void. 421 if this is another spool: an address like 127.0.0.1 is that of many.
        """
        if spool_id != spool.spool_id:
            raise Refusal(ErrorCode.ANOTHER_SPOOL, f"This gateway has the spool {spool.spool_id}. Nothing was done.")
        identity = _parsed(id_text)
        try:
            await voids.void(identity, by=by)
        except IdentityInSpool as error:
            raise Refusal(ErrorCode.IN_SPOOL, str(error)) from error
        except NotAudited as error:
            raise Refusal(ErrorCode.STORE_UNAVAILABLE, str(error), retry_after=5) from error
        except LakeheadError as error:
            raise Refusal(ErrorCode.SPOOL_UNAVAILABLE, str(error), retry_after=5) from error
        return JSONResponse({"id": batch_id(identity)})


def _parsed(id_text: str) -> BatchIdentity:
    found = parse_batch_id(id_text)
    if found is None:
        raise _not_there()
    return found


def _not_there() -> Refusal:
    return Refusal(ErrorCode.NOT_IN_SPOOL, "No batch of the spool has this id. List them: GET /v1/spool.")


def _shown(batch: SpooledBatch) -> WaitingBatch:
    identity = batch.identity
    return WaitingBatch(
        id=batch_id(identity),
        agent_id=identity.agent_id,
        boot_id=identity.boot_id,
        seq_start=identity.seq_start,
        seq_end=identity.seq_end,
        frame_bytes=batch.size,
        accepted_at_unix_ns=batch.spooled_at_unix_ns,
    )
