"""Pipelines whose messages announce units for two tables, and dead letters that an operator replays or drops."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.ports import DeadLetterBox, LandingReport, UnitLander
from lakehead.consume.queue import Message
from lakehead.consume.shared_state import Opened, SharedState
from lakehead.lake.landing import Unit, UnitRemainder
from lakehead.state.model import FileOutcome
from tests.sim.consume_model import ModelQueue, Objects, must_be_settled
from tests.sim.consume_scenarios import (
    FEW_TRIES,
    Pipelines,
    Variant,
    crash,
    must_have_landed,
    outage,
    pause,
    replay,
    spoil,
    stop,
    stop_all,
    until_empty,
)
from tests.sim.landing_model import Lake, ModelProgress, Wire
from tests.support.simulation import Process, Scenario, Violation, World

TABLES = ("left", "right")
UNITS = ("0-3", "2-5", "20-22")


class SharedByTable:
    """`SharedState` of several tables: asks the one that a call is about."""

    def __init__(self, tables: Mapping[str, SharedState]) -> None:
        self._tables = tables

    async def open(self, table: str, units: Collection[str]) -> Opened:
        return await self._tables[table].open(table, units)

    async def extend(self, table: str, units: Collection[str]) -> set[str]:
        return await self._tables[table].extend(table, units)

    async def release(self, table: str, units: Collection[str]) -> None:
        await self._tables[table].release(table, units)

    async def count_try(self, table: str, tries: Mapping[str, int]) -> Mapping[str, int]:
        return await self._tables[table].count_try(table, tries)

    async def take_back_try(self, table: str, tries: Mapping[str, int]) -> None:
        await self._tables[table].take_back_try(table, tries)

    async def settled(self, table: str, units: Collection[str]) -> set[str]:
        return await self._tables[table].settled(table, units)

    async def acknowledge(self, table: str, units: Collection[str]) -> None:
        await self._tables[table].acknowledge(table, units)

    async def record(self, table: str, outcomes: Sequence[FileOutcome]) -> None:
        await self._tables[table].record(table, outcomes)

    async def prune(self, table: str) -> int | None:
        return await self._tables[table].prune(table)

    async def remembered(self, table: str) -> int:
        return await self._tables[table].remembered(table)


class LandingsByTable:
    """`UnitLander` of several tables."""

    def __init__(self, tables: Mapping[str, UnitLander]) -> None:
        self._tables = tables

    async def uuid(self, table: str) -> str:
        return await self._tables[table].uuid(table)

    async def land(
        self,
        table: str,
        works: Sequence[Work],
        *,
        is_held: Callable[[UnitKey], bool],
        read: Callable[[Sequence[UnitKey]], None],
    ) -> LandingReport:
        return await self._tables[table].land(table, works, is_held=is_held, read=read)


class LettersByTable:
    """`DeadLetterBox` of several tables."""

    def __init__(self, tables: Mapping[str, DeadLetterBox]) -> None:
        self._tables = tables

    async def give_up(self, work: Work, table: str, reason: str, tries: int) -> bool:
        return await self._tables[table].give_up(work, table, reason, tries)

    async def give_up_message(self, message: Message, reason: str) -> None:
        raise AssertionError(f"message {message.id} is not understood: {reason}")

    async def close_landed(self, table: str, units: Collection[str]) -> None:
        await self._tables[table].close_landed(table, units)


@dataclass
class WatchedProgress(ModelProgress):
    """Raises `Violation` if a landing takes up a unit whose dead letter was dropped."""

    dropped: Collection[str] = ()

    def own_records(self, units: Sequence[Unit]) -> list[UnitRemainder]:
        if again := sorted(unit.id for unit in units if unit.id in self.dropped):
            raise Violation(f"{again} are landed, and their dead letters were dropped")
        return super().own_records(units)


@dataclass
class OneTable(Pipelines):
    """One of the tables: its lake, its state, its objects and dead letters."""

    dropped: set[str] = field(default_factory=set)

    def progress(self, name: str) -> ModelProgress:
        return WatchedProgress(self.database, self.wire, name, self.lease, dropped=self.dropped)


@dataclass
class TwoTables(Pipelines):
    """Pipelines that land in two tables, from one queue."""

    tables: dict[str, OneTable] = field(default_factory=dict)

    def parts(self, name: str, process: Process) -> tuple[SharedState, UnitLander, DeadLetterBox]:
        parts = {table: each.parts(name, process) for table, each in self.tables.items()}
        return (
            SharedByTable({table: shared for table, (shared, _, _) in parts.items()}),
            LandingsByTable({table: landings for table, (_, landings, _) in parts.items()}),
            LettersByTable({table: letters for table, (_, _, letters) in parts.items()}),
        )

    def read_message(self, message: Message, counts: ConsumeCounts) -> Sequence[Work]:
        """The body of a message names its units, each with its table: `left/0-3 right/0-3`."""
        del counts
        keys = [UnitKey(*word.split("/")) for word in message.body.decode().split()]
        return [Work(key=key, message=message) for key in keys]

    def send_some(self, name: str) -> None:
        """Announce some units of any of the tables in one message."""
        random = self.world.random
        both = [f"{table}/{unit}" for table in TABLES for unit in UNITS]
        self.queue.send(name, " ".join(random.sample(both, random.randint(1, 4))))

    def must_be_settled(self, words: Sequence[str]) -> None:
        for word in words:
            table, unit = word.split("/")
            must_be_settled(self.tables[table].lake, self.tables[table].dead, [unit], table)


async def send_again(pipelines: Pipelines) -> None:
    """Some content is announced once more, for one table or for both."""
    assert isinstance(pipelines, TwoTables)
    pipelines.send_some(f"again {pipelines.world.ids.uuid()}")


async def replay_some(pipelines: Pipelines) -> None:
    """An operator replays dead letters of both tables."""
    assert isinstance(pipelines, TwoTables)
    for table, each in pipelines.tables.items():
        await replay(each, chance=0.5, prefix=f"{table}/")


async def drop_some(pipelines: Pipelines) -> None:
    """An operator drops dead letters, also such as were just replayed, and their messages come once more."""
    assert isinstance(pipelines, TwoTables)
    random = pipelines.world.random
    for table, each in pipelines.tables.items():
        rows = each.database[0].rows
        for unit in sorted(each.dead):
            row = rows.get(Unit(unit))
            if row is None or not row.given_up or row.landed is not None or random.random() < 0.5:
                continue
            pipelines.world.note(f"the letter of {unit} in {table} is dropped")
            each.dropped.add(unit)
            if pipelines.variant.forgets_dropped:
                del rows[Unit(unit)]
            else:
                row.dropped, row.replayed = True, False
            pipelines.queue.send(f"dropped {pipelines.world.ids.uuid()}", f"{table}/{unit}")


TROUBLES = (crash, pause, stop, send_again, outage, replay_some, drop_some, drop_some)


def two_tables(variant: Variant) -> Scenario:
    """Two pipelines, messages for two tables, and an operator who replays and drops; in the end all else has landed."""

    async def scenario(world: World) -> None:
        wire = Wire(world, variant.faults, longest=10.0)
        pipelines = TwoTables(world, variant, Lake(world), wire, None, Objects(), set())  # type: ignore[arg-type]
        pipelines.queue = queue = ModelQueue(world, pipelines.must_be_settled, variant.faults)
        for table in TABLES:
            one = OneTable(world, variant, Lake(world), wire, queue, Objects(), set())
            spoil(world, one.objects, variant, UNITS)
            pipelines.tables[table] = one
        for unit in UNITS:
            queue.send(f"both {unit}", f"left/{unit} right/{unit}")
        for _ in range(2):
            pipelines.start()
        for _ in range(world.random.randrange(4, 9)):
            await world.clock.sleep(world.random.expovariate(0.2))
            await world.random.choice(TROUBLES)(pipelines)
        await until_empty(pipelines)
        while any([await replay(one, 1.0, f"{table}/") for table, one in pipelines.tables.items()]):
            await until_empty(pipelines)
        await stop_all(pipelines)
        for one in pipelines.tables.values():
            must_have_landed(one, [unit for unit in UNITS if unit not in one.dropped])

    return scenario


TABLES_SOUND: dict[str, Scenario] = {"consume_two_tables": two_tables(Variant(settings=FEW_TRIES))}
TABLES_BROKEN: dict[str, Scenario] = {
    "consume_dropped_letter_forgotten": two_tables(Variant(settings=FEW_TRIES, forgets_dropped=True)),
}
