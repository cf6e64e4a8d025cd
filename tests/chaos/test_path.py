"""The whole path from agents to Iceberg tables, each process of it killed and stopped at random while callers push."""

import asyncio
import json
import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.utc_hours import UtcHour
from tests.accepted import LOGS, SAMPLES
from tests.chaos.agent_callers import Caller, Calls
from tests.chaos.agent_checker import Given
from tests.chaos.derived_state import DERIVED, delete_all, derived_state, lacking
from tests.chaos.path_checker import faults
from tests.chaos.path_processes import ConsumerProcess, LandingConsumer, PathDeployment, Victim, deployed
from tests.faults.gateway_failpoints import kill_gateway_at
from tests.lakehouse import Lakehouse
from tests.servers.seaweed import Seaweed
from tests.support.async_tests import run_bounded
from tests.support.commands import lakehead_command
from tests.support.costs import Mechanism, add
from tests.support.effort import effort
from tests.support.gateways import GatewayAuthority, GatewayProcess, sample_frame
from tests.support.spark import Borrowed, shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(effort(600, soak=10_800))]  # the very first start fetches jars

ROUNDS = effort(1, soak=60)
"""In each, every process is killed once, and stopped once."""

ROUND_SECONDS = 250.0
"""How long a round may take: it ends what hangs."""

REST_SECONDS = 0.05
"""How long a caller rests after each request: what is pushed has to land on the same machine."""

PAUSES = (0.1, 0.4, 9.0)
"""Seconds for which a process is stopped; the last is longer than a consumer may be silent."""


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Borrowed:
    return Borrowed.of(shared_session(Lakehouse.settings(tmp_path_factory.mktemp("spark"))))


GIVEN = Given(set("wxyz"), set("xyz"))


def test_what_was_answered_and_has_landed_once_is_no_fault_and_what_was_not_answered_may_be_either() -> None:
    assert faults(GIVEN, {SAMPLES: ["x", "y"], LOGS: ["z"]}) == []
    assert faults(GIVEN, {SAMPLES: ["x", "y"], LOGS: ["w", "z"]}) == []


@pytest.mark.parametrize(
    ("samples", "logs", "told"),
    [
        ("xy", "", "z was answered, and is lost"),
        ("xyy", "z", "y has landed 2 times"),
        ("xyz", "z", "z has landed 2 times"),
        ("xyww", "z", "w has landed 2 times"),
        ("xyq", "z", f"q is in {SAMPLES}, and nobody gave it"),
    ],
)
def test_the_checker_tells_what_is_lost_doubled_or_invented(samples: str, logs: str, told: str) -> None:
    assert faults(GIVEN, {SAMPLES: list(samples), LOGS: list(logs)}) == [told]


class Chaos:
    """Strikes all processes of a deployment."""

    def __init__(self, deployment: PathDeployment, random: Random) -> None:
        self._deployment = deployment
        self._random = random

    async def round(self, given: Given, callers: list[Caller]) -> None:
        """Kill each process once and stop each once, while callers push."""
        stop, calls = asyncio.Event(), Calls(given)
        pushing = [asyncio.create_task(caller.push(calls, stop)) for caller in callers]
        struck = self._deployment
        groups: list[list[Victim]] = [[*struck.agents], [*struck.gateways], [*struck.consumers], [*struck.caretakers]]
        await asyncio.gather(*[self._disturb(group, calls) for group in groups])
        stop.set()
        await asyncio.gather(*pushing)

    async def _disturb(self, victims: list[Victim], calls: Calls) -> None:
        """Strike each in any order. When, goes by how much callers were told, and consumers have landed, meanwhile."""
        blows = [(victim, is_killed) for victim in victims for is_killed in (True, False)]
        self._random.shuffle(blows)
        for victim, is_killed in blows:
            if isinstance(victim, ConsumerProcess):
                await self._until_more_has_landed()
            await calls.until_more(self._random.randrange(1, 25))
            if is_killed:
                await asyncio.to_thread(self._deployment.kill, victim)
                await asyncio.to_thread(self._deployment.start, victim)
            else:
                victim.pause()
                self._deployment.pauses += 1
                await asyncio.sleep(self._random.choice(PAUSES))
                victim.resume()

    async def _until_more_has_landed(self) -> None:
        before = await asyncio.to_thread(self._deployment.landings)
        while await asyncio.to_thread(self._deployment.landings) == before:
            for each in self._deployment.consumers:
                assert each.running.is_alive, each.running.said[-3_000:]
            await asyncio.sleep(0.3)  # how often is asked; nothing depends on it


def test_what_agents_answered_has_landed_once_though_everything_on_its_way_is_killed(
    tmp_path: Path, seaweed: Seaweed, jvm: Borrowed
) -> None:
    random, given = Random(20), Given()
    with deployed(tmp_path, seaweed, jvm) as deployment:
        deployment.plant_orphan()
        chaos = Chaos(deployment, random)
        callers = [
            Caller(agent, f"{number}", random, rest_seconds=REST_SECONDS)
            for number, agent in enumerate(deployment.agents)
        ]
        for _ in range(ROUNDS):
            run_bounded(chaos.round(given, callers), seconds=ROUND_SECONDS)
        with deployment.calm():
            deployment.stop()
            found = deployment.audit()

        landed = deployment.consumer.ids()
        assert faults(given, landed) == []
        assert [each for table in landed for each in deployment.consumer.letters(table)] == []
        assert deployment.told["enqueued"] > 0
        assert (found["voids"] > 0, found["retired"] > 0) == (True, True)
        before = asyncio.run(derived_state(deployment.store))
        asyncio.run(delete_all(deployment.store, before))
        assert "enqueued" not in deployment.reconcile("--cold")["done"]
        assert lacking(before, asyncio.run(derived_state(deployment.store))) == []


ENTRY = keys.accepted_by_blob("a" * 64, BatchIdentity("a", "b", 0, 1))
UPLOAD, UPLOAD_LATER, UPLOAD_OF_ORPHAN = (
    keys.raw_blob_by_time(UtcHour(hour), frame * 64) for hour, frame in ((1, "a"), (2, "a"), (1, "b"))
)


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ({ENTRY: b"1", UPLOAD: b"2"}, []),
        ({ENTRY: b"1", UPLOAD_LATER: b"2"}, []),
        ({UPLOAD: b"2"}, [ENTRY]),
        ({ENTRY: b"other", UPLOAD: b"2"}, [ENTRY]),
        ({ENTRY: b"1"}, ["a" * 64]),
        ({ENTRY: b"1", UPLOAD_LATER: b"other"}, ["a" * 64]),
    ],
)
def test_derived_state_that_lacks_or_has_other_bytes_is_told_but_for_hours_and_what_nobody_accepted(
    after: dict[str, bytes], told: list[str]
) -> None:
    assert lacking({ENTRY: b"1", UPLOAD: b"2", UPLOAD_OF_ORPHAN: b"3"}, after) == told


def reconciled(config: Path, *options: str) -> dict[str, Any]:
    """What `lakehead reconcile --once` reports."""
    done = lakehead_command("reconcile", config, "--once", "--json", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def upload(authority: GatewayAuthority, gateway: GatewayProcess, frame: bytes) -> int:
    """The status of the answer; 0 if there was none."""
    answers: list[int] = []

    async def send() -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            with suppress(httpx.TransportError):
                answers.append((await authority.send(http, gateway, frame)).status_code)

    run_bounded(send())
    return answers[0] if answers else 0


@pytest.fixture
def spark(tmp_path: Path) -> SparkSession:
    return shared_session(Lakehouse.settings(tmp_path))


@pytest.mark.parametrize("moment", ["after manifest", "before queued entries"])
def test_a_batch_whose_gateway_died_before_it_was_queued_lands_once_after_a_pass_of_the_reconciler(
    tmp_path: Path, spark: SparkSession, moment: str
) -> None:
    authority = GatewayAuthority(tmp_path, None)
    consumer = LandingConsumer.of(tmp_path, authority, {}, reconcile={"grace_seconds": 0})
    gateway = authority.gateway("gateway", before=partial(kill_gateway_at, moment)).start()
    try:
        upload(authority, gateway, sample_frame(BatchIdentity("agent", "boot", 0, 4)))
        assert gateway.wait() == -signal.SIGKILL, gateway.said
        add(Mechanism.KILLS)
    finally:
        gateway.kill()

    assert consumer.run(spark) == 0
    assert len(consumer.rows(SAMPLES)) == 0

    assert reconciled(consumer.config())["done"]["enqueued"] == 1
    assert consumer.run(spark) == 0
    assert sorted(consumer.rows(SAMPLES)["seq"].to_pylist()) == [0, 1, 2, 3, 4]

    assert reconciled(consumer.config(), "--cold")["done"] == {}
    assert consumer.run(spark) == 0
    assert len(consumer.rows(SAMPLES)) == 5


def test_a_cold_scan_brings_back_all_derived_state_with_the_same_keys_and_bytes(tmp_path: Path) -> None:
    authority = GatewayAuthority(tmp_path, None)
    gateway = authority.gateway("gateway").start()
    try:
        for boot in range(12):
            assert upload(authority, gateway, sample_frame(BatchIdentity("agent", f"boot-{boot}", 0, 4))) == 200
        conflict = sample_frame(BatchIdentity("agent", "boot-0", 0, 4), 7.0)
        assert upload(authority, gateway, conflict) == 409
        assert gateway.terminate() == 0, gateway.said
    finally:
        gateway.kill()
    before = asyncio.run(derived_state(authority.store()))
    assert {folder: sum(key.startswith(f"{folder}/") for key in before) for folder in DERIVED} == {
        keys.ACCEPTED_BY_TIME: 12,
        keys.ACCEPTED_BY_BLOB: 12,
        keys.RAW_BLOBS_BY_TIME: 13,
        keys.QUARANTINE_BY_BLOB: 1,
    }

    asyncio.run(delete_all(authority.store(), before))
    reconciled(authority.config, "--cold")

    after = asyncio.run(derived_state(authority.store()))
    assert lacking(before, after) == []
