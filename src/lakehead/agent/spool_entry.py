"""What callers of an agent's spool give and get."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.record_schemas import FrameKind

Folder: TypeAlias = Literal["entries", "parked"]


@dataclass(frozen=True, slots=True)
class Spooled:
    """Records are on disk."""

    duplicate: bool
    """Whether they were before: then nothing was added."""


@dataclass(frozen=True, slots=True)
class ParkReason:
    """Why a batch is not sent in its turn. For people: nothing decides by it."""

    code: str
    """The gateway's word, such as `identity_conflict`."""

    text: str = ""
    """What the gateway said."""


@dataclass(frozen=True, slots=True)
class SpoolEntry:
    """A batch whose frame is on disk, as it was when it was asked for. Its number names it as long as it is there."""

    number: int
    kind: FrameKind
    identity: BatchIdentity
    size: int
    """The bytes of the frame."""

    since: float
    """The uptime of the agent, in seconds, at which it became an entry; of one that a start found, the start's."""

    folder: Folder = "entries"
    """Where its file is. A batch that should be parked stays in `entries` when the folder for that is full."""

    parked: ParkReason | None = None
    """Why it is not sent in its turn; None if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatus:
    """What is in a spool."""

    entries: int
    """Batches that wait to be sent, those too that still collect records."""

    entry_bytes: int
    """The bytes of their files, and of parked batches for which the folder of those has no room."""

    parked: int
    parked_bytes: int
    """The bytes of the files that are in the folder of parked batches."""

    damaged: int
    """Files that are not what was written. An operator should look at them."""

    oldest_seconds: float
    """For how much of the agent's uptime the oldest batch has waited; since the last start for what that found."""

    boots: Mapping[FrameKind, str]
    next_sequence: Mapping[FrameKind, int]
    remembered_requests: int
    """Requests that would be recognised if they came again."""

    problem: str
    """Why nothing is taken now; empty if something is."""
