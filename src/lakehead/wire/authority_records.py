"""One authority's own objects: who it is, whose tokens it takes, and the heartbeat of its reconciler.

All of them are replaced by compare-and-set, so they have a version that grows and a nonce.
"""

from hashlib import sha256
from typing import ClassVar, Literal

import msgspec

from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import check_id
from lakehead.wire.stored_record import Count, Name, Sha256, UnixNs, Version, VersionedRecord

AcceptanceMode = Literal["s3_manifest", "local_spool"]
Role = Literal["viewer", "operator", "admin"]


class OpenSpool(msgspec.Struct, frozen=True, kw_only=True):
    """A gateway's spool that may hold batches which are accepted and not in the store yet."""

    spool_id: Name
    collector_id: Name
    """The gateway."""

    address: str = ""
    """Where garbage collection asks it to void an identity."""

    opened_at_unix_ns: UnixNs


class AuthorityRecord(VersionedRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.authority.v1"):
    """The acceptance authority that a bucket and prefix are. A gateway without this record does not start."""

    MAX_BYTES: ClassVar[int] = 1 << 20

    authority_id: Name
    bucket: Name
    prefix: str
    mode: AcceptanceMode
    epoch: Count
    """Grows with every change of the mode."""

    open_spools: tuple[OpenSpool, ...] = ()
    version: Version
    nonce: str = ""

    def __post_init__(self) -> None:
        ids = [spool.spool_id for spool in self.open_spools]
        if len(set(ids)) < len(ids):
            raise ValueError("open_spools has a spool_id twice")

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return keys.AUTHORITY


class TokenEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A live token, without its secret: either an agent's for uploads, or one with a role for the private listener."""

    token_id: Name
    token_sha256: Sha256
    agent_id: str | None = None
    role: Role | None = None
    created_at_unix_ns: UnixNs
    created_by: str = ""

    def __post_init__(self) -> None:
        if (self.agent_id is None) == (self.role is None):
            raise ValueError("a token has either an agent_id or a role")
        if self.agent_id is not None:
            check_id("agent_id", self.agent_id)


class TokenList(VersionedRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.tokens.v1"):
    """All live tokens. A revoked one is not in it."""

    MAX_BYTES: ClassVar[int] = 32 << 20

    tokens: tuple[TokenEntry, ...]
    version: Version
    nonce: str = ""

    def __post_init__(self) -> None:
        for field, values in (
            ("token_id", [token.token_id for token in self.tokens]),
            ("token_sha256", [token.token_sha256 for token in self.tokens]),
        ):
            if len(set(values)) < len(values):
                raise ValueError(f"two tokens have the same {field}")

    @property
    def key(self) -> str:
        """Where the list is stored."""
        return keys.TOKENS


def token_sha256(token: str) -> str:
    """The hash under which a token is stored. Tokens are random and long, so that a plain hash hides them."""
    return sha256(token.encode(errors="surrogatepass")).hexdigest()


class ReconcilerHeartbeat(
    VersionedRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.reconciler_heartbeat.v1"
):
    """The last sign of life of a reconciler."""

    reconciler_id: Name
    beat_at_unix_ns: UnixNs
    version: Version
    nonce: str = ""

    @property
    def key(self) -> str:
        """Where the heartbeat is stored."""
        return keys.RECONCILER_HEARTBEAT
