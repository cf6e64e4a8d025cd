"""Where the objects of acceptance are: the one place that builds their keys, and reads them back.

Keys are relative to the prefix of the store. Ids stand in them as the hex of their UTF-8 bytes, and sequence numbers
with 20 digits, so that no id can leave its folder and the order of keys is the order of numbers. Builders raise
`InvalidKeyPart`. A parser returns None for a key that its builder would not make: a scan meets other objects too.
"""

import re
from hashlib import sha256

from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.key_parts import (
    HASH,
    TABLE,
    UUID,
    agent_part,
    boot_part,
    checked,
    fan_out,
    identity_part,
    inside,
    parse_boot,
    parse_fan_out,
    parse_hour_and_hash,
    parse_identity,
)
from lakehead.wire.utc_hours import HOUR_NS, UtcHour

RAW_BLOBS = "raw-blobs/v1/sha256"
RAW_BLOBS_BY_TIME = "raw-blobs-by-time/v1"
ACCEPTED = "accepted/v1"
VOIDING = "voiding/v1"
ACCEPTED_BY_TIME = "accepted-by-time/v1"
ACCEPTED_BY_BLOB = "accepted-by-blob/v1/sha256"
IDENTITY_CONFLICTS = "quarantine/v1/identity-conflict"
OVERLAPS = "quarantine/v1/overlap"
QUARANTINE_BY_BLOB = "quarantine-by-blob/v1/sha256"
QUARANTINED_IDENTITIES = "quarantined-identities/v1"
RESOLUTIONS = "resolutions/v1"
REPAIRS = "repairs/v1"
RETIRED = "retired/v1"
DISCARDED = "discarded/v1"
AUDIT = "audit/v1"
AUTHORITY = "authority/v1/authority.json"
TOKENS = "tokens/v1/tokens.json"
RECONCILER_HEARTBEAT = "reconciler/v1/heartbeat.json"
RECONCILER_CHECKPOINT = "reconciler/v1/checkpoint.json"
COMPLETED_AUDIT = "reconciler/v1/completed-audit.json"

PLACES = (
    *(RAW_BLOBS, RAW_BLOBS_BY_TIME, ACCEPTED, ACCEPTED_BY_TIME, ACCEPTED_BY_BLOB, IDENTITY_CONFLICTS, OVERLAPS),
    *(QUARANTINE_BY_BLOB, QUARANTINED_IDENTITIES, RESOLUTIONS, REPAIRS, RETIRED, DISCARDED, AUDIT),
    *(AUTHORITY, TOKENS, RECONCILER_HEARTBEAT, RECONCILER_CHECKPOINT, COMPLETED_AUDIT, VOIDING),
)
"""All of them: nothing else may be stored below their first segments."""

_AUDIT_NAME = re.compile(rf"([0-9]{{20}})-({UUID.pattern})")


def raw_blob(frame_sha256: str) -> str:
    """The frame with this hash."""
    return f"{RAW_BLOBS}/{fan_out(frame_sha256)}.lmbatch"


def parse_raw_blob(key: str) -> str | None:
    """The hash of a frame, from its key."""
    return parse_fan_out(inside(key, f"{RAW_BLOBS}/", ".lmbatch"))


def raw_blob_by_time(hour: UtcHour, frame_sha256: str) -> str:
    """The entry of a frame in the index of the hour in which it was uploaded."""
    return f"{RAW_BLOBS_BY_TIME}/{hour.path}/sha256={checked(frame_sha256, HASH)}.json"


def parse_raw_blob_by_time(key: str) -> tuple[UtcHour, str] | None:
    """The hour and the hash of a frame."""
    return parse_hour_and_hash(key, f"{RAW_BLOBS_BY_TIME}/", "/sha256=")


def accepted(identity: BatchIdentity) -> str:
    """The identity manifest of a batch, or the record that its identity is void."""
    return f"{ACCEPTED}/{identity_part(identity)}.json"


def accepted_folder(agent_id: str, boot_id: str) -> str:
    """The folder of all identity manifests of a boot of an agent."""
    return f"{ACCEPTED}/{boot_part(agent_id, boot_id)}"


def parse_accepted(key: str) -> BatchIdentity | None:
    """The identity whose key it is."""
    return parse_identity(inside(key, f"{ACCEPTED}/", ".json"))


def voiding(identity: BatchIdentity) -> str:
    """The record that garbage collection is about to make an identity void, created before it looks for open spools."""
    return f"{VOIDING}/{identity_part(identity)}.json"


def voiding_folder(agent_id: str, boot_id: str) -> str:
    """The folder of all identities of a boot that garbage collection makes void, or was about to."""
    return f"{VOIDING}/{boot_part(agent_id, boot_id)}"


def parse_voiding(key: str) -> BatchIdentity | None:
    """The identity that is to become void."""
    return parse_identity(inside(key, f"{VOIDING}/", ".json"))


def manifest_id(accepted_key: str) -> str:
    """The id under which an accepted batch is indexed: the hash of its accepted key."""
    return sha256(accepted_key.encode()).hexdigest()


def accepted_by_time(hour: UtcHour, identity: BatchIdentity) -> str:
    """The entry of an accepted batch in the index of the hour in which it was accepted."""
    return f"{ACCEPTED_BY_TIME}/{hour.path}/{manifest_id(accepted(identity))}.json"


def parse_accepted_by_time(key: str) -> tuple[UtcHour, str] | None:
    """The hour and the manifest id of an accepted batch."""
    return parse_hour_and_hash(key, f"{ACCEPTED_BY_TIME}/", "/")


def accepted_by_blob(frame_sha256: str, identity: BatchIdentity) -> str:
    """The reverse reference from a frame to its identity manifest."""
    return f"{accepted_by_blob_folder(frame_sha256)}/{identity_part(identity)}.json"


def accepted_by_blob_folder(frame_sha256: str) -> str:
    """The folder of all reverse references from a frame to identity manifests."""
    return f"{ACCEPTED_BY_BLOB}/{fan_out(frame_sha256)}"


def parse_accepted_by_blob(key: str) -> tuple[str, BatchIdentity] | None:
    """The hash of a frame, and the identity under which it was accepted."""
    return _parse_hash_and_identity(key, f"{ACCEPTED_BY_BLOB}/")


def identity_conflict(identity: BatchIdentity, submitted_sha256: str) -> str:
    """The quarantine manifest of a frame that was submitted under an identity accepted with another hash."""
    return _identity_and_hash(IDENTITY_CONFLICTS, identity, submitted_sha256)


def parse_identity_conflict(key: str) -> tuple[BatchIdentity, str] | None:
    """The identity, and the hash of the frame that was submitted."""
    return _parse_identity_and_hash(key, IDENTITY_CONFLICTS)


def identity_conflicts_folder(agent_id: str | None = None) -> str:
    """The folder of all conflicts, or of one agent's."""
    return IDENTITY_CONFLICTS if agent_id is None else f"{IDENTITY_CONFLICTS}/{agent_part(agent_id)}"


def overlap(identity: BatchIdentity, frame_sha256: str) -> str:
    """The quarantine manifest of an accepted batch, for some of whose records another batch landed others."""
    return _identity_and_hash(OVERLAPS, identity, frame_sha256)


def parse_overlap(key: str) -> tuple[BatchIdentity, str] | None:
    """The identity and the hash of the batch, some of whose records did not land."""
    return _parse_identity_and_hash(key, OVERLAPS)


def overlaps_folder(agent_id: str | None = None) -> str:
    """The folder of all overlaps in quarantine, or of one agent's."""
    return OVERLAPS if agent_id is None else f"{OVERLAPS}/{agent_part(agent_id)}"


def quarantine_by_blob(frame_sha256: str, identity: BatchIdentity) -> str:
    """The reverse reference from a frame to its quarantine manifest."""
    return f"{quarantine_by_blob_folder(frame_sha256)}/{identity_part(identity)}.json"


def quarantine_by_blob_folder(frame_sha256: str) -> str:
    """The folder of all reverse references from a frame to quarantine manifests."""
    return f"{QUARANTINE_BY_BLOB}/{fan_out(frame_sha256)}"


def parse_quarantine_by_blob(key: str) -> tuple[str, BatchIdentity] | None:
    """The hash of a frame, and the identity under which it is in quarantine."""
    return _parse_hash_and_identity(key, f"{QUARANTINE_BY_BLOB}/")


def quarantined_identity(agent_id: str, boot_id: str) -> str:
    """The record that a boot of an agent is in quarantine, or was."""
    return f"{QUARANTINED_IDENTITIES}/{boot_part(agent_id, boot_id)}.json"


def parse_quarantined_identity(key: str) -> tuple[str, str] | None:
    """The agent and the boot."""
    return parse_boot(inside(key, f"{QUARANTINED_IDENTITIES}/", ".json"))


def resolution(identity: BatchIdentity, submitted_sha256: str) -> str:
    """An operator's decision on one frame that was submitted in conflict."""
    return _identity_and_hash(RESOLUTIONS, identity, submitted_sha256)


def parse_resolution(key: str) -> tuple[BatchIdentity, str] | None:
    """The identity, and the hash of the frame that was submitted."""
    return _parse_identity_and_hash(key, RESOLUTIONS)


def repair(identity: BatchIdentity) -> str:
    """The record that the frame of an accepted batch is missing or corrupt."""
    return f"{REPAIRS}/{identity_part(identity)}.json"


def parse_repair(key: str) -> BatchIdentity | None:
    """The batch to repair."""
    return parse_identity(inside(key, f"{REPAIRS}/", ".json"))


def retired(identity: BatchIdentity) -> str:
    """The record that the frame of an accepted batch was deleted after its time, or is about to be."""
    return f"{RETIRED}/{identity_part(identity)}.json"


def parse_retired(key: str) -> BatchIdentity | None:
    """The retired batch."""
    return parse_identity(inside(key, f"{RETIRED}/", ".json"))


def discarded(table_uuid: str, identity: BatchIdentity) -> str:
    """The record that an operator decided that a batch shall not land in a table."""
    return f"{DISCARDED}/table={checked(table_uuid, TABLE)}/{identity_part(identity)}.json"


def parse_discarded(key: str) -> tuple[str, BatchIdentity] | None:
    """The table, and the batch that shall not land in it."""
    table, _, rest = inside(key, f"{DISCARDED}/table=", ".json").partition("/")
    identity = parse_identity(rest)
    return (table, identity) if identity and TABLE.fullmatch(table) else None


def audit_entry(at_unix_ns: int, action_id: str) -> str:
    """The record of what an operator has done, or was about to do. The order of keys is the order of time."""
    hour = UtcHour.of(at_unix_ns)
    return f"{AUDIT}/{hour.path}/{checked(f'{at_unix_ns:020}-{action_id}', _AUDIT_NAME)}.json"


def parse_audit_entry(key: str) -> tuple[int, str] | None:
    """The time in nanoseconds since the Unix epoch, and the id of the action."""
    path, _, name = inside(key, f"{AUDIT}/", ".json").rpartition("/")
    hour, match = UtcHour.parse(path), _AUDIT_NAME.fullmatch(name)
    if hour is None or match is None or hour.number != int(match[1]) // HOUR_NS:
        return None
    return int(match[1]), match[2]


def _identity_and_hash(folder: str, identity: BatchIdentity, frame_sha256: str) -> str:
    return f"{folder}/{identity_part(identity)}/{checked(frame_sha256, HASH)}.json"


def _parse_identity_and_hash(key: str, folder: str) -> tuple[BatchIdentity, str] | None:
    rest, _, found = inside(key, f"{folder}/", ".json").rpartition("/")
    identity = parse_identity(rest)
    return (identity, found) if identity and HASH.fullmatch(found) else None


def _parse_hash_and_identity(key: str, folder: str) -> tuple[str, BatchIdentity] | None:
    hashed, _, rest = inside(key, folder, ".json").partition("/agent=")
    found, identity = parse_fan_out(hashed), parse_identity(f"agent={rest}")
    return (found, identity) if found and identity else None
