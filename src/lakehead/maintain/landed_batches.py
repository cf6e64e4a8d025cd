"""Which accepted batches have landed, by what the state knows. Nothing is read from tables."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lakehead.state.state import State
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.key_parts import boot_part
from lakehead.wire.record_schemas import FrameKind
from lakehead.wire.spans import Spans, without

AT_ONCE = 500
"""Boots that are asked for in one query."""


class LandedRanges(Protocol):
    """The record numbers that have landed in tables, as far as those are settled."""

    async def ranges(self, table: str, streams: Sequence[str]) -> Mapping[str, Spans]:
        """Return the numbers of each stream, none for one without landed records. Raises `Unavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class StateRanges:
    """What the state knows to have landed."""

    state: State

    async def ranges(self, table: str, streams: Sequence[str]) -> Mapping[str, Spans]:
        """Return the numbers of each stream. Raises `Unavailable`."""
        return await asyncio.to_thread(self.state.landings.ranges, table, streams)


@dataclass(frozen=True, slots=True)
class LandedBatches:
    """What has landed of each kind, as far as its table is settled."""

    landed: LandedRanges
    tables: Mapping[FrameKind, str]
    """The uuid of the table in which each kind lands."""

    async def missing(self, kind: FrameKind, identities: Iterable[BatchIdentity]) -> dict[BatchIdentity, Spans]:
        """Return the sequence numbers of batches that have not landed; a batch that has landed whole is not in it.

        Numbers for which another batch has landed have landed. Raises `KeyError` if the kind has no table, and
        `Unavailable`.
        """
        table, boots = self.tables[kind], dict[str, list[BatchIdentity]]()
        for identity in identities:
            boots.setdefault(boot_part(identity.agent_id, identity.boot_id), []).append(identity)
        found: dict[BatchIdentity, Spans] = {}
        streams = list(boots)
        for first in range(0, len(streams), AT_ONCE):
            landed = await self.landed.ranges(table, streams[first : first + AT_ONCE])
            for stream, spans in landed.items():
                for identity in boots[stream]:
                    if left := without([(identity.seq_start, identity.seq_end + 1)], spans):
                        found[identity] = left
        return found
