"""Writes over an unreliable network: turns the responses to single requests into definite outcomes.

One attempt at a conditional write was applied, was refused, never left this machine, or has an unknown outcome. A
refusal cannot be taken at face value: S3 answers 409 when nothing was written, and the network may have sent our
request twice, so that our own success comes back as a refusal. So each write carries a nonce, and after anything but a
plain success we read the state of the key.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lakehead.clock import Clock
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Ids, Random
from lakehead.retry import Backoff
from lakehead.storage.port import Created, Exists, Replaced, Stale, Version

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeyState:
    """The object that a key holds."""

    version: Version
    nonce: str | None
    """The nonce of the write that stored it, if it had one."""


class NoBucket(Misconfigured):
    """Create the bucket, or correct its name: it does not exist, so nothing was stored in it."""


class WriteRefused(Exception):
    """The store refused a write: its precondition does not hold (412), or a concurrent request interfered (409)."""


class WriteRequests(Protocol):
    """Single requests to a store over a network. No method retries.

    A write raises `WriteRefused`; `Unavailable` if the request never arrived; `OutcomeUnknown` if it may have.
    """

    async def write_once(self, key: str, body: bytes, *, nonce: str, expected: Version | None) -> Version:
        """Write if the object is the expected version; None means that the key must be absent."""
        ...

    async def put(self, key: str, body: bytes) -> Version:
        """Write unconditionally."""
        ...

    async def delete(self, key: str) -> None:
        """Delete the object, if it is there."""
        ...

    async def key_state(self, key: str) -> KeyState | None:
        """Return what the key holds now, or None if it is absent. Raises `Unavailable`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliableWrites:
    """Writes through single requests, repeated as long as that is safe, until the outcome is known."""

    requests: WriteRequests
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

    async def put(self, key: str, body: bytes) -> Version:
        """Store the object unconditionally."""
        return await self._unconditional(key, lambda: self.requests.put(key, body))

    async def delete(self, key: str) -> None:
        """Delete the object, if it is there."""
        await self._unconditional(key, lambda: self.requests.delete(key))

    async def _unconditional(self, key: str, request: Callable[[], Awaitable[T]]) -> T:
        """Make a request that can safely be repeated."""
        doubt: Exception | None = None
        failure: Exception | None = None
        async for _ in self.backoff.each_attempt(self.clock, self.random):
            try:
                return await request()
            except OutcomeUnknown as error:
                doubt = failure = error
            except (Unavailable, WriteRefused) as error:
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
        unconfirmed: Exception | None = None  # a refusal after which the key could not be read: we may have succeeded
        failure: Exception | None = None
        async for _ in self.backoff.each_attempt(self.clock, self.random):
            try:
                try:
                    return Replaced(await self.requests.write_once(key, body, nonce=nonce, expected=expected))
                except OutcomeUnknown as error:
                    doubt = failure = error
                except WriteRefused as error:
                    unconfirmed = failure = error
                outcome = await self._outcome(key, nonce, expected)
                unconfirmed = None
            except Unavailable as error:
                failure = error
                continue
            except Misconfigured as error:
                if doubt is None and (unconfirmed is None or isinstance(error, NoBucket)):
                    raise
                failure = error
                break
            if outcome is None:
                continue  # a late first attempt does no harm to the next: both have the same precondition
            if doubt is None or isinstance(outcome, Replaced):
                return outcome
            raise OutcomeUnknown(
                f"A write to {key} was not confirmed, and the object has changed since: "
                "it may have been stored and replaced. Read the object before writing again."
            ) from doubt
        raise _gave_up(key, doubt or unconfirmed, failure)

    async def _outcome(self, key: str, nonce: str, expected: Version | None) -> Replaced | Stale | None:
        """Return the outcome of the write with this nonce; None if the key has not changed yet."""
        state = await self.requests.key_state(key)
        if state is not None and state.nonce == nonce:
            return Replaced(state.version)
        version = state.version if state else None
        return None if version == expected else Stale(version)


def _gave_up(key: str, doubt: Exception | None, failure: Exception | None) -> LakeheadError:
    error = (
        Unavailable(f"Could not change {key} ({failure}). Nothing was changed; try again later.")
        if doubt is None
        else OutcomeUnknown(f"A change of {key} was not confirmed ({failure}). Check before trying again.")
    )
    error.__cause__ = failure
    return error
