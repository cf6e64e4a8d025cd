"""The id of a conflict on the private listener: its identity and the hash of the submitted frame, in one segment."""

from lakehead.gateway.batch_ids import batch_id, parse_batch_id
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.key_parts import HASH, checked


def conflict_id(identity: BatchIdentity, submitted_sha256: str) -> str:
    """Return the id, which is made of the parts of the conflict's object key."""
    return f"{batch_id(identity)}.{checked(submitted_sha256, HASH)}"


def parse_conflict_id(text: str) -> tuple[BatchIdentity, str] | None:
    """Return the identity and the hash; None if it is no id."""
    part, _, submitted_sha256 = text.rpartition(".")
    identity = parse_batch_id(part)
    return (identity, submitted_sha256) if identity and HASH.fullmatch(submitted_sha256) else None
