"""`lakehead gc` on a real folder, beside real gateways in both modes."""

import asyncio
import gzip
import json
import os
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from hashlib import md5
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest

from lakehead.accept.acceptance import Acceptor, Submission
from lakehead.errors import Misconfigured
from lakehead.gateway.server import GatewayServer
from lakehead.maintain.garbage_collection import GarbageCollection
from lakehead.maintain.garbage_metrics import GarbageMetrics, GarbageTotals
from lakehead.maintain.garbage_orphans import SpoolOutOfReach
from lakehead.maintain.garbage_report import BlobDecision, BlobOutcome, GarbageReport
from lakehead.run.config.config_file import read_config
from lakehead.run.consume_wiring import ConsumeWiring
from lakehead.run.gateway_command import open_gateway
from lakehead.run.gateway_wiring import GatewayWiring
from lakehead.run.gc_command import _Job
from lakehead.run.gc_spools import http_spools
from lakehead.run.gc_wiring import GcWiring
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.authority_records import OpenSpool
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame
from tests.support.async_tests import async_test
from tests.support.gateways import sample_frame
from tests.unit.run.queue_support import Done

Lakehead = Callable[..., Done]
TABLE = "raw.samples"
HORIZON = 1e-9
"""In days: 86 microseconds."""


def batch(first: int, value: float = 1.0) -> Submission:
    body = sample_frame(BatchIdentity("web-1", "boot", first, first + 3), value)
    return Submission.of(body, decode_frame(body))


def written(folder: Path, gateway: dict[str, Any] | None = None, **more: Any) -> Path:
    listeners = {"ingest_listener": {"port": 0}, "private_listener": {"port": 0}}
    path = folder / "gateway.json"
    config = {"store": f"file://{folder}/lake", **listeners, **(gateway or {})}
    path.write_text(json.dumps({"gateway": config, "gc": {"retry_horizon_days": HORIZON}, **more}))
    return path


def acceptor(wiring: GatewayWiring) -> Acceptor:
    return wiring.acceptor(wiring.store)


def blobs(folder: Path) -> set[str]:
    return {each.stem for each in (folder / "lake" / "raw-blobs").rglob("*.lmbatch")}


def grow_old(folder: Path) -> None:
    """Blobs of the same moment as the run would be too young."""
    for each in (folder / "lake" / "raw-blobs").rglob("*.lmbatch"):
        earlier = each.stat().st_mtime_ns - 3_600 * 10**9
        os.utime(each, ns=(earlier, earlier))


def filled(config: Path) -> None:
    """Two orphans, and two accepted batches, of which one has no reverse reference."""

    async def fill() -> None:
        wiring = open_gateway(config)
        for first in (0, 10):
            await acceptor(wiring).store_blob(batch(first))
        async with wiring.side_effects() as effects:
            answer = await acceptor(wiring).accept(batch(20))
            await effects.finish([answer.manifest])  # type: ignore[union-attr]
        await acceptor(wiring).accept(batch(30))

    asyncio.run(fill())
    grow_old(config.parent)


@pytest.mark.slow
def test_a_dry_run_lists_what_is_then_deleted(lakehead: Lakehead, tmp_path: Path) -> None:
    config = written(tmp_path)
    lakehead("gateway", "init", config)
    filled(config)
    before = blobs(tmp_path)

    without = lakehead("gc", config, "--json")
    dry = lakehead("gc", config, "--dry-run", "--audit")
    assert blobs(tmp_path) == before
    done = lakehead("gc", config, "--audit", "--json")

    assert (without.code, without.json["outcomes"]["not_audited"]["blobs"], without.json["deleted"]) == (0, 3, 0)
    assert dry.code == done.code == 0
    assert f"file://{tmp_path}/lake: 2 of 4 blobs would be deleted" in dry.out
    listed = {line.split()[0] for line in dry.out.splitlines() if line.startswith("raw-blobs/")}
    assert listed == {each["key"] for each in done.json["deleted_blobs"]}
    assert listed == {keys.raw_blob(batch(first).sha256) for first in (0, 10)}
    assert blobs(tmp_path) == {batch(first).sha256 for first in (20, 30)}
    assert done.json["outcomes"]["reference_missing"]["blobs"] == 1
    assert done.json["audited_through"] is None
    again = lakehead("gc", config, "--audit")
    assert "0 of 2 blobs deleted" in again.out
    assert keys.raw_blob(batch(30).sha256) in again.out, "what needs attention is shown"
    trail = lakehead("gateway", "audit", config).out
    assert "collect_garbage" in trail
    assert "dry_run_of_gc" in trail


def report_of(folder: Path) -> str:
    """An S3 Inventory report of the folder, as S3 writes it into a bucket."""
    root = folder / "reports"
    data = root / "lake" / "all" / "data" / "1.csv.gz"
    data.parent.mkdir(parents=True)
    prefix = str(folder / "lake").lstrip("/")
    rows = [
        f'"lake","{prefix}/{path.relative_to(folder / "lake")}","2020-01-01T00:00:00.000Z"\n'.replace("=", "%3D")
        for path in (folder / "lake").rglob("*.*")
        if path.is_file() and ".lakehead" not in path.parts
    ]
    data.write_bytes(gzip.compress("".join(rows).encode()))
    manifest = root / "lake" / "all" / "2026-01-01T00-00Z" / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_bytes(
        msgspec.json.encode(
            {
                "sourceBucket": "lake",
                "fileFormat": "CSV",
                "fileSchema": "Bucket, Key, LastModifiedDate",
                "creationTimestamp": "1760000000000",
                "files": [
                    {
                        "key": "lake/all/data/1.csv.gz",
                        "size": data.stat().st_size,
                        "MD5checksum": md5(data.read_bytes(), usedforsecurity=False).hexdigest(),
                    }
                ],
            }
        )
    )
    return f"file://{manifest}"


@pytest.mark.slow
def test_candidates_come_from_a_report_of_s3_inventory(lakehead: Lakehead, tmp_path: Path) -> None:
    config = written(tmp_path)
    lakehead("gateway", "init", config)
    filled(config)
    report = report_of(tmp_path)

    done = lakehead("gc", config, "--inventory", report, "--audit", "--json")

    assert (done.code, done.json["source"], done.json["deleted"]) == (0, "inventory", 2), done.err
    assert blobs(tmp_path) == {batch(first).sha256 for first in (20, 30)}

    data = tmp_path / "reports/lake/all/data/1.csv.gz"
    data.write_bytes(data.read_bytes()[:-1] + b"x")
    damaged = lakehead("gc", config, "--inventory", report, "--audit")
    assert (damaged.code, "its MD5 is another" in damaged.err) == (1, True)
    data.unlink()
    assert lakehead("gc", config, "--inventory", report).code in (1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--source", "inventory"], "need each other"),
        (["--source", "scan", "--inventory", "file:///x/manifest.json"], "need each other"),
        (["--since", "3d"], "--since is for --source index"),
        (["--metrics-port", "9999"], "use it with --every"),
        (["--inventory", "file:///nowhere/manifest.json"], "There is no report at"),
        (["--inventory", "file:///nowhere/data.csv"], "manifest.json"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    lakehead: Lakehead, tmp_path: Path, options: list[str], message: str
) -> None:
    config = written(tmp_path)
    lakehead("gateway", "init", config)
    done = lakehead("gc", config, *options)

    assert (done.code, message in done.err) == (2, True), done.err


def test_a_store_that_is_no_authority_and_a_file_without_a_gateway_are_refused(
    lakehead: Lakehead, tmp_path: Path
) -> None:
    done = lakehead("gc", written(tmp_path))
    assert (done.code, "gateway init" in done.err) == (2, True)

    path = tmp_path / "other.json"
    path.write_text(
        json.dumps({"agent": {"agent_id": "a", "gateways": ["http://x"], "spool_folder": "s", "token": {"env": "T"}}})
    )
    done = lakehead("gc", path)
    assert (done.code, "has no gateway" in done.err) == (2, True), done.err


def test_retention_without_a_pipeline_keeps_everything(lakehead: Lakehead, tmp_path: Path) -> None:
    config = written(
        tmp_path,
        raw_blobs={"retention_days": HORIZON, "rollback_days": 0},
        spark={"lakehouse": str(tmp_path / "lh")},
        runtime={"state": {"url": f"sqlite:///{tmp_path}/state.db"}},
    )
    lakehead("gateway", "init", config)
    filled(config)

    done = lakehead("gc", config, "--audit", "--json")

    assert done.json["outcomes"].get("no_table", {}).get("blobs") == 1, done.json["outcomes"]
    assert batch(20).sha256 in blobs(tmp_path)


@async_test
async def _beside(config: Path, lake: Path, token: str, admin: str, mode: str) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    servers: list[GatewayServer] = []

    def is_ready(server: GatewayServer) -> None:
        servers.append(server)
        ready.set()

    wiring = open_gateway(config)
    serving = asyncio.create_task(wiring.serve(stop, is_ready))
    await ready.wait()
    url = f"http://127.0.0.1:{servers[0].ingest_port}/ingest/v1/batch"
    raw = read_config(config)
    gc = GcWiring(raw, {"ADMIN": admin})

    async def post(frame: Submission) -> int:
        async with httpx.AsyncClient(trust_env=False) as http:
            headers = {"Authorization": f"Bearer {token}"}
            return (await http.post(url, content=frame.body, headers=headers)).status_code

    try:
        assert await post(batch(20)) == 200
        await acceptor(wiring).store_blob(batch(0))
        await acceptor(wiring).store_blob(batch(20, 2.0))  # contradicts what is accepted, in the spool or the store
        grow_old(lake.parent)
        job = _Job(gc, lambda: gc.source("scan"), is_dry_run=False, makes_audit=True, as_json=True)
        report = await job.once()

        assert report.count(BlobOutcome.ORPHAN) == 1
        assert report.count(BlobOutcome.CONFLICT) + report.count(BlobOutcome.IN_SPOOL) == 1
        assert await post(batch(0)) == 410, "a retry that comes later than the horizon"
        assert await post(batch(20)) == 200
    finally:
        stop.set()
        await serving
    if mode == "local_spool":
        with pytest.raises(SpoolOutOfReach):
            await _Job(gc, lambda: gc.source("scan"), is_dry_run=False, makes_audit=True, as_json=True).once()
        anonymous = GcWiring(raw.model_copy(update={"gc": raw.gc.model_copy(update={"token": None})}), {})
        with pytest.raises(Misconfigured, match=r"gc\.token is not set"):
            await _Job(anonymous, lambda: gc.source("scan"), is_dry_run=True, makes_audit=True, as_json=True).once()
        assert (lake / "raw-blobs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["s3_manifest", "local_spool"])
def test_garbage_is_collected_beside_a_gateway_that_serves(lakehead: Lakehead, tmp_path: Path, mode: str) -> None:
    ingest: dict[str, Any] = {
        "acceptance": mode,
        **({"spool_folder": str(tmp_path / "spool")} if mode == "local_spool" else {}),
    }
    ingest["object_landing_interval_ms"] = 3_600_000  # what is spooled stays there
    config = written(tmp_path, {"ingest": ingest}, gc={"retry_horizon_days": HORIZON, "token": {"env": "ADMIN"}})
    assert lakehead("gateway", "init", config).code == 0
    token = lakehead("gateway", "token", "add", config, "--agent", "web-1").out.strip()
    admin = lakehead("gateway", "token", "add", config, "--role", "admin").out.strip()

    _beside(config, tmp_path / "lake", token, admin, mode)


@async_test
async def test_a_spool_that_nobody_serves_is_out_of_reach() -> None:
    spool = OpenSpool(spool_id="s", collector_id="g", address="http://127.0.0.1:1", opened_at_unix_ns=1)
    async with http_spools("token", seconds=5) as spools:
        with pytest.raises(SpoolOutOfReach, match="out of reach"):
            await spools.check(spool)
        with pytest.raises(SpoolOutOfReach):
            await spools.check(msgspec.structs.replace(spool, address=""))


def test_metrics_add_up() -> None:
    totals = GarbageTotals()
    report = GarbageReport("scan", is_dry_run=False, seen=3, requests=7)
    for outcome in (BlobOutcome.ORPHAN, BlobOutcome.ORPHAN, BlobOutcome.YOUNG):
        report.add(BlobDecision("k", 5, outcome))
    totals.add(report)
    totals.add(None)

    found = {
        (sample.name, sample.labels.get("reason")): sample.value
        for metric in GarbageMetrics(totals).collect()
        for sample in metric.samples
    }

    assert found["lakehead_gc_runs_total", None] == 2
    assert found["lakehead_gc_failed_runs_total", None] == 1
    assert found["lakehead_gc_deleted_blobs_total", "orphan"] == 2
    assert found["lakehead_gc_deleted_bytes_total", "orphan"] == 10
    assert found["lakehead_gc_kept_blobs", "young"] == 1


@async_test
async def _stays(config: Path) -> None:
    wiring = GcWiring(read_config(config), {})
    job = _Job(wiring, lambda: wiring.source("index"), is_dry_run=False, makes_audit=True, as_json=True)
    runs = 0
    inner = job._run

    async def counted(collection: Any) -> Any:
        nonlocal runs
        runs += 1
        if runs == 2:
            job.stop.set()
        return await inner(collection)

    job._run = counted  # type: ignore[method-assign]
    await job.stay(timedelta(milliseconds=1), 0)
    assert runs == 2


@pytest.mark.slow
def test_a_resident_collector_runs_again_and_again_until_it_is_stopped(lakehead: Lakehead, tmp_path: Path) -> None:
    config = written(tmp_path)
    lakehead("gateway", "init", config)
    _stays(config)


@async_test
async def _tables_of_three_runs(config: Path, told: list[tuple[list[str], list[str]]]) -> None:
    wiring = GcWiring(read_config(config), {})
    job = _Job(wiring, lambda: wiring.source("scan"), is_dry_run=False, makes_audit=False, as_json=True)

    async def noted(collection: GarbageCollection) -> GarbageReport:
        with closing(ConsumeWiring(wiring.config, {}).open_catalog("lake")) as catalog:
            there = [str(catalog.load_table(TABLE).metadata.table_uuid)] if catalog.table_exists(TABLE) else []
            told.append((list(collection.discarding_tables), there))
            if there:
                catalog.drop_table(TABLE)
            catalog.create_namespace_if_not_exists("raw")
            catalog.create_table(TABLE, schema=pa.schema([("a", pa.int64())]))
        if len(told) == 3:
            job.stop.set()
        return GarbageReport(source="scan", is_dry_run=False)

    job._run = noted  # type: ignore[method-assign]
    await job.stay(timedelta(milliseconds=1), None)


def test_a_resident_collector_looks_up_tables_for_each_run_since_they_may_be_made_anew(
    lakehead: Lakehead, tmp_path: Path
) -> None:
    (tmp_path / "lh").mkdir()
    store = f"file://{tmp_path}/lake"
    pipeline = {
        "queue": {"type": "manifest", "store": store},
        "messages": "accepted",
        "tables": [{"table": TABLE, "format": "frames", "kind": "samples"}],
    }
    config = written(
        tmp_path,
        raw_blobs={"retention_days": HORIZON, "rollback_days": 0},
        spark={"lakehouse": str(tmp_path / "lh")},
        runtime={"state": {"url": f"sqlite:///{tmp_path}/state.db"}},
        pipelines={"metrics": pipeline},
    )
    lakehead("gateway", "init", config)
    told: list[tuple[list[str], list[str]]] = []

    _tables_of_three_runs(config, told)

    assert [known for known, _ in told] == [there for _, there in told]
    assert [len(there) for _, there in told] == [0, 1, 1]


def test_the_help_has_an_example(lakehead: Lakehead) -> None:
    assert "Example: lakehead gc" in lakehead("gc", "--help").out
