"""A whole lakehouse for a test: a session, catalogs, a state and a ledger in one folder; landers of made-up rows."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table.refs import SnapshotRefType
from pyspark.sql import SparkSession

from lakehead.clock import Clock, SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.lake.audits import every_row_once
from lakehead.lake.catalog import open_catalog
from lakehead.lake.commits import empty, publication, set_ref
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.landing import Landing, Unit, UnitRemainder
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.merge import MergeStager
from lakehead.lake.protocol import Audit, Lander
from lakehead.lake.staged_rows import Branch, Change
from lakehead.lake.stagers import ArrowStager
from lakehead.lake.state_progress import StateProgress
from lakehead.retry import Backoff
from lakehead.run.environment import spark_settings
from lakehead.spark.settings import EMBEDDED, Properties, SparkSettings, embedded_catalog
from lakehead.state.opening import open_state
from lakehead.state.state import State
from lakehead.storage.open_store import open_store
from tests.support.costs import Mechanism, add

ROWS = 10
SCHEMA = "unit string, number bigint"


def rows_of(remainder: UnitRemainder) -> Iterable[pa.RecordBatch]:
    """Ten rows of a unit, each with the unit's name and a number: what is in the table says which units are."""
    yield pa.RecordBatch.from_pydict({"unit": [remainder.unit.id] * ROWS, "number": pa.array(range(ROWS), pa.int64())})


def whole(remainder: UnitRemainder) -> Sequence[UnitRemainder]:
    """A share read in one part."""
    return [remainder]


def unit_merge(session: SparkSession, target: str, remainders: Sequence[UnitRemainder]) -> None:
    """One row for each unit, whose number counts how often the unit was merged."""
    values = ", ".join(f"('{remainder.unit.id}')" for remainder in remainders)
    session.sql(
        f"MERGE INTO {target} t USING (SELECT * FROM VALUES {values} AS s(unit)) s ON t.unit = s.unit "  # noqa: S608 - ours
        "WHEN MATCHED THEN UPDATE SET number = t.number + 1 "
        "WHEN NOT MATCHED THEN INSERT (unit, number) VALUES (s.unit, 1)"
    )


def commit_a_branch(table: IcebergTable, name: str = "b") -> None:
    """What a merge commits through PyIceberg: a branch, an empty snapshot on it, and the branch as main."""
    at = asyncio.run(table.head())
    assert at.snapshot is not None
    started = set_ref(name, SnapshotRefType.BRANCH, at.snapshot)
    table.commit(at, lambda _: ((started,), ()))
    made = table.commit(at, lambda iceberg: (empty(iceberg, {}, name), ()))
    branch = Branch(name, made.metadata.refs[name].snapshot_id)
    table.commit(at, lambda iceberg: publication(iceberg, branch, {}))
    assert asyncio.run(table.head()).snapshot == branch.head


@dataclass
class Lakehouse:
    """Everything in one folder. Any number of processes may open the same one."""

    folder: Path
    session: SparkSession
    catalogs: Mapping[str, Properties]
    state: State = field(init=False)
    ledger: StoreLedger = field(init=False)
    _open: dict[str, Catalog] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = open_state(f"sqlite:///{self.folder}/state.sqlite", SystemClock(), RandomIds())
        self.ledger = StoreLedger(open_store(f"file://{self.folder}/records"))

    @staticmethod
    def settings(folder: Path, more: Mapping[str, Properties] | None = None) -> SparkSettings:
        """Settings for a session that knows the embedded catalog `lake` of the folder, and others."""
        catalogs = {EMBEDDED: embedded_catalog(folder / "lakehouse"), **(more or {})}
        (folder / "lakehouse").mkdir(parents=True, exist_ok=True)
        return replace(spark_settings(), catalogs=catalogs)

    def close(self) -> None:
        self.state.close()
        for catalog in self._open.values():
            catalog.close()

    def catalog(self, name: str = EMBEDDED) -> Catalog:
        """PyIceberg's side of a catalog."""
        if name not in self._open:
            self._open[name] = open_catalog(name, self.catalogs[name])
        return self._open[name]

    def create(self, name: str, columns: str = SCHEMA, more: str = "", *, catalog: str = EMBEDDED) -> IcebergTable:
        """Make a table in the namespace `t`, and open it."""
        self.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.t")
        self.session.sql(f"CREATE TABLE {catalog}.t.{name} ({columns}) USING iceberg {more}")
        return self.table(name, catalog=catalog)

    def table(self, name: str, *, catalog: str = EMBEDDED) -> IcebergTable:
        """Open a table that is there."""
        return IcebergTable(self.catalog(catalog), f"t.{name}", self.ledger)

    def progress(self, owner: str = "owner") -> StateProgress:
        return StateProgress(state=self.state, owner=owner)

    def arrow_stager(
        self,
        table: IcebergTable,
        *,
        read: Callable[[UnitRemainder], Iterable[pa.RecordBatch]] = rows_of,
        change: Change = Change.APPEND,
    ) -> ArrowStager[UnitRemainder]:
        return ArrowStager(session=self.session, table=table, ids=RandomIds(), read=read, split=whole, change=change)

    def merge_stager(self, table: IcebergTable, *, clock: Clock | None = None) -> MergeStager:
        session = self.session.newSession()
        return MergeStager(
            session=session, table=table, ids=RandomIds(), merge=unit_merge, clock=clock or SystemClock()
        )

    def lander(
        self,
        table: IcebergTable,
        stager: Any = None,
        *,
        owner: str = "owner",
        audits: Sequence[Audit[Any]] | None = None,
    ) -> Lander[Any]:
        """A lander of made-up rows, or with a stager of the test's own."""
        own = stager or self.arrow_stager(table)
        checks = audits if audits is not None else [every_row_once] if isinstance(own, ArrowStager) else []
        return Lander(
            pipeline="pipeline",
            table=table,
            progress=self.progress(owner),
            ledger=self.ledger,
            stager=own,
            audits=checks,
            clock=SystemClock(),
            random=system_random(),
            backoff=Backoff(attempts=20, first_seconds=0.05, cap_seconds=1.0),
        )

    def land(self, table: IcebergTable, *units: str, stager: Any = None, owner: str = "owner") -> Landing | None:
        """Take the units, and land those that were got."""
        add(Mechanism.LANDINGS)
        lander = self.lander(table, stager, owner=owner)
        ours = self.progress(owner).take(table.uuid, [Unit(unit) for unit in units])
        staged = asyncio.run(lander.land(ours)) if ours else None
        return staged.landing if staged else None

    def units_in(self, table: IcebergTable) -> dict[str, int]:
        """How many rows of each unit the table holds, as PyIceberg sees it."""
        rows = table.load().scan().to_arrow()
        counted = rows.group_by("unit").aggregate([("number", "count")])
        return dict(zip(counted["unit"].to_pylist(), counted["number_count"].to_pylist(), strict=True))
