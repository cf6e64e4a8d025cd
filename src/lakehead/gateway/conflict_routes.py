"""The routes by which operators see conflicts and decide about them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import FastAPI, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from lakehead.errors import LakeheadError, OutcomeUnknown
from lakehead.gateway.conflict_ids import conflict_id, parse_conflict_id
from lakehead.gateway.error_codes import ErrorCode, Refusal
from lakehead.gateway.http_app import documented
from lakehead.gateway.ports import ConflictDecisions, ConflictKind, ConflictReader, ListedConflict, RoleTokens
from lakehead.gateway.request_body import RequestBody, declared_length
from lakehead.gateway.roles import require
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import MAX_ID_BYTES, BatchIdentity, check_id
from lakehead.wire.errors import InvalidIdentity
from lakehead.wire.stored_record import StoredRecord

NOTE_BYTES = 8 << 10
"""The largest body of a decision."""

NOTE_LENGTH = 1_000
"""The longest note, in characters."""

READ_SECONDS = 10.0
MOST_PER_PAGE = 1_000
SECURED: dict[str, Any] = {"security": [{"bearer": []}]}
ConflictId = Annotated[str, Path(description="The id of a conflict, as in the listing.", max_length=1_000)]
Decide = Callable[..., Awaitable[StoredRecord]]
T = TypeVar("T")
DECISIONS = {
    "accept-existing": "The accepted batch counts, and the agent may drop the submitted frame",
    "quarantine": "Nothing more is accepted under the boot of the agent",
    "release": "Batches are accepted under the boot of the agent again",
}


class ShownConflict(BaseModel):
    """A conflict or an overlap, with what was decided about it."""

    id: str
    key: str
    kind: ConflictKind
    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int
    submitted_frame_sha256: str
    manifest: dict[str, Any] | None
    """The quarantine manifest: both hashes and object keys, and when and by whom it was first seen."""

    resolution: dict[str, Any] | None
    """The last decision; null if there is none."""

    problem: str
    """Why one of the two cannot be read; empty if they can."""


class ShownPage(BaseModel):
    """Some conflicts, in the order of their keys."""

    conflicts: list[ShownConflict]
    next_after: str | None
    """Ask for the next page with `after` set to this; null if there is none."""


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a decision's request says."""

    note: Annotated[str, msgspec.Meta(max_length=NOTE_LENGTH)] = ""


@dataclass(frozen=True, slots=True)
class ConflictRequests:
    """Answers requests about conflicts."""

    conflicts: ConflictReader
    refusals: Mapping[type[LakeheadError], ErrorCode]
    """Errors that the caller made, with the code of the answer."""

    async def list(self, agent: str | None, kind: ConflictKind | None, after: str, limit: int) -> Response:
        """Answer a page of conflicts."""
        if agent is not None:
            try:
                check_id("agent_id", agent)
            except InvalidIdentity as error:
                raise Refusal(ErrorCode.BAD_REQUEST, str(error)) from error
        if after and not (keys.parse_identity_conflict(after) or keys.parse_overlap(after)):
            raise Refusal(ErrorCode.BAD_REQUEST, "`after` must be `next_after` of the page before.")
        page = await self._called(self.conflicts.list(agent_id=agent, kind=kind, after=after, limit=limit))
        return _json({"conflicts": [_shown(each) for each in page.conflicts], "next_after": page.next_after})

    async def show(self, id_text: str) -> Response:
        """Answer one conflict."""
        return _json(_shown(await self._called(self.conflicts.show(*_parsed(id_text)))))

    async def decide(self, decide: Decide, id_text: str, by: str, request: Request) -> Response:
        """Decide about one conflict, and answer the record of it."""
        identity, submitted_sha256 = _parsed(id_text)
        note = await _note(request)
        return _json(await self._called(decide(identity, submitted_sha256, by=by, note=note)))

    async def _called(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except LakeheadError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: LakeheadError) -> Refusal:
        for kind, code in self.refusals.items():
            if isinstance(error, kind):
                return Refusal(code, str(error))
        if isinstance(error, OutcomeUnknown):
            return Refusal(ErrorCode.OUTCOME_UNKNOWN, str(error), retry_after=1)
        return Refusal(ErrorCode.STORE_UNAVAILABLE, str(error), retry_after=5)


def add_conflict_routes(
    app: FastAPI, requests: ConflictRequests, decisions: ConflictDecisions, tokens: RoleTokens
) -> None:
    """Add the routes: viewers see conflicts, operators decide about them."""

    @app.get(
        "/v1/conflicts",
        summary="List conflicts and overlaps",
        dependencies=[require("viewer", tokens)],
        responses={200: {"model": ShownPage}, **documented(400, 401, 403, 500, 503)},
        openapi_extra=SECURED,
    )
    async def list_conflicts(
        agent: Annotated[str | None, Query(description="Only of this agent.", max_length=MAX_ID_BYTES)] = None,
        kind: Annotated[ConflictKind | None, Query(description="Only of this kind.")] = None,
        after: Annotated[str, Query(description="`next_after` of the page before.", max_length=1_024)] = "",
        limit: Annotated[int, Query(ge=1, le=MOST_PER_PAGE)] = 100,
    ) -> Response:
        """List conflicts in the order of their keys, by pages."""
        return await requests.list(agent, kind, after, limit)

    @app.get(
        "/v1/conflicts/{id_text}",
        summary="Show one conflict",
        dependencies=[require("viewer", tokens)],
        responses={200: {"model": ShownConflict}, **documented(400, 401, 403, 404, 500, 503)},
        openapi_extra=SECURED,
    )
    async def show_conflict(id_text: ConflictId) -> Response:
        """Show a conflict with both hashes and object keys, and what was decided."""
        return await requests.show(id_text)

    calls: dict[str, Decide] = {
        "accept-existing": decisions.accept_existing,
        "quarantine": decisions.quarantine_identity,
        "release": decisions.release,
    }
    for name, decide in calls.items():
        _add_decision(app, name, decide, requests, tokens)


def _add_decision(app: FastAPI, name: str, decide: Decide, requests: ConflictRequests, tokens: RoleTokens) -> None:
    operator = require("operator", tokens)

    @app.post(
        f"/v1/conflicts/{{id_text}}/{name}",
        operation_id=name.replace("-", "_"),
        summary=DECISIONS[name],
        responses={
            200: {"content": {"application/json": {"schema": {"type": "object"}}}},
            **documented(400, 401, 403, 404, 408, 409, 413, 500, 503),
        },
        openapi_extra=SECURED | {"requestBody": NOTE_SCHEMA},
    )
    async def post(request: Request, id_text: ConflictId, by: str = operator) -> Response:
        """Decide. The id names the submitted frame by its hash; the answer is the stored record."""
        return await requests.decide(decide, id_text, by, request)


NOTE_SCHEMA: dict[str, Any] = {
    "required": False,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"note": {"type": "string", "maxLength": NOTE_LENGTH, "description": "Why."}},
                "additionalProperties": False,
            }
        }
    },
}


async def _note(request: Request) -> str:
    """Read why an operator decides so. An empty body says nothing."""
    body = RequestBody(request.receive, declared_length(request.headers), NOTE_BYTES)
    content = await body.read(within=READ_SECONDS)
    if not content:
        return ""
    try:
        return msgspec.json.decode(content, type=Note).note
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Refusal(ErrorCode.BAD_REQUEST, f'The body must be like {{"note": "why"}}: {error}') from error


def _parsed(id_text: str) -> tuple[BatchIdentity, str]:
    found = parse_conflict_id(id_text)
    if found is None:
        raise Refusal(ErrorCode.NO_SUCH_CONFLICT, "No conflict has this id. List them: GET /v1/conflicts.")
    return found


def _shown(conflict: ListedConflict) -> dict[str, object]:
    identity = conflict.identity
    return {
        "id": conflict_id(identity, conflict.submitted_sha256),
        "key": conflict.key,
        "kind": conflict.kind,
        "agent_id": identity.agent_id,
        "boot_id": identity.boot_id,
        "seq_start": identity.seq_start,
        "seq_end": identity.seq_end,
        "submitted_frame_sha256": conflict.submitted_sha256,
        "manifest": conflict.manifest,
        "resolution": conflict.resolution,
        "problem": conflict.problem,
    }


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
