"""The second part of the demo: an application's queue and a folder of files, consumed with a kill in the middle."""

import asyncio
import json
import re
from pathlib import Path

from lakehead.errors import LakeheadError
from lakehead.run.demo_commands import FAILED, lakehead, say, show_table, start
from lakehead.spark.settings import EMBEDDED, embedded_catalog

CLICKS = 5_000
FILES = 20
FILE_ROWS = 500


def pipelines(folder: Path) -> dict[str, object]:
    """The pipelines of the demo's configuration."""
    common = {"commit_timeout_seconds": 1, "max_tries": 3, "retry_delay_seconds": 0.5}
    return {
        "clicks": {
            "queue": {"type": "manifest", "store": (folder.absolute() / "queue").as_uri()},
            "tables": [{"table": "web.clicks", "format": "key_value", "value": "json"}],
            **common,
        },
        "inbox": {
            "queue": {"type": "folder", "url": "inbox", "rest_seconds": 0.5, "scan_seconds": 0.5},
            "tables": [{"table": "web.visits", "format": "ndjson", "include": ["*.json"]}],
            **common,
            "max_messages": 5,
        },
    }


def show_consuming(folder: Path) -> None:
    """Write to the queue and the folder, consume both, kill the consumer, start it again, and count."""
    say(
        f"\n5. An application puts {CLICKS:,} clicks into a queue of objects, and {FILES} files of {FILE_ROWS} visits\n"
        "   are dropped into inbox/, and a broken one."
    )
    asyncio.run(_ingest((folder.absolute() / "queue").as_uri()))
    inbox = folder / "inbox"
    inbox.mkdir()
    for number in range(FILES):
        rows = (json.dumps({"visit": number * FILE_ROWS + row, "page": f"/p/{row % 7}"}) for row in range(FILE_ROWS))
        (inbox / f"visits-{number:02}.json").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (inbox / "broken.json").write_text('{"visit": 1}\n{"visit": oops}\n', encoding="utf-8")

    say("\n6. A consumer lands both, and is killed (kill -9) after its first landing.")
    _kill_after_the_first_landing(folder)

    say("\n7. A file is announced once more, and another consumer takes over. What has landed is not landed again.")
    (inbox / "visits-00.json").touch()
    lakehead(folder, "consume", "shop.json", "--until-empty")
    _show(folder)


async def _ingest(url: str) -> None:
    # Imported here: slow to load, and other commands should not wait for them.
    from lakehead.buffer.config import IngestorConfig, ObjectStoreConfig  # noqa: PLC0415 - see above
    from lakehead.buffer.ingestor import Ingestor  # noqa: PLC0415 - see above
    from lakehead.wire.batch import KeyValueEntry  # noqa: PLC0415 - see above

    async with Ingestor(IngestorConfig(object_store_config=ObjectStoreConfig(url=url))) as ingestor:
        for start_at in range(0, CLICKS, 500):
            clicks = [{"click": number, "button": "buy"} for number in range(start_at, start_at + 500)]
            entries = [KeyValueEntry(str(click["click"]).encode(), json.dumps(click).encode()) for click in clicks]
            watcher = await ingestor.ingest(entries)
            await watcher.await_durable()


def _kill_after_the_first_landing(folder: Path) -> None:
    with start(folder, "consume", "shop.json") as consumer:
        assert consumer.stdout is not None  # noqa: S101 - for the type checker
        for line in consumer.stdout:
            say(line.rstrip())
            if re.search(r": [1-9][0-9,]* files? landed", line):
                break
        else:
            raise LakeheadError(FAILED)
        consumer.kill()
    say("   killed")


def _show(folder: Path) -> None:
    from lakehead.lake.catalog import open_catalog  # noqa: PLC0415 - slow to load

    catalog = open_catalog(EMBEDDED, embedded_catalog(folder / "lakehouse"))
    counts = []
    for name, key in (("web.clicks", "click"), ("web.visits", "visit")):
        keys = catalog.load_table(name).scan(selected_fields=(key,)).to_arrow().column(key)
        counts.append((name, f"{len(keys):,}", f"{len(keys.unique()):,}"))
    say("   Rows in the tables, and how many of them are different:")
    show_table(("table", "rows", "different"), counts)
    catalog.close()
    say("   The broken file is a dead letter, with its reason:")
    lakehead(folder, "dead-letters", "list", "shop.json")
