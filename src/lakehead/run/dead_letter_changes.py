"""Replaying and dropping dead letters. The letter's object is the truth; the state follows it.

Dropping that of an accepted batch discards the batch first, in the store where it was accepted: so it stays dropped
whatever becomes of the letter and the state, and the audit of accepted batches knows why it is in no table.
"""

from collections.abc import Sequence

from lakehead.accept.discarded_batches import DiscardedBatches
from lakehead.consume.accepted_units import identity_of_unit
from lakehead.consume.queue import SendingQueue
from lakehead.errors import Misconfigured, Unavailable
from lakehead.lake.dead_letters import DeadLetters, close_landed, indexed
from lakehead.run.consumed_tables import AcceptedStore
from lakehead.state.model import FileOutcome, FileState, Shard
from lakehead.state.state import State
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.dead_letters import NO_TABLE, ClosedLetter, DeadLetterObject


async def replay_letter(
    letter: DeadLetterObject,
    *,
    letters: DeadLetters,
    state: State,
    queue: SendingQueue | None,
    accepted: Sequence[AcceptedStore] = (),
) -> None:
    """Send a letter's message again, then let its unit be tried again. The letter stays open until its unit lands.

    The replay is announced in the state before the message is sent: a pipeline that receives the message at once, or
    after a crash of this process, revives the unit itself. A unit that no message brought, as in a backfill, is
    only revived. `accepted` has the stores of the batches that the pipelines land. Raises `Misconfigured` if the letter
    is closed, its batch is discarded, or its queue cannot be sent to.
    """
    if letter.closed is not None:
        raise Misconfigured(
            f"The dead letter of {letter.unit} was closed as {letter.closed.how} on {letter.closed.at:%Y-%m-%d}. "
            "Only open ones can be replayed."
        )
    if (batch := _batch(letter, accepted)) and await batch[0].is_discarded(letter.table, batch[1]):
        raise Misconfigured(
            f"The batch {letter.unit} is discarded, and never lands: dropping its dead letter was begun. Drop it again."
        )
    body = letter.body
    if body is not None and queue is None:
        raise Misconfigured(
            f"The queue of the pipeline cannot be sent to, so the message of {letter.unit} cannot be replayed. "
            "Send it again where it came from."
        )
    if not state.history.begin_replay(letter.table, letter.unit, generation=letter.generation):
        state.history.follow(indexed(letter))  # a state that does not know the letter
    if body is not None and queue is not None:
        await queue.send([body])
    await letters.mark_replayed(letter, state.now())
    state.history.revive(letter.table, letter.unit, generation=letter.generation)


async def drop_letter(
    letter: DeadLetterObject, *, letters: DeadLetters, state: State, accepted: Sequence[AcceptedStore] = ()
) -> DeadLetterObject:
    """Drop a letter: its unit is never landed, even if its message comes again. Returns the letter, which is closed.

    It is closed as landed instead if its unit has landed meanwhile. Dropping it again is harmless, and finishes what a
    crash has left. `accepted` has the stores of the batches that the pipelines land. Raises `Unavailable` if a pipeline
    is trying it at this moment: what it has planned may still be published.
    """
    if _is_held(shards := _shards(letter, state), state):
        raise Unavailable(
            f"{letter.unit} is being tried by a pipeline, which may be about to land it. Nothing was changed: drop it "
            "when that try has failed, or stop the pipeline first."
        )
    if _has_landed(shards):
        return await _close_landed(letter, letters, state)
    if (batch := _batch(letter, accepted)) and not (letter.closed and letter.closed.how == "landed"):
        discarded, identity = batch
        await discarded.discard(letter.table, identity, reason=letter.reason)
        # A pipeline that has taken the unit before it could see the record may land it.
        if _is_held(shards := _shards(letter, state), state):
            raise Unavailable(
                f"{letter.unit} is discarded, but a pipeline has begun to try it meanwhile, and may still land it. "
                "Drop it again when that try is over."
            )
        if _has_landed(shards):
            return await _close_landed(letter, letters, state)
    closed = await letters.close(letter, ClosedLetter("dropped", state.now()))
    if closed.closed is not None and closed.closed.how == "dropped":
        state.history.drop(indexed(closed))
        if letter.table != NO_TABLE:
            outcome = FileOutcome(
                unit=letter.unit, generation=letter.generation, state=FileState.DROPPED, tries=letter.tries
            )
            state.files.record(letter.table, [outcome])
    return closed


def _shards(letter: DeadLetterObject, state: State) -> Sequence[Shard]:
    return state.shards.read(letter.table, [letter.unit], generation=letter.generation)


def _is_held(shards: Sequence[Shard], state: State) -> bool:
    return any(each.owner is not None and each.lease_until and each.lease_until > state.now() for each in shards)


def _has_landed(shards: Sequence[Shard]) -> bool:
    return any(shard.snapshot is not None for shard in shards)


async def _close_landed(letter: DeadLetterObject, letters: DeadLetters, state: State) -> DeadLetterObject:
    state.history.follow(indexed(letter))
    await close_landed(letters, state, letter.table, [letter.unit], at=state.now(), generation=letter.generation)
    return await letters.read(letter.key) or letter


def _batch(
    letter: DeadLetterObject, accepted: Sequence[AcceptedStore]
) -> tuple[DiscardedBatches, BatchIdentity] | None:
    """The accepted batch of a letter, and where it is discarded; None if it is another unit, or of no table."""
    if letter.table == NO_TABLE:
        return None
    for each in accepted:
        if (identity := identity_of_unit(letter.unit, each.url)) is not None:
            return each.open_discarded(), identity
    return None
