"""Retention asks the tables in which the pipelines of a configuration land what this store has accepted."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.maintain.garbage_report import BlobOutcome
from lakehead.maintain.garbage_retention import RetiringBatch
from lakehead.run.config.config_file import read_config
from lakehead.run.consume_wiring import ConsumeWiring
from lakehead.run.gc_wiring import GcWiring, landed_uuids
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.key_parts import boot_part
from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test
from tests.support.state_tools import FIRST, landing, numbers


def wired(
    folder: Path, *tables: tuple[str, str], store: str = "s3://bucket/lake", **more: dict[str, Any]
) -> ConsumeWiring:
    def pipeline(of: str) -> dict[str, Any]:
        routes = [{"table": name, "format": "frames", "kind": kind} for name, kind in tables]
        return {"queue": {"type": "manifest", "store": of}, "messages": "accepted", "tables": routes}

    path = folder / "conf.json"
    config = {
        "spark": {"lakehouse": str(folder / "lakehouse")},
        "pipelines": {"here": pipeline(store), "elsewhere": pipeline("s3://other/lake")},
        **more,
    }
    path.write_text(json.dumps(config))
    wiring = ConsumeWiring(read_config(path), {})
    wiring.check()
    return wiring


def test_tables_are_found_by_store_and_kind_and_a_missing_one_leaves_its_kind_without(tmp_path: Path) -> None:
    wiring = wired(tmp_path, ("raw.samples", "samples"), ("raw.logs", "logs"))
    with closing(wiring.open_catalog("lake")) as catalog:
        catalog.create_namespace("raw")
        made = catalog.create_table("raw.samples", schema=pa.schema([("a", pa.int64())]))

    found = landed_uuids(wiring, "s3://bucket/lake/")

    assert found == {FrameKind.SAMPLES: (str(made.metadata.table_uuid),), FrameKind.LOGS: ()}
    assert landed_uuids(wiring, "s3://bucket/another") == {}


def test_before_the_first_run_has_made_the_embedded_catalog_there_is_no_table(tmp_path: Path) -> None:
    wiring = wired(tmp_path, ("raw.samples", "samples"))
    (tmp_path / "lakehouse").rmdir()

    assert landed_uuids(wiring, "s3://bucket/lake") == {FrameKind.SAMPLES: ()}
    assert not (tmp_path / "lakehouse").exists()


@async_test
async def _created_again(folder: Path) -> None:
    url, schema = f"file://{folder}/lake", pa.schema([("a", pa.int64())])
    wiring = wired(
        folder,
        ("raw.samples", "samples"),
        store=url,
        gateway={"store": url},
        raw_blobs={"retention_days": 1},
        runtime={"state": {"url": f"sqlite:///{folder}/state.db"}},
    )
    identity = BatchIdentity("agent", "boot", 0, 9)
    with closing(wiring.open_catalog("lake")) as catalog:
        catalog.create_namespace("raw")
        table = str(catalog.create_table("raw.samples", schema=schema).metadata.table_uuid)
        numbered = numbers(boot_part("agent", "boot"), (0, 10))
        with wiring.open_state(SystemClock(), RandomIds()) as state:
            state.landings.settle(table, None, FIRST, [landing(FIRST, numbered=numbered)])
        async with GcWiring(wiring.config, {}).collection() as collection:
            [user] = collection.users

            async def outcome() -> BlobOutcome:
                found = await user.still_needed([RetiringBatch(identity, FrameKind.SAMPLES)], done_before_ns=2**62)
                return found[identity].outcome

            assert await outcome() is BlobOutcome.LANDING_UNKNOWN  # landed, by the state; there is no ledger here
            catalog.drop_table("raw.samples")
            assert await outcome() is BlobOutcome.NO_TABLE
            catalog.create_table("raw.samples", schema=schema)
            assert await outcome() is BlobOutcome.NOT_LANDED


def test_in_a_table_that_is_created_again_while_it_runs_nothing_has_landed(tmp_path: Path) -> None:
    _created_again(tmp_path)
