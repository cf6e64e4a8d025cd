"""What a gateway's spool keeps on its disk beside the frames: the files' names, and three small records.

Frames are `batches/agent=<hex>/boot=<hex>/<first>-<last>.lmbatch`, byte for byte as they came. Names are those of the
object store, so that they sort and parse the same.
"""

from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity, check_id
from lakehead.wire.key_parts import boot_part, identity_part, inside, parse_boot, parse_identity
from lakehead.wire.stored_record import IdentityRecord, Name, StoredRecord, UnixNs

BATCHES = "batches"
"""Frames that are accepted, and not known to be in the object store."""

VOIDS = "voids"
BOOTS = "boots"
KEPT = "kept"
"""Frames that were accepted here, and whose identity is void in the object store: an operator must look at them."""

DAMAGED = "damaged"
"""Files that are no longer the frame that was accepted."""

SPOOL = "spool.json"

_FRAME = ".lmbatch"


def spooled_batch(identity: BatchIdentity) -> str:
    """The frame of a batch that was accepted in the spool."""
    return f"{BATCHES}/{identity_part(identity)}{_FRAME}"


def parse_spooled_batch(key: str) -> BatchIdentity | None:
    """The identity of a frame in the spool."""
    return parse_identity(inside(key, f"{BATCHES}/", _FRAME))


def set_aside(folder: str, identity: BatchIdentity, spooled_at_unix_ns: int) -> str:
    """A frame that was taken out of the batches, into `KEPT` or `DAMAGED`."""
    return f"{folder}/{identity_part(identity)}.{spooled_at_unix_ns:020}{_FRAME}"


def parse_set_aside(key: str) -> BatchIdentity | None:
    """The identity of a frame that was set aside."""
    folder, _, rest = key.partition("/")
    return parse_identity(inside(rest, "", _FRAME)[:-21]) if folder in (KEPT, DAMAGED) else None


def known_boot(agent_id: str, boot_id: str) -> str:
    """What the spool knows of a boot of an agent."""
    return f"{BOOTS}/{boot_part(agent_id, boot_id)}.json"


def parse_known_boot(key: str) -> tuple[str, str] | None:
    """The agent and the boot."""
    return parse_boot(inside(key, f"{BOOTS}/", ".json"))


class SpoolRecord(StoredRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.spool.v1"):
    """Whose spool a folder is. Created once."""

    spool_id: Name
    authority_id: Name
    """The authority whose batches it holds."""

    created_at_unix_ns: UnixNs

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return SPOOL


class SpoolVoid(IdentityRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.spool_void.v1"):
    """The record that the spool accepts nothing more under an identity: the object store says what becomes of it."""

    voided_at_unix_ns: UnixNs

    @classmethod
    def of(cls, identity: BatchIdentity, *, voided_at_unix_ns: int) -> "SpoolVoid":
        """The record for an identity."""
        return cls(
            agent_id=identity.agent_id,
            boot_id=identity.boot_id,
            seq_start=identity.seq_start,
            seq_end=identity.seq_end,
            voided_at_unix_ns=voided_at_unix_ns,
        )

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return f"{VOIDS}/{identity_part(self.identity)}.json"


def parse_void(key: str) -> BatchIdentity | None:
    """The identity that is void in the spool."""
    return parse_identity(inside(key, f"{VOIDS}/", ".json"))


class KnownBoot(StoredRecord, frozen=True, kw_only=True, tag_field="schema", tag="lightmetrics.spool_boot.v1"):
    """What a spool knows of a boot: an identity outside of `spans` is certainly not in the object store."""

    agent_id: str
    boot_id: str
    spans: tuple[tuple[int, int], ...]
    """Sequence numbers, each span from its first to before its end, of which something may be in the object store."""

    voiding: tuple[tuple[int, int], ...] = ()
    """The first and the last number of identities that were about to become void when the store was asked."""

    recent: tuple[IdentityManifest, ...] = ()
    """The batches that were landed last, the newest last: what an agent may ask for while the store is out of reach."""

    def __post_init__(self) -> None:
        check_id("agent_id", self.agent_id)
        check_id("boot_id", self.boot_id)

    @property
    def key(self) -> str:
        """Where the record is stored."""
        return known_boot(self.agent_id, self.boot_id)

    def may_be_in_store(self, identity: BatchIdentity) -> bool:
        """Return whether the object store has to be asked about an identity of this boot."""
        return any(start <= identity.seq_end and identity.seq_start < end for start, end in self.spans)

    def may_become_void(self, identity: BatchIdentity) -> bool:
        """Return whether garbage collection was about to make an identity void before it knew of this spool."""
        return (identity.seq_start, identity.seq_end) in self.voiding

    def landed(self, identity: BatchIdentity) -> IdentityManifest | None:
        """Return the manifest of a batch, if it is among those that were landed last."""
        return next((each for each in self.recent if each.identity == identity), None)
