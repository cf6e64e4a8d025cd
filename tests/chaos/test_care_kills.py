"""Reconcilers and garbage collection are killed at each moment and run again: nothing needed is lost, all is done."""

import asyncio
import json
import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from lakehead.accept.acceptance import Accepted, Submission
from lakehead.accept.conflicts import Conflicts
from lakehead.clock import SystemClock
from lakehead.consume.accepted_units import accepted_unit
from lakehead.ids import RandomIds
from lakehead.lake.landing import Landing, Numbers, Snapshot, Unit, UnitRemainder
from lakehead.lake.tables import create_table
from lakehead.run.config.config_file import read_config
from lakehead.run.consume_wiring import ConsumeWiring
from lakehead.run.gateway_command import open_gateway
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, IdentityVoid, decode_at_identity
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame
from lakehead.wire.index_records import AcceptedByBlob
from lakehead.wire.key_parts import boot_part
from lakehead.wire.maintenance_records import BatchRepair
from tests.faults.care_failpoints import GARBAGE, QUEUE, RECONCILER, RETIREMENT, killed_command
from tests.support.commands import lakehead_command
from tests.support.costs import Mechanism, add
from tests.support.forks import FORKS
from tests.support.gateways import sample_frame
from tests.support.state_tools import FIRST, landing, numbers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def batch(first: int, value: float = 1.0) -> Submission:
    body = sample_frame(BatchIdentity("web-1", "boot", first, first + 3), value)
    return Submission.of(body, decode_frame(body))


ORPHAN, ACCEPTED, MISSING, CONFLICT = batch(0), batch(10), batch(20), batch(10, 2.0)


class Deployment:
    """An orphan, an accepted batch without index entries, one whose frame is missing, and a frame in conflict."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.lake, self.log, self.config = folder / "lake", folder / "log", folder / "gateway.json"
        gateway = {"store": self.lake.as_uri(), "ingest_listener": {"port": 0}, "private_listener": {"port": 0}}
        self.config.write_text(json.dumps({"gateway": gateway, "gc": {"retry_horizon_days": 1e-9}, **config}))
        assert lakehead_command("gateway", "init", self.config).returncode == 0
        asyncio.run(self._fill())
        (self.lake / keys.raw_blob(MISSING.sha256)).unlink()
        for each in (self.lake / "raw-blobs").rglob("*.lmbatch"):  # blobs of the same moment would be too young
            earlier = each.stat().st_mtime_ns - 3_600 * 10**9
            os.utime(each, ns=(earlier, earlier))

    async def _fill(self) -> None:
        wiring = open_gateway(self.config)
        acceptor = wiring.acceptor(wiring.store)
        for accepted in (ACCEPTED, MISSING):
            assert isinstance(await acceptor.accept(accepted), Accepted)
        for stored in (ORPHAN, CONFLICT):
            await acceptor.store_blob(stored)

    def lose_references(self) -> None:
        """Put the frame in conflict in quarantine, and lose what follows from that and from uploads."""

        async def quarantine() -> None:
            wiring = open_gateway(self.config)
            accepted = await wiring.acceptor(wiring.store).read(ACCEPTED.identity)
            assert isinstance(accepted, IdentityManifest)
            conflicts = Conflicts(store=wiring.store, clock=wiring.clock, ids=wiring.ids, collector_id="gateway-1")
            await conflicts.quarantine(accepted, CONFLICT.sha256)

        asyncio.run(quarantine())
        for folder in ("quarantine-by-blob", "raw-blobs-by-time"):
            shutil.rmtree(self.lake / folder)

    def has(self, key: str) -> bool:
        return (self.lake / key).exists()

    def killed(self, moment: str, *words: str) -> None:
        process = FORKS.Process(target=killed_command, args=(moment, words, self.log), daemon=True)
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, self.log.read_text()
        assert f"killed {moment}" in self.log.read_text()
        add(Mechanism.KILLS)

    def files(self, *folders: str) -> dict[str, bytes]:
        paths = [path for folder in folders for path in (self.lake / folder).rglob("*") if path.is_file()]
        return {str(path): path.read_bytes() for path in paths}


class LandingDeployment(Deployment):
    """One batch has landed, beyond its retention, and another one was never queued."""

    def __init__(self, folder: Path) -> None:
        queue = {
            "type": "manifest",
            "store": (folder / "lake").as_uri(),
            "manifest_path": "landing-queue/manifest.json",
        }
        table = {"table": "telemetry.samples", "format": "frames", "kind": "samples"}
        (folder / "lakehouse").mkdir()
        super().__init__(
            folder,
            reconcile={"grace_seconds": 0},
            raw_blobs={"retention_days": 1e-9, "rollback_days": 0},
            spark={"lakehouse": str(folder / "lakehouse")},
            runtime={"state": {"url": f"sqlite:///{folder}/state.db"}},
            pipelines={"telemetry": {"messages": "accepted", "queue": queue, "tables": [table]}},
        )
        asyncio.run(self._land(ACCEPTED.identity))

    async def _fill(self) -> None:
        wiring = open_gateway(self.config)
        acceptor = wiring.acceptor(wiring.store)
        for accepted in (ACCEPTED, MISSING):
            answer = await acceptor.accept(accepted)
            assert isinstance(answer, Accepted)
            reference = AcceptedByBlob.of(answer.manifest)
            await wiring.store.create(reference.key, reference.encode())

    async def _land(self, identity: BatchIdentity) -> None:
        wiring = ConsumeWiring(read_config(self.config), {})
        with closing(wiring.open_catalog("lake")) as catalog:
            create_table(catalog, "telemetry.samples", pa.schema([pa.field("time", pa.int64())]))
            uuid = str(catalog.load_table("telemetry.samples").metadata.table_uuid)
        stream, unit = boot_part(identity.agent_id, identity.boot_id), accepted_unit(identity, self.lake.as_uri())
        span = (identity.seq_start, identity.seq_end + 1)
        landed = Landing(token="t", remainders=(UnitRemainder(Unit(unit, numbers=Numbers(stream, *span))),))
        await wiring.open_ledger().record(uuid, Snapshot(FIRST.snapshot, None, 1, landed))
        [entry] = (self.lake.parent / "lakehouse" / "ledger").rglob("*.json")
        os.utime(entry, (0, 0))  # before the collection's audit, which counts in whole seconds
        with wiring.open_state(SystemClock(), RandomIds()) as state:
            assert state.landings.settle(uuid, None, FIRST, [landing(FIRST, unit, numbered=numbers(stream, span))])

    def bring_back_the_missing_frame(self) -> None:
        (self.lake / keys.raw_blob(MISSING.sha256)).write_bytes(MISSING.body)


def moments(*steps: str) -> list[object]:
    """A kill after each step, and for `make soak` also before it, which is after the one before."""
    soak = pytest.mark.soak
    return [f"after {step}" for step in steps] + [pytest.param(f"before {step}", marks=soak) for step in steps]


DERIVED = ("accepted", "accepted-by-time", "accepted-by-blob", "raw-blobs-by-time", "repairs", "raw-blobs")


LATER = [pytest.param(f"after checkpoint {number}", marks=pytest.mark.soak) for number in (2, 3)]


@pytest.mark.parametrize("moment", [*moments(*RECONCILER.values()), *LATER])
def test_a_reconciler_that_is_killed_is_finished_by_the_next_one(moment: str, tmp_path: Path) -> None:
    there = Deployment(tmp_path)
    there.lose_references()
    blobs = there.files("raw-blobs", "accepted")
    words = ("reconcile", str(there.config), "--once", "--cold")

    there.killed(moment, *words)
    done = lakehead_command(*words)
    after = there.files(*DERIVED)
    again = lakehead_command(*words, "--json")

    assert (done.returncode, again.returncode) == (1, 1), "a frame is missing"
    for submission in (ACCEPTED, MISSING):
        assert there.has(keys.accepted_by_blob(submission.sha256, submission.identity))
    assert len(there.files("accepted-by-time")) == 2
    assert len(there.files("raw-blobs-by-time")) == 2
    assert there.has(keys.quarantine_by_blob(CONFLICT.sha256, CONFLICT.identity))
    assert there.has(keys.repair(MISSING.identity))
    assert there.has(keys.COMPLETED_AUDIT)
    assert there.files("raw-blobs", "accepted") == blobs
    assert json.loads(again.stdout)["actions"] == []
    assert there.files(*DERIVED) == after


@pytest.mark.parametrize("moment", moments("repair"))
def test_a_reconciler_that_is_killed_while_it_heals_a_repair_is_finished_by_the_next_one(
    moment: str, tmp_path: Path
) -> None:
    there = Deployment(tmp_path)
    words = ("reconcile", str(there.config), "--once")
    assert lakehead_command(*words).returncode == 1, "a frame is missing"
    (there.lake / keys.raw_blob(MISSING.sha256)).write_bytes(MISSING.body)

    there.killed(moment, *words)
    done, again = lakehead_command(*words), lakehead_command(*words, "--json")

    key = keys.repair(MISSING.identity)
    repair = BatchRepair.decode((there.lake / key).read_bytes(), key)
    assert (done.returncode, again.returncode, repair.state) == (0, 0, "healed")
    assert json.loads(again.stdout)["actions"] == []


@pytest.mark.parametrize("moment", moments(*QUEUE.values()))
def test_a_reconciler_that_is_killed_while_it_queues_leaves_no_batch_out(moment: str, tmp_path: Path) -> None:
    there = LandingDeployment(tmp_path)
    there.bring_back_the_missing_frame()
    words = ("reconcile", str(there.config), "--once", "--json")

    there.killed(moment, *words)
    done, again = lakehead_command(*words), lakehead_command(*words)
    queued = [each["key"] for each in json.loads(done.stdout)["actions"] if each["kind"] == "enqueued"]

    assert (done.returncode, again.returncode) == (0, 0), done.stderr
    assert queued == ([] if moment == "after queue" else [keys.accepted(MISSING.identity)])
    assert json.loads(again.stdout)["actions"] == []
    assert json.loads(again.stdout)["waiting"] == 1


@pytest.mark.parametrize("moment", moments(*RETIREMENT.values()))
def test_a_collection_that_is_killed_while_it_retires_is_finished_by_the_next_one(moment: str, tmp_path: Path) -> None:
    there = LandingDeployment(tmp_path)
    there.bring_back_the_missing_frame()  # it has not landed
    words = ("gc", str(there.config), "--audit")

    there.killed(moment, *words)
    assert there.has(keys.retired(ACCEPTED.identity)) or there.has(keys.raw_blob(ACCEPTED.sha256))
    done = lakehead_command(*words)
    reconciled = lakehead_command("reconcile", there.config, "--once", "--cold")

    assert (done.returncode, reconciled.returncode) == (0, 0), done.stderr + reconciled.stdout
    assert there.has(keys.retired(ACCEPTED.identity))
    assert not there.has(keys.raw_blob(ACCEPTED.sha256))
    assert there.has(keys.accepted(ACCEPTED.identity))
    assert there.has(keys.raw_blob(MISSING.sha256))
    assert not there.files("repairs")


@pytest.mark.parametrize("moment", moments(*GARBAGE.values()))
def test_a_collection_that_is_killed_is_finished_by_the_next_one(moment: str, tmp_path: Path) -> None:
    there = Deployment(tmp_path)
    words = ("gc", str(there.config), "--audit")

    there.killed(moment, *words)
    assert there.has(keys.raw_blob(ACCEPTED.sha256))
    assert there.has(keys.raw_blob(CONFLICT.sha256))
    void = there.lake / keys.accepted(ORPHAN.identity)
    assert void.exists() or there.has(keys.raw_blob(ORPHAN.sha256)), "nothing is deleted before its identity is void"
    done = lakehead_command(*words)
    if "quarantine" in moment:  # the audit has seen the manifest, and its reference is the reconciler's
        lakehead_command("reconcile", there.config, "--once", "--cold")
    after = there.files("accepted", "raw-blobs", "quarantine", "quarantine-by-blob")
    again = lakehead_command(*words)

    assert (done.returncode, again.returncode) == (0, 0), done.stderr + again.stderr
    assert isinstance(decode_at_identity(void.read_bytes(), ORPHAN.identity), IdentityVoid)
    assert not there.has(keys.raw_blob(ORPHAN.sha256))
    assert there.has(keys.raw_blob(ACCEPTED.sha256))
    assert there.has(keys.raw_blob(CONFLICT.sha256))
    assert there.has(keys.identity_conflict(CONFLICT.identity, CONFLICT.sha256))
    assert there.has(keys.quarantine_by_blob(CONFLICT.sha256, CONFLICT.identity))
    assert there.files("accepted", "raw-blobs", "quarantine", "quarantine-by-blob") == after
