"""A configuration with one pipeline, run in this process on the shared JVM, and what is in its table."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.run.config.config_file import read_config
from lakehead.run.consume_pipelines import run_pipelines
from lakehead.run.consume_wiring import Backfill, ConsumeWiring
from lakehead.state.state import State
from tests.support.spark import shared_session

TABLE = "raw.files"


class Pipeline:
    """A pipeline that lands files of a folder, in a lakehouse of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        table: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.folder, self.inbox, self.file = folder, folder / "in", folder / "files.json"
        self.inbox.mkdir()
        self._environment = environment or {}
        self._settings = {"commit_timeout_seconds": 0.1, **settings}
        self._table = {"table": TABLE, "format": "ndjson", **(table or {})}
        self.configure([])
        self.session = shared_session(self.wiring.spark_settings)

    def configure(self, uris: Sequence[str], **changes: Any) -> None:
        """Let the pipeline's queue be a list of these files."""
        pipeline = {
            "queue": {"type": "files", "uris": list(uris)},
            "tables": [self._table],
            **self._settings,
            **changes,
        }
        content = {
            "spark": {"lakehouse": str(self.folder / "lakehouse")},
            "runtime": {"state": {"url": f"sqlite:///{self.folder}/state.db"}, "logging": {"json": True}},
            "pipelines": {"files": pipeline},
        }
        self.file.write_text(json.dumps(content))
        self.wiring = ConsumeWiring(read_config(self.file), self._environment)
        self.wiring.check()

    def run(self, backfill: Backfill | None = None) -> int:
        """Run the pipeline, or a backfill, until everything has landed."""
        return run_pipelines(
            self.wiring,
            ["files"],
            lambda: self.session,
            config_file=self.file,
            until_empty=True,
            backfill=backfill,
        )

    def write(self, name: str, *rows: Mapping[str, Any]) -> str:
        """Write a file of rows, and return its URI."""
        path = self.inbox / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path.as_uri()

    def rows(self) -> list[dict[str, Any]]:
        """The table's rows, in the order of their files and numbers."""
        with closing(self.wiring.open_catalog("lake")) as catalog:
            found = catalog.load_table(TABLE).scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: (row["_uri"], row["_row"]))

    def files(self) -> list[str]:
        """The names of the files of the table's rows."""
        return [row["_uri"].rpartition("/")[2] for row in self.rows()]

    @property
    def uuid(self) -> str:
        with closing(self.wiring.open_catalog("lake")) as catalog:
            return str(catalog.load_table(TABLE).metadata.table_uuid)

    @contextmanager
    def state(self) -> Iterator[State]:
        with self.wiring.open_state(SystemClock(), RandomIds()) as state:
            yield state
