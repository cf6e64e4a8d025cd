"""Batches of key-value entries: the specification's JSON format, and what both formats share."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from lakehead.wire.errors import Unreadable

MIB = 1 << 20


class KeyValueEntry(msgspec.Struct, frozen=True, gc=False):
    """A key and a value, both opaque bytes."""

    key: bytes
    value: bytes

    @property
    def size(self) -> int:
        """The size of key and value in bytes."""
        return len(self.key) + len(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits on the batches that are read, to bound a reader's memory."""

    stored_bytes: int = 512 * MIB
    """Size of the stored object."""

    entry_bytes: int = 256 * MIB
    """Size of all keys and values together, decoded."""

    entries: int = 4_000_000


_entries = msgspec.json.Decoder(list[KeyValueEntry])


def encode_json(entries: Sequence[KeyValueEntry]) -> bytes:
    """Encode a batch in the specification's format: a JSON array of objects, with keys and values in base64."""
    return msgspec.json.encode(entries)


def decode_json(body: bytes, limits: BatchLimits) -> list[KeyValueEntry]:
    """Decode a JSON batch. Raises `Unreadable`."""
    # The shortest possible entry has 22 bytes, so the size of the body bounds the memory needed.
    check_stored(body, limits)
    try:
        entries = _entries.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"The batch is not a JSON array of key-value entries ({error}).") from None
    check_counts(len(entries), sum(entry.size for entry in entries), limits)
    return entries


def check_stored(body: bytes, limits: BatchLimits) -> None:
    """Raise `Unreadable` if the body exceeds the limits."""
    if len(body) > limits.stored_bytes:
        raise Unreadable(f"The batch has {len(body):,} bytes; the limit is {limits.stored_bytes:,}.")


def check_counts(entries: int, entry_bytes: int, limits: BatchLimits) -> None:
    """Raise `Unreadable` if the numbers of a batch, found or declared in its header, exceed the limits."""
    if entries > limits.entries:
        raise Unreadable(f"The batch has {entries:,} entries; the limit is {limits.entries:,}.")
    if entry_bytes > limits.entry_bytes:
        raise Unreadable(f"The entries of the batch have {entry_bytes:,} bytes; the limit is {limits.entry_bytes:,}.")
