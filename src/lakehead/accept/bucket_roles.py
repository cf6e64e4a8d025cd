"""Which role reads, writes and deletes what in the bucket of an acceptance authority."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lakehead.storage.probe import FOLDER as PROBES
from lakehead.wire import acceptance_keys as keys
from lakehead.wire import chunk_keys


class BucketRole(StrEnum):
    """Whose credentials a process uses."""

    GATEWAY = "gateway"
    GC = "gc"
    RECONCILER = "reconciler"
    READER = "reader"
    """Queries. Not the pipelines that land what was accepted: they write to the queue, to tables and to the
    quarantine."""


RAW_BLOBS = "raw-blobs/v1"
QUARANTINE = "quarantine/v1"
AUTHORITY = "authority/v1"
TOKENS = "tokens/v1"
RECONCILER = "reconciler/v1"

APPEND_ONLY = (keys.ACCEPTED, keys.AUDIT)
"""Nobody deletes, replaces or copies into these, whatever else their credentials allow."""

ALL_FOLDERS = (
    RAW_BLOBS,
    keys.RAW_BLOBS_BY_TIME,
    keys.ACCEPTED,
    keys.ACCEPTED_BY_TIME,
    "accepted-by-blob/v1",
    QUARANTINE,
    "quarantine-by-blob/v1",
    keys.QUARANTINED_IDENTITIES,
    keys.RESOLUTIONS,
    keys.REPAIRS,
    keys.RETIRED,
    keys.DISCARDED,
    keys.AUDIT,
    AUTHORITY,
    TOKENS,
    RECONCILER,
    keys.VOIDING,
    chunk_keys.CHUNK_MANIFESTS,
    chunk_keys.ROLLUP,
    chunk_keys.INDEX,
    PROBES,
)
"""Every folder below the prefix of an authority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleAccess:
    """The folders that a role writes and deletes in. In all others it does neither."""

    creates: tuple[str, ...] = ()
    """New objects only, by If-None-Match."""

    changes: tuple[str, ...] = ()
    """New objects by If-None-Match, and replacements by If-Match; never without a condition."""

    deletes: tuple[str, ...] = ()
    reads_tokens: bool = False
    """Whether it may read the hashes of tokens. Every role reads all other folders."""

    uses_queue: bool = False
    """Whether it puts accepted batches on the queue of what is to be landed."""

    @property
    def writes(self) -> tuple[str, ...]:
        """Everything that it creates or changes."""
        return (*self.creates, *self.changes)


_DERIVED = (keys.RAW_BLOBS_BY_TIME, keys.ACCEPTED_BY_TIME, "accepted-by-blob/v1", "quarantine-by-blob/v1")

ROLE_ACCESS: Mapping[BucketRole, RoleAccess] = {
    BucketRole.GATEWAY: RoleAccess(
        creates=(keys.ACCEPTED, *_DERIVED, QUARANTINE, keys.AUDIT),
        # A corrupt blob is replaced by the same frame; a spool is opened in the authority record; operators decide
        # on conflicts through a gateway.
        changes=(RAW_BLOBS, keys.QUARANTINED_IDENTITIES, keys.RESOLUTIONS, keys.REPAIRS, AUTHORITY, PROBES),
        deletes=(PROBES,),
        reads_tokens=True,
        uses_queue=True,
    ),
    BucketRole.GC: RoleAccess(
        # Voids in accepted/v1 before an orphan is deleted, and quarantine for an orphan in conflict.
        creates=(keys.ACCEPTED, keys.VOIDING, QUARANTINE, "quarantine-by-blob/v1", keys.RETIRED, keys.AUDIT),
        changes=(PROBES,),
        deletes=(RAW_BLOBS, PROBES),
    ),
    BucketRole.RECONCILER: RoleAccess(
        creates=(*_DERIVED, QUARANTINE, keys.AUDIT),
        changes=(keys.REPAIRS, RECONCILER, PROBES),
        deletes=(PROBES,),
        uses_queue=True,
    ),
    BucketRole.READER: RoleAccess(),
}
"""`lakehead gateway init` and `token` write the authority record and the tokens as an administrator. Where one
role only creates, no role changes."""
