"""`QueueCoordinator`: carries messages of a queue from their reception to their acknowledgement after landing."""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from lakehead.clock import Clock
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.local_state import QueueLocalState, UnitKey, UnitState, Work
from lakehead.consume.objects import NotUnderstood
from lakehead.consume.patience import Patience
from lakehead.consume.ports import Actions, DeadLetterBox, Lookup, Replays, UnitLander
from lakehead.consume.queue import Message, Queue
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.settling import Settling
from lakehead.consume.shared_state import SharedState
from lakehead.consume.tables import TableIds
from lakehead.consume.visibility import VisibilityTask
from lakehead.errors import LakeheadError, Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Random
from lakehead.lake.ports import HistoryBroken, Overtaken, UnitsGone
from lakehead.wire.errors import NewerFormat

LOG = logging.getLogger(__name__)

_LANDING = (UnitState.READING, UnitState.AWAITING_COMMIT)

RECEIVED_AT_ONCE = 1_000
"""Messages that are received, and opened in the shared state, together."""

STOP_SECONDS = 5.0
"""How long a landing may go on after `stop`. Then it is cancelled; what it published is found by the next one.
Giving back units, and then messages, may each take as long again."""

DIED = "The process that read it ended each time, without an error that names it."


class MessageParser(Protocol):
    """Says what a message announces."""

    def __call__(self, message: Message, counts: ConsumeCounts, /) -> Sequence[Work]:
        """Return the units of a message; none if there is nothing to land.

        Raises `NotUnderstood`, and `Unavailable` if that cannot be known now: then the message comes again.
        """
        ...


class QueueCoordinator:
    """Receives messages of one queue, lands what they announce, and acknowledges them, until it is stopped.

    Messages are opened, landed and acknowledged in batches. A message whose visibility or acknowledgement fails is
    abandoned, and comes again; nothing but a broken table, a wrong configuration or `stop` ends a pipeline.
    """

    def __init__(  # noqa: PLR0913 - all that a pipeline works with
        self,
        settings: PipelineSettings,
        queue: Queue,
        reader: MessageParser,
        *,
        shared: SharedState,
        landings: UnitLander,
        dead_letters: DeadLetterBox,
        clock: Clock,
        random: Random,
        lookup: Lookup | None = None,
        after_landing: Actions | None = None,
        replays: Replays | None = None,
    ) -> None:
        self.counts = ConsumeCounts()
        self._settings = settings
        self._queue = queue
        self._reader = reader
        self._lookup = lookup
        self._replays = replays
        self._shared = shared
        self._landings = landings
        self._clock = clock
        self._patience = Patience(settings.name, settings.polling, clock, random)
        self._tables = TableIds(landings, self._patience)
        self._local = QueueLocalState()
        self._visibility = VisibilityTask(queue, settings.visibility, clock)
        self._settling = Settling(
            settings=settings,
            queue=queue,
            local=self._local,
            shared=shared,
            tables=self._tables,
            visibility=self._visibility,
            dead_letters=dead_letters,
            patience=self._patience,
            counts=self.counts,
            after_landing=after_landing,
        )
        self._changed = asyncio.Event()
        """Something may be due: units are ready, messages were settled, or it is to stop."""
        self._stopped = asyncio.Event()
        self._found_nothing_at: float | None = None
        """When the queue was last asked, if it had nothing."""
        self._landing: set[str] = set()
        """The tables that are landed in at this moment."""
        self._ready_since: dict[str, float] = {}
        """Since when units of a table wait for its next landing."""
        self._read: list[UnitKey] = []
        """Units that were read since messages were last extended for the last time."""
        self._was_read_some = asyncio.Event()
        self._orphaned: list[UnitKey] = []
        """Units that no held message announces any more, to be released."""
        self._was_orphaned_some = asyncio.Event()

    @property
    def held_messages(self) -> int:
        """How many messages are held."""
        return self._local.messages

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest message that is held; None if there is none, or the queue does not tell."""
        oldest = self._local.oldest_sent_at()
        return None if oldest is None else max(0.0, self._clock.now_ns() / 1e9 - oldest.timestamp())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, and the queue had nothing when it was asked after all that was to come again."""
        found_nothing = self._found_nothing_at is not None and self._found_nothing_at > self._settling.retry_at
        return found_nothing and not self._local.messages and not self._settling.unfinished

    def stop(self) -> None:
        """Receive nothing more, let the landing that is under way end soon, and give everything else back."""
        self._stopped.set()
        self._changed.set()

    async def run(self) -> None:
        """Consume the queue until `stop` is called. Raises what only an operator can mend."""
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                self._receive_for_ever(),
                self._keep_messages_for_ever(),
                self._keep_units_for_ever(),
                self._prune_for_ever(),
            )
        ]
        landing = asyncio.ensure_future(self._land_for_ever())
        stop = asyncio.ensure_future(self._stopped.wait())
        try:
            ended, _ = await asyncio.wait([*tasks, landing, stop], return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()  # only an error ends one of them, but for `stop`
            await asyncio.wait([landing], timeout=STOP_SECONDS)
            if landing.done():
                landing.result()
        finally:
            everything = [*tasks, landing, stop]
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
            await self._settling.give_back(within=STOP_SECONDS)

    # --- receiving

    async def _receive_for_ever(self) -> None:
        settings = self._settings
        while True:
            room = self._local.room(most=settings.max_held, most_bytes=settings.max_held_bytes)
            room = min(room, RECEIVED_AT_ONCE)
            if room <= 0 or self._stopped.is_set():
                await _set_within(self._changed, None)
                continue
            messages = await self._patience.answer(lambda room=room: self._receive(room))  # type: ignore[misc]
            if messages:
                try:
                    await self._take(messages)
                except BaseExceptionGroup as errors:
                    raise errors.exceptions[0] from None

    async def _receive(self, most: int) -> Sequence[Message]:
        """Receive messages, and keep them invisible from the moment at which they were asked for."""
        asked_at, settings = self._clock.monotonic(), self._settings
        messages = await self._queue.receive(most, visibility=settings.visibility, wait=settings.poll_wait)
        self._visibility.start(messages, asked_at)
        self._found_nothing_at = None if messages else asked_at
        return messages

    async def _take(self, messages: Sequence[Message]) -> None:
        """Hold messages, and ask the shared state whose their units are."""
        self.counts.received += len(messages)
        if (lookup := self._lookup) is not None:
            await self._patience.answer(lambda: lookup.look_up(messages))
        fresh: dict[str, list[Work]] = {}
        for message in messages:
            try:
                works = self._reader(message, self.counts)
            except NotUnderstood as error:
                await self._settling.give_up_message(message, str(error))
                continue
            except Unavailable:
                self.counts.failed += 1
                self._local.refuse(message, retry_after=self._settings.delay_after(message.deliveries))
                continue
            for work in self._local.add(message, works):
                fresh.setdefault(work.key.table, []).append(work)
        async with asyncio.TaskGroup() as openings:
            for table, works in fresh.items():
                openings.create_task(self._open(table, works))
        await self._acknowledge()

    async def _open(self, table: str, works: Sequence[Work]) -> None:
        uuid = await self._tables.uuid(table)
        by_unit = {work.key.unit: work for work in works}
        opened = await self._patience.answer(lambda: self._shared.open(uuid, list(by_unit)))
        self.counts.duplicates += len(opened.done)
        self.counts.busy += len(opened.busy)
        self.counts.taken_over += opened.taken_over
        self._local.complete(UnitKey(table, unit) for unit in by_unit if unit in opened.done)
        self._local.abandon(UnitKey(table, unit) for unit in by_unit if unit in opened.busy)
        held = {unit: tries for unit, tries in opened.ours.items() if self._local.holds(UnitKey(table, unit))}
        for unit, tries in held.items():
            if tries < self._settings.max_tries:
                self._local.open(UnitKey(table, unit), tries)
        self._changed.set()
        for unit, tries in held.items():
            if tries >= self._settings.max_tries:  # never ready, so that it is not read while its letter is written
                await self._settling.give_up(by_unit[unit], DIED, tries)
        if lost := [unit for unit in opened.ours if unit not in held]:  # their messages are another consumer's by now
            await self._patience.answer(lambda: self._shared.release(uuid, lost))

    # --- landing

    async def _land_for_ever(self) -> None:
        """Begin the landing of each table when it is due. No table waits for another."""
        try:
            async with asyncio.TaskGroup() as landings:
                while not self._stopped.is_set():
                    due, seconds = self._due()
                    for table, works in due.items():
                        self._landing.add(table)
                        landings.create_task(self._land_table(table, works))
                    await _set_within(self._changed, seconds)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _due(self) -> tuple[dict[str, list[Work]], float | None]:
        """The units of the tables whose landing is due, and the seconds until the next is; None: until one is ready."""
        ready: dict[str, list[Work]] = {}
        for work in self._local.in_state(UnitState.READY):
            if work.key.table not in self._landing:
                ready.setdefault(work.key.table, []).append(work)
        now = self._clock.monotonic()
        self._ready_since = {table: self._ready_since.get(table, now) for table in ready}
        due, waiting = dict[str, list[Work]](), list[float]()
        for table, works in ready.items():
            if (seconds := self._seconds_until_due(works, since=self._ready_since[table])) <= 0:
                due[table] = works
            else:
                waiting.append(seconds)
        return due, min(waiting, default=None)

    def _seconds_until_due(self, ready: Sequence[Work], *, since: float) -> float:
        """How long to wait for more units of a table before its landing begins."""
        settings = self._settings
        if any(work.is_begun for work in ready):
            return 0
        if len(ready) >= settings.max_messages or sum(work.size for work in ready) >= settings.max_bytes:
            return 0
        return since + settings.commit_timeout.total_seconds() - self._clock.monotonic()

    async def _land_table(self, table: str, works: Sequence[Work]) -> None:
        for group in groups_of(works, self._settings):
            held = [work for work in group if self._local.state_of(work.key) is UnitState.READY]
            if held and not self._stopped.is_set():
                await self._land(table, held)
        self._landing.discard(table)
        self._changed.set()

    async def _land(self, table: str, works: Sequence[Work]) -> None:
        uuid = await self._tables.uuid(table)
        self._local.start_read(work.key for work in works)
        counted = {work.key.unit: work.tries + 1 for work in works}
        tries = await self._patience.answer(lambda: self._shared.count_try(uuid, counted))
        self._local.abandon(work.key for work in works if work.key.unit not in tries)  # another pipeline has taken it
        if ours := [work for work in works if self._local.holds(work.key)]:
            await self._land_ours(table, uuid, ours, tries)
        await self._acknowledge()

    async def _land_ours(self, table: str, uuid: str, ours: Sequence[Work], tries: Mapping[str, int]) -> None:
        began_at, before = self._clock.monotonic(), {work.key.unit: work.tries for work in ours}
        try:
            report = await self._landings.land(table, ours, is_held=self._is_held, read=self._was_read)
        except UnitsGone as error:
            LOG.warning("Pipeline %s: %s", self._settings.name, error)
            await self._patience.answer(lambda: self._shared.take_back_try(uuid, before))
            await self._patience.answer(lambda: self._shared.release(uuid, list(before)))
            self._local.abandon(work.key for work in ours)
        except (Unavailable, OutcomeUnknown, Overtaken) as error:
            await self._try_again(table, uuid, ours, error)
        except asyncio.CancelledError:
            # It ends, and not because of these units: else a few restarts would make dead letters of good ones. But if
            # it was under way for very long, one of them may hang, and is to be found like one that kills its reader.
            hangs = self._clock.monotonic() - began_at >= self._settings.stuck_after.total_seconds()
            self._settling.interrupted |= {work.key: work.tries + hangs for work in ours}
            raise
        except (Misconfigured, HistoryBroken, NewerFormat):
            self._settling.interrupted |= {work.key: work.tries for work in ours}
            raise
        else:
            await self._settling.settle(table, ours, report, tries)

    async def _try_again(self, table: str, uuid: str, works: Sequence[Work], error: LakeheadError) -> None:
        """The landing did not come about through no fault of its units: they are ready again."""
        LOG.warning("Pipeline %s: a landing in %s did not come about: %s", self._settings.name, table, error)
        before = {work.key.unit: work.tries for work in works}
        await self._patience.answer(lambda: self._shared.take_back_try(uuid, before))
        if lost := [work.key.unit for work in works if not self._local.holds(work.key)]:
            await self._patience.answer(lambda: self._shared.release(uuid, lost))
        self._local.put_back(work.key for work in works)
        self._visibility.resume(self._local.messages_of(work.key for work in works))
        if not isinstance(error, Overtaken):
            await self._clock.sleep(next(self._settings.polling.pauses(self._patience.random)))

    def _is_held(self, key: UnitKey) -> bool:
        """Whether a message that announces the unit is surely invisible to others: after a pause it may not be."""
        return any(self._visibility.is_current(message) for message in self._local.messages_of([key]))

    def _was_read(self, keys: Sequence[UnitKey]) -> None:
        """Units were read to their end: messages that announce no others are extended for the last time."""
        read = [key for key in keys if self._local.state_of(key) is UnitState.READING]
        self._local.end_read(read)
        self._read += read
        self._was_read_some.set()

    async def _acknowledge(self) -> None:
        await self._settling.acknowledge()
        self._changed.set()

    # --- keeping what is held

    async def _keep_messages_for_ever(self) -> None:
        """Extend the visibility of messages while they are held. It waits for the queue alone, never for the state."""
        visibility = self._visibility
        while True:
            await _set_within(self._was_read_some, visibility.pause)
            read, self._read = self._local.messages_read(self._read), []
            self._lose(await visibility.extend_for_last_time(read, self._settings.last_visibility))
            self._lose(await visibility.extend_due())

    async def _keep_units_for_ever(self) -> None:
        """Show a sign of life for the units of held messages, and release those whose messages were lost."""
        interval = self._settings.lease.total_seconds() / 4
        due_at = self._clock.monotonic() + interval
        while True:
            await _set_within(self._was_orphaned_some, due_at - self._clock.monotonic())
            await self._release_orphaned()
            if self._clock.monotonic() >= due_at:
                due_at = self._clock.monotonic() + interval
                await self._show_life()
                await self._deliver_replayed()

    def _lose(self, messages: Collection[Message]) -> None:
        """Abandon messages that another consumer may have by now. Units that only they announce are not landed."""
        if not messages:
            return
        self.counts.lost += len(messages)
        self._settling.expect_again()
        LOG.warning(
            "Pipeline %s: messages that could not be kept invisible, and come again: %d.",
            self._settings.name,
            len(messages),
        )
        reading = {work.key for state in _LANDING for work in self._local.in_state(state)}
        self._orphaned += [key for key in self._local.lose(messages) if key not in reading]
        self._was_orphaned_some.set()
        self._changed.set()

    async def _release_orphaned(self) -> None:
        orphaned, self._orphaned = self._orphaned, []
        for _, uuid, units in self._tables.group(key for key in orphaned if not self._local.holds(key)):
            with suppress(Unavailable, OutcomeUnknown):  # then they are free when the lease is over
                await self._shared.release(uuid, units)

    async def _show_life(self) -> None:
        ready = {work.key for work in self._local.in_state(UnitState.READY)}  # one that is being opened is not ours yet
        for table, uuid, units in self._tables.group(self._local.units):
            with suppress(Unavailable, OutcomeUnknown):
                kept = await self._shared.extend(uuid, units)
                taken = [UnitKey(table, unit) for unit in units if unit not in kept]
                self._local.abandon(
                    key for key in taken if key in ready and self._local.state_of(key) is UnitState.READY
                )
        await self._acknowledge()

    async def _deliver_replayed(self) -> None:
        if self._replays is not None:
            with suppress(Unavailable, OutcomeUnknown):  # asked again soon
                await self._replays.deliver(self._tables.known())

    async def _prune_for_ever(self) -> None:
        settings = self._settings
        while True:
            await self._clock.sleep(settings.cleanup_interval.total_seconds())
            for uuid in self._tables.known():
                with suppress(Unavailable, OutcomeUnknown):
                    self.counts.pruned += await self._shared.prune(uuid) or 0


async def _set_within(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until an event is set, at most so many seconds but a millisecond at least, and clear it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if seconds is None else max(seconds, 0.001)):
            await event.wait()
    event.clear()


def groups_of(works: Sequence[Work], settings: PipelineSettings) -> list[list[Work]]:
    """Divide units into landings: those that failed before into smaller groups, and all by their bytes."""
    by_limit: dict[int, list[Work]] = {}
    for work in works:
        by_limit.setdefault(settings.group_limit(work.tries), []).append(work)
    groups: list[list[Work]] = []
    for limit in sorted(by_limit, reverse=True):
        group, size = list[Work](), 0
        for work in by_limit[limit]:
            if group and (len(group) >= limit or size + work.size > settings.max_bytes):
                groups.append(group)
                group, size = [], 0
            group.append(work)
            size += work.size
        groups.append(group)
    return groups
