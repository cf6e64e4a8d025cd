"""The processes that the buffer's crash tests start and kill.

Each tells what it knows, a line at a time: what was sent, what is durable, what was handed out, what is acknowledged.
"""

import asyncio
import json
import os
import time
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from lakehead.buffer.collector import Collector
from lakehead.buffer.config import CollectorConfig, CollectorMode, IngestorConfig, ObjectStoreConfig
from lakehead.buffer.deps import BufferDeps
from lakehead.buffer.errors import Fenced
from lakehead.buffer.ingestor import Ingestor
from lakehead.buffer.layout import ManifestKeys
from lakehead.buffer.manifests import ManifestPair
from lakehead.buffer.orphan_gc import OrphanGc
from lakehead.buffer.watcher import Durable, WriteWatcher
from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Unavailable
from lakehead.ids import RandomIds, system_random
from lakehead.storage.connect import StoreSettings
from lakehead.storage.open_store import open_store
from lakehead.wire.batch import KeyValueEntry

TIMEOUT = timedelta(seconds=0.5)
"""After how long a collector that was killed is taken for gone. A slow one may be too, and is fenced."""

MANIFEST = "ingest/manifest.json"
Order: TypeAlias = dict[str, Any]

PLANTED = ("confirms early", "acknowledges early")
"""Faults that a child can be told to have, so that the checker can be seen to find them."""


class Told:
    """Where a process tells what it knows."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def __call__(self, word: str, **what: Any) -> None:
        """One line to the test, at once, with a time that all processes of a machine share.

        A pipe takes so short a line as a whole or not at all, whenever its writer is killed and whoever else writes.
        """
        self._pipe.send_bytes(json.dumps({"word": word, "at": time.monotonic(), **what}).encode())


def where(url: str, settings: dict[str, Any]) -> ObjectStoreConfig:
    return ObjectStoreConfig(url=url, settings=StoreSettings(**settings))


async def ingest(tell: Told, name: str, config: IngestorConfig, *, calls: int, at_once: bool, planted: str) -> None:
    """Send numbered entries, and tell of each what the watcher says."""
    ingestor = Ingestor(config, SystemClock())
    telling: set[asyncio.Task[None]] = set()
    for number in range(calls):
        entry = f"{name}.{number}"
        tell("sent", entry=entry)
        watcher = await ingestor.ingest([KeyValueEntry(name.encode(), entry.encode())])
        if planted == "confirms early":
            tell("durable", entry=entry)
        told = asyncio.create_task(tell_fate(tell, entry, watcher))
        telling.add(told)
        told.add_done_callback(telling.discard)
        if not at_once and number % 5 == 0:
            await told
    with suppress(LakeheadError):
        await ingestor.close()
    await asyncio.gather(*telling)


async def tell_fate(tell: Told, entry: str, watcher: WriteWatcher) -> None:
    with suppress(LakeheadError):
        await watcher.await_durable()
    match watcher.result():
        case Durable():
            tell("durable", entry=entry)
        case Unavailable():
            tell("refused", entry=entry)
        case doubt:
            tell("in doubt", entry=entry, why=str(doubt)[:500])


async def collect(tell: Told, config: CollectorConfig, *, until_empty: bool, planted: str) -> None:
    """Hand out and acknowledge, with a new collector after each fencing, until killed or until nothing is left."""
    while True:
        async with Collector(config, SystemClock()) as collector:
            with suppress(Fenced):
                while True:
                    try:
                        batch = await collector.next_batch()
                        if batch is None:
                            if until_empty and await is_empty(config.object_store_config):
                                return
                            await asyncio.sleep(0.05)
                            continue
                        if planted == "acknowledges early":
                            await collector.ack(batch)
                        for entry in batch.entries:
                            tell("got", entry=entry.value.decode(), location=batch.location, epoch=batch.epoch)
                        await collector.ack(batch)
                        tell("acknowledged", location=batch.location)
                    except Fenced:
                        raise
                    except LakeheadError as error:
                        tell("waits", why=str(error)[:500])
                        await asyncio.sleep(0.05)


async def is_empty(place: ObjectStoreConfig) -> bool:
    """Whether all that is queued has been acknowledged."""
    files = ManifestPair.of(ManifestKeys.of(MANIFEST), means_of(place))
    # In this order: a clean-up takes a location from what is pending before it takes it from what is done.
    done = (await files.consumer.read()).manifest.done
    pending = (await files.producer.read()).manifest.pending
    return set(pending) <= set(done)


async def collect_orphans(tell: Told, place: ObjectStoreConfig) -> None:
    """GC, again and again, with hardly any grace."""
    gc = OrphanGc(
        data_path_prefix="ingest",
        manifest_path=MANIFEST,
        deps=means_of(place),
        grace_seconds=0.5,
    )
    while True:
        with suppress(LakeheadError):
            tell("orphans", count=len(await gc.run()))
        await asyncio.sleep(0.3)


def means_of(place: ObjectStoreConfig) -> BufferDeps:
    store = open_store(place.url, place.settings)
    return BufferDeps(store=store, clock=SystemClock(), ids=RandomIds(), random=system_random())


def work(order: Order, pipe: Connection) -> None:
    """Do what the order says, until it is done or the process is killed."""
    tell = Told(pipe)
    place = where(order["url"], order.get("settings", {}))
    planted = order.get("planted", "")
    match order["role"]:
        case "ingest":
            config = IngestorConfig(
                object_store_config=place,
                flush_interval=timedelta(milliseconds=5),
                flush_size_bytes=order.get("flush_size_bytes", 64),
            )
            role = ingest(
                tell,
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
                mode=CollectorMode(order["mode"]),
                read_ahead=4,
            )
            role = collect(tell, collecting, until_empty=order.get("until_empty", False), planted=planted)
        case _:
            role = collect_orphans(tell, place)
    asyncio.run(role)
    # The threads of obstore's runtime may abort an interpreter that ends in the usual way just after a request.
    os._exit(0)
