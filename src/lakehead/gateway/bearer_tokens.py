"""The token of a request, and what it may do."""

from collections.abc import Callable
from typing import TypeVar

from starlette.datastructures import Headers

from lakehead.errors import Unavailable
from lakehead.gateway.error_codes import ErrorCode, Refusal

T = TypeVar("T")
RETRY_AFTER = 5
"""What clients are told to wait, in seconds, while the gateway's copy of the tokens is too old."""


def authenticate(headers: Headers, lookup: Callable[[str], T | None]) -> tuple[str, T]:
    """Return the request's bearer token, and what `lookup` says of it.

    Raises `Refusal`: 401 if there is no token or `lookup` does not know it, 503 if that cannot be told now.
    """
    token = _bearer(headers)
    if token is None:
        raise _refused("Send one header `Authorization: Bearer TOKEN`.", challenge="Bearer")
    try:
        found = lookup(token)
    except Unavailable as error:
        raise Refusal(ErrorCode.STORE_UNAVAILABLE, str(error), retry_after=RETRY_AFTER) from error
    if found is None:
        raise _refused("The token is not known here, or was revoked.", challenge='Bearer error="invalid_token"')
    return token, found


def _bearer(headers: Headers) -> str | None:
    values = headers.getlist("authorization")
    if len(values) != 1:
        return None
    scheme, _, token = values[0].partition(" ")
    token = token.strip(" ")
    return token if scheme.lower() == "bearer" and token.isascii() and token.isprintable() and token else None


def _refused(message: str, *, challenge: str) -> Refusal:
    return Refusal(ErrorCode.UNAUTHENTICATED, message, headers={"WWW-Authenticate": challenge})
