"""Repairs of frames that are missing or corrupt, as operators see them. Reconcilers open and close them."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, cast

from lakehead.accept.record_file import read_record
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.storage.port import ListedObject, Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import Unreadable
from lakehead.wire.key_parts import agent_part
from lakehead.wire.maintenance_records import BatchRepair

RepairState = Literal["open", "healed"]

AT_ONCE = 16
MOST_READ = 1_000
"""Records that are read for one page, which may be shorter therefore."""


class NoSuchRepair(LakeheadError):
    """Nothing was ever wrong with the frame of the batch."""


@dataclass(frozen=True, slots=True)
class ListedRepair:
    """A repair in a listing."""

    key: str
    identity: BatchIdentity
    record: BatchRepair | None
    """None if it cannot be read."""

    problem: str = ""
    """Why it cannot be read; empty if it can."""


@dataclass(frozen=True, slots=True)
class RepairPage:
    """Some repairs, in the order of their keys."""

    repairs: Sequence[ListedRepair]
    next_after: str | None
    """What to list after to get the next page; None if this is the last."""


@dataclass(frozen=True, slots=True)
class Repairs:
    """The repairs of an authority."""

    store: Store

    async def list(
        self, *, agent_id: str | None = None, state: RepairState | None = "open", after: str = "", limit: int = 100
    ) -> RepairPage:
        """List repairs: of an agent or all, those that are open, healed or both. What cannot be read counts as open.

        `after` is the `next_after` of the page before; a page may have fewer than `limit`, also none. Raises
        `Misconfigured` for another, and `Unavailable`.
        """
        if limit < 1:
            raise Misconfigured(f"A page of repairs cannot have {limit}. Ask for 1 or more.")
        if after and keys.parse_repair(after) is None:
            raise Misconfigured(f"Repairs cannot be listed after {after[:80]!r}. Use the last page's next_after.")
        found = await self._keys(keys.REPAIRS if agent_id is None else f"{keys.REPAIRS}/{agent_part(agent_id)}", after)
        repairs: list[ListedRepair] = []
        for first in range(0, min(len(found), MOST_READ), AT_ONCE):
            some = found[first : min(first + AT_ONCE, MOST_READ)]
            for each in await asyncio.gather(*map(self._read, some)):
                if each is None or state not in (None, each.record.state if each.record else "open"):
                    continue
                repairs.append(each)
                if len(repairs) == limit:
                    return RepairPage(repairs, each.key if each.key != found[-1] else None)
        return RepairPage(repairs, found[MOST_READ - 1] if len(found) > MOST_READ else None)

    async def show(self, identity: BatchIdentity) -> ListedRepair:
        """Return the repair of a batch. Raises `NoSuchRepair` and `Unavailable`."""
        found = await self._read(keys.repair(identity))
        if found is None:
            raise NoSuchRepair(
                f"Nothing is known to be wrong with the frame of {keys.accepted(identity)}. "
                "List the repairs: `lakehead repairs list CONFIG`."
            )
        return found

    async def _keys(self, folder: str, after: str) -> Sequence[str]:
        """The first keys of a folder after another: one more than are read, if there are so many."""
        if after > folder and not after.startswith(f"{folder}/"):
            return ()
        found: list[str] = []
        listing = self.store.list(folder, start_after=after if after > folder else "")
        async with aclosing(cast("AsyncGenerator[Sequence[ListedObject], None]", listing)) as pages:
            async for page in pages:
                found += [each.key for each in page if keys.parse_repair(each.key) is not None]
                if len(found) > MOST_READ:
                    break
        return found[: MOST_READ + 1]

    async def _read(self, key: str) -> ListedRepair | None:
        identity = keys.parse_repair(key)
        if identity is None:
            return None
        try:
            record = await read_record(BatchRepair, key, self.store)
        except Unreadable as error:
            return ListedRepair(key, identity, None, str(error))
        return None if record is None else ListedRepair(key, identity, record)
