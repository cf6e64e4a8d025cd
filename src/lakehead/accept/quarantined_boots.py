"""Which boots of agents are in quarantine: a gateway accepts nothing more under those."""

import asyncio
import logging

from lakehead.accept.cached_copy import CachedCopy
from lakehead.accept.record_file import read_record
from lakehead.clock import Clock
from lakehead.errors import Unavailable
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.conflict_records import QuarantinedIdentity
from lakehead.wire.errors import Unreadable

LOG = logging.getLogger(__name__)
AT_ONCE = 16
"""Records that are read at the same time."""


class QuarantinedBoots:
    """A gateway's copy of the quarantine, read every 30 s and at most 5 minutes old."""

    def __init__(self, store: Store, clock: Clock, *, most: int = 100_000) -> None:
        self._store = store
        self._most = most
        self._copy = CachedCopy(load=self._load, clock=clock, name="the quarantined identities")

    def is_quarantined(self, agent_id: str, boot_id: str) -> bool:
        """Return whether a boot of an agent is in quarantine. Raises `Unavailable` if the copy is too old."""
        return (agent_id, boot_id) in self._copy.value()

    def check(self) -> None:
        """Raise `Unavailable` if the copy is too old."""
        self._copy.value()

    async def refresh(self) -> None:
        """Read the quarantine now. Raises `Unavailable`, and keeps the old copy then."""
        await self._copy.refresh()

    async def run(self) -> None:
        """Read the quarantine now and every 30 s, until the task is cancelled. What fails is logged and tried again."""
        await self._copy.run()

    async def _load(self) -> frozenset[tuple[str, str]]:
        found: set[tuple[str, str]] = set()
        async for page in self._store.list(keys.QUARANTINED_IDENTITIES):
            boots = [boot for each in page if (boot := keys.parse_quarantined_identity(each.key))]
            for start in range(0, len(boots), AT_ONCE):
                some = boots[start : start + AT_ONCE]
                answers = await asyncio.gather(*(self._read(*boot) for boot in some))
                found.update(boot for boot, is_quarantined in zip(some, answers, strict=True) if is_quarantined)
            if len(found) > self._most:
                raise Unavailable(
                    f"More than {self._most:,} boots are in quarantine ({keys.QUARANTINED_IDENTITIES}). Release those "
                    "that need not be there."
                )
        return frozenset(found)

    async def _read(self, agent_id: str, boot_id: str) -> bool:
        key = keys.quarantined_identity(agent_id, boot_id)
        try:
            record = await read_record(QuarantinedIdentity, key, self._store)
        except Unreadable as error:
            # One damaged record must not stop every gateway, and refusing one boot loses nothing: its agent keeps all.
            LOG.warning("The agent %r with the boot %r is taken as quarantined. %s", agent_id, boot_id, error)
            return True
        return record is not None and record.state == "quarantined"
