"""The id of a batch on the private listener: its identity in one segment."""

from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.key_parts import identity_part, parse_identity


def batch_id(identity: BatchIdentity) -> str:
    """Return the id, which is made of the parts of the batch's object key."""
    return identity_part(identity).replace("/", ".")


def parse_batch_id(text: str) -> BatchIdentity | None:
    """Return the identity; None if it is no id."""
    return parse_identity(text.replace(".", "/")) if "/" not in text else None
