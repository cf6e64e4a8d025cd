"""`lakehead dead-letters`: what was given up is shown with its reason, sent again, or dropped for good."""

import asyncio
import json
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from lakehead.accept.discarded_batches import DiscardedBatches
from lakehead.clock import SystemClock
from lakehead.consume.accepted_units import accepted_unit
from lakehead.errors import Misconfigured, Unavailable
from lakehead.ids import RandomIds
from lakehead.lake.dead_letters import DeadLetters, close_landed, give_up, open_or_dropped
from lakehead.run.consumed_tables import AcceptedStore, ConsumedTables
from lakehead.run.dead_letter_changes import drop_letter, replay_letter
from lakehead.run.dead_letters_command import dead_letter_commands
from lakehead.state.model import FileState, ShardState
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.dead_letters import NO_TABLE, DeadLetterObject, letter_id, letter_key, message_unit
from tests.support.async_tests import async_test
from tests.support.state_tools import FIRST, HOUR, hold, landing
from tests.unit.accept.support import ScriptedStore

TABLE = "4b0f7ad2-93a5-4d4a-9c0e-3e6a1f9c8f10"
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
URL = "s3://bucket/prod"
BATCH = BatchIdentity("agent-a", "boot-1", 10, 20)
UNIT = accepted_unit(BATCH, URL)
T = TypeVar("T")


@dataclass
class ListQueue:
    """A queue that keeps what is sent, and may fail before or after it."""

    sent: list[bytes] = field(default_factory=list)
    fails: bool = False

    async def send(self, bodies: Sequence[bytes]) -> None:
        if self.fails:
            raise Unavailable("The queue is away.")
        self.sent += bodies


@dataclass
class Pipeline:
    """A pipeline with one table, as much of it as the commands see."""

    state: State
    letters: DeadLetters
    queue: ListQueue = field(default_factory=ListQueue)
    authority: ScriptedStore = field(default_factory=ScriptedStore)
    """The store of accepted batches."""

    @property
    def accepted(self) -> tuple[AcceptedStore, ...]:
        records = DiscardedBatches(
            store=self.authority, clock=SystemClock(), ids=RandomIds(), random=Random(1), by="operator"
        )
        return (AcceptedStore(URL, lambda: records),)

    @contextmanager
    def open(self, _config: Path, _pipeline: str | None) -> Iterator[ConsumedTables]:
        yield ConsumedTables(
            state=self.state,
            store=self.letters.store,
            tables={"raw.files": TABLE},
            queue=self.queue,
            accepted=self.accepted,
        )

    def run(self, *arguments: str, typed: str = "") -> Result:
        app = dead_letter_commands(self.open)
        command, *others = arguments
        return CliRunner().invoke(app, [command, "files.json", *others], input=typed)

    async def bury(self, unit: str, body: bytes = b"message") -> DeadLetterObject:
        hold(self.state, TABLE, unit)
        letter = a_letter(unit).with_body(body)
        assert await give_up(self.letters, self.state, letter, owner="us")
        return letter

    async def deliver(self) -> list[str]:
        """What a pipeline does with messages that name units: returns the units that it may read."""
        units = [body.decode() for body in self.queue.sent]
        for letter in self.state.history.letters_of(TABLE, units):
            if letter.replayed_at is not None and letter.dropped_at is None:
                self.state.history.revive(TABLE, letter.unit)
        self.state.shards.open(TABLE, units, token="us")
        got = self.state.shards.acquire(TABLE, units, owner="us", lease_until=self.state.now() + HOUR)
        self.queue.sent.clear()  # landed or given up: acknowledged
        return sorted(got)


def a_letter(unit: str, table: str = TABLE) -> DeadLetterObject:
    return DeadLetterObject(table=table, unit=unit, reason="line 3: no date", tries=5, first_at=AT, last_at=AT)


def do(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    with open_state(f"sqlite:///{tmp_path}/state.db", SystemClock(), RandomIds()) as state:
        yield Pipeline(state, DeadLetters(MemoryStore(clock=SystemClock())))


def test_list_shows_open_letters_of_tables_and_of_messages_without_one(pipeline: Pipeline) -> None:
    do(pipeline.bury("s3://bucket/a"))
    do(pipeline.letters.write(a_letter(message_unit(b"?"), NO_TABLE).with_body(b"?")))
    do(pipeline.bury("s3://bucket/dropped"))
    pipeline.run("drop", "s3://bucket/dropped", "--yes")

    shown, printed = pipeline.run("list"), json.loads(pipeline.run("list", "--json").stdout)

    assert [each["unit"] for each in printed["dead_letters"]] == ["s3://bucket/a", message_unit(b"?")]
    assert shown.stdout.splitlines()[-1] == "2 dead letters"
    assert "raw.files" in shown.stdout
    assert "line 3: no date" in shown.stdout
    assert pipeline.run("list", "--closed").stdout.splitlines()[-1] == "3 dead letters"
    assert pipeline.run("list", "--closed", "--limit", "2").stdout.splitlines()[-1] == "2 dead letters"
    assert pipeline.run("list", "--table", "raw.files").stdout.splitlines()[-1] == "1 dead letter"
    unknown = pipeline.run("list", "--table", "raw.none")
    assert isinstance(unknown.exception, Misconfigured)


def test_list_shows_the_others_beside_a_letter_that_cannot_be_read(pipeline: Pipeline) -> None:
    do(pipeline.bury("a"))
    do(pipeline.letters.store.put(letter_key(TABLE, "damaged"), b"{"))

    done = pipeline.run("list")

    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == "1 dead letter"


def test_show_prints_everything_that_is_stored(pipeline: Pipeline) -> None:
    do(pipeline.bury("s3://bucket/a", b"\xff"))
    name = letter_id("s3://bucket/a")

    printed = json.loads(pipeline.run("show", name[:8], "--json").stdout)["dead_letters"]

    assert [(each["id"], each["base64"], each["state"]) for each in printed] == [(name, "/w==", "open")]
    assert "reason: line 3: no date" in pipeline.run("show", "s3://bucket/a").stdout
    assert "no dead letter" in str(pipeline.run("show", "0" * 8).exception)
    assert "no dead letter" in str(pipeline.run("show", name[:3]).exception), "too short to mean one"


def test_a_replay_sends_the_message_and_its_unit_is_tried_again(pipeline: Pipeline) -> None:
    do(pipeline.bury("a", b"a"))

    done = pipeline.run("replay", "a")

    assert done.stdout == "a is replayed\n"
    assert pipeline.queue.sent == [b"a"]
    [shard] = pipeline.state.shards.read(TABLE, ["a"])
    assert (shard.state, shard.tries) == (ShardState.READY, 0)
    [shown] = json.loads(pipeline.run("list", "--json").stdout)["dead_letters"]
    assert shown["state"] == "replayed", "it is open until it has landed"


@async_test
async def test_only_its_landing_closes_a_letter_that_was_replayed(pipeline: Pipeline) -> None:
    letter = await pipeline.bury("a", b"a")
    await replay_letter(letter, letters=pipeline.letters, state=pipeline.state, queue=pipeline.queue)
    assert await pipeline.deliver() == ["a"]
    pipeline.state.landings.settle(TABLE, None, FIRST, [landing(FIRST, "a")])

    assert await close_landed(pipeline.letters, pipeline.state, TABLE, ["a"], at=AT) == 1

    stored = await pipeline.letters.get(TABLE, "a")
    assert stored is not None
    assert stored.closed is not None
    assert (stored.closed.how, stored.closed.snapshot) == ("landed", FIRST.snapshot)
    with pytest.raises(Misconfigured, match="closed as landed"):
        await replay_letter(stored, letters=pipeline.letters, state=pipeline.state, queue=pipeline.queue)


class Killed(BaseException):
    """The process ends here."""


def killed_at(monkeypatch: pytest.MonkeyPatch, of: type, name: str) -> None:
    def kill(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(of, name, kill)


@pytest.mark.parametrize("step", ["before the message is sent", "before the letter is marked", "before the revival"])
def test_a_replay_that_is_killed_anywhere_loses_nothing(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    letter = do(pipeline.bury("a", b"a"))
    places: dict[str, tuple[type, str]] = {
        "before the message is sent": (ListQueue, "send"),
        "before the letter is marked": (DeadLetters, "mark_replayed"),
        "before the revival": (type(pipeline.state.history), "revive"),
    }

    def replay() -> None:
        do(replay_letter(letter, letters=pipeline.letters, state=pipeline.state, queue=pipeline.queue))

    with monkeypatch.context() as patched:
        killed_at(patched, *places[step])
        with pytest.raises(Killed):
            replay()
    stored = do(pipeline.letters.get(TABLE, "a"))
    assert stored is not None
    assert stored.closed is None, "it is open"
    if step != "before the message is sent":
        assert do(pipeline.deliver()) == ["a"], "the message that was sent is tried, though nobody revived its unit"
        return
    assert do(pipeline.deliver()) == []
    replay()
    assert do(pipeline.deliver()) == ["a"]


def test_a_message_that_is_delivered_before_the_revival_is_tried_too(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = do(pipeline.bury("a", b"a"))
    tried: list[str] = []

    async def send(self: ListQueue, bodies: Sequence[bytes]) -> None:
        self.sent += bodies
        tried.extend(await pipeline.deliver())

    monkeypatch.setattr(ListQueue, "send", send)

    do(replay_letter(letter, letters=pipeline.letters, state=pipeline.state, queue=pipeline.queue))

    assert tried == ["a"]
    [shard] = pipeline.state.shards.read(TABLE, ["a"])
    assert (shard.state, shard.owner) == (ShardState.IN_PROGRESS, "us"), "the late revival leaves it to its owner"


def test_a_queue_that_fails_leaves_the_letter_open_and_the_others_are_printed(pipeline: Pipeline) -> None:
    do(pipeline.bury("a", b"a"))
    pipeline.queue.fails = True

    done = pipeline.run("replay", "a", "--json")

    assert isinstance(done.exception, Unavailable)
    assert json.loads(done.stdout) == {"changed": {}}
    assert json.loads(pipeline.run("list", "--json").stdout)["dead_letters"][0]["state"] == "open"


@async_test
async def test_a_unit_of_a_backfill_is_revived_without_a_message(pipeline: Pipeline) -> None:
    hold(pipeline.state, TABLE, "a")
    letter = a_letter("a")
    await give_up(pipeline.letters, pipeline.state, letter, owner="us")

    await replay_letter(letter, letters=pipeline.letters, state=pipeline.state, queue=None)

    [shard] = pipeline.state.shards.read(TABLE, ["a"])
    assert shard.state is ShardState.READY
    with pytest.raises(Misconfigured, match="cannot be sent to"):
        await replay_letter(letter.with_body(b"a"), letters=pipeline.letters, state=pipeline.state, queue=None)


def test_a_dropped_letter_is_closed_and_its_message_is_never_landed(pipeline: Pipeline) -> None:
    do(pipeline.bury("a", b"a"))

    assert pipeline.run("drop", "a", "--yes").stdout == "a is dropped\n"
    assert pipeline.run("drop", "a", "--yes").stdout == "a is dropped\n", "again is harmless"

    pipeline.queue.sent.append(b"a")
    assert do(pipeline.deliver()) == []
    found = pipeline.state.files.find(TABLE, "a")
    assert found is not None
    assert found.state is FileState.DROPPED
    assert "closed as dropped" in str(pipeline.run("replay", "a").exception)


@async_test
async def test_a_drop_that_is_killed_between_store_and_state_is_done_by_the_next(pipeline: Pipeline) -> None:
    letter = await pipeline.bury("a", b"a")
    with pytest.MonkeyPatch.context() as patched:
        killed_at(patched, type(pipeline.state.history), "drop")
        with pytest.raises(Killed):
            await drop_letter(letter, letters=pipeline.letters, state=pipeline.state)
    stored = await pipeline.letters.get(TABLE, "a")
    assert stored is not None
    assert stored.closed is not None, "a state that is lost now is rebuilt with it"

    closed = await drop_letter(letter, letters=pipeline.letters, state=pipeline.state)

    assert closed.closed is not None
    assert closed.closed.how == "dropped"
    [row] = pipeline.state.history.letters_of(TABLE, ["a"])
    assert row.dropped_at == closed.closed.at


@async_test
async def test_what_has_landed_meanwhile_is_closed_as_landed_and_not_dropped(pipeline: Pipeline) -> None:
    letter = await pipeline.bury("a", b"a")
    pipeline.state.landings.settle(TABLE, None, FIRST, [landing(FIRST, "a")])

    closed = await drop_letter(letter, letters=pipeline.letters, state=pipeline.state)

    assert closed.closed is not None
    assert closed.closed.how == "landed"
    assert pipeline.state.history.letters_of(TABLE, ["a"]) == []


@async_test
async def test_what_a_pipeline_is_trying_again_is_not_dropped_because_it_may_still_land(pipeline: Pipeline) -> None:
    letter = await pipeline.bury("a", b"a")
    assert pipeline.state.history.revive(TABLE, "a")
    until = pipeline.state.now() + timedelta(minutes=1)
    pipeline.state.shards.acquire(TABLE, ["a"], owner="them", lease_until=until)

    with pytest.raises(Unavailable, match="stop the pipeline first"):
        await drop_letter(letter, letters=pipeline.letters, state=pipeline.state)
    stored = await pipeline.letters.get(TABLE, "a")
    assert stored is not None
    assert stored.closed is None

    pipeline.state.shards.release(TABLE, ["a"], owner="them")
    closed = await drop_letter(letter, letters=pipeline.letters, state=pipeline.state)
    assert closed.closed is not None
    assert closed.closed.how == "dropped"


def test_a_drop_asks_first(pipeline: Pipeline) -> None:
    do(pipeline.bury("a"))

    assert pipeline.run("drop", "a", typed="n\n").exit_code == 1

    assert pipeline.run("list").stdout.splitlines()[-1] == "1 dead letter"


@pytest.mark.parametrize("command", ["list", "show", "replay", "drop"])
def test_help_has_an_example(pipeline: Pipeline, command: str) -> None:
    app = dead_letter_commands(pipeline.open)

    assert f"Example: lakehead dead-letters {command} files.json" in CliRunner().invoke(app, [command, "--help"]).stdout


def test_dropping_an_accepted_batch_discards_it_where_it_was_accepted(pipeline: Pipeline) -> None:
    do(pipeline.bury(UNIT))
    do(pipeline.bury("s3://bucket/another"))

    assert pipeline.run("drop", UNIT, "--yes").stdout == f"{UNIT} is dropped\n"
    assert pipeline.run("drop", "s3://bucket/another", "--yes").exit_code == 0
    assert pipeline.run("drop", UNIT, "--yes").stdout == f"{UNIT} is dropped\n", "again changes nothing"

    assert do(pipeline.authority.keys(keys.DISCARDED)) == [keys.discarded(TABLE, BATCH)]


@async_test
async def test_a_drop_that_is_killed_after_the_record_is_finished_by_the_next(pipeline: Pipeline) -> None:
    letter = await pipeline.bury(UNIT)

    class Killed(DeadLetters):
        async def close(self, *_: object) -> DeadLetterObject:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await drop_letter(
            letter, letters=Killed(pipeline.letters.store), state=pipeline.state, accepted=pipeline.accepted
        )

    assert await pipeline.authority.keys(keys.DISCARDED) == [keys.discarded(TABLE, BATCH)]
    with pytest.raises(Misconfigured, match="Drop it again"):
        await replay_letter(
            letter, letters=pipeline.letters, state=pipeline.state, queue=pipeline.queue, accepted=pipeline.accepted
        )
    assert pipeline.queue.sent == []
    dropped = await drop_letter(letter, letters=pipeline.letters, state=pipeline.state, accepted=pipeline.accepted)
    assert dropped.closed is not None
    assert dropped.closed.how == "dropped"


@async_test
async def test_nothing_is_dropped_while_it_is_not_known_whether_the_record_is_stored(pipeline: Pipeline) -> None:
    letter = await pipeline.bury(UNIT)
    pipeline.authority.next(keys.DISCARDED, "unavailable")

    with pytest.raises(Unavailable):
        await drop_letter(letter, letters=pipeline.letters, state=pipeline.state, accepted=pipeline.accepted)

    stored = await pipeline.letters.read(letter.key)
    assert stored is not None
    assert stored.closed is None


@async_test
async def test_a_pipeline_that_takes_the_batch_meanwhile_is_told_because_it_may_land_it(pipeline: Pipeline) -> None:
    letter = await pipeline.bury(UNIT)

    async def taken() -> None:
        pipeline.state.history.begin_replay(TABLE, UNIT)
        pipeline.state.history.revive(TABLE, UNIT)
        hold(pipeline.state, TABLE, UNIT, owner="them")

    pipeline.authority.meanwhile[keys.DISCARDED] = [taken]
    with pytest.raises(Unavailable, match="may still land it"):
        await drop_letter(letter, letters=pipeline.letters, state=pipeline.state, accepted=pipeline.accepted)

    pipeline.state.landings.settle(TABLE, None, FIRST, [landing(FIRST, UNIT)])
    closed = await drop_letter(letter, letters=pipeline.letters, state=pipeline.state, accepted=pipeline.accepted)
    assert closed.closed is not None
    assert closed.closed.how == "landed"


@async_test
async def test_a_rebuilt_state_knows_dropped_letters_and_begun_drops(pipeline: Pipeline, tmp_path: Path) -> None:
    units = [UNIT, accepted_unit(BatchIdentity("agent-a", "boot-1", 21, 30), URL)]
    letters = [await pipeline.bury(unit) for unit in units]
    await drop_letter(letters[0], letters=pipeline.letters, state=pipeline.state, accepted=pipeline.accepted)
    with open_state(f"sqlite:///{tmp_path}/new.db", SystemClock(), RandomIds()) as rebuilt:
        rebuilt.landings.rebuild(TABLE, None, [], await open_or_dropped(pipeline.letters, TABLE))
        rebuilt.shards.open(TABLE, units, token="us")

        assert rebuilt.shards.acquire(TABLE, units, owner="us", lease_until=rebuilt.now() + HOUR) == set()
