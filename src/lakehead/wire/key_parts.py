"""The parts of object keys: hashes, ids and names, each in one form only that cannot leave its folder."""

import re
from functools import lru_cache

from lakehead.wire.batch_identity import BatchIdentity, check_id
from lakehead.wire.errors import InvalidIdentity, InvalidKeyPart
from lakehead.wire.utc_hours import UtcHour

HASH = re.compile(r"[0-9a-f]{64}")
TABLE = re.compile(r"[0-9a-z-]{1,64}")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_BOOT = re.compile(r"agent=((?:[0-9a-f]{2})+)/boot=((?:[0-9a-f]{2})+)")
_RANGE = re.compile(r"([0-9]{20})-([0-9]{20})")
_RECENT = 256
"""Identities whose part of keys is remembered: the same one stands in the keys of four objects of a batch."""


def checked(text: str, form: re.Pattern[str]) -> str:
    """Return the text if it has this form, so that it can stand in a key. Raises `InvalidKeyPart`."""
    if not form.fullmatch(text):
        raise InvalidKeyPart(f"{text[:80]!r} cannot stand in an object key: it does not have the form {form.pattern}.")
    return text


def inside(key: str, start: str, end: str) -> str:
    """What a key has between its start and its end; empty if it has others."""
    return key[len(start) : -len(end)] if key.startswith(start) and key.endswith(end) else ""


def fan_out(digest: str) -> str:
    """A hash below two folders of its first two byte pairs."""
    checked(digest, HASH)
    return f"{digest[:2]}/{digest[2:4]}/{digest}"


def parse_fan_out(part: str) -> str | None:
    """The hash of `fan_out`."""
    digest = part[-64:]
    return digest if HASH.fullmatch(digest) and part == fan_out(digest) else None


def agent_part(agent_id: str) -> str:
    """An agent, as a folder. Raises `InvalidIdentity`."""
    check_id("agent_id", agent_id)
    return f"agent={agent_id.encode().hex()}"


def boot_part(agent_id: str, boot_id: str) -> str:
    """A boot of an agent, as two folders. Raises `InvalidIdentity`."""
    check_id("boot_id", boot_id)
    return f"{agent_part(agent_id)}/boot={boot_id.encode().hex()}"


def parse_boot(part: str) -> tuple[str, str] | None:
    """The agent and the boot of `boot_part`."""
    match = _BOOT.fullmatch(part)
    if not match:
        return None
    try:
        agent_id, boot_id = (bytes.fromhex(found).decode() for found in match.groups())
        check_id("agent_id", agent_id)
        check_id("boot_id", boot_id)
    except (UnicodeDecodeError, InvalidIdentity):
        return None
    return agent_id, boot_id


@lru_cache(_RECENT)
def identity_part(identity: BatchIdentity) -> str:
    """The identity of a batch: the folders of its boot, and its range of sequence numbers with 20 digits each."""
    return f"{boot_part(identity.agent_id, identity.boot_id)}/{identity.seq_start:020}-{identity.seq_end:020}"


@lru_cache(_RECENT)
def parse_identity(part: str) -> BatchIdentity | None:
    """The identity of `identity_part`."""
    folders, _, sequences = part.rpartition("/")
    boot, match = parse_boot(folders), _RANGE.fullmatch(sequences)
    if not boot or not match:
        return None
    try:
        return BatchIdentity(*boot, int(match[1]), int(match[2]))
    except InvalidIdentity:
        return None


def parse_hour_and_hash(key: str, start: str, between: str) -> tuple[UtcHour, str] | None:
    """The hour and the hash of a key in an index by time."""
    path, _, digest = inside(key, start, ".json").rpartition(between)
    hour = UtcHour.parse(path)
    return (hour, digest) if hour and HASH.fullmatch(digest) else None
