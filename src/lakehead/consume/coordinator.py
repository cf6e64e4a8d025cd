"""`QueueCoordinator`: carries messages of a queue from their reception to their acknowledgement after landing."""

import asyncio

from lakehead.clock import Clock
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.keeping import Keeping
from lakehead.consume.local_state import QueueLocalState
from lakehead.consume.patience import Patience
from lakehead.consume.pipeline_context import PipelineContext
from lakehead.consume.ports import Actions, DeadLetterBox, Lookup, Replays, UnitLander
from lakehead.consume.queue import Queue
from lakehead.consume.receiving import MessageParser, Receiving
from lakehead.consume.settings import PipelineSettings
from lakehead.consume.settling import Settling
from lakehead.consume.shared_state import SharedState
from lakehead.consume.table_landings import TableLandings
from lakehead.consume.tables import TableIds
from lakehead.consume.visibility import VisibilityTask
from lakehead.ids import Random

STOP_SECONDS = 5.0
"""How long a landing may go on after `stop`. Then it is cancelled; what it published is found by the next one.
Giving back units, and then messages, may each take as long again."""


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
        self._clock = clock
        patience = Patience(settings.name, settings.polling, clock, random)
        tables = TableIds(landings, patience)
        self._local = QueueLocalState()
        self._visibility = VisibilityTask(queue, settings.visibility, clock)
        self._settling = Settling(
            settings=settings,
            queue=queue,
            local=self._local,
            shared=shared,
            tables=tables,
            visibility=self._visibility,
            dead_letters=dead_letters,
            patience=patience,
            counts=self.counts,
            after_landing=after_landing,
        )
        self._pipeline = PipelineContext(
            settings=settings,
            queue=queue,
            shared=shared,
            tables=tables,
            local=self._local,
            visibility=self._visibility,
            settling=self._settling,
            patience=patience,
            counts=self.counts,
            clock=clock,
        )
        self._receiving = Receiving(pipeline=self._pipeline, reader=reader, lookup=lookup)
        self._keeping = Keeping(pipeline=self._pipeline, replays=replays)
        self._landings = TableLandings(pipeline=self._pipeline, landings=landings, keeping=self._keeping)

    @property
    def held_messages(self) -> int:
        """How many messages are held."""
        return self._local.messages

    @property
    def remembered_units(self) -> int:
        """How many units the state remembers of the pipeline's tables, as of the last clean-up."""
        return sum(self._keeping.remembered.values())

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest message that is held; None if there is none, or the queue does not tell."""
        oldest = self._local.oldest_sent_at()
        return None if oldest is None else max(0.0, self._clock.now_ns() / 1e9 - oldest.timestamp())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, and the queue had nothing when it was asked after all that was to come again.

        Never after `stop`: then nothing is held because it was given back.
        """
        if self._pipeline.stopped.is_set():
            return False
        asked_at = self._receiving.found_nothing_at
        found_nothing = asked_at is not None and asked_at > self._settling.retry_at
        return found_nothing and not self._local.messages and not self._settling.unfinished

    def stop(self) -> None:
        """Receive nothing more, let the landing that is under way end soon, and give everything else back."""
        self._pipeline.stopped.set()
        self._pipeline.changed.set()

    async def run(self) -> None:
        """Consume the queue until `stop` is called. Raises what only an operator can mend."""
        tasks = [
            asyncio.ensure_future(work)
            for work in (
                self._receiving.receive_for_ever(),
                self._keeping.keep_messages_for_ever(),
                self._keeping.keep_units_for_ever(),
                self._keeping.prune_for_ever(),
            )
        ]
        landing = asyncio.ensure_future(self._landings.land_for_ever())
        stop = asyncio.ensure_future(self._pipeline.stopped.wait())
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
