"""Conflicts: frames that contradict what was accepted, as gateways record them and operators see them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, cast

from lakehead.accept.acceptance import Conflict
from lakehead.accept.record_file import read_record
from lakehead.clock import Clock
from lakehead.errors import Misconfigured
from lakehead.ids import Ids
from lakehead.storage.port import ListedObject, Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import (
    ConflictResolution,
    OverlapManifest,
    QuarantinedIdentity,
    QuarantineManifest,
)
from lakehead.wire.errors import Unreadable
from lakehead.wire.index_records import QuarantineByBlob

ConflictKind = Literal["identity_conflict", "overlap"]
"""`identity_conflict`: a frame came under an identity that was accepted with another hash, and is not accepted.
`overlap`: some records of an accepted batch did not land, because another one has others under their numbers."""

KINDS: tuple[ConflictKind, ...] = ("identity_conflict", "overlap")
"""All kinds, in the order of their folders."""

AT_ONCE = 16
"""Conflicts that are read at the same time."""

MOST_BYTES = 8 << 20
"""How large the quarantine manifests of a page are together, at most, unless it has only one."""


class NoSuchConflict(Misconfigured):
    """Correct the identity or the hash: no frame with this hash is in quarantine under this identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedConflict:
    """A conflict or an overlap, with what was decided about it."""

    key: str
    """The key of its quarantine manifest."""

    kind: ConflictKind
    identity: BatchIdentity
    submitted_sha256: str
    """The hash of the frame that is in quarantine."""

    manifest: QuarantineManifest | OverlapManifest | None
    """None if it cannot be read."""

    resolution: ConflictResolution | None
    """None if nothing was decided, or what was cannot be read."""

    problem: str = ""
    """Why the manifest or the resolution cannot be read, and what to do; empty if they can."""


@dataclass(frozen=True, slots=True)
class ConflictPage:
    """Some conflicts, in the order of their keys."""

    conflicts: tuple[ListedConflict, ...]
    next_after: str | None
    """What to list after to get the next page; None if this is the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflicts:
    """The conflicts of one acceptance authority."""

    store: Store
    clock: Clock
    ids: Ids
    collector_id: str

    async def record(self, conflict: Conflict) -> None:
        """Store a conflict's quarantine manifest and its reverse reference, unless they exist: the first stays.

        The submitted blob is stored already. Raises `Unavailable` and `OutcomeUnknown`; repeating it is safe.
        """
        await self.quarantine(conflict.manifest, conflict.submission.sha256)

    async def quarantine(self, accepted: IdentityManifest, submitted_sha256: str) -> None:
        """Store that a frame contradicts an accepted batch, as `record` does.

        The reference comes last: a frame with one is taken to be in quarantine, and not looked at again.
        """
        manifest = QuarantineManifest.of(
            accepted,
            submitted_sha256,
            observed_at_unix_ns=self.clock.now_ns(),
            collector_id=self.collector_id,
            nonce=self.ids.uuid(),
        )
        reference = QuarantineByBlob.of(manifest)
        await self.store.create(manifest.key, manifest.encode())
        await self.store.create(reference.key, reference.encode())

    async def list(
        self, *, agent_id: str | None = None, kind: ConflictKind | None = None, after: str = "", limit: int = 100
    ) -> ConflictPage:
        """List conflicts and overlaps in the order of their keys: of an agent or all, of a kind or both.

        A page has `limit` of them, and fewer if their manifests are large. `after` is the `next_after` of the page
        before. Raises `Misconfigured` if it is not, and `Unavailable`.
        """
        if limit < 1:
            raise Misconfigured(f"A page of conflicts cannot have {limit}. Ask for 1 or more.")
        if after and not (keys.parse_identity_conflict(after) or keys.parse_overlap(after)):
            raise Misconfigured(f"Conflicts cannot be listed after {after[:80]!r}. Use the last page's next_after.")
        found: list[_Place] = []
        for each in KINDS:
            if kind in (None, each):
                found += await self._places(each, agent_id, after, most=limit + 1 - len(found))
        shown = _bounded(found[:limit])
        conflicts: list[ListedConflict] = []
        for start in range(0, len(shown), AT_ONCE):
            some = shown[start : start + AT_ONCE]
            conflicts += [each for each in await asyncio.gather(*map(self._read, some)) if each is not None]
        return ConflictPage(tuple(conflicts), shown[-1].key if len(found) > len(shown) else None)

    async def show(self, identity: BatchIdentity, submitted_sha256: str) -> ListedConflict:
        """Return one conflict or overlap. Raises `NoSuchConflict` and `Unavailable`."""
        places = (
            _Place(keys.identity_conflict(identity, submitted_sha256), "identity_conflict", identity, submitted_sha256),
            _Place(keys.overlap(identity, submitted_sha256), "overlap", identity, submitted_sha256),
        )
        for place in places:
            if (found := await self._read(place)) is not None:
                return found
        raise NoSuchConflict(
            f"No frame with the hash {submitted_sha256} is in quarantine under {keys.accepted(identity)}. "
            "List the conflicts: `lakehead conflicts list CONFIG`."
        )

    async def resolution(self, identity: BatchIdentity, submitted_sha256: str) -> ConflictResolution | None:
        """Return what was decided about one submitted frame; None if nothing was.

        Raises `Unavailable`, and `Unreadable` if it is damaged: then nobody may drop the frame.
        """
        return await read_record(ConflictResolution, keys.resolution(identity, submitted_sha256), self.store)

    async def quarantine_of(self, agent_id: str, boot_id: str) -> QuarantinedIdentity | None:
        """Return whether a boot of an agent is in quarantine or was released; None if it never was in it.

        Raises `Unavailable` and `Unreadable`.
        """
        return await read_record(QuarantinedIdentity, keys.quarantined_identity(agent_id, boot_id), self.store)

    async def _places(self, kind: ConflictKind, agent_id: str | None, after: str, *, most: int) -> "Sequence[_Place]":
        """The first places of a kind after a key, `most` at most."""
        folder, parse = _folder(kind, agent_id)
        if after > folder and not after.startswith(f"{folder}/"):
            return ()  # every key of the folder comes before
        found: list[_Place] = []
        listing = self.store.list(folder, start_after=after if after > folder else "")
        # All adapters' listings are generators; one that is not exhausted would be closed by a task of asyncio.
        async with aclosing(cast("AsyncGenerator[Sequence[ListedObject], None]", listing)) as pages:
            async for page in pages:
                found += [_Place(each.key, kind, *parsed, each.size) for each in page if (parsed := parse(each.key))]
                if len(found) >= most:
                    break
        return found[:most]

    async def _read(self, place: "_Place") -> ListedConflict | None:
        """Read one conflict; None if there is none."""
        manifest: QuarantineManifest | OverlapManifest | None = None
        resolution: ConflictResolution | None = None
        problems: list[str] = []
        try:
            if place.kind == "identity_conflict":
                manifest = await read_record(QuarantineManifest, place.key, self.store)
            else:
                manifest = await read_record(OverlapManifest, place.key, self.store)
            if manifest is None:
                return None
        except Unreadable as error:
            problems.append(str(error))
        try:
            resolution = await self.resolution(place.identity, place.submitted_sha256)
        except Unreadable as error:
            problems.append(str(error))
        return ListedConflict(
            key=place.key,
            kind=place.kind,
            identity=place.identity,
            submitted_sha256=place.submitted_sha256,
            manifest=manifest,
            resolution=resolution,
            problem=" ".join(problems),
        )


@dataclass(frozen=True, slots=True)
class _Place:
    key: str
    kind: ConflictKind
    identity: BatchIdentity
    submitted_sha256: str
    size: int = 0
    """Of its object, in bytes, as it was listed."""


def _bounded(places: Sequence[_Place]) -> Sequence[_Place]:
    """The first of some places, whose objects are not too large together; at least one, if there is one."""
    sizes = accumulate(min(each.size, OverlapManifest.MAX_BYTES) for each in places)
    return places[: max(1, sum(size <= MOST_BYTES for size in sizes))]


def _folder(kind: ConflictKind, agent_id: str | None) -> tuple[str, Callable[[str], tuple[BatchIdentity, str] | None]]:
    if kind == "identity_conflict":
        return keys.identity_conflicts_folder(agent_id), keys.parse_identity_conflict
    return keys.overlaps_folder(agent_id), keys.parse_overlap
