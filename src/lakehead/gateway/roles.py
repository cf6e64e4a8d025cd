"""Who may do what on the private listener."""

from collections.abc import Mapping
from typing import Any

from fastapi import Depends, Request

from lakehead.gateway.bearer_tokens import authenticate
from lakehead.gateway.error_codes import ErrorCode, Refusal
from lakehead.gateway.ports import RoleTokens
from lakehead.wire.authority_records import Role, token_sha256

RANKS: Mapping[str, int] = {"viewer": 1, "operator": 2, "admin": 3}
"""Each may do what those before it may."""


def require(role: Role, tokens: RoleTokens) -> Any:
    """Return a dependency of routes that need a role. Its value says who asks, for the audit trail.

    It is checked before anything else of the request, and reads nothing of a body.
    """

    async def check(request: Request) -> str:
        token, found = authenticate(request.headers, tokens.role_of)
        if RANKS[found] < RANKS[role]:
            raise Refusal(ErrorCode.FORBIDDEN, f"This needs the role {role}, and the token has the role {found}.")
        return f"{found}, token sha256 {token_sha256(token)[:16]}"

    return Depends(check)
