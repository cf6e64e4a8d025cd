"""An audit after batches were accepted, landed by Spark, and changed behind Lakehead's back."""

import asyncio
import json
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehead.consume.accepted_units import accepted_unit
from lakehead.spark.settings import EMBEDDED
from lakehead.storage.open_store import open_store
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime
from tests.accepted import SAMPLES, Gateway, consumer_of, logs, samples
from tests.consumer import Consumer
from tests.lakehouse import Lakehouse
from tests.support.commands import lakehead_command
from tests.support.spark import shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # the very first start fetches jars


@pytest.fixture
def spark(tmp_path: Path) -> SparkSession:
    """A session that knows the catalog of the pipeline."""
    return shared_session(Lakehouse.settings(tmp_path))


@pytest.fixture
def gateway(tmp_path: Path) -> Gateway:
    (tmp_path / "store").mkdir()
    return Gateway(tmp_path / "store")


@pytest.fixture
def consumer(tmp_path: Path, gateway: Gateway) -> Consumer:
    return consumer_of(tmp_path, gateway)


def indexed(gateway: Gateway, manifests: list[IdentityManifest]) -> list[IdentityManifest]:
    """Write the index entries of batches, as a gateway does after it has answered."""

    async def write() -> None:
        store = open_store(gateway.url)
        for manifest in manifests:
            for entry in (AcceptedByTime.of(manifest), AcceptedByBlob.of(manifest)):
                await store.create(entry.key, entry.encode())

    asyncio.run(write())
    return manifests


def audited(consumer: Consumer, gateway: Gateway) -> tuple[int, dict[str, Any]]:
    """Audit everything in a process of its own: the exit code, and what it tells."""
    config = json.loads(consumer.config().read_text())
    file = consumer.folder / "audit.json"
    file.write_text(json.dumps({**config, "gateway": {"store": gateway.url}}))
    assert lakehead_command("gateway", "init", file).returncode == 0
    done = lakehead_command("audit", file, "--deep", "--grace", "0", "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_rows_that_spark_deleted_by_position_or_wrote_twice_are_found(
    gateway: Gateway, consumer: Consumer, spark: SparkSession
) -> None:
    gateway.enqueue(indexed(gateway, gateway.accept(samples(0, 20), samples(15, 40), logs(0, 4))))
    assert consumer.run(spark) == 0

    code, document = audited(consumer, gateway)
    assert (code, document["counts"], document["rows"]) == (0, {}, 46), document

    table = f"{EMBEDDED}.{SAMPLES}"
    for change in (
        "ALTER TABLE {} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')",
        "INSERT INTO {0} SELECT * FROM {0} WHERE seq IN (7, 8)",
        "DELETE FROM {} WHERE seq = 30",
    ):
        spark.sql(change.format(table))

    code, document = audited(consumer, gateway)

    assert code == 1
    assert {each["kind"]: each["what"] for each in document["findings"]} == {
        "rows_missing": "agent 'agent/a', boot 'boot-1', 30-30",
        "rows_doubled": "agent 'agent/a', boot 'boot-1', 7-8",
    }


def test_a_dropped_batch_never_lands_although_the_state_and_its_dead_letter_are_lost(
    gateway: Gateway, consumer: Consumer, spark: SparkSession, tmp_path: Path
) -> None:
    bad, good = indexed(gateway, gateway.accept(samples(0, 9), samples(10, 19)))
    (tmp_path / "store" / bad.raw_blob_key).write_bytes(b"x" * bad.frame_bytes)
    gateway.enqueue([bad, good])
    assert consumer.run(spark) == 0
    assert len(consumer.letters(SAMPLES)) == 1

    dropped = lakehead_command(
        "dead-letters", "drop", consumer.config(), accepted_unit(bad.identity, gateway.url), "--yes"
    )
    assert dropped.returncode == 0, dropped.stderr
    gateway.store_frame(samples(0, 9))
    (consumer.folder / "state.sqlite").unlink()
    rmtree(consumer.lakehouse / "ledger" / "dead-letters")
    gateway.enqueue([bad, good])
    assert consumer.run(spark) == 0

    assert sorted(consumer.rows(SAMPLES)["seq"].to_pylist()) == list(range(10, 20))
    code, document = audited(consumer, gateway)
    assert (code, document["counts"]) == (0, {"discarded": 1}), document
