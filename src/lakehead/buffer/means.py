"""What every part of the buffer works with."""

from dataclasses import dataclass, field

from lakehead.buffer.counts import Counts
from lakehead.clock import Clock
from lakehead.ids import Ids, Random
from lakehead.storage.port import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """A store, time, ids and chance, passed in together; and where to count what was done."""

    store: Store
    clock: Clock
    ids: Ids
    random: Random
    counts: Counts = field(default_factory=Counts)
