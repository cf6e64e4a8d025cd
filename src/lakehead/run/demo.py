"""`lakehead demo`: load a small shop from SQLite, change it and load it again; then consume a queue and a folder."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.run.demo_commands import lakehead, say, show_table
from lakehead.run.demo_consume import pipelines, show_consuming
from lakehead.run.demo_path import show_accepting
from lakehead.spark.settings import EMBEDDED, embedded_catalog

MARKER = ".lakehead-demo"
CITIES = ("Graz", "Kiel", "Lyon", "Oslo", "Porto", "Turku")
ORDERS = 20_000

TABLES = """
CREATE TABLE cities (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, city INTEGER NOT NULL, total DECIMAL(12, 2) NOT NULL, status TEXT NOT NULL,
    updated_at TIMESTAMP NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))
);
CREATE TRIGGER touched AFTER UPDATE OF city, total, status ON orders
BEGIN UPDATE orders SET updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') WHERE id = new.id; END;
"""
SHOP = """
INSERT INTO orders (id, city, total, status, updated_at)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {orders})
SELECT i, 1 + i % {cities}, printf('%d.%02d', i % 500, i % 100), 'sent',
strftime('%Y-%m-%d %H:%M:%f', 'now', printf('-%d seconds', {orders} - i + 60)) FROM n
"""
CHANGES = """
UPDATE orders SET status = 'returned' WHERE id IN (7, 4711);
UPDATE orders SET total = '99.99' WHERE id = 20000;
INSERT INTO orders (id, city, total, status) VALUES (20001, 1, '12.50', 'new'), (20002, 4, '8.00', 'new');
"""
CHANGED = (7, 4711, 20000, 20001, 20002)


def demo(
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder to create the shop and its lakehouse in.")
    ] = Path("lakehead-demo"),
) -> None:
    """Load a small shop from SQLite into Iceberg on this machine, change it, load it again, and show the result.

    Then land what an application puts into a queue and what is dropped into a folder, with a kill in the middle; and
    what an agent sends to two gateways, of which one is killed.

    Needs no server and no settings. The folder stays, with a configuration to experiment with.

    Example: lakehead demo --folder /tmp/shop
    """
    _create_folder(folder)
    say(f"1. A shop in SQLite, {folder / 'shop.db'}: {len(CITIES)} cities and {ORDERS:,} orders.")
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        shop.executescript(TABLES)
        shop.executemany("INSERT INTO cities (name) VALUES (?)", [(name,) for name in CITIES])
        shop.execute(SHOP.format(orders=ORDERS, cities=len(CITIES)))
    (folder / "shop.json").write_text(json.dumps(_config(folder), indent=2) + "\n", encoding="utf-8")

    say("\n2. The first run loads all cities and orders.")
    lakehead(folder, "run", "shop.json")

    say(f"\n3. {len(CHANGED) - 2} orders change and 2 are new. The second run reads only those.")
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        shop.executescript(CHANGES)
    lakehead(folder, "run", "shop.json")

    say("\n4. The mirror has the current version of each order:")
    _show(folder)
    show_consuming(folder)
    show_accepting(folder)
    say(
        f"\n10. The files in {folder}: tables and catalog in lakehouse/, the record of landings in lakehouse/ledger/,\n"
        "   the progress of every table in state.sqlite, the events of all runs in events.jsonl.\n"
        "   Change the shop (sqlite3 shop.db) or shop.json there, and run again: lakehead run shop.json\n"
        "   Drop other files into inbox/ while this runs: lakehead consume shop.json\n"
        "   The first run outside the demo takes longer: it prepares faster starts for later ones."
    )


def _config(folder: Path) -> dict[str, object]:
    return {
        "runtime": {
            "pipeline": "shop",
            "raw_root": "raw",
            "final_root": "final",
            "intermediate": "mirror",
            "heartbeat_seconds": 2,
            "state": {"url": "sqlite:///state.sqlite"},
            "logging": {"json": False, "sink": "events.jsonl"},
        },
        "sources": {"shop": {"dialect": "sqlite", "url": "sqlite:///shop.db"}},
        "tables": [
            {"table": "cities", "mode": "full"},
            {"table": "orders", "mode": "scd1", "incremental_column": "updated_at", "primary_keys": ["id"]},
        ],
        "pipelines": pipelines(folder),
    }


def _create_folder(folder: Path) -> None:
    """Create an empty folder. Replaces one of an earlier demo; raises `Misconfigured` for any other."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARKER).exists())):
        raise Misconfigured(f"{folder} already exists and is not a demo folder. Choose another one with --folder DIR.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()


def _show(folder: Path) -> None:
    # Imported here: slow to load, and other commands should not wait for them.
    from lakehead.lake.catalog import open_catalog  # noqa: PLC0415 - see above
    from lakehead.lake.iceberg_table import summary_of  # noqa: PLC0415 - see above
    from lakehead.state.opening import open_state  # noqa: PLC0415 - see above

    catalog = open_catalog(EMBEDDED, embedded_catalog(folder / "lakehouse"))
    mirror, raw = catalog.load_table("mirror.orders"), catalog.load_table("raw.orders")
    changed = f"id in ({', '.join(map(str, CHANGED))})"
    shown = ("id", "city", "total", "status", "updated_at", "_slice")
    rows = mirror.scan(row_filter=changed, selected_fields=shown).to_arrow().sort_by("id")
    show_table(shown, [tuple(row.values()) for row in rows.to_pylist()])
    counts = {table.name()[0]: table.scan().count() for table in (raw, mirror)}
    say(f"   The mirror has {counts['mirror']:,} orders. Raw keeps every row that was read: {counts['raw']:,}.")

    say("\n   Every landing is one snapshot:")
    landings = []
    for table in (raw, mirror):
        for snapshot in table.metadata.snapshots:
            properties = summary_of(snapshot)
            if "lakehead.token" in properties:
                rows_added = f"{int(properties.get('added-records', 0)):,}"
                landings.append(
                    (".".join(table.name()), snapshot.snapshot_id, rows_added, properties.get("lakehead.slice", ""))
                )
    show_table(("table", "snapshot", "rows written", "slice"), landings)
    with open_state(f"sqlite:///{folder}/state.sqlite", SystemClock(), RandomIds()) as state:
        marks = state.progress.watermarks([str(raw.metadata.table_uuid)])
    say("\n   The watermarks of orders, where the next run continues:")
    show_table(("watermark", "up to", "slice"), [(mark, m.value, m.slice) for (_, mark), m in sorted(marks.items())])
    catalog.close()
