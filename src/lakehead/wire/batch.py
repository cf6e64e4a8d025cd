"""A batch of key-value entries as it is stored: the JSON of the specification, or the compact format."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from lakehead.wire.errors import Unreadable

MIB = 1 << 20


class KeyValueEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry. Both parts are opaque bytes, kept as they are."""

    key: bytes
    value: bytes

    @property
    def size(self) -> int:
        """The bytes of both parts."""
        return len(self.key) + len(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one batch may ask of its reader's memory."""

    stored_bytes: int = 512 * MIB
    """Bytes of the object."""

    entry_bytes: int = 256 * MIB
    """Bytes of all keys and values, decoded."""

    entries: int = 4_000_000


_entries = msgspec.json.Decoder(list[KeyValueEntry])


def encode_json(entries: Sequence[KeyValueEntry]) -> bytes:
    """A batch as the specification has it: a JSON array of objects, keys and values in base64."""
    return msgspec.json.encode(entries)


def decode_json(body: bytes, limits: Limits) -> list[KeyValueEntry]:
    """The entries of a JSON batch. Raises `Unreadable`."""
    # The shortest entry there is takes 22 bytes, so a body's size bounds what it can ask for.
    check_stored(body, limits)
    try:
        entries = _entries.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"The batch is no JSON array of key-value entries ({error}).") from None
    check_counts(len(entries), sum(entry.size for entry in entries), limits)
    return entries


def check_stored(body: bytes, limits: Limits) -> None:
    """Raise `Unreadable` for a body that is larger than the limits."""
    if len(body) > limits.stored_bytes:
        raise Unreadable(f"The batch has {len(body):,} bytes, more than the {limits.stored_bytes:,} that are read.")


def check_counts(entries: int, entry_bytes: int, limits: Limits) -> None:
    """Raise `Unreadable` where a batch holds, or says that it holds, more than the limits."""
    if entries > limits.entries:
        raise Unreadable(f"The batch says {entries:,} entries, more than the {limits.entries:,} that are read.")
    if entry_bytes > limits.entry_bytes:
        raise Unreadable(
            f"The entries of the batch have {entry_bytes:,} bytes, more than the {limits.entry_bytes:,} that are read."
        )
