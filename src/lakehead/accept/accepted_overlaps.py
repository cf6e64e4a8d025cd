"""Accepted batches with common sequence numbers, found by their keys: also those whose common records are equal."""

from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from lakehead.errors import Misconfigured
from lakehead.storage.port import ListedObject, Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid, decode_at_identity
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import Unreadable
from lakehead.wire.key_parts import agent_part

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

MOST_KEYS = 20_000
"""Keys that are looked at for one page. What is left is on the next, also if nothing was found."""

MOST_READS = 500
"""Manifests that are read for one page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlappingBatch:
    """One of two batches with common sequence numbers."""

    identity: BatchIdentity
    frame_sha256: str
    """Empty if its identity manifest cannot be read."""

    is_quarantined: bool = False
    """Whether a pipeline has found that some of its records differ from those that landed, or could not be compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedOverlap:
    """Two accepted batches of a boot with common sequence numbers."""

    first: OverlappingBatch
    """Of all batches before the other one, the one with the highest last number."""

    second: OverlappingBatch

    @property
    def common(self) -> tuple[int, int]:
        """The first and the last sequence number that both have."""
        one, other = self.first.identity, self.second.identity
        return other.seq_start, min(one.seq_end, other.seq_end)


@dataclass(frozen=True, slots=True)
class OverlapPage:
    """Some overlaps, by agent, boot and sequence number."""

    overlaps: tuple[AcceptedOverlap, ...]
    next_after: str | None
    """What to list after to get the next page, which may have none; None if this is the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedOverlaps:
    """The overlaps of one acceptance authority. Nothing is written: the keys of accepted batches tell them."""

    store: Store
    most_keys: int = MOST_KEYS
    most_reads: int = MOST_READS

    async def list(self, *, agent_id: str | None = None, after: str = "", limit: int = 100) -> OverlapPage:
        """List overlaps, of an agent or of all. Every batch that overlaps another is in one of them at least.

        `after` is the `next_after` of the page before. Raises `Misconfigured` if it is not, and `Unavailable`.
        """
        folder = keys.ACCEPTED if agent_id is None else f"{keys.ACCEPTED}/{agent_part(agent_id)}"
        last, reaching = _parsed(after) if after else ("", None)
        if after and not last.startswith(f"{folder}/"):
            raise Misconfigured("Overlaps cannot be listed after a batch of another agent. Use the page's next_after.")
        scan = _Scan(self.store, reaching)
        seen = 0
        listing = self.store.list(folder, start_after=last)
        async with aclosing(cast("AsyncGenerator[Sequence[ListedObject], None]", listing)) as pages:
            async for page in pages:
                for each in page:
                    if seen and (len(scan.found) >= limit or seen >= self.most_keys or scan.reads >= self.most_reads):
                        return OverlapPage(tuple(scan.found), _place(last, scan.reaching))
                    seen, last = seen + 1, each.key
                    if (identity := keys.parse_accepted(last)) is not None:
                        await scan.look_at(identity)
        return OverlapPage(tuple(scan.found), None)


@dataclass(slots=True)
class _Scan:
    """Looks at the batches of boots in the order of their keys. Voids are no batches, which only reading tells."""

    store: Store
    reaching: BatchIdentity | None
    """What has the highest last number so far. As long as it was not read, nothing before it reaches as far as its
    first number: if it is void, nothing else is forgotten with it."""

    batch: OverlappingBatch | None = None
    """What was read of it; None if nothing was."""

    found: list[AcceptedOverlap] = field(default_factory=list)
    reads: int = 0

    async def look_at(self, identity: BatchIdentity) -> None:
        if self.reaching is None or not self.reaching.overlaps(identity):
            self.reaching, self.batch = identity, None
            return
        first = self.batch = self.batch or await self._read(self.reaching)
        if first is None:
            self.reaching = identity
        elif (second := await self._read(identity)) is not None:
            self.found.append(AcceptedOverlap(first=await self._judged(first), second=await self._judged(second)))
            if identity.seq_end > self.reaching.seq_end:
                self.reaching, self.batch = identity, second

    async def _read(self, identity: BatchIdentity) -> OverlappingBatch | None:
        """Read what stands at an identity's key; None if it is void, or gone."""
        self.reads += 1
        stored = await self.store.get(keys.accepted(identity), end=IdentityManifest.MAX_BYTES + 1)
        if stored is None:
            return None
        try:
            record = decode_at_identity(stored.body, identity)
        except Unreadable:
            return OverlappingBatch(identity=identity, frame_sha256="")
        return (
            None
            if isinstance(record, IdentityVoid)
            else OverlappingBatch(identity=identity, frame_sha256=record.frame_sha256)
        )

    async def _judged(self, batch: OverlappingBatch) -> OverlappingBatch:
        """The batch, and whether it is in quarantine."""
        if not batch.frame_sha256:
            return batch
        self.reads += 1
        there = await self.store.head(keys.overlap(batch.identity, batch.frame_sha256))
        return replace(batch, is_quarantined=there is not None)


def _place(last: str, reaching: BatchIdentity | None) -> str:
    return f"{last}~{'' if reaching is None else keys.accepted(reaching)}"


def _parsed(place: str) -> tuple[str, BatchIdentity | None]:
    """The last key that was looked at, also if it is no identity's, and the batch before it that reaches farthest."""
    last, separator, key = place.rpartition("~")
    reaching = keys.parse_accepted(key)
    if not separator or (key and reaching is None):
        raise Misconfigured(f"Overlaps cannot be listed after {place[:80]!r}. Use the last page's next_after.")
    return last, reaching
