"""The two manifests of a queue as they are stored: the JSON of the specification, and keys of ours beside it.

A manifest made by hand from the specification is read: each key of ours has a value that means "absent". Keys that
we do not know are kept as they are when a manifest is written again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeVar

import msgspec

from lakehead.wire.errors import Unreadable

MAX_BYTES = 128 << 20
"""A manifest larger than this is neither read nor written: more than a million locations."""

MAX_APPEND_BYTES = 96 << 20
"""Nothing is appended that would make a producer manifest larger than this, so that everybody can still read it and
write what is no append: clean-ups, a new `gc` number."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Unknown = Mapping[str, msgspec.Raw]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerManifest:
    """What is queued, in the order of its appends."""

    pending: tuple[str, ...] = ()
    version: int = 0
    """Grows with every write of ours, so that no two states of the object look alike."""

    nonce: str = ""
    """Drawn for each write."""

    gc: int = 0
    """Raised before orphan batches are deleted: whoever stored a batch under another number stores it again."""

    producers: Mapping[str, int] = field(default_factory=dict)
    """The number of each producer's last append, the longest silent producer first."""

    forgotten: int = 0
    """How many producers have been dropped from `producers` because there were too many."""

    data_path_prefix: str | None = None
    """Below which the batches of this queue lie."""

    partitions: int = 0
    """How many pairs of manifests the queue has; 0 where nobody has said so yet, which is read as 1."""

    partitions_version: int = 0
    """How often somebody began to change `partitions`. Who meets a higher number than its own was overtaken."""

    sealed: bool = False
    """Whether nothing may be appended, because the number of partitions is being changed."""

    unknown: Unknown = field(default_factory=dict)

    def encode(self) -> bytes:
        """As it is stored."""
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes, where: str) -> "ProducerManifest":
        """What is stored at a key. Raises `Unreadable`."""
        return cls(**_decoded(body, _PRODUCER, f"The producer manifest {where}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerManifest:
    """What is being worked on, by whom, and what is done."""

    claimed: Mapping[str, int] = field(default_factory=dict)
    """Claimed locations, and when each claim was last refreshed, in milliseconds since the Unix epoch."""

    done: tuple[str, ...] = ()
    version: int = 0
    nonce: str = ""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Whose each claim is."""

    epoch: int = 0
    """How often the queue was taken over in ordered mode."""

    owner: str | None = None
    """Who alone may claim, where the queue is read in order."""

    heartbeat: int = 0
    """When that owner was last heard of, in milliseconds since the Unix epoch."""

    acks: Mapping[str, int] = field(default_factory=dict)
    """The number of each collector's last acknowledgement or release, the longest silent collector first."""

    deliveries: Mapping[str, int] = field(default_factory=dict)
    """How often each location was claimed that is not done yet."""

    bad_in_a_row: int = 0
    """How many of the batches that were acknowledged last could not be read and were set aside."""

    unknown: Unknown = field(default_factory=dict)

    def encode(self) -> bytes:
        """As it is stored."""
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes, where: str) -> "ConsumerManifest":
        """What is stored at a key. Raises `Unreadable`."""
        return cls(**_decoded(body, _CONSUMER, f"The consumer manifest {where}"))


Manifest = TypeVar("Manifest", ProducerManifest, ConsumerManifest)
Decoders = Mapping[str, "msgspec.json.Decoder[Any]"]

_keys = msgspec.json.Decoder(dict[str, msgspec.Raw])
_locations = msgspec.json.Decoder(tuple[str, ...])
_count = msgspec.json.Decoder(Count)
_counts = msgspec.json.Decoder(dict[str, Count])
_text = msgspec.json.Decoder(str)

_PRODUCER: Decoders = {
    "pending": _locations,
    "version": _count,
    "nonce": _text,
    "gc": _count,
    "producers": _counts,
    "forgotten": _count,
    "data_path_prefix": msgspec.json.Decoder(str | None),
    "partitions": msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0, le=4096)]),
    "partitions_version": _count,
    "sealed": msgspec.json.Decoder(bool),
}
_CONSUMER: Decoders = {
    "claimed": msgspec.json.Decoder(dict[str, int]),
    "done": _locations,
    "version": _count,
    "nonce": _text,
    "owners": msgspec.json.Decoder(dict[str, str]),
    "epoch": _count,
    "owner": msgspec.json.Decoder(str | None),
    "heartbeat": msgspec.json.Decoder(int),
    "acks": _counts,
    "deliveries": _counts,
    "bad_in_a_row": _count,
}
_ALWAYS = ("pending", "claimed", "done")
"""What the specification has is written even when it is empty."""


def remember(numbers: Mapping[str, int], who: str, number: int, *, most: int) -> tuple[dict[str, int], int]:
    """Note somebody's last number as the newest of all; what is kept, and how many of the oldest were dropped."""
    kept = {name: last for name, last in numbers.items() if name != who}
    kept[who] = number
    dropped = max(0, len(kept) - most)
    for name in list(kept)[:dropped]:
        del kept[name]
    return kept, dropped


def _encode(manifest: ProducerManifest | ConsumerManifest) -> bytes:
    written = ((each.name, getattr(manifest, each.name)) for each in fields(manifest) if each.name != "unknown")
    known = {name: value for name, value in written if value or name in _ALWAYS}
    return msgspec.json.encode({**known, **manifest.unknown})


def _decoded(body: bytes, decoders: Decoders, where: str) -> dict[str, Any]:
    if len(body) > MAX_BYTES:
        raise Unreadable(f"{where} has {len(body):,} bytes, more than are read. Is a collector running?")
    name = ""
    try:
        found = _keys.decode(body)
        known = {}
        for name, decoder in decoders.items():
            if name in found:
                known[name] = decoder.decode(found.pop(name))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = f"its {name!r} is no such thing" if name else "it is no JSON object"
        raise Unreadable(f"{where} cannot be read: {what} ({error}). Nothing was changed; repair it by hand.") from None
    return {**known, "unknown": {name: value.copy() for name, value in found.items()}}
