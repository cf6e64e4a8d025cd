"""The identity of a batch: whose it is, and which records it holds. It decides where a batch is accepted."""

import re
from dataclasses import dataclass

from lakehead.wire.errors import InvalidIdentity

MAX_SEQUENCE = 2**63 - 2
MAX_ID_BYTES = 120
"""The longest `agent_id` and `boot_id` in UTF-8. In hex, with `agent=` before it, each fits a segment of a key (255
bytes), and the longest key with both has 639 bytes: it fits S3's 1,024 with the prefix of a store's URL."""

_CONTROL_CHARACTER = re.compile("[\x00-\x1f\x7f-\x9f]")
"""Databases and HTTP headers cannot hold them."""


@dataclass(frozen=True, slots=True, order=True)
class BatchIdentity:
    """`(agent_id, boot_id, seq_start, seq_end)`; both ends are part of the range. Raises `InvalidIdentity`."""

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int

    def __post_init__(self) -> None:
        check_id("agent_id", self.agent_id)
        check_id("boot_id", self.boot_id)
        if not 0 <= self.seq_start <= self.seq_end <= MAX_SEQUENCE:
            raise InvalidIdentity(
                f"A batch cannot have the sequence numbers {self.seq_start} to {self.seq_end}. "
                f"They start at 0, end at {MAX_SEQUENCE} at most, and the first is not above the last."
            )

    @property
    def record_count(self) -> int:
        """How many records the batch has: one for each sequence number."""
        return self.seq_end - self.seq_start + 1

    def overlaps(self, other: "BatchIdentity") -> bool:
        """Return whether both name a record of the same agent, boot and sequence number."""
        return (
            (self.agent_id, self.boot_id) == (other.agent_id, other.boot_id)
            and self.seq_start <= other.seq_end
            and other.seq_start <= self.seq_end
        )


def check_id(name: str, value: str) -> None:
    """Raise `InvalidIdentity` unless the value can be an `agent_id` or a `boot_id`."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidIdentity(f"The {name} {value!r} is not valid Unicode text.") from None
    if not 0 < size <= MAX_ID_BYTES:
        raise InvalidIdentity(f"The {name} has {size} bytes in UTF-8; it must have 1 to {MAX_ID_BYTES}.")
    if _CONTROL_CHARACTER.search(value):
        raise InvalidIdentity(f"The {name} {value!r} contains a control character.")
