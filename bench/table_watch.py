"""When rows become visible to readers of an Iceberg table."""

import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lakehead.lake.catalog import open_catalog
from lakehead.spark.settings import EMBEDDED, embedded_catalog

LOOK_SECONDS = 0.05


@dataclass
class TableWatch:
    """Looks at a table in a thread of its own, and notes when it first sees each value of a column, in seconds."""

    lakehouse: Path
    table: str
    column: str
    seen: dict[Any, float] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> None:
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raise `RuntimeError` if nobody looks any more: standard error says why."""
        if not self._thread.is_alive():
            raise RuntimeError(f"Nobody looks at the table {self.table} any more.")

    def _look(self) -> None:
        known: set[str] = set()
        head = None
        with closing(open_catalog(EMBEDDED, embedded_catalog(self.lakehouse))) as catalog:
            while not self._stop.wait(LOOK_SECONDS):
                if not catalog.table_exists(self.table):
                    continue
                table = catalog.load_table(self.table)
                at, now = table.current_snapshot(), time.perf_counter()
                if at is None or at.snapshot_id == head:
                    continue
                head = at.snapshot_id
                paths = {task.file.file_path for task in table.scan().plan_files()}
                for path in paths - known:
                    local = path.removeprefix("file://")
                    values = pq.read_table(local, columns=[self.column]).column(self.column).to_pylist()
                    self.seen.update((value, now) for value in values if value not in self.seen)
                known |= paths
