"""Reconcilers and garbage collection are killed at each moment and run again: nothing needed is lost, all is done."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from lakehead.accept.acceptance import Accepted, Submission
from lakehead.run.gateway_command import open_gateway
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityVoid, decode_at_identity
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame
from tests.faults.care_failpoints import GARBAGE, RECONCILER, killed_command
from tests.support.commands import lakehead_command
from tests.support.costs import Mechanism, add
from tests.support.forks import FORKS
from tests.support.gateways import sample_frame

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


def batch(first: int, value: float = 1.0) -> Submission:
    body = sample_frame(BatchIdentity("web-1", "boot", first, first + 3), value)
    return Submission.of(body, decode_frame(body))


ORPHAN, ACCEPTED, MISSING, CONFLICT = batch(0), batch(10), batch(20), batch(10, 2.0)


class Deployment:
    """An orphan, an accepted batch without index entries, one whose frame is missing, and a frame in conflict."""

    def __init__(self, folder: Path) -> None:
        self.lake, self.log, self.config = folder / "lake", folder / "log", folder / "gateway.json"
        gateway = {"store": self.lake.as_uri(), "ingest_listener": {"port": 0}, "private_listener": {"port": 0}}
        self.config.write_text(json.dumps({"gateway": gateway, "gc": {"retry_horizon_days": 1e-9}}))
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


def moments(*steps: str) -> list[object]:
    """A kill after each step, and for `make soak` also before it, which is after the one before."""
    soak = pytest.mark.soak
    return [f"after {step}" for step in steps] + [pytest.param(f"before {step}", marks=soak) for step in steps]


DERIVED = ("accepted", "accepted-by-time", "accepted-by-blob", "raw-blobs-by-time", "repairs", "raw-blobs")


@pytest.mark.parametrize("moment", moments(*RECONCILER.values()))
def test_a_reconciler_that_is_killed_is_finished_by_the_next_one(moment: str, tmp_path: Path) -> None:
    there = Deployment(tmp_path)
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
    assert there.has(keys.repair(MISSING.identity))
    assert there.has(keys.COMPLETED_AUDIT)
    assert there.files("raw-blobs", "accepted") == blobs
    assert json.loads(again.stdout)["actions"] == []
    assert there.files(*DERIVED) == after


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
