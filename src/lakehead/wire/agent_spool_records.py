"""What an agent's spool keeps on its disk: the files' names, and two small records.

Each batch is one file, whose name says nothing of it but its number. The first bytes tell whether it still collects
records (`agent_journal`) or is a frame (`frame`).
"""

import re

from lakehead.wire.batch_identity import check_id
from lakehead.wire.stored_record import Count, IdentityRecord, Name, Sha256, StoredRecord, UnixNs

ENTRIES = "entries"
"""Batches that are to be sent."""

PARKED = "parked"
"""Frames that a gateway refused, or that are conflicts."""

SEEN = "seen"
"""By what requests are known again."""

DAMAGED = "damaged"
"""Bytes that are not what was written."""

SPOOL = "agent.json"
RESERVE = "reserve"

_NUMBERED = re.compile(r"(?:entries|parked|seen)/([0-9]{20})")
_SET_ASIDE = re.compile(r"damaged/([0-9]{20})-.*")


def numbered(folder: str, number: int) -> str:
    """The name of a batch in a folder, or of a file of requests."""
    return f"{folder}/{number:020}"


def parked_note(number: int) -> str:
    """The name of what is told of a parked batch."""
    return f"{PARKED}/{number:020}.json"


def damaged(number: int, what: str) -> str:
    """The name of bytes that were set aside."""
    return f"{DAMAGED}/{number:020}-{what}"


def number_of(name: str) -> int | None:
    """The number in the name of a batch, of a file of requests or of damaged bytes; None for another file."""
    found = _NUMBERED.fullmatch(name) or _SET_ASIDE.fullmatch(name)
    return int(found[1]) if found else None


class AgentSpoolRecord(StoredRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.agent_spool.v1"):
    """Whose spool a folder is."""

    spool_id: Name
    agent_id: str
    created_at_unix_ns: UnixNs
    authority: str = ""
    """The acceptance authority whose receipts count; empty before the first."""

    def __post_init__(self) -> None:
        check_id("agent_id", self.agent_id)

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return SPOOL


class ParkedNote(IdentityRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.agent_parked.v1"):
    """Why a batch is parked. For people; safe to lose."""

    number: Count
    code: str
    """The gateway's word for the reason."""

    text: str
    frame_sha256: Sha256
    parked_at_unix_ns: UnixNs

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return parked_note(self.number)
