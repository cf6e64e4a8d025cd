"""One upload, from its first byte to its answer, in the order that keeps strangers away from memory and store."""

import asyncio
import logging
from dataclasses import dataclass, field
from math import ceil

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from lakehead.accept.acceptance import Accepted, Answer, Conflict, Duplicate, Submission, Void
from lakehead.accept.spooled_batch import SpoolFull, SpoolUnusable
from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.gateway.admission import Admission
from lakehead.gateway.bearer_tokens import RETRY_AFTER, authenticate
from lakehead.gateway.error_codes import ErrorCode, Refusal
from lakehead.gateway.frame_decoder import FrameDecoder
from lakehead.gateway.metrics import GatewayMetrics
from lakehead.gateway.ports import (
    AgentTokens,
    BatchAcceptor,
    ConflictRecorder,
    CopyInMemory,
    QuarantinedBoots,
    SideEffects,
)
from lakehead.gateway.rate_limits import RateLimits
from lakehead.gateway.request_body import ClientGone, RequestBody, declared_length
from lakehead.gateway.settings import IngestSettings
from lakehead.telemetry.limited_log import LimitedLog
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import BadFrame, NewerFormat, TooLarge

LOG = logging.getLogger(__name__)
LISTENER = "ingest"


@dataclass(slots=True, kw_only=True)
class Uploads:
    """Answers uploads of batches. One for each gateway process."""

    tokens: AgentTokens
    quarantine: QuarantinedBoots
    acceptor: BatchAcceptor
    conflicts: ConflictRecorder
    side_effects: SideEffects
    authority_id: str
    """Goes into every answer 200, so that agents notice when they talk to another authority."""

    metrics: GatewayMetrics
    clock: Clock
    authority: CopyInMemory | None = None
    """Whether the authority is still the same. None: it is not looked at, as in a test."""

    settings: IngestSettings = field(default_factory=IngestSettings)
    _admission: Admission = field(init=False)
    _rates: RateLimits = field(init=False)
    _decoder: FrameDecoder = field(init=False)
    _log: LimitedLog = field(init=False)

    def __post_init__(self) -> None:
        """Start with nothing under way."""
        settings = self.settings
        self._admission = Admission(settings)
        self._rates = RateLimits(per_second=settings.requests_per_second, burst=settings.burst, clock=self.clock)
        self._decoder = FrameDecoder(settings)
        self._log = LimitedLog(log=LOG, clock=self.clock)
        self.metrics.watch(self._admission)

    def close(self) -> None:
        """End the threads that decode frames."""
        self._decoder.close()

    async def answer(self, request: Request) -> Response:
        """Answer one upload, whatever happens."""
        began = self.clock.monotonic()
        body = RequestBody(request.receive, None, self.settings.body_bytes)
        code: ErrorCode | None = None
        try:
            response = await self._take(request.headers, body)
        except ClientGone:
            self.metrics.disconnected.inc()
            return Response(status_code=400)  # which goes nowhere
        except Refusal as refusal:
            code = refusal.code
            response = refusal.response(close=not body.is_complete)
        except asyncio.CancelledError:  # the time for stopping is over, and the client should know
            code = ErrorCode.STOPPING
            response = self._unavailable(code, "The gateway stops. Send the same bytes again.").response(close=True)
        except Exception:
            LOG.exception("An upload failed for a reason that is not expected. It is answered 500.")
            code = ErrorCode.INTERNAL_ERROR
            message = "The gateway failed. Send the same bytes again later."
            response = Refusal(code, message).response(close=not body.is_complete)
        self.metrics.answered(LISTENER, response.status_code, code)
        self.metrics.request_seconds.labels(str(response.status_code)).observe(self.clock.monotonic() - began)
        return response

    async def _take(self, headers: Headers, body: RequestBody) -> Response:
        _, agent_id = authenticate(headers, self.tokens.agent_of)
        if "content-encoding" in headers:
            raise Refusal(ErrorCode.CONTENT_ENCODING, "Send the frame as it is: Content-Encoding is not taken.")
        self._check_rate(agent_id)
        body.declared = declared_length(headers)
        with self._admission.admit(agent_id, body.most) as admitted:
            content = await body.read(within=self.settings.read_seconds)
            self.metrics.body_bytes.inc(len(content))
            admitted.shrink(len(content))
            submission = await self._decode(content)
            _check_headers(headers, submission.identity)
            self._check_identity(agent_id, submission.identity)
            return await self._accept(submission)

    def _check_rate(self, agent_id: str) -> None:
        wait = self._rates.take(agent_id)
        if wait:
            raise Refusal(
                ErrorCode.RATE_LIMITED,
                f"This agent may make {self.settings.requests_per_second:g} requests a second. Send larger batches.",
                retry_after=ceil(wait),
            )

    async def _decode(self, content: bytes) -> Submission:
        try:
            return await self._decoder.decode(content)
        except BadFrame as error:
            raise Refusal(_frame_code(error), str(error)) from error
        except TooLarge as error:
            raise Refusal(ErrorCode.TOO_LARGE, str(error)) from error
        except NewerFormat as error:
            raise Refusal(ErrorCode.NEWER_FORMAT, str(error)) from error

    def _check_identity(self, agent_id: str, identity: BatchIdentity) -> None:
        if identity.agent_id != agent_id:
            raise Refusal(
                ErrorCode.AGENT_MISMATCH,
                f"The token is of the agent {agent_id!r}, and the frame of {identity.agent_id!r}.",
            )
        try:
            if self.authority is not None:
                self.authority.check()
            is_quarantined = self.quarantine.is_quarantined(identity.agent_id, identity.boot_id)
        except Unavailable as error:
            raise Refusal(ErrorCode.STORE_UNAVAILABLE, str(error), retry_after=RETRY_AFTER) from error
        if is_quarantined:
            raise Refusal(
                ErrorCode.IDENTITY_QUARANTINED,
                f"The boot {identity.boot_id!r} of the agent is in quarantine. Keep its batches, and open a new boot.",
                more={"authority": self.authority_id},
            )

    async def _accept(self, submission: Submission) -> Response:
        match await self._accept_measured(submission):
            case Accepted(manifest):
                self.side_effects.start(manifest)
                self.metrics.accepted.inc()
                return self._accepted(manifest, duplicate=False)
            case Duplicate(manifest):
                self.metrics.duplicates.inc()
                return self._accepted(manifest, duplicate=True)
            case Conflict() as conflict:
                self.metrics.conflicts.inc()
                raise await self._conflict(conflict)
            case Void():
                self.metrics.voids.inc()
                raise Refusal(
                    ErrorCode.IDENTITY_VOID,
                    "Nothing was accepted under this identity, and nothing ever will be. Send the records under the "
                    "current boot and the next sequence numbers.",
                    more={"authority": self.authority_id},
                )

    async def _accept_measured(self, submission: Submission) -> Answer:
        began = self.clock.monotonic()
        outcome = "failed"
        try:
            async with asyncio.timeout(self.settings.accept_seconds):
                answer = await self.acceptor.accept(submission)
            outcome = type(answer).__name__.lower()
            return answer
        except (OutcomeUnknown, TimeoutError) as error:
            self._log.warning(
                "Whether %s was accepted is not known: %s", submission.identity, str(error) or "it took too long"
            )
            raise self._unavailable(
                ErrorCode.OUTCOME_UNKNOWN, "The batch may have been accepted. Send the same bytes again."
            ) from error
        except SpoolFull as error:
            self._log.warning("%s was not accepted: %s", submission.identity, error)
            raise self._unavailable(ErrorCode.SPOOL_FULL, f"{error} Send the same bytes again.") from error
        except SpoolUnusable as error:
            self._log.warning("%s was not accepted: %s", submission.identity, error)
            raise self._unavailable(
                ErrorCode.SPOOL_UNAVAILABLE, "The gateway's disk cannot be used now. Send the same bytes again."
            ) from error
        except (Unavailable, Misconfigured) as error:
            self._log.warning("%s was not accepted: %s", submission.identity, error)
            raise self._unavailable(
                ErrorCode.STORE_UNAVAILABLE, "The object store cannot be used now. Send the same bytes again."
            ) from error
        finally:
            self.metrics.accept_seconds.labels(outcome).observe(self.clock.monotonic() - began)

    async def _conflict(self, conflict: Conflict) -> Refusal:
        """Record a conflict if possible, and say what was decided about it, if it can be told."""
        try:
            async with asyncio.timeout(self.settings.accept_seconds):
                await self.conflicts.record(conflict)
        except (LakeheadError, TimeoutError) as error:
            self.metrics.conflicts_not_recorded.inc()
            self._log.warning("A conflict with %s may not be recorded: %s", conflict.manifest.key, error)
        more: dict[str, object] = {
            "authority": self.authority_id,
            "submitted_frame_sha256": conflict.submission.sha256,
            "accepted_frame_sha256": conflict.manifest.frame_sha256,
        }
        if resolution := await self._resolution(conflict):
            more["resolution"] = resolution
        return Refusal(
            ErrorCode.IDENTITY_CONFLICT,
            "Another frame was accepted under this identity. Keep the batch until an operator has decided.",
            more=more,
        )

    async def _resolution(self, conflict: Conflict) -> str | None:
        submission = conflict.submission
        try:
            async with asyncio.timeout(self.settings.accept_seconds):
                found = await self.conflicts.resolution(submission.identity, submission.sha256)
        except (LakeheadError, TimeoutError) as error:
            self._log.warning(
                "What was decided about a conflict with %s cannot be told: %s", conflict.manifest.key, error
            )
            return None
        # A decision in favour of another frame than the accepted one must not make an agent drop its own.
        if found is None or found.accepted_frame_sha256 != conflict.manifest.frame_sha256:
            return None
        return found.resolution

    def _accepted(self, manifest: IdentityManifest, *, duplicate: bool) -> Response:
        body = {
            "duplicate": duplicate,
            "authority": self.authority_id,
            "agent_id": manifest.agent_id,
            "boot_id": manifest.boot_id,
            "seq_start": manifest.seq_start,
            "seq_end": manifest.seq_end,
            "frame_sha256": manifest.frame_sha256,
            "accepted_at_unix_ns": manifest.answered_at_unix_ns,
        }
        return Response(msgspec.json.encode(body), media_type="application/json")

    def _unavailable(self, code: ErrorCode, message: str) -> Refusal:
        return Refusal(code, message, retry_after=self.settings.retry_after_seconds)


def _frame_code(error: BadFrame) -> ErrorCode:
    try:
        return ErrorCode(error.code)
    except ValueError:
        return ErrorCode.BAD_FRAME


def _check_headers(headers: Headers, identity: BatchIdentity) -> None:
    """Raise `Refusal` if one of the optional headers contradicts the frame, in any of its values."""
    expected = {
        "x-lightmetrics-agent": identity.agent_id,
        "x-lightmetrics-seq-start": str(identity.seq_start),
        "x-lightmetrics-seq-end": str(identity.seq_end),
    }
    for name, value in headers.raw:
        wanted = expected.get(name.decode("latin-1"))
        if wanted is not None and value != wanted.encode():
            raise Refusal(
                ErrorCode.HEADER_MISMATCH,
                f"The header {name.decode()} says {value[:200].decode(errors='replace')!r}, and the frame {wanted!r}.",
            )
