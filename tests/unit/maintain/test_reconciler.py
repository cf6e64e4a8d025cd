"""A reconciler that goes on running: signs of life, passes, events, figures, and its end."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from lakehead.accept.record_file import read_record
from lakehead.errors import Unavailable
from lakehead.maintain import reconciler as module
from lakehead.maintain.accepted_events import AcceptedEvent
from lakehead.maintain.reconcile_report import ReconcileReport
from lakehead.maintain.reconciler_metrics import ReconcilerMetrics
from lakehead.storage.port import Created, Exists, ListedObject
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityVoid
from lakehead.wire.authority_records import ReconcilerHeartbeat
from tests.support.async_tests import async_test
from tests.unit.maintain.reconcile_support import HOUR, Authority, identity


async def heartbeat(authority: Authority) -> ReconcilerHeartbeat:
    found = await read_record(ReconcilerHeartbeat, keys.RECONCILER_HEARTBEAT, authority.store)
    assert found is not None
    return found


@async_test
async def test_it_runs_until_it_is_stopped_and_gives_signs_of_life_meanwhile() -> None:
    authority = Authority()
    await authority.accept(1, indexed=False)
    reconciler, stop = authority.reconciler(), asyncio.Event()
    told: list[tuple[str, int]] = []

    def note(name: str, report: ReconcileReport) -> None:
        told.append((name, report.accepted))
        if authority.clock.seconds > 10 * HOUR:
            stop.set()

    await reconciler.run(stop, note)

    last = await heartbeat(authority)
    assert last.reconciler_id == "reconciler-1"
    assert authority.clock.now_ns() - last.beat_at_unix_ns < 120 * 10**9
    assert last.version > 100
    assert ("steady", 1) in told
    assert sum(name == "cold" for name, _ in told) == 1
    assert await authority.store.keys("accepted-by-blob") != []


@async_test
async def test_a_scan_that_takes_long_does_not_hold_up_signs_of_life() -> None:
    authority = Authority()
    reconciler = authority.reconciler()

    async with reconciler.signs_of_life():
        began = authority.clock.now_ns()
        for _ in range(200):
            await asyncio.sleep(0)
        assert (await heartbeat(authority)).beat_at_unix_ns > began


@async_test
async def test_what_cannot_be_done_now_is_tried_again() -> None:
    authority = Authority()
    await authority.accept(1, indexed=False)
    reconciler, stop = authority.reconciler(), asyncio.Event()
    create = authority.store.create

    async def failing(key: str, body: bytes) -> Created | Exists:
        if authority.clock.seconds < 100 and not key.startswith("reconciler/v1/heartbeat"):
            raise Unavailable(f"{key}: 503")
        return await create(key, body)

    authority.store.create = failing  # type: ignore[method-assign]
    await reconciler.run(stop, lambda _, __: stop.set() if authority.clock.seconds > 1000 else None)

    assert len(await authority.store.keys("accepted-by-time")) == 1


class Events:
    def __init__(self, *events: AcceptedEvent) -> None:
        self.events = list(events)
        self.acknowledged: list[AcceptedEvent] = []

    async def receive(self) -> Sequence[AcceptedEvent]:
        return self.events

    async def acknowledge(self, events: Sequence[AcceptedEvent]) -> None:
        self.acknowledged += events


@async_test
async def test_an_event_is_looked_at_at_once_and_acknowledged_after_that() -> None:
    authority = Authority()
    [manifest] = await authority.accept(1, indexed=False)
    void = identity(2)
    record = IdentityVoid(
        **{name: getattr(void, name) for name in ("agent_id", "boot_id", "seq_start", "seq_end")},
        frame_sha256="ab" * 32,
        voided_at_unix_ns=1,
        voided_by="gc",
    )
    await authority.store.create(record.key, record.encode())
    events = Events(AcceptedEvent((manifest.key, "elsewhere")), AcceptedEvent((record.key,)), AcceptedEvent(()))

    report = await authority.reconciler().take_events(events)

    assert len(await authority.store.keys("accepted-by-time")) == 1
    assert (report.accepted, report.voids) == (1, 1)
    assert events.acknowledged == events.events


@async_test
async def test_an_event_whose_batch_could_not_be_looked_at_comes_again() -> None:
    authority = Authority()
    good, bad = await authority.accept(1, 2, indexed=False)
    events = Events(AcceptedEvent((good.key,)), AcceptedEvent((bad.key,)))
    create = authority.store.create

    async def failing(key: str, body: bytes) -> Created | Exists:
        if bad.frame_sha256 in key:
            raise Unavailable(f"{key}: 503")
        return await create(key, body)

    authority.store.create = failing  # type: ignore[method-assign]
    await authority.reconciler().take_events(events)

    assert events.acknowledged == events.events[:1]


@async_test
async def test_each_figure_moves_when_it_is_provoked() -> None:
    authority = Authority()
    lost, damaged = await authority.accept(1, 2, indexed=False)
    await authority.store.delete(lost.raw_blob_key)
    await authority.store.put(damaged.raw_blob_key, b"other")
    await authority.store.create(keys.accepted(identity(3)), b"{")
    reconciler = authority.reconciler()
    registry = CollectorRegistry()
    registry.register(ReconcilerMetrics(reconciler))
    before = generate_latest(registry).decode()
    await reconciler.pass_once()
    await reconciler.cold_scan()
    await authority.store.delete(keys.accepted(identity(3)))
    authority.clock.seconds += 100
    await reconciler.cold_scan()
    authority.clock.seconds += 100
    after = generate_latest(registry).decode()

    def value(text: str, name: str) -> float:
        [line] = [line for line in text.splitlines() if line.startswith(f"lakehead_reconciler_{name} ")]
        return float(line.rpartition(" ")[2])

    for name, expected in {
        'open_repairs{problem="missing"}': 1,
        'open_repairs{problem="corrupt"}': 1,
        'repaired_entries_total{index="accepted_by_blob"}': 2,
        'problems_total{kind="unreadable"}': 1,
        "repairs_opened_total": 2,
        "enqueued_total": 0,
        "audit_age_seconds": 100,
        "last_pass_age_seconds": 200,
        "waiting": 0,
    }.items():
        assert value(after, name) == expected, name
    assert value(after, "lag_seconds") >= 260
    assert value(after, "audit_seconds") >= 0
    assert "lakehead_reconciler_lag_seconds NaN" in before
    assert 'lakehead_reconciler_open_repairs{problem="missing"} 0.0' in before


@async_test
async def test_open_repairs_whose_manifests_are_gone_do_not_keep_others_from_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REPAIRS_PER_PASS", 1)
    authority = Authority()
    damaged = {each.identity: each for each in await authority.accept(1, 2)}
    frames = {each.raw_blob_key: await authority.store.get(each.raw_blob_key) for each in damaged.values()}
    for key in frames:
        await authority.store.delete(key)
    reconciler = authority.reconciler()
    await reconciler.pass_once()
    first, second = (damaged[each] for each in reconciler.repairs.identities())

    await authority.store.delete(first.key)
    frame = frames[second.raw_blob_key]
    assert frame is not None
    await authority.store.put(second.raw_blob_key, frame.body)
    for _ in range(2):
        await reconciler.pass_once()

    assert reconciler.repairs.identities() == (first.identity,)


@async_test
async def test_a_repair_that_was_deleted_by_hand_is_noticed_by_two_passes_at_once() -> None:
    authority = Authority()
    [manifest] = await authority.accept(1)
    await authority.store.delete(manifest.raw_blob_key)
    reconciler = authority.reconciler()
    await reconciler.pass_once()
    await reconciler.repairs.refresh()
    await authority.store.delete(keys.repair(manifest.identity))
    listed = authority.store.list

    async def slowly(folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        async for page in listed(folder, start_after=start_after):
            yield page
        await asyncio.sleep(0)

    authority.store.list = slowly  # type: ignore[method-assign]
    await asyncio.gather(reconciler.repairs.refresh(), reconciler.repairs.refresh())

    assert reconciler.repairs.identities() == ()
