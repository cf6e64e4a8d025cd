"""What every part of the buffer works with."""

from dataclasses import dataclass, field

from lakehead.buffer.counts import Counts
from lakehead.clock import Clock
from lakehead.ids import Ids, Random
from lakehead.storage.port import Store
from lakehead.storage.proven import Proven


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """A store, time, ids and chance, passed in together; and where to count what was done."""

    store: Store
    clock: Clock
    ids: Ids
    random: Random
    counts: Counts = field(default_factory=Counts)

    async def prove(self) -> None:
        """Probe a store that was opened by its URL, once in this process; a store that was passed in is trusted.

        Raises `Misconfigured` if it does not honour preconditions, and `Unavailable` if it could not be probed.
        """
        if isinstance(self.store, Proven):
            await self.store.prove()
