"""The simulator itself: time, order, crashes, pauses, and what it refuses to overlook."""

import asyncio
import subprocess
import sys

import pytest

from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.reliable_writes import WriteRefused
from tests.faults.store import Fault, Faults, FaultStore
from tests.sim.scenarios import SOUND
from tests.support.simulated_loop import Deadlock, Livelock, Unseen
from tests.support.simulation import SimulatedClock, World, simulate


def test_time_jumps_to_the_next_timer() -> None:
    async def scenario(world: World) -> None:
        await world.clock.sleep(3600)

    report = simulate(scenario, 1)

    assert report.failure is None
    assert report.seconds == 3600


def test_ready_callbacks_run_in_every_order() -> None:
    orders = set()

    async def scenario(world: World) -> None:
        order: list[str] = []

        async def client(name: str) -> None:
            order.append(name)

        processes = [world.process(name) for name in "abc"]
        for process in processes:
            process.spawn(client(process.name))
        await world.until(*processes)
        orders.add("".join(order))

    for seed in range(100):
        assert simulate(scenario, seed).failure is None

    assert orders == {"abc", "acb", "bac", "bca", "cab", "cba"}


def test_two_who_wait_for_each_other_are_a_deadlock_that_names_the_place() -> None:
    async def scenario(world: World) -> None:
        one, other = asyncio.Lock(), asyncio.Lock()

        async def client(first: asyncio.Lock, second: asyncio.Lock) -> None:
            async with first:
                await world.clock.sleep(1)
                async with second:
                    pass

        processes = [world.process("a"), world.process("b")]
        processes[0].spawn(client(one, other))
        processes[1].spawn(client(other, one))
        await world.until(*processes)

    failure = simulate(scenario, 1).failure

    assert isinstance(failure, Deadlock)
    assert "a waits at" in str(failure)
    assert "b waits at" in str(failure)
    assert "test_simulator.py" in str(failure)


def test_going_round_for_ever_is_a_livelock() -> None:
    async def scenario(_: World) -> None:
        while True:  # noqa: ASYNC110 - the point of this test
            await asyncio.sleep(0)

    assert isinstance(simulate(scenario, 1).failure, Livelock)


def test_a_crash_runs_nothing_more_of_the_process_not_even_finally() -> None:
    done: list[str] = []

    async def scenario(world: World) -> None:
        async def client() -> None:
            try:
                await world.clock.sleep(10)
                done.append("work")
            finally:
                await world.clock.sleep(0)
                done.append("clean-up")

        process = world.process("a")
        process.spawn(client())
        await world.clock.sleep(1)
        process.crash()
        await world.clock.sleep(100)
        assert process.done

    assert simulate(scenario, 1).failure is None
    assert done == []


def test_what_a_process_starts_dies_with_it() -> None:
    done: list[str] = []

    async def scenario(world: World) -> None:
        async def heartbeat() -> None:
            while True:
                await world.clock.sleep(1)
                done.append("beat")

        async def client() -> None:
            task = asyncio.create_task(heartbeat())
            await task

        process = world.process("a")
        process.spawn(client())
        await world.clock.sleep(2.5)
        process.crash()
        await world.clock.sleep(100)

    assert simulate(scenario, 1).failure is None
    assert done == ["beat", "beat"]


def test_a_request_that_has_left_is_applied_though_its_client_died() -> None:
    async def scenario(world: World) -> None:
        shared = MemoryStore(clock=world.clock)
        store = world.faulty(shared, Faults({}, median_seconds=10))
        process = world.process("a")
        process.spawn(store.create("key", b"body"))
        await world.clock.sleep(0.001)
        process.crash()
        await world.clock.sleep(100_000)
        assert await shared.get("key") is not None

    assert simulate(scenario, 1).failure is None


def test_a_paused_process_stands_still_while_the_world_goes_on() -> None:
    seen: list[float] = []

    async def scenario(world: World) -> None:
        async def client() -> None:
            for _ in range(3):
                await world.clock.sleep(1)
                seen.append(world.clock.monotonic())

        process = world.process("a")
        process.spawn(client())
        await world.clock.sleep(1.5)
        process.pause(90)
        await world.until(process)

    assert simulate(scenario, 1).failure is None
    assert seen == [1, 91.5, 92.5]


def test_a_timer_cancelled_before_a_pause_ends_does_not_fire_after_it() -> None:
    fired: list[str] = []

    async def scenario(world: World) -> None:
        async def client() -> None:
            timer = asyncio.get_running_loop().call_later(2, fired.append, "timer")
            await world.clock.sleep(1)
            timer.cancel()
            await world.clock.sleep(1)

        process = world.process("a")
        process.spawn(client())
        await world.clock.sleep(0.5)
        process.pause(1)
        await world.until(process)
        await world.clock.sleep(10)

    assert simulate(scenario, 1).failure is None
    assert fired == []


def test_clocks_may_disagree_about_the_time_of_day_but_not_about_durations() -> None:
    async def scenario(world: World) -> None:
        right, wrong = world.clock, SimulatedClock(world.loop, off_by=-3600)
        assert right.now_ns() - wrong.now_ns() == 3600 * 10**9
        assert right.monotonic() == wrong.monotonic()

    assert simulate(scenario, 1).failure is None


def test_a_clock_that_is_set_while_it_runs_goes_on_from_there() -> None:
    async def scenario(world: World) -> None:
        clock = SimulatedClock(world.loop)
        began = clock.now_ns()
        clock.jump(-300)
        await clock.sleep(1)
        assert clock.now_ns() - began == -299 * 10**9
        assert clock.monotonic() == 1

    assert simulate(scenario, 1).failure is None


def test_waiting_for_processes_ends_at_its_deadline_though_nothing_else_happens() -> None:
    async def scenario(world: World) -> None:
        async def client() -> None:
            await world.clock.sleep(1_000_000)

        process = world.process("a")
        process.spawn(client())
        await world.until(process, at_most=5)

    report = simulate(scenario, 1)

    assert "not done after 5 s: ['a']" in str(report.failure)
    assert report.seconds == 5


def test_faults_can_change_while_a_client_runs() -> None:
    async def scenario(world: World) -> None:
        store = world.faulty(MemoryStore(clock=world.clock), Faults({Fault.PRECONDITION: 1.0}))
        with pytest.raises(WriteRefused):
            await store.network.write_once("key", b"body", nonce="n", expected=None)
        store.change_faults(Faults({}, lost_reads=1.0))
        await store.network.write_once("key", b"body", nonce="n", expected=None)
        with pytest.raises(Unavailable):
            await store.get("key")

    assert simulate(scenario, 1).failure is None


def test_a_process_that_raises_fails_the_simulation() -> None:
    async def scenario(world: World) -> None:
        async def client() -> None:
            raise ValueError("boom")

        process = world.process("a")
        process.spawn(client())
        await world.until(process)

    failure = simulate(scenario, 1).failure

    assert isinstance(failure, ValueError)


def test_a_background_task_that_dies_unseen_fails_the_simulation() -> None:
    async def scenario(world: World) -> None:
        async def heartbeat() -> None:
            raise ValueError("boom")

        async def client() -> None:
            task = asyncio.create_task(heartbeat())
            await world.clock.sleep(1)
            assert task.done()

        process = world.process("a")
        process.spawn(client())
        await world.until(process)

    assert isinstance(simulate(scenario, 1).failure, Unseen)


@pytest.mark.parametrize("seed", range(50))
def test_the_yardstick_of_speed_makes_twenty_calls_under_every_seed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(name: str) -> None:
        real = getattr(FaultStore, name)

        async def call(self: FaultStore, *args: object) -> object:
            calls.append(name)
            return await real(self, *args)

        monkeypatch.setattr(FaultStore, name, call)

    for name in ("create", "replace", "put", "get", "delete"):  # and no `head`, which a call's own look uses
        counted(name)

    assert simulate(SOUND["twenty_operations"], seed).failure is None
    assert len(calls) == 20


@pytest.mark.parametrize("fault", Fault)
def test_every_fault_happens_and_leaves_what_its_name_says(fault: Fault) -> None:
    async def scenario(world: World) -> None:
        shared = MemoryStore(clock=world.clock)
        store = world.faulty(shared, Faults({fault: 1.0}))
        refusal = fault in (Fault.CONFLICT, Fault.PRECONDITION, Fault.PRECONDITION_APPLIED)
        with pytest.raises(WriteRefused if refusal else OutcomeUnknown):
            await store.network.write_once("key", b"body", nonce="n", expected=None)
        applied = await shared.get("key") is not None
        assert applied == (fault in (Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT_APPLIED, Fault.PRECONDITION_APPLIED))
        await world.clock.sleep(1_000_000)
        landed = await shared.get("key") is not None
        assert landed == (applied or fault in (Fault.TIMEOUT_APPLIED_LATER, Fault.TIMEOUT_APPLIED_MUCH_LATER))

    assert simulate(scenario, 1).failure is None


@pytest.mark.slow
def test_the_command_prints_a_failing_seed_and_the_command_that_replays_it() -> None:
    hunted = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--scenario", "check_then_put_store", "--seeds", "1000"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert hunted.returncode == 1
    replay = hunted.stdout.split("replay: ")[1].strip()
    assert replay.startswith("make sim SCENARIO=check_then_put_store SEED=")

    replayed = subprocess.run(
        [sys.executable, "-m", "tests.sim", "--scenario", "check_then_put_store", "--replay", replay.split("SEED=")[1]],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert replayed.returncode == 1
    assert "Violation" in replayed.stdout
    assert "told that they created" in replayed.stdout
