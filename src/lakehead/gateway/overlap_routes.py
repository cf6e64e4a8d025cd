"""The route by which operators see accepted batches with common sequence numbers."""

from typing import Annotated

from fastapi import FastAPI, Query
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from lakehead.accept.accepted_overlaps import AcceptedOverlap, AcceptedOverlaps, OverlappingBatch
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.gateway.conflict_ids import conflict_id
from lakehead.gateway.error_codes import ErrorCode, Refusal
from lakehead.gateway.http_app import documented
from lakehead.gateway.ports import RoleTokens
from lakehead.gateway.roles import require
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import MAX_ID_BYTES, check_id
from lakehead.wire.errors import InvalidIdentity

MOST_PER_PAGE = 200
AFTER_LENGTH = 2_048
"""The longest `next_after`: it names two keys."""


class ShownBatch(BaseModel):
    """One of two batches with common sequence numbers."""

    seq_start: int
    seq_end: int
    accepted_manifest_key: str
    frame_sha256: str
    conflict_id: str | None
    """The id of its conflict, if some of its records differ from those that landed; null if none is known to."""


class ShownOverlap(BaseModel):
    """Two accepted batches of a boot with common sequence numbers."""

    agent_id: str
    boot_id: str
    common: tuple[int, int]
    """The first and the last sequence number that both have."""

    batches: tuple[ShownBatch, ShownBatch]

    @classmethod
    def of(cls, overlap: AcceptedOverlap) -> "ShownOverlap":
        """What is shown of an overlap."""
        identity = overlap.first.identity
        return cls(
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            common=overlap.common,
            batches=(_batch(overlap.first), _batch(overlap.second)),
        )


class ShownOverlaps(BaseModel):
    """Some overlaps, by agent, boot and sequence number."""

    overlaps: list[ShownOverlap]
    next_after: str | None
    """Ask for the next page with `after` set to this, also if this one has none; null if there is no other."""


def add_overlap_routes(app: FastAPI, overlaps: AcceptedOverlaps, tokens: RoleTokens) -> None:
    """Add the route, for viewers."""

    @app.get(
        "/v1/overlaps",
        summary="List accepted batches with common sequence numbers",
        dependencies=[require("viewer", tokens)],
        responses={200: {"model": ShownOverlaps}, **documented(400, 401, 403, 500, 503)},
        openapi_extra={"security": [{"bearer": []}]},
    )
    async def list_overlaps(
        agent: Annotated[str | None, Query(description="Only of this agent.", max_length=MAX_ID_BYTES)] = None,
        after: Annotated[str, Query(description="`next_after` of the page before.", max_length=AFTER_LENGTH)] = "",
        limit: Annotated[int, Query(ge=1, le=MOST_PER_PAGE)] = 100,
    ) -> Response:
        """List them by pages, whether their common records are equal or not."""
        try:
            if agent is not None:
                check_id("agent_id", agent)
            page = await overlaps.list(agent_id=agent, after=after, limit=limit)
        except (InvalidIdentity, Misconfigured) as error:
            raise Refusal(ErrorCode.BAD_REQUEST, str(error)) from error
        except LakeheadError as error:
            raise Refusal(ErrorCode.STORE_UNAVAILABLE, str(error), retry_after=5) from error
        shown = ShownOverlaps(overlaps=[ShownOverlap.of(each) for each in page.overlaps], next_after=page.next_after)
        return JSONResponse(shown.model_dump())


def _batch(batch: OverlappingBatch) -> ShownBatch:
    return ShownBatch(
        seq_start=batch.identity.seq_start,
        seq_end=batch.identity.seq_end,
        accepted_manifest_key=keys.accepted(batch.identity),
        frame_sha256=batch.frame_sha256,
        conflict_id=conflict_id(batch.identity, batch.frame_sha256) if batch.is_quarantined else None,
    )
