"""The two manifests of a queue: the specification's JSON, with additional keys of ours.

Manifests that have only the specification's keys can be read: each key of ours has a default. Unknown keys are kept
when a manifest is written again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeVar

import msgspec

from lakehead.wire.errors import Unreadable

MAX_BYTES = 128 << 20
"""The largest manifest that is read or written: more than a million locations."""

MAX_APPEND_BYTES = 96 << 20
"""The largest producer manifest that an append may write, so that cleanups and orphan GC can still write theirs."""

Count = Annotated[int, msgspec.Meta(ge=0)]
Unknown = Mapping[str, msgspec.Raw]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerManifest:
    """The queued locations, in the order of their appends."""

    pending: tuple[str, ...] = ()
    version: int = 0
    """Grows with every write, so that no two states of the object are equal."""

    nonce: str = ""
    """A random value for each write."""

    gc: int = 0
    """Raised by orphan GC before it deletes: a producer that stored a batch under another number stores it again."""

    producers: Mapping[str, int] = field(default_factory=dict)
    """The number of each producer's last append, in the order of these appends."""

    forgotten: int = 0
    """How many producers were dropped from `producers` because there were too many."""

    data_path_prefix: str | None = None
    """The prefix of this queue's batches."""

    partitions: int = 0
    """The number of partitions; 0 if it is not set yet, which is read as 1."""

    partitions_version: int = 0
    """How many changes of `partitions` were started. A change that finds a higher number than its own was overtaken."""

    sealed: bool = False
    """Whether appends are refused, because the number of partitions is being changed."""

    unknown: Unknown = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode the manifest as it is stored."""
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes, where: str) -> "ProducerManifest":
        """Decode the manifest stored at the key `where`. Raises `Unreadable`."""
        return cls(**_decoded(body, _PRODUCER, f"The producer manifest {where}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerManifest:
    """The claimed locations with their owners, and the done locations."""

    claimed: Mapping[str, int] = field(default_factory=dict)
    """Claimed locations, and when each claim was last refreshed, in milliseconds since the Unix epoch."""

    done: tuple[str, ...] = ()
    version: int = 0
    nonce: str = ""
    owners: Mapping[str, str] = field(default_factory=dict)
    """The collector that owns each claim."""

    epoch: int = 0
    """How often the queue was taken over in ordered mode."""

    owner: str | None = None
    """In ordered mode, the only collector that may claim."""

    heartbeat: int = 0
    """The last heartbeat of that owner, in milliseconds since the Unix epoch."""

    acks: Mapping[str, int] = field(default_factory=dict)
    """The number of each collector's last acknowledgement or release, in the order of these writes."""

    deliveries: Mapping[str, int] = field(default_factory=dict)
    """How often each location was claimed that is not done yet."""

    bad_in_a_row: int = 0
    """How many of the last acknowledged batches in a row were unreadable and went to quarantine."""

    unknown: Unknown = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encode the manifest as it is stored."""
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes, where: str) -> "ConsumerManifest":
        """Decode the manifest stored at the key `where`. Raises `Unreadable`."""
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
"""Keys of the specification, which are written even if they are empty."""


def record_last_number(numbers: Mapping[str, int], who: str, number: int, *, limit: int) -> tuple[dict[str, int], int]:
    """Add a name's last number at the end; return the newest `limit` entries, and how many older ones were dropped."""
    kept = {name: last for name, last in numbers.items() if name != who}
    kept[who] = number
    dropped = max(0, len(kept) - limit)
    for name in list(kept)[:dropped]:
        del kept[name]
    return kept, dropped


def _encode(manifest: ProducerManifest | ConsumerManifest) -> bytes:
    written = ((each.name, getattr(manifest, each.name)) for each in fields(manifest) if each.name != "unknown")
    known = {name: value for name, value in written if value or name in _ALWAYS}
    return msgspec.json.encode({**known, **manifest.unknown})


def _decoded(body: bytes, decoders: Decoders, where: str) -> dict[str, Any]:
    if len(body) > MAX_BYTES:
        raise Unreadable(
            f"{where} has more than {MAX_BYTES:,} bytes, the limit for manifests. Check that a collector is running."
        )
    name = ""
    try:
        found = _keys.decode(body)
        known = {}
        for name, decoder in decoders.items():
            if name in found:
                known[name] = decoder.decode(found.pop(name))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        problem = f"its key {name!r} is invalid" if name else "it is not a JSON object"
        raise Unreadable(
            f"{where} cannot be read: {problem} ({error}). Nothing was changed; repair it by hand."
        ) from None
    return {**known, "unknown": {name: value.copy() for name, value in found.items()}}
