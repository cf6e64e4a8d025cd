"""Fetching claimed batches before they are asked for, up to a number of bytes for all partitions of a collector."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from lakehead.buffer.claims import Claim
from lakehead.buffer.layout import object_key
from lakehead.buffer.means import Means
from lakehead.errors import LakeheadError
from lakehead.storage.port import Object
from lakehead.wire.batch import MIB, Limits


@dataclass(eq=False, slots=True)
class Ahead:
    """A claimed location that is not handed out yet."""

    claim: Claim
    fetching: "asyncio.Task[Object | LakeheadError | None] | None" = None
    size: int = 0
    """Bytes that it takes, or is thought to take; 0 where it is not fetched."""

    @property
    def is_fetched(self) -> bool:
        """Whether the store has answered, if only with an error."""
        return self.fetching is not None and self.fetching.done()


class ReadAhead:
    """Fetches side by side, in the order of the claims, while there is room."""

    def __init__(self, means: Means, limits: Limits, most_bytes: int) -> None:
        self._means = means
        self._limits = limits
        self._most_bytes = most_bytes
        self._waiting: OrderedDict[Ahead, None] = OrderedDict()
        self._bytes = 0
        self._guess = MIB
        """How large the next batch is thought to be: as large as the last one."""

    def add(self, claimed: Iterable[Ahead]) -> None:
        """Fetch these as soon as there is room, but for those that are fetched."""
        self._waiting.update(dict.fromkeys(each for each in claimed if each.fetching is None))
        self._fetch_waiting()

    def fetch_now(self, ahead: Ahead) -> "asyncio.Task[Object | LakeheadError | None]":
        """Fetch one that is asked for, whether there is room or not."""
        self._waiting.pop(ahead, None)
        if ahead.fetching is None:
            self._bytes += self._guess - ahead.size
            ahead.size = self._guess
            ahead.fetching = asyncio.create_task(self._fetch(ahead))
        return ahead.fetching

    def remove(self, ahead: Ahead) -> None:
        """One is handed out, or given back: there is room for others."""
        self._drop(ahead)
        self._fetch_waiting()

    def give_back(self, claimed: Iterable[Ahead]) -> None:
        """The first of these cannot be handed out now: other partitions get the room of all that are not under way.

        The first one's bytes are kept, those of the others are fetched anew once `add` has them again.
        """
        for number, each in enumerate(claimed):
            if each.fetching is None or each.is_fetched:
                self._drop(each)
                each.fetching = each.fetching if number == 0 else None
        self._fetch_waiting()

    def _drop(self, ahead: Ahead) -> None:
        self._bytes -= ahead.size
        ahead.size = 0
        self._waiting.pop(ahead, None)

    def _fetch_waiting(self) -> None:
        while self._waiting and (not self._bytes or self._bytes + self._guess <= self._most_bytes):
            self.fetch_now(next(iter(self._waiting)))

    async def _fetch(self, ahead: Ahead) -> Object | LakeheadError | None:
        try:
            there = await self._means.store.get(object_key(ahead.claim.location), end=self._limits.stored_bytes + 1)
        except LakeheadError as error:
            return error  # for whoever asks for the batch
        if there is not None and ahead.size:
            self._guess = max(len(there.body), 1)
            self._bytes += self._guess - ahead.size
            ahead.size = self._guess
        return there
