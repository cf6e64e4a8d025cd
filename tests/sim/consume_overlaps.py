"""Accepted batches with common records, equal ones and different ones, under everything that happens to pipelines.

Whatever was accepted and did not land is the same as what landed, or in quarantine when its message is acknowledged.
And nothing is in quarantine without reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import pyarrow as pa

from lakehead.accept.overlaps import Overlaps
from lakehead.consume.counts import ConsumeCounts
from lakehead.consume.decode.frames import AcceptedFrame
from lakehead.consume.landing_overlaps import dropped_records
from lakehead.consume.local_state import UnitKey, Work
from lakehead.consume.messages import uri_in_store
from lakehead.consume.overlaps import FindOwners, OverlapCheck
from lakehead.consume.ports import DeadLetterBox, LandingReport, UnitLander
from lakehead.consume.queue import Message
from lakehead.consume.shared_state import SharedState
from lakehead.lake.landed_numbers import numbers_in
from lakehead.lake.landing import Unit
from lakehead.lake.ports import Staged
from lakehead.retry import Backoff
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import OverlapManifest
from lakehead.wire.frame import encode_frame, frame_sha256, peek_frame
from lakehead.wire.record_schemas import SAMPLES_V1, FrameKind
from lakehead.wire.spans import Spans, without
from tests.faults.store import NO_FAULTS, Faults
from tests.sim.consume_model import ModelLandings, ModelQueue, Objects, must_be_settled
from tests.sim.consume_scenarios import (
    SETTINGS,
    Pipelines,
    Variant,
    crash,
    lost_state,
    must_have_landed,
    outage,
    pause,
    spoil,
    stop,
    stop_all,
    until_empty,
)
from tests.sim.landing_model import TABLE, Files, Lake, Wire, span_of_id
from tests.support.simulation import Process, Scenario, Violation, World

UNITS = ("0-4", "2-6", "0-9", "5-9", "8-12")
"""Only the last records are in one batch alone."""

STORE = "s3://bucket"
SHORT = replace(SETTINGS, deduplication_window=SETTINGS.commit_timeout * 10, cleanup_interval=SETTINGS.commit_timeout)
QUICK = Backoff(attempts=3, first_seconds=0.02, cap_seconds=0.1)


def identity_of(unit: str) -> BatchIdentity:
    numbers = span_of_id(unit)
    return BatchIdentity("agent", "boot", numbers.start, numbers.stop - 1)


@cache
def frame_of(unit: str, own: tuple[int, ...]) -> bytes:
    """The frame of a unit. Its record is its own for some numbers, and everybody's for the others."""
    rows = [
        {"time": number, "metric": unit if number in own else "all", "labels": [], "type": "gauge", "value": 1.0}
        for number in span_of_id(unit)
    ]
    return encode_frame(identity_of(unit), FrameKind.SAMPLES, pa.RecordBatch.from_pylist(rows, schema=SAMPLES_V1))


def uri_of(unit: str) -> str:
    return uri_in_store(STORE, keys.accepted(identity_of(unit)))


@dataclass(frozen=True)
class Rules:
    """How overlaps are compared: as it is, or with one of its rules left out."""

    compares: str = "before publishing"
    """Broken on purpose: never, after landing, or after acknowledging."""
    knows_owners: bool = True
    in_one_landing: bool = False


@dataclass
class Accepted:
    """The accepted batches of a world, and what is in quarantine."""

    world: World
    store: MemoryStore
    own: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """For each batch, the numbers under which it has records of its own."""

    async def accept(self, unit: str) -> None:
        numbers = list(span_of_id(unit))
        choices = [(), (), tuple(numbers), tuple(numbers[-2:]), tuple(numbers[:1])]
        self.own[unit] = self.world.random.choice(choices)
        body = frame_of(unit, self.own[unit])
        manifest = IdentityManifest.of(
            peek_frame(body), frame_sha256(body), accepted_at_unix_ns=1, collector_id="gateway"
        )
        await self.store.put(manifest.raw_blob_key, body)
        await self.store.put(manifest.key, manifest.encode())
        self.world.note(f"{unit} has records of its own: {self.own[unit]}")

    def frame(self, unit: str) -> AcceptedFrame:
        sha256 = frame_sha256(frame_of(unit, self.own[unit]))
        return AcceptedFrame(identity=identity_of(unit), kind=FrameKind.SAMPLES, sha256=sha256)

    def differing(self, unit: str, owners: Mapping[int, str]) -> set[int]:
        """The numbers of a batch under which others landed another record."""
        return {
            number
            for number in span_of_id(unit)
            if (owner := owners.get(number)) not in (None, unit)
            and (number in self.own[unit] or number in self.own[str(owner)])
        }

    def named(self, unit: str) -> set[int]:
        """The numbers of a batch that are in quarantine."""
        frame = self.frame(unit)
        key = keys.overlap(frame.identity, frame.sha256)
        found = self.store._objects.get(key)
        if found is None:
            return set()
        record = OverlapManifest.decode(found.body, key)
        if problems := [each.not_compared for each in record.others if each.not_compared]:
            raise Violation(f"{unit} was not compared: {problems}")
        return {number for start, end in record.ranges for number in range(start, end + 1)}

    def check_acknowledged(self, lake: Lake, dead: set[str], units: Sequence[str]) -> None:
        must_be_settled(lake, dead, units)
        owners = lake.owners()
        for unit in units:
            if unit in self.own and unit not in dead and (lost := self.differing(unit, owners) - self.named(unit)):
                raise Violation(f"records {sorted(lost)} of {unit} were accepted, and are neither landed nor named")

    def check_quarantine(self, lake: Lake) -> None:
        """Nothing is in quarantine that landed, or is the same as what landed."""
        owners = lake.owners()
        for unit in self.own:
            if wrong := self.named(unit) - self.differing(unit, owners):
                raise Violation(
                    f"records {sorted(wrong)} of {unit} are in quarantine, although nothing of them is lost"
                )


@dataclass
class OverlappingPipelines(Pipelines):
    """Pipelines that land accepted batches, and compare those with common records."""

    rules: Rules = field(default_factory=Rules)
    accepted: Accepted = field(kw_only=True)
    faults: Faults = NO_FAULTS
    seconds: float = 0.0
    """How long it takes to compare a landing that drops something."""

    def parts(self, name: str, process: Process) -> tuple[SharedState, UnitLander, DeadLetterBox]:
        shared, landings, letters = super().parts(name, process)
        assert isinstance(landings, ModelLandings)
        return shared, _ComparingLandings(landings, self, process), letters

    def read_message(self, message: Message, counts: ConsumeCounts) -> Sequence[Work]:
        found = super().read_message(message, counts)
        if self.rules.in_one_landing:
            return found
        return [replace(each, frame=self.frames.get(Unit(each.key.unit))) for each in found]

    @property
    def frames(self) -> dict[Unit, AcceptedFrame]:
        return {Unit(unit): self.accepted.frame(unit) for unit in self.accepted.own}

    async def compare(self, staged: Staged[Files]) -> None:
        """What a pipeline does with what a landing drops, over a network with faults."""
        dropped = [replace(each, unit=uri_of(each.unit)) for each in dropped_records(staged.landing, self.frames)]
        overlaps = Overlaps(
            store=self.world.faulty(self.accepted.store, self.faults),
            clock=self.world.clock,
            ids=self.world.ids,
            random=self.world.random,
            observed_by="pipeline",
            most_records=100,
            backoff=QUICK,
        )
        if dropped:
            await self.world.clock.sleep(self.seconds)
        check = OverlapCheck(overlaps=overlaps, store_url=STORE)
        await check.check(dropped, table=TABLE, owners=self._owners(staged))

    def _owners(self, staged: Staged[Files]) -> FindOwners:
        async def owners(_stream: str, wanted: Spans) -> Mapping[str, Spans]:
            await self.wire.delay()
            found, landing = dict[str, Spans](), staged.landing
            while self.rules.knows_owners and wanted:
                for unit, spans in numbers_in(landing, "", wanted).items():
                    found[uri_of(unit)] = spans
                    wanted = without(wanted, spans)
                # The model's rebuilt state is ahead of its ledger; a real rebuild writes to the ledger first.
                before = None if landing.before is None else self.lake.snapshots[landing.before].landing
                if before is None:
                    break
                landing = before
            return found

        return owners


@dataclass
class _ComparingLandings:
    """Lands, and compares what is dropped when the rules say so."""

    landings: ModelLandings
    pipelines: OverlappingPipelines
    process: Process

    async def uuid(self, table: str) -> str:
        return await self.landings.uuid(table)

    async def land(
        self,
        table: str,
        works: Sequence[Work],
        *,
        is_held: Callable[[UnitKey], bool],
        read: Callable[[Sequence[UnitKey]], None],
    ) -> LandingReport:
        seen: list[Staged[Files]] = []

        async def compare(staged: Staged[Files]) -> None:
            seen[:] = [staged]
            if self.pipelines.rules.compares == "before publishing":
                await self.pipelines.compare(staged)

        landings = replace(self.landings, compare=compare)
        report = await landings.land(table, works, is_held=is_held, read=read)
        for staged in seen:
            if self.pipelines.rules.compares == "after landing":
                await self.pipelines.compare(staged)
            if self.pipelines.rules.compares == "after acknowledging":
                self.process.spawn(self._later(staged))
        return report

    async def _later(self, staged: Staged[Files]) -> None:
        await self.pipelines.world.clock.sleep(1.0)
        await self.pipelines.compare(staged)


async def send_again(pipelines: Pipelines) -> None:
    """Some batches are announced once more, alone or with others, perhaps after the state has forgotten them."""
    random = pipelines.world.random
    units = random.sample(UNITS, random.randint(1, 4))
    pipelines.queue.send(f"again {pipelines.world.ids.uuid()}", " ".join(units))


TROUBLES = (crash, crash, pause, stop, send_again, send_again, outage, lost_state)


def overlapping(rules: Rules) -> Scenario:
    """Three pipelines on one queue of accepted batches; then all must drain, and the quarantine be exact."""

    async def scenario(world: World) -> None:
        lake, wire, objects, dead = Lake(world), Wire(world, 0.1, longest=10.0), Objects(), set[str]()
        accepted = Accepted(world, MemoryStore(clock=world.clock, page_size=2))
        queue = ModelQueue(world, lambda units: accepted.check_acknowledged(lake, dead, units), 0.1)
        variant = Variant(settings=SHORT, deadly=0.0)
        pipelines = OverlappingPipelines(
            world, variant, lake, wire, queue, objects, dead, rules=rules, accepted=accepted, faults=Faults.all(0.02)
        )
        if world.random.random() < 0.1:
            pipelines.seconds = 1.5 * SHORT.last_visibility.total_seconds()
        spoil(world, objects, variant, UNITS)
        for unit in UNITS:
            await accepted.accept(unit)
        for number, unit in enumerate(UNITS):
            queue.send(f"message {number}", unit)
        for _ in range(2):
            pipelines.start()
        for _ in range(world.random.randrange(6)):
            await world.clock.sleep(world.random.expovariate(0.3))
            await world.random.choice(TROUBLES)(pipelines)
        pipelines.faults = NO_FAULTS
        await until_empty(pipelines)
        await stop_all(pipelines)
        must_have_landed(pipelines, [unit for unit in UNITS if unit not in dead])
        accepted.check_quarantine(lake)

    return scenario


OVERLAPS_SOUND: dict[str, Scenario] = {"consume_overlaps": overlapping(Rules())}
OVERLAPS_BROKEN: dict[str, Scenario] = {
    "consume_overlaps_dropped_unseen": overlapping(Rules(compares="never")),
    "consume_overlaps_compared_after_landing": overlapping(Rules(compares="after landing")),
    "consume_overlaps_compared_after_acknowledging": overlapping(Rules(compares="after acknowledging")),
    "consume_overlaps_compared_with_any_batch": overlapping(Rules(knows_owners=False)),
    "consume_overlaps_in_one_landing": overlapping(Rules(in_one_landing=True)),
}
