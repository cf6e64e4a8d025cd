"""One partition as a collector reads it: claimed ahead, fetched side by side, handed out in order, acknowledged."""

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from lakehead.buffer.cleanup import CleanUp
from lakehead.buffer.config import CollectorConfig
from lakehead.buffer.consumer import CLAIMS, Claim, Consumer, Mode
from lakehead.buffer.errors import OutOfTurn
from lakehead.buffer.layout import Pair, object_key
from lakehead.buffer.manifests import PairFiles
from lakehead.buffer.means import Means
from lakehead.buffer.quarantine import Quarantine
from lakehead.errors import LakeheadError, OutcomeUnknown
from lakehead.storage.keys import InvalidKey
from lakehead.storage.port import Object
from lakehead.wire.batch import MIB, KeyValueEntry, Limits
from lakehead.wire.compact import decode_batch
from lakehead.wire.errors import NewerFormat, Unreadable


@dataclass(eq=False, slots=True)
class Ahead:
    """A claimed location that is not handed out yet."""

    claim: Claim
    fetching: "asyncio.Task[Object | LakeheadError | None] | None" = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """A batch that is ready to be handed out."""

    claim: Claim
    entries: list[KeyValueEntry]
    size: int


class Reader:
    """Reads one partition of a queue."""

    def __init__(self, config: CollectorConfig, means: Means, number: int, limits: Limits) -> None:
        pair = Pair.of(config.manifest_path, number)
        self.number = number
        self.consumer = Consumer(
            PairFiles.of(pair, means), means, mode=config.mode, timeout=config.heartbeat_timeout_ms.total_seconds()
        )
        self._config = config
        self._means = means
        self._limits = limits
        self._quarantine = Quarantine(config.manifest_path, means)
        self._clean_up = CleanUp(files=PairFiles.of(pair, means), means=means, backoff=CLAIMS)
        self._ahead: deque[Ahead] = deque()
        self._guess = MIB
        self._turn = asyncio.Lock()
        self._requested: set[str] = set()
        self._set_aside: dict[str, bool] = {}
        """What was set aside and is not acknowledged yet, and whether because it could not be read."""
        self._asking: list[asyncio.Future[None]] = []
        self._writer: asyncio.Task[None] | None = None

    async def next(self) -> Opened | None:
        """The next batch, or None if there is none to be had now. Cancelling it loses nothing."""
        async with self._turn:
            if self._set_aside:
                self._start_writer()
            while True:
                if not self._ahead:
                    claims = await self.consumer.claim(self._config.read_ahead)
                    self._ahead.extend(Ahead(claim) for claim in claims)
                if not self._ahead:
                    return None
                first = self._ahead[0]
                opened = await self._opened(first)
                await self.consumer.check_if_old()
                self._ahead.popleft()
                self._fetch_ahead()
                if opened is not None:
                    first.claim.handed_out = True
                    self._count(opened)
                    return opened
                self._set_aside[first.claim.location] = True
                self._start_writer()

    async def ack(self, locations: Collection[str]) -> None:
        """Mark batches as done; many callers at once share one write. See `Consumer.ack` for what it raises."""
        ours = {location for location in locations if location in self.consumer.held}
        self.consumer.check_known()
        self._check_turn(ours)
        if not ours:
            return
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asking.append(asked)
        self._requested |= ours
        self._start_writer()
        await asked

    async def close(self) -> None:
        """Let acknowledgements come to an end, and give back what was never handed out."""
        # Waited for, not cancelled: a request that is cut off goes on, and may outlive the process's event loop.
        await asyncio.gather(*(each.fetching for each in self._ahead if each.fetching is not None))
        if self._writer is not None:
            await asyncio.wait([self._writer])
        ahead, self._ahead = [each.claim.location for each in self._ahead], deque()
        with suppress(LakeheadError):  # whoever comes next waits until our claims are stale, then
            await self.consumer.leave(ahead)

    # --- reading ahead

    def _fetch_ahead(self) -> None:
        """Fetch what is claimed, the first always, others while they have room."""
        held = sum(each.size or self._guess for each in self._ahead if each.fetching is not None)
        for each in self._ahead:
            if each.fetching is not None:
                continue
            if held and held + self._guess > self._config.read_ahead_bytes:
                return
            held += self._guess
            each.fetching = asyncio.create_task(self._fetch(each))

    async def _fetch(self, ahead: Ahead) -> Object | LakeheadError | None:
        key = object_key(ahead.claim.location)
        try:
            there = await self._means.store.get(key, end=self._limits.stored_bytes + 1)
        except LakeheadError as error:
            return error  # for whoever asks for the batch
        if there is not None:
            ahead.size = len(there.body)
            self._guess = max(ahead.size, 1)
        return there

    async def _opened(self, ahead: Ahead) -> Opened | None:
        """The batch, read and decoded; None if it is set aside."""
        if ahead.fetching is None:
            self._fetch_ahead()
        assert ahead.fetching is not None  # noqa: S101 - for the type checker: the first is always fetched
        await asyncio.wait([ahead.fetching])
        match ahead.fetching.result():
            case Object(_, body):
                try:
                    entries = decode_batch(body, self._limits)
                except NewerFormat:
                    raise
                except Unreadable as error:
                    await self._put_aside(ahead.claim, str(error))
                    return None
            case None:
                await self.consumer.check()  # whoever took over from us may have finished, and deleted it
                await self._put_aside(ahead.claim, "The batch is not there.", gone=True)
                return None
            case InvalidKey() as error:
                await self._put_aside(ahead.claim, str(error), gone=True)
                return None
            case error:
                ahead.fetching = None  # the next call tries again
                raise error
        return Opened(ahead.claim, entries, ahead.size)

    async def _put_aside(self, claim: Claim, reason: str, *, gone: bool = False) -> None:
        if (bad := self._bad_in_a_row()) >= self._config.max_bad_batches_in_a_row:
            raise Unreadable(
                f"{bad} batches in a row could not be read and were set aside, and neither can {claim.location}: "
                f"{reason} It stays in the queue. If a newer Lakehead wrote them, update this reader; if they are "
                "really damaged, raise max_bad_batches_in_a_row."
            )
        key = None if gone else object_key(claim.location)
        await self._quarantine.set_aside(claim.location, key, reason)

    def _bad_in_a_row(self) -> int:
        """How many there will be once everything is acknowledged that we hold before the next batch."""
        bad = self.consumer.bad_in_a_row
        for location, claim in self.consumer.held.items():
            if location in self._set_aside:
                bad += self._set_aside[location]
            elif claim.handed_out and self._config.mode is Mode.ORDERED:
                bad = 0
        return bad

    def _count(self, opened: Opened) -> None:
        self._means.counts.batches_collected += 1
        self._means.counts.entries_collected += len(opened.entries)
        self._means.counts.bytes_collected += opened.size

    # --- acknowledging

    def _check_turn(self, ours: Collection[str]) -> None:
        """In ordered mode what is done is always the beginning of the queue."""
        if self._config.mode is not Mode.ORDERED:
            return
        earlier = None
        for location in self.consumer.held:
            if location in ours:
                if earlier is not None:
                    raise OutOfTurn(f"{earlier} was handed out before {location}: acknowledge it first.")
            elif location not in self._requested and location not in self._set_aside:
                earlier = location

    def _start_writer(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._acknowledge())

    async def _acknowledge(self) -> None:
        """Write what can be acknowledged now, until nothing more can."""
        asking: list[asyncio.Future[None]] = []
        try:
            while some := self._ripe():
                asking, self._asking = self._asking, []
                waiting = await self.consumer.ack(some, self._set_aside)
                self._requested.difference_update(some)
                for location in some:
                    self._set_aside.pop(location, None)
                if waiting >= self._config.done_cleanup_threshold:
                    await self._clean_up_now()
                _tell(asking, None)
            _tell(self._asking, None)
        except LakeheadError as error:
            self._requested.clear()
            _tell([*asking, *self._asking], error)
        finally:
            _tell([*asking, *self._asking], OutcomeUnknown("The acknowledgement was interrupted. Repeat it."))
            self._asking = []
            self._writer = None

    def _ripe(self) -> Sequence[str]:
        wanted = self._requested | self._set_aside.keys()
        ripe = []
        for location in self.consumer.held:
            if location in wanted:
                ripe.append(location)
            elif self._config.mode is Mode.ORDERED:
                break
        return ripe

    async def _clean_up_now(self) -> None:
        try:
            await self._clean_up.run()
        except LakeheadError:
            self._means.counts.cleanups_failed += 1  # what is acknowledged is; the next time makes up for it


def _tell(asking: "Sequence[asyncio.Future[None]]", error: LakeheadError | None) -> None:
    for each in asking:
        if each.done():
            continue
        if error is None:
            each.set_result(None)
        else:
            each.set_exception(error)
            each.exception()  # whoever asked may be gone
