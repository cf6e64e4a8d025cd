"""The route by which operators see frames that are missing or corrupt."""

from typing import Annotated, Literal

from fastapi import FastAPI, Query
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from lakehead.accept.repairs import ListedRepair, Repairs
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.gateway.batch_ids import batch_id
from lakehead.gateway.error_codes import ErrorCode, Refusal
from lakehead.gateway.http_app import documented
from lakehead.gateway.ports import RoleTokens
from lakehead.gateway.roles import require
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import MAX_ID_BYTES, check_id
from lakehead.wire.errors import InvalidIdentity

MOST_PER_PAGE = 200


class ShownRepair(BaseModel):
    """The frame of an accepted batch that is missing or corrupt, or was."""

    id: str
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    state: str
    """`open`, `healed`, or `unreadable`."""

    problem: str
    """`missing` or `corrupt`; of an unreadable record, why it is."""

    frame_sha256: str | None
    frame_bytes: int | None
    raw_blob_key: str | None
    accepted_manifest_key: str
    found_at_unix_ns: int | None
    found_by: str | None
    healed_at_unix_ns: int | None
    """null while it is not."""

    @classmethod
    def of(cls, repair: ListedRepair) -> "ShownRepair":
        """What is shown of a repair."""
        record, identity = repair.record, repair.identity
        return cls(
            id=batch_id(identity),
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            seq_start=identity.seq_start,
            seq_end=identity.seq_end,
            state=record.state if record else "unreadable",
            problem=record.problem if record else repair.problem,
            frame_sha256=record.frame_sha256 if record else None,
            frame_bytes=record.frame_bytes if record else None,
            raw_blob_key=record.raw_blob_key if record else None,
            accepted_manifest_key=keys.accepted(identity),
            found_at_unix_ns=record.found_at_unix_ns if record else None,
            found_by=record.found_by if record else None,
            healed_at_unix_ns=(record.healed_at_unix_ns or None) if record else None,
        )


class ShownRepairs(BaseModel):
    """Some repairs, by agent, boot and sequence number."""

    repairs: list[ShownRepair]
    next_after: str | None
    """Ask for the next page with `after` set to this, also if this one has none; null if there is no other."""


def add_repair_routes(app: FastAPI, repairs: Repairs, tokens: RoleTokens) -> None:
    """Add the route, for viewers."""

    @app.get(
        "/v1/repairs",
        summary="List frames of accepted batches that are missing or corrupt",
        dependencies=[require("viewer", tokens)],
        responses={200: {"model": ShownRepairs}, **documented(400, 401, 403, 500, 503)},
        openapi_extra={"security": [{"bearer": []}]},
    )
    async def list_repairs(
        agent: Annotated[str | None, Query(description="Only of this agent.", max_length=MAX_ID_BYTES)] = None,
        state: Annotated[Literal["open", "healed", "all"], Query(description="Only in this state.")] = "open",
        after: Annotated[str, Query(description="`next_after` of the page before.", max_length=1_024)] = "",
        limit: Annotated[int, Query(ge=1, le=MOST_PER_PAGE)] = 100,
    ) -> Response:
        """List them by pages, as the reconciler has found them."""
        try:
            if agent is not None:
                check_id("agent_id", agent)
            page = await repairs.list(agent_id=agent, state=None if state == "all" else state, after=after, limit=limit)
        except (InvalidIdentity, Misconfigured) as error:
            raise Refusal(ErrorCode.BAD_REQUEST, str(error)) from error
        except LakeheadError as error:
            raise Refusal(ErrorCode.STORE_UNAVAILABLE, str(error), retry_after=5) from error
        shown = ShownRepairs(repairs=[ShownRepair.of(each) for each in page.repairs], next_after=page.next_after)
        return JSONResponse(shown.model_dump())
