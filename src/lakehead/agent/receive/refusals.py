"""What receivers answer instead of a result."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec
from starlette.responses import Response


class ErrorCode(StrEnum):
    """What went wrong, in one word for programs. A code keeps its meaning, and its status, for good."""

    BAD_REQUEST = "bad_request"
    """The request or its body is not what its headers say."""

    INVALID_SAMPLES = "invalid_samples"
    """Some samples of remote write were not kept. Sending them again would not help."""

    FOREIGN_HOST = "foreign_host"
    FOREIGN_ORIGIN = "foreign_origin"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    HASH_MISMATCH = "hash_mismatch"
    """The parked batch of this number is another one than was meant."""

    TOO_LARGE = "too_large"
    UNSUPPORTED = "unsupported"
    """A content type or encoding that the route does not take."""

    KEY_REUSED = "key_reused"
    """The Idempotency-Key was used with another body."""

    SPOOL_FULL = "spool_full"
    SPOOL_UNUSABLE = "spool_unusable"
    OVERLOADED = "overloaded"
    BODY_TIMEOUT = "body_timeout"
    NOT_FLUSHED = "not_flushed"
    """Not all was accepted in time. It still will be."""

    STOPPING = "stopping"
    INTERNAL_ERROR = "internal_error"

    @property
    def status(self) -> int:
        """The HTTP status that the code is answered with: always the same.

        What may work later is 503, which senders send again: of others, such as 408, 429 and 500, not all do.
        """
        return _STATUS.get(self, 503)


_STATUS: Mapping[ErrorCode, int] = {
    ErrorCode.BAD_REQUEST: 400,
    ErrorCode.INVALID_SAMPLES: 400,
    ErrorCode.FOREIGN_HOST: 403,
    ErrorCode.FOREIGN_ORIGIN: 403,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.METHOD_NOT_ALLOWED: 405,
    ErrorCode.HASH_MISMATCH: 409,
    ErrorCode.TOO_LARGE: 413,
    ErrorCode.UNSUPPORTED: 415,
    ErrorCode.KEY_REUSED: 422,
}


class Refusal(Exception):
    """A request is answered with an error. Raised inside the receivers, never to their callers."""

    def __init__(self, code: ErrorCode, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    @property
    def status(self) -> int:
        """The HTTP status of the answer."""
        return self.code.status


def json_refusal(refusal: Refusal) -> Response:
    """The answer of routes that speak JSON: `{"error": {"code": …, "message": …}}`."""
    return Response(
        msgspec.json.encode({"error": {"code": refusal.code.value, "message": refusal.message}}),
        refusal.status,
        headers=refusal.headers,
        media_type="application/json",
    )
