"""The value of an entry in the queue of accepted batches that are to be landed. Its key is the accepted key."""

from typing import Literal

import msgspec

from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.errors import NewerFormat, Unreadable
from lakehead.wire.stored_record import Count, Sha256

VERSION = 1
MAX_BYTES = 4 << 10


class LandingEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a landing wants to know of an accepted batch before it reads it. Extra keys are tolerated."""

    version: Literal[1] = 1
    kind: str = ""
    """`samples` or `logs`; empty if it is not known, then the frame's header says it."""

    frame_sha256: Sha256
    frame_bytes: Count

    @classmethod
    def of(cls, manifest: IdentityManifest) -> "LandingEntry":
        """The entry of an accepted batch."""
        return cls(kind=manifest.kind, frame_sha256=manifest.frame_sha256, frame_bytes=manifest.frame_bytes)

    def encode(self) -> bytes:
        """Encode the entry's value."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, value: bytes, key: str) -> "LandingEntry":
        """Decode the value of the entry with this key. Raises `NewerFormat` and `Unreadable`."""
        if len(value) > MAX_BYTES:
            raise Unreadable(f"The queue entry of {key} has {len(value):,} bytes; none has more than {MAX_BYTES:,}.")
        try:
            if (version := msgspec.json.decode(value, type=_Versioned).version) > VERSION:
                raise NewerFormat(f"The queue entry of {key} has the version {version}. Update Lakehead.")
            return msgspec.json.decode(value, type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise Unreadable(f"The queue entry of {key} cannot be read ({error}). Put it on the queue again.") from None


class _Versioned(msgspec.Struct):
    version: int = VERSION
