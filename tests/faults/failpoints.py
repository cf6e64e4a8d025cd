"""Named moments of a landing at which a test can act: kill the process, hold it, or let others go first.

They are wraps around the ports of the protocol, so production code knows nothing of them. Each step has a moment just
before it and one just after it: `before publish`, `after publish`.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from pyiceberg.catalog import Catalog

from lakehead.lake.landing import Fence, Head, NewWatermark, Pointer, Snapshot, SnapshotId, Unit, UnitRemainder
from lakehead.lake.merge import MergeStager
from lakehead.lake.ports import Ledger, Staged, Stager, Table
from lakehead.lake.protocol import Lander
from lakehead.lake.staged_rows import Branch
from lakehead.lake.state_progress import StateProgress
from lakehead.state.model import Watermark

Reach = Callable[[str], None]
"""Called at each moment with its name."""

COMMIT_STEPS = {"commit_table": "commit", "_write_metadata": "metadata file"}
"""What a catalog does inside of a publication: manifests are written before the first, and the second is in it."""


class Deadly:
    """Kills the process at one moment, named or counted from 1. `tell` hears of it first."""

    def __init__(self, at: str | int, tell: Callable[[str], None]) -> None:
        self._at = at
        self._tell = tell
        self._count = 0

    def __call__(self, moment: str) -> None:
        self._count += 1
        if self._at in (moment, self._count):
            self._tell(moment)
            die()


class Once:
    """Does something the first time that a moment comes."""

    def __init__(self, moment: str, action: Callable[[], object]) -> None:
        self._moment: str | None = moment
        self._action = action

    def __call__(self, moment: str) -> None:
        if moment == self._moment:
            self._moment = None  # what it does may come by here itself
            self._action()

    @property
    def came(self) -> bool:
        return self._moment is None


def die() -> None:
    """Go as in a power cut: nothing is closed, flushed or told."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def around(step: str, reach: Reach) -> Iterator[None]:
    reach(f"before {step}")
    yield
    reach(f"after {step}")


def with_failpoints(lander: Lander[Any], reach: Reach) -> Lander[Any]:
    """The same lander, with a moment before and after everything that lasts."""
    stager = lander.stager
    return replace(
        lander,
        table=WatchedTable(lander.table, reach),
        progress=WatchedProgress(cast(StateProgress, lander.progress), reach),
        ledger=WatchedLedger(lander.ledger, reach),
        stager=watched_merge(stager, reach) if isinstance(stager, MergeStager) else WatchedStager(stager, reach),
        audits=[lambda _: reach("before audit"), *lander.audits, lambda _: reach("after audit")],
    )


def watch_commits(catalog: Catalog, reach: Reach) -> None:
    """Moments inside of a commit, for as long as this catalog is open."""
    for method, step in COMMIT_STEPS.items():
        if hasattr(catalog, method):
            setattr(catalog, method, _watched(getattr(catalog, method), step, reach))


def _watched(call: Callable[..., Any], step: str, reach: Reach) -> Callable[..., Any]:
    def watched(*args: Any, **kwargs: Any) -> Any:
        with around(step, reach):
            return call(*args, **kwargs)

    return watched


@dataclass(frozen=True)
class WatchedTable:
    inner: Table[Any]
    reach: Reach

    @property
    def uuid(self) -> str:
        return self.inner.uuid

    async def head(self) -> Head:
        return await self.inner.head()

    async def history(self, after: SnapshotId | None, upto: SnapshotId | None) -> Sequence[Snapshot]:
        return await self.inner.history(after, upto)

    async def publish(self, staged: Staged[Any], at: Head) -> Head:
        with around("publish", self.reach):
            return await self.inner.publish(staged, at)


@dataclass(frozen=True)
class WatchedProgress:
    inner: StateProgress
    reach: Reach

    def take(self, table: str, units: Sequence[Unit]) -> list[Unit]:
        with around("take", self.reach):
            return self.inner.take(table, units)

    async def pointer(self, table: str) -> Pointer:
        return await self.inner.pointer(table)

    async def settle(self, table: str, *, seen: Pointer, to: Pointer, snapshots: Sequence[Snapshot]) -> bool:
        with around("settle", self.reach):
            return await self.inner.settle(table, seen=seen, to=to, snapshots=snapshots)

    async def watermark(self, table: str) -> Watermark | None:
        return await self.inner.watermark(table)

    async def plan(self, table: str, *, at: SnapshotId | None, units: Sequence[Unit]) -> Sequence[UnitRemainder] | None:
        with around("plan", self.reach):
            return await self.inner.plan(table, at=at, units=units)


@dataclass(frozen=True)
class WatchedLedger:
    inner: Ledger
    reach: Reach

    async def record(self, table: str, snapshot: Snapshot) -> None:
        with around("record", self.reach):
            await self.inner.record(table, snapshot)


@dataclass(frozen=True)
class WatchedStager:
    inner: Stager[Any]
    reach: Reach

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[Any]:
        with around("stage", self.reach):
            return await self.inner.stage(remainders, token=token, new_watermark=new_watermark, fence=fence)

    def is_publishable_at(self, staged: Staged[Any], at: Head) -> bool:
        return self.inner.is_publishable_at(staged, at)

    async def is_still_stored(self, staged: Staged[Any]) -> bool:
        return await self.inner.is_still_stored(staged)

    async def discard(self, staged: Staged[Any]) -> None:
        await self.inner.discard(staged)


@dataclass(frozen=True, kw_only=True)
class WatchedMerge(MergeStager):
    """A merge whose pieces are moments of their own: the branch made, merged into and looked at."""

    reach: Reach

    def create(self, at: Head) -> str:
        with around("create", self.reach):
            return super().create(at)

    def run(self, branch: str, properties: Mapping[str, str], remainders: Sequence[UnitRemainder]) -> None:
        with around("run", self.reach):
            super().run(branch, properties, remainders)

    def audited(self, branch: str, at: Head, properties: Mapping[str, str]) -> Branch:
        with around("audited", self.reach):
            return super().audited(branch, at, properties)


def watched_merge(stager: MergeStager, reach: Reach) -> WatchedMerge:
    return WatchedMerge(**{each.name: getattr(stager, each.name) for each in fields(stager)}, reach=reach)
