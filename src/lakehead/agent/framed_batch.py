"""A batch as it is sent, and the receipt for it."""

from dataclasses import dataclass, field
from functools import cached_property

from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import frame_sha256


@dataclass(frozen=True)
class FramedBatch:
    """A batch that was framed once, to be sent as the same bytes each time."""

    identity: BatchIdentity
    body: bytes = field(repr=False)

    @cached_property
    def sha256(self) -> str:
        """The content hash, in hex."""
        return frame_sha256(self.body)


@dataclass(frozen=True, slots=True)
class Receipt:
    """A gateway has accepted a batch, now or before."""

    identity: BatchIdentity
    duplicate: bool
    """Whether it was accepted before: then nothing follows from this time."""

    authority: str
    """The acceptance authority that answered."""

    frame_sha256: str
    accepted_at_unix_ns: int
