"""One partition as a collector reads it: claimed ahead, fetched side by side, handed out in order, acknowledged."""

import asyncio
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from lakehead.buffer.acknowledging import Acknowledging
from lakehead.buffer.claims import Claim, ClaimState, check_not_forgotten
from lakehead.buffer.cleanup import CleanUp
from lakehead.buffer.config import CollectorConfig
from lakehead.buffer.consumer import CLAIMS, Consumer, Mode
from lakehead.buffer.errors import Fenced, Refused
from lakehead.buffer.layout import Pair, object_key
from lakehead.buffer.manifests import PairFiles
from lakehead.buffer.means import Means
from lakehead.buffer.ownership import PrefixOwner
from lakehead.buffer.quarantine import Quarantine
from lakehead.buffer.read_ahead import Ahead, ReadAhead
from lakehead.buffer.warn import logger
from lakehead.errors import LakeheadError, Unavailable
from lakehead.storage.keys import InvalidKey
from lakehead.storage.port import Object
from lakehead.wire.batch import KeyValueEntry, Limits
from lakehead.wire.compact import decode_batch
from lakehead.wire.errors import NewerFormat, Unreadable


@dataclass(frozen=True, slots=True)
class Opened:
    """A batch that is ready to be handed out."""

    claim: Claim
    entries: list[KeyValueEntry]
    size: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """A batch that was set aside instead."""

    bad: bool
    """Whether because it could not be read."""


class Reader:
    """Reads one partition of a queue."""

    def __init__(
        self,
        config: CollectorConfig,
        means: Means,
        manifests: Means,
        limits: Limits,
        read_ahead: ReadAhead,
        number: int,
    ) -> None:
        """`manifests` is what manifests are read and written with, `means` what batches are."""
        pair = Pair.of(config.manifest_path, number)
        self.number = number
        self.consumer = Consumer(
            PairFiles.of(pair, manifests),
            manifests,
            mode=config.mode,
            timeout=config.heartbeat_timeout_ms.total_seconds(),
        )
        self._config = config
        self._means = means
        self._limits = limits
        self._read_ahead = read_ahead
        self._quarantine = Quarantine(config.manifest_path, means)
        self._acknowledging = Acknowledging(
            self.consumer,
            CleanUp(files=PairFiles.of(pair, manifests), means=means, backoff=CLAIMS),
            ordered=config.mode is Mode.ORDERED,
            threshold=config.done_cleanup_threshold,
        )
        self._owner: PrefixOwner | None = None
        """Of the prefix that the manifest names, once it was read."""
        self._ahead: deque[Ahead] = deque()
        self._is_stuck = False
        """Whether `next` has raised for the first of these, and no look was begun since."""
        self._gave_back = False
        """Whether it gave its room to other partitions, and those behind the first are to be fetched again."""
        self._turn = asyncio.Lock()
        self._closed = False

    @property
    def is_ready(self) -> bool:
        """Whether `next` has something to say without asking the store, and something else than it said before."""
        return bool(self._ahead) and self._ahead[0].is_fetched and not self._is_stuck

    @property
    def waits_for_room(self) -> bool:
        """Whether something is claimed, and is not fetched yet because so much else is."""
        return bool(self._ahead) and self._ahead[0].fetching is None and not self._is_stuck

    @property
    def handed_out(self) -> dict[str, Claim]:
        """What was handed out and is not acknowledged, by location."""
        return {location: claim for location, claim in self.consumer.held.items() if claim.handed_out}

    async def look(self) -> bool:
        """Claim if nothing is claimed ahead, and wait for the first of it unless there is no room for it yet.

        What `next` has raised for is tried again, whether there is room or not. Whether something is claimed. Raises
        what `Consumer.claim` raises.
        """
        async with self._turn:
            self._acknowledging.start_again()
            if (first := await self._first()) is None:
                return False
            if self._is_stuck:
                self._read_ahead.fetch_now(first)
            if first.fetching is not None:
                await asyncio.wait([first.fetching])
            self._is_stuck = False
            return True

    async def next(self) -> Opened | None:
        """The next batch, or None if there is none to be had now. Cancelling it loses nothing.

        When it raises, it is not ready until the next look, and other partitions get the room of what is read ahead.
        """
        async with self._turn:
            self._acknowledging.start_again()
            try:
                return await self._next()
            except Exception:
                self._is_stuck = self._gave_back = bool(self._ahead)
                self._read_ahead.give_back(self._ahead)
                raise

    async def ack(self, claims: Collection[Claim]) -> None:
        """Mark batches as done. See `Consumer.ack` for what it raises."""
        self.check_ack(claims)
        if still_held(claims):
            await self.start_ack(claims)
            still_held(claims)  # for they may have been released meanwhile

    def check_ack(self, claims: Collection[Claim]) -> None:
        """Raise `Fenced`, `Refused`, `Forgotten` or `OutOfTurn` for what cannot be acknowledged now."""
        self.consumer.check_known()
        self._acknowledging.check_turn(still_held(claims))

    def start_ack(self, claims: Collection[Claim]) -> "asyncio.Future[None]":
        """Mark batches as done, in the background; many at once share one write. The answer: see `Consumer.ack`."""
        return self._acknowledging.ack(still_held(claims))

    async def release(self, claims: Collection[Claim]) -> None:
        """Give batches back to the queue, at once. See `Consumer.release` for what else goes back, and what it raises.

        Raises `Refused` for one that is acknowledged. That one was released before is no error.
        """
        async with self._turn:
            await self._acknowledging.wait()
            self.consumer.check_known()
            await self.consumer.release({claim.location for claim in claims if claim.state is ClaimState.HELD})
            self._forget_released()
            if done := [claim.location for claim in claims if claim.state is ClaimState.ACKNOWLEDGED]:
                raise Refused(f"{done[0]} is acknowledged and cannot be released any more.")

    async def set_aside(self, claim: Claim, reason: str) -> None:
        """Copy a batch that was handed out to quarantine, and acknowledge it. Raises what `ack` raises."""
        self.check_ack([claim])
        if claim.state is ClaimState.HELD:
            await self._put_aside(claim, reason)
            await self.ack([claim])

    async def close(self) -> None:
        """Let acknowledgements come to an end, and give back everything that is held. Nothing is claimed after it."""
        self._closed = True
        async with self._turn:
            # Waited for, not cancelled: a request that is cut off goes on, and may outlive the process's event loop.
            if fetching := [each.fetching for each in self._ahead if each.fetching is not None]:
                await asyncio.wait(fetching)
            await self._acknowledging.wait()
            try:
                await self.consumer.leave()
            except Fenced:
                pass  # somebody else has it already
            except LakeheadError as error:
                logger.warning(
                    "The claims in %s could not be given back (%s). Nothing is lost: other collectors wait for "
                    "heartbeat_timeout_ms before they take them over.",
                    self.consumer.files.consumer.key,
                    error,
                )
            self._forget_released()

    # --- reading ahead

    async def _next(self) -> Opened | None:
        while (first := await self._first()) is not None:
            opened = await self._opened(first)
            await self.consumer.check_if_old()
            if first.claim.state is not ClaimState.HELD:
                continue  # a release that was in doubt has landed
            self._ahead.popleft()
            self._read_ahead.remove(first)
            if self._gave_back:
                self._read_ahead.add(self._ahead)
                self._gave_back = False
            if isinstance(opened, Opened):
                first.claim.handed_out = True
                self._acknowledging.handed_out()
                self._count(opened)
                return opened
            self._acknowledging.set_aside(first.claim.location, bad=opened.bad)
        return None

    async def _first(self) -> Ahead | None:
        """The first that is claimed and not handed out; claims if there is none."""
        self._forget_what_is_gone()
        if not self._ahead and not self._closed:
            claims = await self.consumer.claim(self._config.read_ahead)
            self._ahead.extend(Ahead(claim) for claim in claims)
            self._read_ahead.add(self._ahead)
        if not self._ahead:
            return None
        await self._check_prefix()
        return self._ahead[0]

    async def _check_prefix(self) -> None:
        """Raise `Misconfigured` if the queue keeps its batches below a prefix that is another queue's."""
        latest = self.consumer.files.producer.latest
        prefix = latest.manifest.data_path_prefix if latest is not None else None
        if self._owner is None and prefix is not None:
            self._owner = PrefixOwner(prefix, self._config.manifest_path, self._means)
        if self._owner is not None:
            await self._owner.check()

    def _forget_what_is_gone(self) -> None:
        """Forget what was released, also where that was in doubt and has landed."""
        while self._ahead and self._ahead[0].claim.state is not ClaimState.HELD:
            self._read_ahead.remove(self._ahead.popleft())

    def _forget_released(self) -> None:
        self._forget_what_is_gone()
        self._acknowledging.forget_released()

    async def _opened(self, ahead: Ahead) -> Opened | Skipped:
        """The batch, read and decoded, unless it is set aside."""
        fetching = self._read_ahead.fetch_now(ahead)
        await asyncio.wait([fetching])
        if fetching.cancelled():
            ahead.fetching = None  # the next call tries again
            raise Unavailable(f"Reading {ahead.claim.location} was cancelled. Try again.")
        if (unforeseen := fetching.exception()) is not None:
            ahead.fetching = None
            raise unforeseen
        match fetching.result():
            case Object(_, body):
                try:
                    entries = decode_batch(body, self._limits)
                except NewerFormat:
                    raise
                except Unreadable as error:
                    return await self._skip(ahead.claim, str(error))
            case None:
                await self.consumer.check()  # whoever took over from us may have finished, and deleted it
                return await self._skip(ahead.claim, "The batch is not there.", gone=True)
            case InvalidKey() as error:
                return await self._skip(ahead.claim, str(error), gone=True)
            case error:
                ahead.fetching = None  # the next call tries again
                raise error
        # Only now: what is newer than we are is not set aside, however often it was claimed.
        if (most := self._config.max_deliveries) is not None and ahead.claim.deliveries > most:
            times = ahead.claim.deliveries - 1
            return await self._skip(ahead.claim, f"It was handed out {times} times and never acknowledged.", bad=False)
        return Opened(ahead.claim, entries, len(body))

    async def _skip(self, claim: Claim, reason: str, *, bad: bool = True, gone: bool = False) -> Skipped:
        """Set a batch aside instead of handing it out."""
        if bad and (before := self._acknowledging.bad_in_a_row()) >= self._config.max_bad_batches_in_a_row:
            raise Unreadable(
                f"{before} batches in a row could not be read and were set aside, and neither can {claim.location}: "
                f"{reason} It stays in the queue. If a newer Lakehead wrote them, update this reader; if they are "
                "really damaged, raise max_bad_batches_in_a_row."
            )
        await self._put_aside(claim, reason, gone=gone)
        return Skipped(bad)

    async def _put_aside(self, claim: Claim, reason: str, *, gone: bool = False) -> None:
        key = None if gone else object_key(claim.location)
        await self._quarantine.set_aside(claim.location, key, reason)
        store, manifest = self._config.object_store_config.url, self._config.manifest_path
        message = (
            f"The batch {claim.location} was set aside: {reason} The queue moves on. To look at it: "
            f"`lakehead queue quarantine list --store {store} --manifest {manifest}`; to queue it again: "
            f"`lakehead queue quarantine replay {claim.location} --store {store} --manifest {manifest}`."
        )
        logger.warning("%s", message)

    def _count(self, opened: Opened) -> None:
        self._means.counts.batches_collected += 1
        self._means.counts.entries_collected += len(opened.entries)
        self._means.counts.bytes_collected += opened.size


def still_held(claims: Collection[Claim]) -> dict[str, None]:
    """The locations of those that are not acknowledged yet. Raises `Refused` for one that was released."""
    for claim in claims:
        check_not_forgotten(claim)
        if claim.state is ClaimState.RELEASED:
            raise Refused(
                f"{claim.location} was released, so it cannot be acknowledged: it is handed out again. "
                "Acknowledge it when it comes."
            )
    return dict.fromkeys(claim.location for claim in claims if claim.state is ClaimState.HELD)
