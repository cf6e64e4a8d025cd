"""`lakehead demo`: a small shop, loaded, changed and loaded again, with nothing but this machine."""

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.ids import RandomIds
from lakehead.run.environment import without_archive
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
    folder: Annotated[Path, typer.Option(metavar="DIR", help="Where the shop and its lakehouse are made.")] = Path(
        "lakehead-demo"
    ),
) -> None:
    """Load a small shop from SQLite into Iceberg on this machine, change it, load it again, and show what came of it.

    It needs no server and no settings. The folder stays, with a configuration to play with.

    Example: lakehead demo --folder /tmp/shop
    """
    _fresh(folder)
    _say(f"1. A shop in SQLite, {folder / 'shop.db'}: {len(CITIES)} cities and {ORDERS:,} orders.")
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        shop.executescript(TABLES)
        shop.executemany("INSERT INTO cities (name) VALUES (?)", [(name,) for name in CITIES])
        shop.execute(SHOP.format(orders=ORDERS, cities=len(CITIES)))
    (folder / "shop.json").write_text(json.dumps(_config(), indent=2) + "\n", encoding="utf-8")

    _say("\n2. Loaded: cities in full, orders by what has changed.")
    _lakehead(folder, "run", "shop.json")

    _say(f"\n3. The shop goes on: {len(CHANGED) - 2} orders change, 2 are new. Loaded again: only those are read.")
    with closing(sqlite3.connect(folder / "shop.db")) as shop, shop:
        shop.executescript(CHANGES)
    _lakehead(folder, "run", "shop.json")

    _say("\n4. The mirror holds each order once, as it is now:")
    _show(folder)
    _say(
        f"\n5. Where everything is, in {folder}: the tables and their catalog in lakehouse/, what has landed in its\n"
        "   ledger/, how far Lakehead got in state.sqlite, the events of both runs in events.jsonl.\n"
        "   Change the shop (sqlite3 shop.db) or shop.json there, and run it again: lakehead run shop.json\n"
        "   The first such run takes longer: it prepares quicker starts for all later ones."
    )


def _config() -> dict[str, object]:
    return {
        "runtime": {
            "pipeline": "shop",
            "raw_root": "raw",
            "final_root": "final",
            "intermediate": "mirror",
            "state": {"url": "sqlite:///state.sqlite"},
            "logging": {"json": False, "sink": "events.jsonl"},
        },
        "sources": {"shop": {"dialect": "sqlite", "url": "sqlite:///shop.db"}},
        "tables": [
            {"table": "cities", "mode": "full"},
            {"table": "orders", "mode": "scd1", "incremental_column": "updated_at", "primary_keys": ["id"]},
        ],
    }


def _fresh(folder: Path) -> None:
    """An empty folder. One that a demo made before is emptied; any other is left alone."""
    if folder.exists() and (not folder.is_dir() or (any(folder.iterdir()) and not (folder / MARKER).exists())):
        raise Misconfigured(f"{folder} is there already, and no demo made it. Name another folder: --folder DIR.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()


def _lakehead(folder: Path, *words: str) -> None:
    """The command as anybody would type it, in the demo's folder. It makes no class-data archive, which takes
    longer than two runs would gain from it."""
    _say(f"$ lakehead {' '.join(words)}")
    command = [sys.executable, "-c", "from lakehead.run.main import command; command()", *words]
    if subprocess.run(command, cwd=folder, env=without_archive(), check=False).returncode:  # noqa: S603 - our own command
        raise LakeheadError("The demo stops here: the command above says why.")


def _show(folder: Path) -> None:
    # Not at the top: they take longer to load than the other commands should wait.
    from lakehead.lake.catalog import open_catalog  # noqa: PLC0415 - see above
    from lakehead.state.opening import open_state  # noqa: PLC0415 - see above

    catalog = open_catalog(EMBEDDED, embedded_catalog(folder / "lakehouse"))
    mirror, raw = catalog.load_table("mirror.orders"), catalog.load_table("raw.orders")
    wanted = f"id in ({', '.join(map(str, CHANGED))})"
    shown = ("id", "city", "total", "status", "updated_at", "_slice")
    rows = mirror.scan(row_filter=wanted, selected_fields=shown).to_arrow().sort_by("id")
    _table(shown, [tuple(row.values()) for row in rows.to_pylist()])
    counts = {table.name()[0]: table.scan().count() for table in (raw, mirror)}
    _say(f"   {counts['mirror']:,} orders in the mirror; raw keeps every row as it was read: {counts['raw']:,}.")

    _say("\n   Every landing is one snapshot, which says what it brought:")
    told = []
    for table in (raw, mirror):
        for snapshot in table.metadata.snapshots:
            said = snapshot.summary.additional_properties if snapshot.summary else {}
            if "lakehead.token" in said:
                rows_added = f"{int(said.get('added-records', 0)):,}"
                told.append((".".join(table.name()), snapshot.snapshot_id, rows_added, said.get("lakehead.slice", "")))
    _table(("table", "snapshot", "rows written", "slice"), told)
    with open_state(f"sqlite:///{folder}/state.sqlite", SystemClock(), RandomIds()) as state:
        marks = state.progress.watermarks([str(raw.metadata.table_uuid)])
    _say("\n   The watermarks of orders, from which the next run goes on:")
    _table(("watermark", "up to", "slice"), [(mark, m.value, m.slice) for (_, mark), m in sorted(marks.items())])
    catalog.close()


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    cells = [tuple(heads), *(tuple(map(str, row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        _say("   " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _say(line: str) -> None:
    typer.echo(line)
