"""Dead letters of a pipeline."""

from collections.abc import Collection
from contextlib import suppress

from lakehead.buffer.errors import InvalidCall
from lakehead.consume.local_state import Work
from lakehead.consume.queue import DeletingQueue, Message
from lakehead.consume.uris import unknown_etag_id
from lakehead.lake.dead_letters import DeadLetters, close_landed, give_up
from lakehead.state.state import State
from lakehead.wire.dead_letters import NO_TABLE, DeadLetterObject, message_unit


class QueueDeadLetters:
    """Keeps what a pipeline could not land, as objects in the ledger's store."""

    def __init__(
        self,
        letters: DeadLetters,
        state: State,
        token: str,
        queue: str,
        *,
        keeps_messages: bool = True,
        deleting: DeletingQueue | None = None,
    ) -> None:
        """`token` is the pipeline's publish token, `queue` the name of its queue.

        `deleting` is that queue if it deletes objects when their messages are acknowledged: they are kept first.

        `keeps_messages`: whether letters have the messages, to send them again. Not for a listing: it has none.
        """
        self._letters = letters
        self._state = state
        self._token = token
        self._queue = queue
        self._keeps_messages = keeps_messages
        self._deleting = deleting

    async def give_up(self, work: Work, table: str, reason: str, tries: int) -> bool:
        """Make a unit a dead letter of a table, named by its uuid: first the object, then the shared state.

        Its message may be acknowledged afterwards. False if the unit is not ours any more.
        """
        uri = work.object.uri if work.object else None
        if self._deleting is not None and uri is not None:
            await self._deleting.keep(work.message.body)
        letter = self._letter(work.message, table, work.key.unit, reason, tries=tries, uri=uri)
        return await give_up(self._letters, self._state, letter, owner=self._token)

    async def give_up_message(self, message: Message, reason: str) -> None:
        """Make a message that was not understood a dead letter."""
        unit = message_unit(message.body)
        if self._deleting is not None:
            with suppress(InvalidCall):  # it is no location, so that nothing is deleted
                await self._deleting.keep(message.body)
        await self._letters.write(self._letter(message, NO_TABLE, unit, reason, tries=message.deliveries))

    async def close_landed(self, table: str, units: Collection[str]) -> None:
        """Close the dead letters of units that have landed after all, and of objects that were gone when announced."""
        gone = [unknown_etag_id(uri) for unit in units if (uri := unit.rpartition("?etag=")[0])]
        await close_landed(self._letters, self._state, table, [*units, *gone], at=self._state.now())

    def _letter(
        self, message: Message, table: str, unit: str, reason: str, *, tries: int, uri: str | None = None
    ) -> DeadLetterObject:
        now = self._state.now()
        letter = DeadLetterObject(
            table=table,
            unit=unit,
            reason=reason,
            tries=tries,
            first_at=now,
            last_at=now,
            queue=self._queue,
            message_id=message.id,
            uri=uri,
        )
        return letter.with_body(message.body) if self._keeps_messages or uri is None else letter
