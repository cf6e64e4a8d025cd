"""By what a request that comes again is known: route, sender and content, or the key that the sender gave it."""

from hashlib import blake2b

from starlette.datastructures import Headers
from starlette.types import Scope

from lakehead.agent.receive.refusals import ErrorCode, Refusal
from lakehead.wire.request_id import DIGEST_BYTES, RequestId

_MOST_KEY_BYTES = 256


def idempotency_key(headers: Headers) -> bytes | None:
    """Return the Idempotency-Key of a request; None if it has none. Raises `Refusal`."""
    keys = headers.getlist("idempotency-key")
    if not keys:
        return None
    key = keys[0].encode("latin-1")
    if len(keys) > 1 or not 1 <= len(key) <= _MOST_KEY_BYTES:
        raise Refusal(
            ErrorCode.BAD_REQUEST, f"Give one Idempotency-Key of 1 to {_MOST_KEY_BYTES} bytes, or none at all."
        )
    return key


def sender_of(scope: Scope, headers: Headers) -> bytes:
    """Return who sends a request: the machine, or that it comes through the Unix socket, and the User-Agent."""
    client = scope.get("client")
    host = client[0] if client else "unix"
    return _joined(host.encode(), headers.get("user-agent", "").encode("latin-1"))


def request_id(route: str, sender: bytes, body: bytes, *, key: bytes | None, have_own_times: bool) -> RequestId | None:
    """Return by what to know a request with a decompressed body; None if the same bytes may well be other records."""
    body_digest = _digest(body)
    if key is not None:
        return RequestId(_digest(_joined(b"key", route.encode(), sender, key)), body_digest)
    if not have_own_times:
        return None
    return RequestId(_digest(_joined(b"body", route.encode(), sender, body_digest)), body_digest)


def _joined(*parts: bytes) -> bytes:
    """Parts so that others are never the same together."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()
