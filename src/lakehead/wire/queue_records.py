"""The small JSON objects of a queue: the owner of a prefix, and the note on a quarantined batch."""

from typing import TypeVar

import msgspec

from lakehead.wire.errors import Unreadable


class PrefixOwnerRecord(msgspec.Struct, frozen=True):
    """The queue that owns a prefix."""

    manifest_path: str

    def encode(self) -> bytes:
        """Encode the record as it is stored."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, body: bytes, key: str) -> "PrefixOwnerRecord":
        """Decode the record stored at a key. Raises `Unreadable`."""
        return _decoded(body, cls, f"{key}, which names the queue that owns the prefix,")


class QuarantineNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why and when a batch was moved to quarantine, and where its bytes are."""

    location: str
    reason: str
    at_ms: int
    """By the collector's clock, in milliseconds since the Unix epoch."""

    keys: list[str] = []
    """The keys of the copy: none if the object was missing, several if it was copied in parts."""

    def encode(self) -> bytes:
        """Encode the note as it is stored."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, body: bytes, key: str) -> "QuarantineNote":
        """Decode the note stored at a key. Raises `Unreadable`."""
        return _decoded(body, cls, f"The quarantine note {key}")


T = TypeVar("T")


def _decoded(body: bytes, kind: type[T], described: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(f"{described} cannot be read ({error}). Repair it by hand.") from None
