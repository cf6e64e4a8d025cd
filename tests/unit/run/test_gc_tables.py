"""Retention asks the tables in which the pipelines of a configuration land what this store has accepted."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakehead.run.config.config_file import read_config
from lakehead.run.consume_wiring import ConsumeWiring
from lakehead.run.gc_wiring import landed_uuids
from lakehead.wire.record_schemas import FrameKind


def wired(folder: Path, *tables: tuple[str, str], store: str = "s3://bucket/lake") -> ConsumeWiring:
    def pipeline(of: str) -> dict[str, Any]:
        routes = [{"table": name, "format": "frames", "kind": kind} for name, kind in tables]
        return {"queue": {"type": "manifest", "store": of}, "messages": "accepted", "tables": routes}

    path = folder / "conf.json"
    config = {
        "spark": {"lakehouse": str(folder / "lakehouse")},
        "pipelines": {"here": pipeline(store), "elsewhere": pipeline("s3://other/lake")},
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
