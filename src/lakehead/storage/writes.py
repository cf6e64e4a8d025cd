"""Writes over a network: from answers that may be lost or lie to outcomes that can be believed.

One try at a conditional write ends in one of four ways: it was applied; it was refused; it never left this
machine; or nobody knows. A refusal is not believed as it stands: S3 answers 409 when nothing was written, and
something on the way may have sent our request twice, so that our own success comes back as a refusal. So each
write carries a nonce, and after anything but a plain success we look at what the key holds.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.storage.backoff import Backoff
from lakehead.storage.port import Created, Exists, Replaced, Stale, Version

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a key held when we looked."""

    version: Version
    nonce: str | None
    """The nonce of the write that stored it, where that write carried one."""


class Refused(Exception):
    """The store said that the precondition does not hold (412), or that it could not tell now (409)."""


class Remote(Protocol):
    """One request at a time to a store on the other side of a network. Neither method retries."""

    async def attempt(self, key: str, body: bytes, *, nonce: str, expected: Version | None) -> Version:
        """Write once, with `expected` as the precondition; None means that the key must be absent.

        Raises `Refused`; `Unavailable` if the request never got there; `OutcomeUnknown` if it may have.
        """
        ...

    async def look(self, key: str) -> Seen | None:
        """What the key holds now. Raises `Unavailable`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """Writes to a remote store, tried again where that is safe, each with one outcome or an honest `OutcomeUnknown`."""

    remote: Remote
    clock: Clock
    ids: Ids
    random: Random
    backoff: Backoff

    async def create(self, key: str, body: bytes) -> Created | Exists:
        """Store the object only if the key is absent."""
        match await self._conditional(key, body, expected=None):
            case Replaced(version):
                return Created(version)
            case Stale(version):
                assert version is not None, "an absent key refuses no create"  # noqa: S101 - for the type checker
                return Exists(version)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        """Store the object only if it is still that version."""
        return await self._conditional(key, body, expected=version)

    async def unconditional(self, key: str, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request that does no harm when it is made twice."""
        doubt: Exception | None = None
        failure: Exception | None = None
        for pause in self.backoff.pauses(self.random):
            if pause:
                await self.clock.sleep(pause)
            try:
                return await request()
            except OutcomeUnknown as error:
                doubt = failure = error
            except (Unavailable, Refused) as error:
                failure = error
            except Misconfigured as error:
                if doubt is None:
                    raise
                failure = error
                break
        raise _gave_up(key, doubt, failure)

    async def _conditional(self, key: str, body: bytes, *, expected: Version | None) -> Replaced | Stale:
        nonce = self.ids.uuid()
        doubt: Exception | None = None
        unseen: Exception | None = None  # a refusal that no look has confirmed: it may be our own success
        failure: Exception | None = None
        for pause in self.backoff.pauses(self.random):
            if pause:
                await self.clock.sleep(pause)
            try:
                try:
                    return Replaced(await self.remote.attempt(key, body, nonce=nonce, expected=expected))
                except OutcomeUnknown as error:
                    doubt = failure = error
                except Refused as error:
                    unseen = failure = error
                outcome = await self._look(key, nonce, expected)
                unseen = None
            except Unavailable as error:
                failure = error
                continue
            except Misconfigured as error:
                if doubt is None:
                    raise
                failure = error
                break
            if outcome is None:
                continue  # A first try that lands late cannot hurt the next: both have the same precondition.
            if doubt is None or isinstance(outcome, Replaced):
                return outcome
            raise OutcomeUnknown(
                f"A write to {key} was left without an answer, and the object has changed since: "
                "it may have been stored and replaced. Read the object before writing again."
            ) from doubt
        raise _gave_up(key, doubt or unseen, failure)

    async def _look(self, key: str, nonce: str, expected: Version | None) -> Replaced | Stale | None:
        """What became of the write with this nonce; None if nothing has changed yet."""
        seen = await self.remote.look(key)
        if seen is not None and seen.nonce == nonce:
            return Replaced(seen.version)
        version = seen.version if seen else None
        return None if version == expected else Stale(version)


def _gave_up(key: str, doubt: Exception | None, failure: Exception | None) -> LakeheadError:
    error = (
        Unavailable(f"The store did not take a change of {key} ({failure}). Try again later.")
        if doubt is None
        else OutcomeUnknown(f"A change of {key} was left without an answer ({failure}). Look before trying again.")
    )
    error.__cause__ = doubt or failure
    return error
