"""What every part of the buffer depends on, passed in together."""

from dataclasses import dataclass, field

from lakehead.buffer.counts import BufferCounts
from lakehead.buffer.retry_policies import BufferRetries
from lakehead.clock import Clock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.storage.port import Store
from lakehead.storage.probed_store import ProbedStore


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferDeps:
    """Store, clock, ids and randomness; the counts to update; and the retry policies."""

    store: Store
    clock: Clock
    ids: Ids
    random: Random
    counts: BufferCounts = field(default_factory=BufferCounts)
    retries: BufferRetries = field(default_factory=BufferRetries)

    async def ensure_store_probed(self) -> None:
        """Probe a store that was opened by its URL, once per process; a store that was passed in is not probed.

        Raises `Misconfigured` if it does not honour preconditions, and `Unavailable` if it could not be probed.
        """
        if isinstance(self.store, ProbedStore):
            await self.store.ensure_probed()

    async def retry_create(self, key: str, body: bytes) -> None:
        """Create an object that no other writer creates with other content, again if the outcome is unknown.

        It is no error if it exists: an earlier attempt has created it. Raises `Unavailable` or `OutcomeUnknown`.
        """
        await self.retries.idempotent_writes.call(
            lambda: self.store.create(key, body), self.clock, self.random, on=(Unavailable, OutcomeUnknown)
        )
