"""A prefix of batches belongs to one queue: an object below it, created once, names that queue's manifest."""

import asyncio

import msgspec

from lakehead.buffer.layout import owner_key
from lakehead.buffer.means import Means
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.wire.errors import Unreadable

TRIES = 3


class Owner(msgspec.Struct, frozen=True):
    """Whose the batches below a prefix are."""

    manifest_path: str


class PrefixOwner:
    """Whether a prefix is the one of a queue. The first queue that asks for a prefix gets it, for good.

    Two queues below one prefix would take each other's batches for orphans, and delete them.
    """

    def __init__(self, data_path_prefix: str, manifest_path: str, means: Means) -> None:
        self._prefix = data_path_prefix
        self._manifest_path = manifest_path
        self._means = means
        self._is_ours = False
        self._turn = asyncio.Lock()

    async def check(self) -> None:
        """Return if the prefix is the queue's. What was found so once is not asked for again.

        Raises `Misconfigured` if it is another queue's, `Unreadable` if the object says nothing that can be read, and
        `Unavailable`.
        """
        async with self._turn:
            if not self._is_ours:
                self._check_ours(await self.stored() or await self._created())
                self._is_ours = True

    async def check_stored(self) -> None:
        """Return if the prefix is the queue's, or nobody's yet. Writes nothing, and raises what `check` does."""
        if (owner := await self.stored()) is not None:
            self._check_ours(owner)

    async def stored(self) -> Owner | None:
        """Whose the prefix is, or None if it is nobody's yet. Writes nothing."""
        key = owner_key(self._prefix)
        there = await self._means.store.get(key)
        if there is None:
            return None
        try:
            return msgspec.json.decode(there.body, type=Owner)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(
                f"{key} does not say which queue keeps its batches there ({error}). Repair it by hand."
            ) from None

    async def _created(self) -> Owner:
        """Whose the prefix is, after we have tried to make it ours."""
        ours = Owner(self._manifest_path)
        failure: Exception | None = None
        for _ in range(TRIES):
            try:
                await self._means.store.create(owner_key(self._prefix), msgspec.json.encode(ours))
            except OutcomeUnknown as error:
                failure = error
            if (there := await self.stored()) is not None:
                return there
        raise Unavailable(f"{owner_key(self._prefix)} could not be created ({failure}). Try again later.")

    def _check_ours(self, owner: Owner) -> None:
        if owner.manifest_path != self._manifest_path:
            raise Misconfigured(
                f"The batches below {self._prefix!r} are those of the queue {owner.manifest_path!r}, not of "
                f"{self._manifest_path!r}: {owner_key(self._prefix)} says so. Choose another data_path_prefix, or name "
                "that queue's manifest."
            )
