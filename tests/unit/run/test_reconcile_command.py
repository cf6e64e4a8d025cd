"""`lakehead reconcile` and `lakehead repairs` on a real store of local files, as a gateway and its death leave it."""

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from lakehead.accept.acceptance import Accepted, Duplicate
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.lake.tables import create_table
from lakehead.run.config.config_file import read_config
from lakehead.run.consume_wiring import ConsumeWiring
from lakehead.run.gateway_command import open_gateway
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.key_parts import boot_part
from tests.support.serving import ServingProcess
from tests.support.state_tools import FIRST, landing, numbers
from tests.unit.accept.support import submitted
from tests.unit.run.queue_support import Done

Lakehead = Callable[..., Done]
DERIVED = ("accepted-by-time", "accepted-by-blob", "raw-blobs-by-time")


class Deployment:
    """An authority in a folder, with or without a pipeline that lands what it accepts."""

    def __init__(self, folder: Path, *, lands: bool = False, **reconcile: Any) -> None:
        self.folder, self.store = folder, folder / "store"
        self.file = folder / "lakehead.json"
        content: dict[str, Any] = {
            "gateway": {"store": self.store.as_uri(), "ingest_listener": {"port": 0}, "private_listener": {"port": 0}},
            "reconcile": {"grace_seconds": 0, **reconcile},
        }
        if lands:
            (folder / "lakehouse").mkdir()
            queue = {"type": "manifest", "store": self.store.as_uri(), "manifest_path": "landing-queue/manifest.json"}
            table = {"table": "telemetry.samples", "format": "frames", "kind": "samples"}
            content |= {
                "spark": {"lakehouse": str(folder / "lakehouse")},
                "runtime": {"state": {"url": f"sqlite:///{folder}/state.db"}},
                "pipelines": {"telemetry": {"messages": "accepted", "queue": queue, "tables": [table]}},
            }
        self.file.write_text(json.dumps(content))

    def accept(self, *numbered: int) -> list[IdentityManifest]:
        """Accept batches as a gateway does, with all that follows but the queue."""
        wiring = open_gateway(self.file)

        async def accept() -> list[IdentityManifest]:
            found = []
            async with wiring.side_effects() as effects:
                effects.queue = NoQueue()
                for number in numbered:
                    identity = BatchIdentity("agent-a", "boot", 10 * number, 10 * number + 9)
                    answer = await wiring.acceptor(wiring.store).accept(submitted(f"frame {number}".encode(), identity))
                    assert isinstance(answer, Accepted | Duplicate)
                    found.append(answer.manifest)
                await effects.finish(found)
            return found

        return asyncio.run(accept())

    def contents(self, *folders: str) -> dict[str, bytes]:
        paths = [path for folder in folders for path in (self.store / folder).rglob("*.json")]
        return {str(path.relative_to(self.store)): path.read_bytes() for path in paths}

    def files(self) -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in self.store.rglob("*") if path.is_file()}

    def blob(self, manifest: IdentityManifest) -> Path:
        return self.store / manifest.raw_blob_key


class NoQueue:
    async def put(self, manifests: object) -> None:
        pass


@pytest.fixture
def deployment(tmp_path: Path, lakehead: Lakehead) -> Deployment:
    found = Deployment(tmp_path)
    lakehead("gateway", "init", found.file)
    return found


def test_all_derived_state_that_is_lost_comes_back_with_the_same_bytes(
    deployment: Deployment, lakehead: Lakehead
) -> None:
    deployment.accept(1, 2, 3)
    before = deployment.contents(*DERIVED)
    assert len(before) == 9
    for folder in DERIVED:
        shutil.rmtree(deployment.store / folder)

    done = lakehead("reconcile", deployment.file, "--once", "--cold")
    again = lakehead("reconcile", deployment.file, "--once", "--cold", "--json")

    assert (done.code, again.code) == (0, 0)
    assert deployment.contents(*DERIVED) == before
    assert "9 written" in done.out
    assert "nothing is queued" in done.err
    assert json.loads(again.out)["actions"] == []
    assert (deployment.store / "reconciler/v1/completed-audit.json").exists()
    assert (deployment.store / "reconciler/v1/heartbeat.json").exists()


def test_a_dry_run_changes_no_file_and_lists_what_a_run_writes(deployment: Deployment, lakehead: Lakehead) -> None:
    [first, _] = deployment.accept(1, 2)
    shutil.rmtree(deployment.store / "accepted-by-blob")
    deployment.blob(first).unlink()
    before = deployment.files()

    planned = lakehead("reconcile", deployment.file, "--cold", "--dry-run", "--json")
    after = deployment.files()
    done = lakehead("reconcile", deployment.file, "--once", "--cold", "--json")

    assert after == before
    assert (planned.code, done.code) == (1, 1)
    told, did = json.loads(planned.out), json.loads(done.out)
    assert told["dry_run"]
    assert len(told["actions"]) == 3
    assert sorted(map(str, told["actions"])) == sorted(map(str, did["actions"]))
    new = {str(Path(path).relative_to(deployment.store)) for path in deployment.files().keys() - before.keys()}
    assert {key for key in new if not key.startswith(("reconciler/", ".lakehead/locks/"))} == {
        each["key"] for each in told["actions"]
    }


def test_a_missing_and_a_corrupt_frame_are_listed_until_the_same_frames_are_uploaded_again(
    deployment: Deployment, lakehead: Lakehead
) -> None:
    missing, corrupt = deployment.accept(1, 2)
    deployment.blob(missing).unlink()
    deployment.blob(corrupt).write_bytes(b"frame X")

    found = lakehead("reconcile", deployment.file, "--once")
    listed = lakehead("repairs", "list", deployment.file)
    as_json = json.loads(lakehead("repairs", "list", deployment.file, "--json").out)["repairs"]
    shown = json.loads(lakehead("repairs", "show", deployment.file, as_json[0]["id"]).out)
    deployment.accept(1, 2)
    healed = lakehead("reconcile", deployment.file, "--once", "--json")
    none = lakehead("repairs", "list", deployment.file)
    past = lakehead("repairs", "list", deployment.file, "--state", "healed")

    assert (found.code, listed.code) == (1, 1)
    assert [each["problem"] for each in as_json] == ["missing", "corrupt"]
    assert "agent-a send the batch again" in shown["what_to_do"]
    assert missing.frame_sha256 in shown["what_to_do"]
    assert healed.code == 0
    assert json.loads(healed.out)["done"] == {"repair_healed": 2}
    assert (none.code, none.out) == (0, "0 repairs\n")
    assert (past.code, "2 repairs" in past.out) == (0, True)
    assert deployment.blob(corrupt).read_bytes() == b"frame 2"


def test_a_repair_that_does_not_exist_is_told(deployment: Deployment, lakehead: Lakehead) -> None:
    wrong = lakehead("repairs", "show", deployment.file, "nonsense")
    none = lakehead("repairs", "show", deployment.file, f"agent=61.boot=62.{1:020}-{2:020}")

    assert (wrong.code, none.code) == (2, 1)
    assert "Nothing is known to be wrong" in none.err


def test_only_the_agents_that_are_named_are_scanned(deployment: Deployment, lakehead: Lakehead) -> None:
    deployment.accept(1, 2)

    here = lakehead("reconcile", deployment.file, "--agent", "agent-a", "--json")
    elsewhere = lakehead("reconcile", deployment.file, "--agent", "agent-b", "--agent", "agent-c", "--json")

    assert json.loads(here.out)["accepted"] == 2
    assert json.loads(elsewhere.out)["accepted"] == 0
    assert not (deployment.store / "reconciler/v1/completed-audit.json").exists()


def test_what_an_inventory_lists_is_looked_at(deployment: Deployment, lakehead: Lakehead, tmp_path: Path) -> None:
    [manifest] = deployment.accept(1)
    shutil.rmtree(deployment.store / "accepted-by-time")
    (tmp_path / "report/data").mkdir(parents=True)
    listed = [str(deployment.store / key).lstrip("/") for key in (manifest.key, keys.AUTHORITY)]
    pa.parquet.write_table(pa.table({"key": listed}), tmp_path / "report/data/1.parquet")
    size = (tmp_path / "report/data/1.parquet").stat().st_size
    report = tmp_path / "report/manifest.json"
    report.write_text(
        json.dumps(
            {"sourceBucket": "b", "creationTimestamp": "1760000000000", "fileFormat": "Parquet", "fileSchema": ""}
            | {"files": [{"key": "data/1.parquet", "size": size}]}
        )
    )

    done = lakehead("reconcile", deployment.file, "--inventory", report.as_uri(), "--json")
    missing = lakehead("reconcile", deployment.file, "--inventory", (tmp_path / "none.json").as_uri())

    assert (done.code, json.loads(done.out)["done"]) == (0, {"accepted_by_time": 1})
    assert missing.code == 2


def test_a_store_that_is_no_authority_and_a_file_without_gateway_are_refused(
    tmp_path: Path, lakehead: Lakehead
) -> None:
    deployment = Deployment(tmp_path)
    no_gateway = tmp_path / "none.json"
    no_gateway.write_text(json.dumps({"agent": {"agent_id": "a", "gateways": ["http://127.0.0.1:1"], "token": "x"}}))

    assert lakehead("reconcile", deployment.file, "--once").code == 2
    assert lakehead("reconcile", no_gateway, "--once").code == 2


def test_batches_that_nobody_queued_are_queued_once_and_not_when_they_have_landed(
    tmp_path: Path, lakehead: Lakehead
) -> None:
    deployment = Deployment(tmp_path, lands=True)
    lakehead("gateway", "init", deployment.file)
    lost, landed = deployment.accept(1, 2)
    wiring = ConsumeWiring(read_config(deployment.file), {})
    with closing(wiring.open_catalog("lake")) as catalog:
        schema = pa.schema([pa.field("time", pa.int64())])
        create_table(catalog, "telemetry.samples", schema)
        uuid = str(catalog.load_table("telemetry.samples").metadata.table_uuid)
    with wiring.open_state(SystemClock(), RandomIds()) as state:
        spans = numbers(boot_part("agent-a", "boot"), (landed.seq_start, landed.seq_end + 1))
        assert state.landings.settle(uuid, None, FIRST, [landing(FIRST, numbered=spans)])

    planned = lakehead("reconcile", deployment.file, "--dry-run", "--json")
    first = lakehead("reconcile", deployment.file, "--once", "--json")
    second = lakehead("reconcile", deployment.file, "--once", "--cold", "--json")

    assert (planned.code, first.code, second.code) == (0, 0, 0), (planned, first, second)
    queued = [{"kind": "enqueued", "key": lost.key}]
    assert json.loads(planned.out)["actions"] == queued
    assert json.loads(first.out)["actions"] == queued
    assert json.loads(second.out)["actions"] == []
    assert json.loads(second.out)["waiting"] >= 1


class ServingReconciler(ServingProcess):
    words = ("reconcile", "--metrics-port", "0")
    url = ""

    def is_listening(self, said: str) -> bool:
        if found := re.search(r"metrics  (\S+)\n", said):
            self.url = found[1]
        return bool(found)


@pytest.mark.slow
def test_it_serves_figures_and_stops_when_it_is_told_to(deployment: Deployment) -> None:
    deployment.accept(1)
    shutil.rmtree(deployment.store / "accepted-by-blob")
    process = ServingReconciler(config=deployment.file, env={}, log=deployment.folder / "log").start()
    try:
        while b"lakehead_reconciler_audit_age_seconds NaN" in (found := httpx.get(process.url).content):
            continue
        code = process.terminate()
    finally:
        process.kill()

    assert b'lakehead_reconciler_repaired_entries_total{index="accepted_by_blob"} 1.0' in found
    assert code == 0, process.said


@pytest.mark.parametrize("mode", [None, "required", "optional"])
def test_active_active_gateways_need_a_reconciler(tmp_path: Path, lakehead: Lakehead, mode: str | None) -> None:
    file = tmp_path / "gateway.json"

    def checked(reconciler: str | None, **ingest: str) -> Done:
        gateway = {"store": f"file://{tmp_path}/lake", "ingest": ingest}
        if reconciler is not None:
            gateway["reconciler"] = reconciler
        file.write_text(json.dumps({"gateway": gateway}))
        return lakehead("gateway", file)

    refused = checked("none")
    spool = checked("none", acceptance="local_spool", spool_folder=str(tmp_path / "spool"))
    taken = checked(mode)

    assert refused.code == 2
    assert "lakehead reconcile CONFIG" in refused.err
    assert "lakehead gateway init" in spool.err, "the configuration is right, and the store no authority"
    assert "lakehead gateway init" in taken.err


@pytest.mark.parametrize("agent", ["", "x" * 400])
def test_a_name_that_no_agent_can_have_is_a_wrong_option(
    deployment: Deployment, lakehead: Lakehead, agent: str
) -> None:
    refused = lakehead("reconcile", deployment.file, "--agent", agent)

    assert refused.code == 2
    assert "--agent" in refused.err
