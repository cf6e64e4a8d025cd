"""The processes that the buffer's crash tests start and kill: `python -m tests.chaos.buffer_child <role> …`.

Each tells what it knows, a line at a time: what was sent, what is durable, what was handed out, what is acknowledged.
"""

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from lakehead.buffer.collector import Collector
from lakehead.buffer.config import CollectorConfig, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.consumer import CLAIMS, Mode
from lakehead.buffer.errors import Fenced
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.means import Means
from lakehead.buffer.orphans import OrphanCollector
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Unavailable
from lakehead.ids import RandomIds, system_random
from lakehead.storage.connect import StoreSettings
from lakehead.storage.opening import open_store
from lakehead.wire.batch import KeyValueEntry

TIMEOUT = timedelta(seconds=2)
"""After how long a collector that was killed is taken for gone."""

PLANTED = ("confirms early", "acknowledges early")
"""Faults that a child can be told to have, so that the checker can be seen to find them."""


def tell(word: str, **what: Any) -> None:
    """One line to the test, at once, with a time that all processes of a machine share."""
    sys.stdout.write(json.dumps({"word": word, "at": time.monotonic(), **what}) + "\n")
    sys.stdout.flush()


def where(url: str, settings: dict[str, Any]) -> ObjectStoreConfig:
    return ObjectStoreConfig(url=url, settings=StoreSettings(**settings))


async def ingest(name: str, config: IngestorConfig, *, calls: int, at_once: bool, planted: str) -> None:
    """Send numbered entries, and tell of each what the watcher says."""
    ingestor = Ingestor(config, SystemClock())
    telling: set[asyncio.Task[None]] = set()
    for number in range(calls):
        entry = f"{name}.{number}"
        tell("sent", entry=entry)
        watcher = await ingestor.ingest([KeyValueEntry(name.encode(), entry.encode())])
        if planted == "confirms early":
            tell("durable", entry=entry)
        told = asyncio.create_task(tell_fate(entry, watcher))
        telling.add(told)
        told.add_done_callback(telling.discard)
        if not at_once and number % 5 == 0:
            await told
    with suppress(LakeheadError):
        await ingestor.close()
    await asyncio.gather(*telling)
    tell("conflicts", count=ingestor.counts.manifest_conflicts["producer"])
    tell("writes", count=ingestor.counts.manifest_writes["producer"])


async def tell_fate(entry: str, watcher: WriteWatcher) -> None:
    with suppress(LakeheadError):
        await watcher.await_durable()
    match watcher.result():
        case Durable():
            tell("durable", entry=entry)
        case Unavailable():
            tell("refused", entry=entry)
        case doubt:
            tell("in doubt", entry=entry, why=str(doubt))


async def collect(config: CollectorConfig, *, until_empty: bool, planted: str) -> None:
    """Hand out and acknowledge, with a new collector after each fencing, until killed or until nothing is left."""
    quiet = 0
    while True:
        async with Collector(config, SystemClock()) as collector:
            with suppress(Fenced):
                while True:
                    try:
                        batch = await collector.next_batch()
                        if batch is None:
                            quiet += 1
                            if until_empty and quiet > 4 * TIMEOUT.total_seconds():
                                return
                            await asyncio.sleep(0.5 if until_empty else 0.05)
                            continue
                        quiet = 0
                        if planted == "acknowledges early":
                            await collector.ack(batch)
                        for entry in batch.entries:
                            tell("got", entry=entry.value.decode(), location=batch.location, epoch=batch.epoch)
                        await collector.ack(batch)
                        tell("acknowledged", location=batch.location)
                    except Fenced:
                        raise
                    except LakeheadError as error:
                        tell("waits", why=str(error))
                        await asyncio.sleep(0.05)


async def collect_orphans(place: ObjectStoreConfig) -> None:
    """GC, again and again, with hardly any grace."""
    means = Means(
        store=open_store(place.url, place.settings), clock=SystemClock(), ids=RandomIds(), random=system_random()
    )
    gc = OrphanCollector(
        data_path_prefix="ingest", manifest_path="ingest/manifest.json", means=means, backoff=CLAIMS, grace_seconds=0.5
    )
    while True:
        with suppress(LakeheadError):
            tell("orphans", count=len(await gc.run()))
        await asyncio.sleep(0.3)


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    place = where(order["url"], order.get("settings", {}))
    planted = order.get("planted", "")
    match order["role"]:
        case "ingest":
            config = IngestorConfig(
                object_store_config=place,
                flush_interval=timedelta(milliseconds=5),
                flush_size_bytes=order.get("flush_size_bytes", 64),
            )
            work = ingest(
                order["name"],
                config,
                calls=order.get("calls", 10**9),
                at_once=order.get("at_once", False),
                planted=planted,
            )
        case "collect":
            collecting = CollectorConfig(
                object_store_config=place,
                heartbeat_timeout_ms=TIMEOUT,
                done_cleanup_threshold=20,
                mode=Mode(order["mode"]),
                read_ahead=4,
            )
            work = collect(collecting, until_empty=order.get("until_empty", False), planted=planted)
        case _:
            work = collect_orphans(place)
    asyncio.run(work)
    # The threads of obstore's runtime may abort an interpreter that ends in the usual way just after a request.
    os._exit(0)


if __name__ == "__main__":
    main()
