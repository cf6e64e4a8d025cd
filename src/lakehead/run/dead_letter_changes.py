"""Replaying and dropping dead letters. The letter's object is the truth; the state follows it."""

from lakehead.consume.queue import SendingQueue
from lakehead.errors import Misconfigured, Unavailable
from lakehead.lake.dead_letters import DeadLetters, close_landed, indexed
from lakehead.state.model import FileOutcome, FileState
from lakehead.state.state import State
from lakehead.wire.dead_letters import NO_TABLE, ClosedLetter, DeadLetterObject


async def replay_letter(
    letter: DeadLetterObject, *, letters: DeadLetters, state: State, queue: SendingQueue | None
) -> None:
    """Send a letter's message again, then let its unit be tried again. The letter stays open until its unit lands.

    The replay is announced in the state before the message is sent: a pipeline that receives the message at once, or
    after a crash of this process, revives the unit itself. A unit that no message brought, as in a backfill, is
    only revived. Raises `Misconfigured` if the letter is closed, or its queue cannot be sent to.
    """
    if letter.closed is not None:
        raise Misconfigured(
            f"The dead letter of {letter.unit} was closed as {letter.closed.how} on {letter.closed.at:%Y-%m-%d}. "
            "Only open ones can be replayed."
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


async def drop_letter(letter: DeadLetterObject, *, letters: DeadLetters, state: State) -> DeadLetterObject:
    """Drop a letter: its unit is never landed, even if its message comes again. Returns the letter, which is closed.

    It is closed as landed instead if its unit has landed meanwhile. Dropping it again is harmless. Raises `Unavailable`
    if a pipeline is trying it at this moment: what it has planned may still be published.
    """
    shards = state.shards.read(letter.table, [letter.unit], generation=letter.generation)
    if any(each.owner is not None and each.lease_until and each.lease_until > state.now() for each in shards):
        raise Unavailable(
            f"{letter.unit} is being tried by a pipeline, which may be about to land it. Nothing was changed: drop it "
            "when that try has failed, or stop the pipeline first."
        )
    if any(shard.snapshot is not None for shard in shards):
        state.history.follow(indexed(letter))
        await close_landed(letters, state, letter.table, [letter.unit], at=state.now(), generation=letter.generation)
        return await letters.read(letter.key) or letter
    closed = await letters.close(letter, ClosedLetter("dropped", state.now()))
    if closed.closed is not None and closed.closed.how == "dropped":
        state.history.drop(indexed(closed))
        if letter.table != NO_TABLE:
            outcome = FileOutcome(
                unit=letter.unit, generation=letter.generation, state=FileState.DROPPED, tries=letter.tries
            )
            state.files.record(letter.table, [outcome])
    return closed
