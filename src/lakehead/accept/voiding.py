"""How an identity becomes void, so that nothing can be accepted under it while that happens: not in a spool either.

The order is what matters. The record that the identity is to become void comes first: a spool that is opened after the
list of open ones was read sees it before it accepts a batch of the boot. Then every open spool refuses the identity, or
says that it has the batch. The void in the object store comes last.
"""

from dataclasses import dataclass
from typing import Protocol

from lakehead.accept.acceptance import Acceptor
from lakehead.accept.authority import Authority
from lakehead.errors import Unavailable
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid
from lakehead.wire.authority_records import OpenSpool
from lakehead.wire.batch_identity import BatchIdentity


class OpenSpools(Protocol):
    """Reaches the spools of other gateways, by the address that the authority record has of each."""

    async def void(self, spool: OpenSpool, identity: BatchIdentity) -> None:
        """Accept nothing more under an identity in a spool, for good.

        Raises `IdentityInSpool` if it has the batch, and `Unavailable` or `OutcomeUnknown` if it cannot be reached.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Voiding:
    """Makes identities void in one authority."""

    acceptor: Acceptor
    authority: Authority
    spools: OpenSpools

    async def void(self, record: IdentityVoid) -> IdentityManifest | IdentityVoid:
        """Make an identity void. Returns what stands at its key then: a void, or the manifest of an accepted batch.

        Raises `IdentityInSpool` if a spool has the batch, so that it will be accepted; `Unavailable` and
        `OutcomeUnknown`, as while a listed spool is out of reach. Then the identity may be void, and may not: repeating
        it is safe, and nothing may be deleted before it has returned a void.
        """
        store = self.acceptor.store
        await store.create(keys.voiding(record.identity), record.encode())
        for spool in (await self.authority.read()).open_spools:
            await self.spools.void(spool, record.identity)
        await store.create(record.key, record.encode())
        found = await self.acceptor.read(record.identity)
        if found is None:
            raise Unavailable(
                f"{record.key} was created, and is gone. Nothing may delete it: check the bucket's policy."
            )
        return found
