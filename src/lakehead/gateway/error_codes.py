"""Everything that a gateway answers instead of a result: a stable code, its HTTP status, and one form of body."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec
from starlette.responses import Response


class ErrorCode(StrEnum):
    """What went wrong, in one word for programs. A code keeps its meaning, and its status, for good."""

    # Frames that no reader takes. The words are those of `BadFrame`.
    BAD_MAGIC = "bad_magic"
    BAD_VERSION = "bad_version"
    BAD_CHECKSUM = "bad_checksum"
    BAD_COMPRESSION = "bad_compression"
    BAD_COUNT = "bad_count"
    BAD_HEADER = "bad_header"
    BAD_IDENTITY = "bad_identity"
    BAD_LENGTH = "bad_length"
    BAD_PAYLOAD = "bad_payload"
    BAD_RECORDS = "bad_records"
    BAD_SCHEMA = "bad_schema"
    TRAILING_BYTES = "trailing_bytes"
    TRUNCATED = "truncated"
    BAD_FRAME = "bad_frame"
    """Any other reason."""

    NEWER_FORMAT = "newer_format"
    """Update the gateway: it does not know this version of frames."""

    # Requests
    BAD_REQUEST = "bad_request"
    HEADER_MISMATCH = "header_mismatch"
    """A header says something else than the frame."""

    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    """The token's role may not do this."""

    AGENT_MISMATCH = "agent_mismatch"
    """The frame is of another agent than the token."""

    NOT_FOUND = "not_found"
    NO_SUCH_CONFLICT = "no_such_conflict"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    BODY_TIMEOUT = "body_timeout"
    """The body came too slowly: send it again."""

    IDENTITY_CONFLICT = "identity_conflict"
    """Another frame was accepted under this identity. Keep this one."""

    NOT_QUARANTINED = "not_quarantined"
    IDENTITY_VOID = "identity_void"
    """Nothing is ever accepted under this identity: send the records under another."""

    TOO_LARGE = "too_large"
    CONTENT_ENCODING = "content_encoding"
    IDENTITY_QUARANTINED = "identity_quarantined"
    """Nothing more is accepted from this boot of the agent: keep everything, and open a new boot."""

    RATE_LIMITED = "rate_limited"
    HEAD_TOO_LARGE = "head_too_large"

    # This gateway, or its store
    INTERNAL_ERROR = "internal_error"
    OVERLOADED = "overloaded"
    STORE_UNAVAILABLE = "store_unavailable"
    """Whether or not something was stored, sending the same bytes again is safe."""

    OUTCOME_UNKNOWN = "outcome_unknown"
    """The batch may have been accepted: send the same bytes again."""

    SPOOL_FULL = "spool_full"
    """The gateway's disk has no room for the batch until others are in the object store."""

    SPOOL_UNAVAILABLE = "spool_unavailable"
    """The gateway's disk failed. Nothing was accepted."""

    IN_SPOOL = "in_spool"
    """The gateway's spool holds a batch of the identity: it cannot become void."""

    NOT_IN_SPOOL = "not_in_spool"
    ANOTHER_SPOOL = "another_spool"
    """This gateway's spool is not the one that was meant: correct the address."""

    STOPPING = "stopping"
    TOO_MANY_CONNECTIONS = "too_many_connections"

    @property
    def status(self) -> int:
        """The HTTP status that the code is answered with: always the same."""
        return _STATUS.get(self, 400)


_STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.UNAUTHENTICATED: 401,
    ErrorCode.FORBIDDEN: 403,
    ErrorCode.AGENT_MISMATCH: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.NO_SUCH_CONFLICT: 404,
    ErrorCode.NOT_IN_SPOOL: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.BODY_TIMEOUT: 408,
    ErrorCode.IDENTITY_CONFLICT: 409,
    ErrorCode.NOT_QUARANTINED: 409,
    ErrorCode.IN_SPOOL: 409,
    ErrorCode.IDENTITY_VOID: 410,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.CONTENT_ENCODING: 415,
    ErrorCode.ANOTHER_SPOOL: 421,
    ErrorCode.IDENTITY_QUARANTINED: 423,
    ErrorCode.RATE_LIMITED: 429,
    ErrorCode.HEAD_TOO_LARGE: 431,
    ErrorCode.INTERNAL_ERROR: 500,
    ErrorCode.OVERLOADED: 503,
    ErrorCode.STORE_UNAVAILABLE: 503,
    ErrorCode.OUTCOME_UNKNOWN: 503,
    ErrorCode.SPOOL_FULL: 503,
    ErrorCode.SPOOL_UNAVAILABLE: 503,
    ErrorCode.STOPPING: 503,
    ErrorCode.TOO_MANY_CONNECTIONS: 503,
}
"""All others are 400: the bytes that came are wrong."""

CLOSE = {"Connection": "close"}


class Refusal(Exception):
    """A request is answered with an error. Raised inside the gateway, never to its callers."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        """`retry_after` is in seconds. `more` is what the body says beside the error."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.headers = dict(headers or {}) | ({} if retry_after is None else {"Retry-After": str(retry_after)})
        self.more = more or {}

    def response(self, *, close: bool = False) -> Response:
        """The answer. Close the connection if the request's body is unread: what follows on it would be that body."""
        return Response(
            error_body(self.code, self.message, self.more),
            self.code.status,
            headers=self.headers | (CLOSE if close else {}),
            media_type="application/json",
        )


def error_body(code: ErrorCode, message: str, more: Mapping[str, object] | None = None) -> bytes:
    """The body of every error: `{"error": {"code": …, "message": …}}`, and what else there is to say."""
    return msgspec.json.encode({"error": {"code": code.value, "message": message}, **(more or {})})
