"""Which batches have an open repair: read once, and again only what has changed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from lakehead.accept.record_file import read_record
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import Unreadable
from lakehead.wire.maintenance_records import BatchRepair, BlobProblem

AT_ONCE = 16


@dataclass(slots=True)
class OpenRepairs:
    """The open repairs of an authority, as of the last `refresh`. There are few, or something is very wrong."""

    store: Store
    unreadable: dict[str, str] = field(default_factory=dict)
    """Why a record cannot be read, by its key."""

    _open: dict[BatchIdentity, BlobProblem] = field(default_factory=dict)
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The time and size of each record that was read, by its key."""

    async def refresh(self) -> None:
        """Read what has changed. Raises `Unavailable`."""
        gone = set(self._seen)
        async for page in self.store.list(keys.REPAIRS):
            gone.difference_update(each.key for each in page)
            changed = [each for each in page if self._seen.get(each.key) != (each.modified_ns, each.size)]
            for first in range(0, len(changed), AT_ONCE):
                some = changed[first : first + AT_ONCE]
                await asyncio.gather(*(self._read(each.key) for each in some))
                self._seen.update({each.key: (each.modified_ns, each.size) for each in some})
        for key in gone:  # deleted by hand
            self._seen.pop(key, None)  # another pass may have noticed it meanwhile
            self.unreadable.pop(key, None)
            if (identity := keys.parse_repair(key)) is not None:
                self.changed(identity, None)

    def is_open(self, identity: BatchIdentity) -> bool:
        """Return whether the frame of a batch was missing or corrupt, and is not known to be right again."""
        return identity in self._open

    def identities(self) -> Sequence[BatchIdentity]:
        """Return the batches with open repairs, the one that was looked at longest ago first."""
        return tuple(self._open)

    def count(self, problem: BlobProblem) -> int:
        """Return how many frames have this problem."""
        return tuple(self._open.values()).count(problem)  # a copy: metrics are served by another thread

    def looked_at(self, identity: BatchIdentity) -> None:
        """Look at the others first from now on."""
        if (problem := self._open.pop(identity, None)) is not None:
            self._open[identity] = problem

    def changed(self, identity: BatchIdentity, problem: BlobProblem | None) -> None:
        """Note what a record says since a moment: which problem, or None that it is healed."""
        self._open.pop(identity, None)
        if problem is not None:
            self._open[identity] = problem

    async def _read(self, key: str) -> None:
        identity = keys.parse_repair(key)
        if identity is None:
            return
        self.unreadable.pop(key, None)
        try:
            record = await read_record(BatchRepair, key, self.store)
        except Unreadable as error:
            self.unreadable[key] = str(error)
            return
        self.changed(identity, record.problem if record is not None and record.state == "open" else None)
