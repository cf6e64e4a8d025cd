"""The agent as Python programs use it."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from lakehead.agent.agent import Agent
from lakehead.agent.alerts import AlertKind
from lakehead.agent.errors import BadRecord
from lakehead.agent.spool_disk import SpoolDisk, open_local_spool_disk
from lakehead.agent.spool_entry import SpoolEntry
from lakehead.agent.spool_errors import KeyReused, SpoolFull, SpoolLocked, SpoolUnusable
from lakehead.agent.spool_settings import SpoolSettings
from lakehead.buffer.errors import InvalidCall
from lakehead.errors import Misconfigured
from lakehead.wire.errors import BadFrame
from lakehead.wire.frame import decode_frame
from lakehead.wire.ipc_payload import write_batch
from lakehead.wire.record_schemas import SAMPLES_V1, FrameKind
from tests.support.async_tests import async_test
from tests.unit.agent.agents import FLUSH_SECONDS, QUICK_SPOOL, agent, sample, until, values
from tests.unit.agent.spools import Deed, TestDisk, doubt
from tests.unit.agent.support import Script, accepted, error
from tests.unit.wire.frames import logs, samples

DOWN = httpx.ConnectError("refused")


@async_test
async def test_samples_and_log_records_plain_or_as_arrow_arrive_as_they_are(tmp_path: Path) -> None:
    gateway = Script(accepted)
    async with agent(tmp_path, gateway) as one:
        for given in (samples(), [sample(1)], samples().slice(1, 2)):
            await one.add_samples(given)
            assert (await one.flush(FLUSH_SECONDS)).is_accepted
        await one.add_logs(logs())
        assert (await one.flush(FLUSH_SECONDS)).is_accepted
        assert (one.counts.requests, one.counts.records) == (4, len(samples()) + 1 + 2 + len(logs()))

    frames = [decode_frame(body) for body in gateway.bodies]
    assert write_batch(frames[0].records).equals(write_batch(samples()))
    assert frames[1].stored_records.schema.equals(SAMPLES_V1)
    assert repr(frames[2].records.to_pylist()) == repr(samples().slice(1, 2).to_pylist()), "a NaN equals no other"
    assert frames[3].records.equals(logs())
    assert [(each.identity.seq_start, each.header.kind.name) for each in frames] == [
        (0, "SAMPLES"),
        (len(samples()), "SAMPLES"),
        (len(samples()) + 1, "SAMPLES"),
        (0, "LOGS"),
    ]


@async_test
async def test_what_cannot_be_records_is_refused_and_uses_no_number(tmp_path: Path) -> None:
    gateway = Script(accepted)
    async with agent(tmp_path, gateway) as one:
        with pytest.raises(BadRecord):
            await one.add_samples([(1, "up", {}, "one")])
        with pytest.raises(BadFrame):
            await one.add_samples(logs())
        with pytest.raises(Misconfigured, match="no records"):
            await one.add_logs([])
        await one.add_samples([sample(1)])
        await one.flush(FLUSH_SECONDS)

    [frame] = [decode_frame(body) for body in gateway.bodies]
    assert frame.identity.seq_start == 0


@async_test
async def test_a_call_with_the_same_key_adds_nothing_and_other_records_under_it_are_refused(tmp_path: Path) -> None:
    gateway = Script(accepted)
    async with agent(tmp_path, gateway) as one:
        first = await one.add_samples([sample(1)], idempotency_key="k")
        again = await one.add_samples([sample(1)], idempotency_key="k")
        with pytest.raises(KeyReused):
            await one.add_samples([sample(2)], idempotency_key="k")
        await one.add_logs([(1, "of another kind")], idempotency_key="k")
        with pytest.raises(Misconfigured, match="empty"):
            await one.add_samples([sample(2)], idempotency_key="")
        await one.add_samples([sample(1)])
        await one.flush(FLUSH_SECONDS)
        assert (first.duplicate, again.duplicate, one.counts.duplicates) == (False, True, 1)

    async with agent(tmp_path, gateway) as two:
        assert (await two.add_samples([sample(1)], idempotency_key="k")).duplicate, "also after a restart"
    assert sum(len(values(body)) for body in gateway.bodies if decode_frame(body).header.kind == 1) == 2


@async_test
async def test_a_full_spool_refuses_and_is_told_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = Script(DOWN)
    small = SpoolSettings(batch_seconds=0.005, spool_entries=2, reserve_bytes=0)
    async with agent(tmp_path, gateway, spool=small) as one:
        for value in range(2):
            await one.add_samples([sample(value)])
            await one.spool.seal_now()
        for value in range(5):
            with pytest.raises(SpoolFull):
                await one.add_samples([sample(value)])
        with pytest.raises(SpoolFull):
            one.check()

        times = {alert.kind: alert.times for alert in one.status().alerts if alert.kind is not AlertKind.NO_GATEWAY}
        assert (times, one.counts.refused) == ({AlertKind.SPOOL_FULL: 6}, 6)
        assert one.status().spool.problem
        gateway.answers = [accepted]
        assert (await one.flush(FLUSH_SECONDS)).is_accepted
        await one.add_samples([sample(9)])
        assert one.status().alerts == ()
    assert [record.getMessage()[:11] for record in caplog.records if "full:" in record.getMessage()] == ["Spool full:"]


@async_test
async def test_a_call_that_is_cancelled_leaves_the_records_whole_or_not_at_all(tmp_path: Path) -> None:
    gateway = Script(accepted)
    async with agent(tmp_path, gateway) as one:
        for turns in range(30):
            task = asyncio.create_task(one.add_samples([sample(turns), sample(turns + 0.5)]))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await one.add_samples([sample(100)])
        assert (await one.flush(FLUSH_SECONDS)).is_accepted

    found = [value for body in gateway.bodies for value in values(body)]
    assert found[-1] == 100
    pairs = found[:-1]
    assert [value + 0.5 for value in pairs[::2]] == pairs[1::2]
    assert len(set(pairs)) == len(pairs)
    ranges = sorted((frame.identity.seq_start, frame.identity.seq_end) for frame in map(decode_frame, gateway.bodies))
    assert ranges[0][0] == 0
    assert all(end + 1 == start for (_, end), (start, _) in pairwise(ranges))


@async_test
async def test_a_flush_waits_for_what_came_before_it_and_not_for_what_comes_after(tmp_path: Path) -> None:
    released = asyncio.Event()

    class Slow(Script):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if values(await request.aread()) == [2.0]:
                await released.wait()
            return await super().handle_async_request(request)

    async with agent(tmp_path, Slow(accepted), spool=SpoolSettings(batch_seconds=3600, reserve_bytes=0)) as one:
        assert (await one.flush(FLUSH_SECONDS)).is_accepted, "nothing was given"
        await one.add_samples([sample(1)])
        flushing = asyncio.create_task(one.flush(FLUSH_SECONDS))
        assert (await flushing).is_accepted, "what still collects records is sealed"
        await one.add_samples([sample(2)])
        late = await one.flush(0.05)
        assert (late.waiting, late.is_accepted) == (1, False)
        released.set()
        assert (await one.flush()).is_accepted


@async_test
async def test_a_flush_says_nothing_of_what_only_the_next_start_finds_on_a_disk_that_failed(tmp_path: Path) -> None:
    def fails(deed: Deed) -> Exception | None:
        return doubt() if deed.verb == "replace" and deed.name.startswith("entries") else None

    @contextmanager
    def failing_disk(folder: Path) -> Iterator[SpoolDisk]:
        with open_local_spool_disk(folder) as disk:
            test_disk = TestDisk(disk)
            test_disk.fails = fails
            test_disk.fails_after = lambda deed: doubt() if deed.verb == "append" else None
            yield test_disk

    new = agent(tmp_path, Script(accepted), spool=SpoolSettings(batch_seconds=3600, reserve_bytes=0))
    async with Agent(new.settings, replace(new._deps, open_disk=failing_disk)) as one:
        await one.add_samples([sample(1)])
        with pytest.raises(SpoolUnusable):
            await one.add_samples([sample(2)])

        with pytest.raises(SpoolUnusable, match="started again"):
            await one.flush(FLUSH_SECONDS)


@async_test
async def test_a_flush_of_many_batches_does_not_look_at_all_of_them_each_time_that_one_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path, Script(DOWN)) as one:
        for value in range(60):
            await one.add_samples([sample(value)])
            await one.spool.seal_now()
    async with agent(tmp_path, Script(accepted)) as two:
        looked_at, waiting = [0], two.spool.waiting

        def counted(kind: FrameKind | None = None, **which: Any) -> Sequence[SpoolEntry]:
            found = waiting(kind, **which)
            looked_at[0] += len(found) if kind is None else 0  # the sender asks for one kind
            return found

        monkeypatch.setattr(two.spool, "waiting", counted)
        assert (await two.flush(FLUSH_SECONDS)).is_accepted
        assert looked_at[0] <= 2 * 60


@async_test
async def test_what_is_parked_can_be_listed_and_dropped_by_an_operator(tmp_path: Path) -> None:
    gateway = Script(error(413, "too_large"))
    async with agent(tmp_path, gateway) as one:
        for value in range(3):
            await one.add_samples([sample(value)])
            await one.flush(FLUSH_SECONDS)
        listed = one.parked.list()
        assert [(each.code, each.identity.seq_start) for each in listed] == [("too_large", n) for n in range(3)]
        assert "413" in listed[0].reason

        assert await one.parked.drop([listed[1].number, 10**6]) == (listed[1],)

        assert one.parked.list() == (listed[0], listed[2])
        assert one.counts.dropped == 1
        assert await one.parked.drop([each.number for each in listed]) == (listed[0], listed[2])
        assert one.status().alerts == ()

    async with agent(tmp_path, gateway) as two:
        assert two.parked.list() == ()


@async_test
async def test_what_was_parked_is_told_again_after_a_restart(tmp_path: Path) -> None:
    gateway = Script(error(413, "too_large"))
    async with agent(tmp_path, gateway) as one:
        await one.add_samples([sample(1)])
        before = (await one.flush(FLUSH_SECONDS)).parked

    async with agent(tmp_path, gateway) as two:
        assert two.parked.list() == before
        assert [alert.kind for alert in two.status().alerts] == [AlertKind.PARKED]


@async_test
async def test_a_spool_has_one_agent_at_a_time_and_is_one_agents(tmp_path: Path) -> None:
    async with agent(tmp_path, Script(accepted)):
        with pytest.raises(SpoolLocked):
            await agent(tmp_path, Script(accepted)).__aenter__()
    other = agent(tmp_path, Script(accepted))
    other = Agent(
        type(other.settings)(agent_id="another", gateways=("http://g",), spool_folder=other.settings.spool_folder),
        other._deps,
    )
    with pytest.raises((Misconfigured, KeyError)):
        await other.__aenter__()


@async_test
async def test_settings_that_cannot_work_are_told_at_the_start_and_leave_the_spool_free(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="token"):
        await agent(tmp_path, Script(accepted), token="two words").__aenter__()
    async with agent(tmp_path, Script(accepted)) as one:
        with pytest.raises(InvalidCall):
            await one.__aenter__()


@async_test
async def test_an_error_that_nobody_foresaw_is_told_and_the_batch_is_sent_all_the_same(tmp_path: Path) -> None:
    gateway = Script(ZeroDivisionError("in the client"), accepted)
    async with agent(tmp_path, gateway) as one:
        await one.add_samples([sample(1)])
        assert (await one.flush(FLUSH_SECONDS)).is_accepted

        assert one.counts.unexpected_errors == 1
        [alert] = one.status().alerts
        assert alert.kind is AlertKind.UNEXPECTED_ERROR
        assert "ZeroDivisionError" in alert.text


@pytest.mark.parametrize("place", [0, 1])
@async_test
async def test_a_gateway_with_which_something_unforeseen_happens_each_time_is_avoided(
    place: int, tmp_path: Path
) -> None:
    def odd(_: httpx.Request) -> httpx.Response:
        raise ZeroDivisionError("in the client")

    gateways = [Script(accepted), Script(accepted)]
    ways: list[httpx.AsyncBaseTransport] = [*gateways]
    ways[place] = httpx.MockTransport(odd)
    async with agent(tmp_path, *ways) as one:
        await one.add_samples([sample(1)])
        assert (await one.flush(FLUSH_SECONDS)).is_accepted

    assert len(gateways[1 - place].bodies) == 1


@async_test
async def test_what_the_spool_finds_damaged_while_the_agent_runs_is_shown_with_its_alerts(tmp_path: Path) -> None:
    async with agent(tmp_path, Script(DOWN)) as one:
        await one.add_samples([sample(1)])
        await one.spool.seal_now()
        [frame] = (Path(one.settings.spool_folder) / "entries").iterdir()
        frame.write_bytes(frame.read_bytes()[:-1] + b"?")

        for entry in one.spool.waiting():
            assert await one.spool.read(entry) is None

        assert AlertKind.DAMAGED in {alert.kind for alert in one.status().alerts}


@async_test
async def test_that_there_is_no_room_to_park_is_shown_in_its_status(tmp_path: Path) -> None:
    small = replace(QUICK_SPOOL, parked_bytes=0)
    async with agent(tmp_path, Script(error(413, "too_large")), spool=small) as one:
        await one.add_samples([sample(1)])
        assert len((await one.flush(FLUSH_SECONDS)).parked) == 1
        await until(lambda: one.counts.parked.total() == 1)

        [alert] = one.status().alerts
        assert alert.kind is AlertKind.PARKED
        assert "parked/ is full" in alert.text


@async_test
async def test_another_event_loop_cannot_use_an_agent_and_leaves_it_as_it_is(tmp_path: Path) -> None:
    async with agent(tmp_path, Script(accepted)) as one:

        async def elsewhere() -> list[str]:
            told = []
            for call in (one.add_samples([sample(2)]), one.flush(), one.close()):
                with pytest.raises(InvalidCall) as caught:
                    await call
                told.append(str(caught.value))
            return told

        told = await asyncio.to_thread(asyncio.run, elsewhere())
        await one.add_samples([sample(1)])
        flushed = await one.flush(FLUSH_SECONDS)

    assert all("another event loop" in each for each in told)
    assert flushed.is_accepted
