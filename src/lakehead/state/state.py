"""The state: one object with the records of each subject."""

from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Self

from lakehead.state.database import Database
from lakehead.state.files import FileHistory
from lakehead.state.history import History
from lakehead.state.landings import Landings
from lakehead.state.leases import Leases
from lakehead.state.progress import ProgressRecords
from lakehead.state.pruning import Pruning
from lakehead.state.shards import Shards
from lakehead.state.slices import SlicePlans


@dataclass(frozen=True, slots=True)
class State:
    """The state database's records, by subject. Safe to share between threads; close it, or use it in a `with`."""

    database: Database
    landings: Landings
    shards: Shards
    pruning: Pruning
    slices: SlicePlans
    progress: ProgressRecords
    history: History
    files: FileHistory
    leases: Leases

    @classmethod
    def of(cls, database: Database) -> Self:
        """The state in a database whose tables exist."""
        leases = Leases(database)
        return cls(
            database=database,
            landings=Landings(database),
            shards=Shards(database),
            pruning=Pruning(database, leases),
            slices=SlicePlans(database),
            progress=ProgressRecords(database),
            history=History(database),
            files=FileHistory(database),
            leases=leases,
        )

    def now(self) -> datetime:
        """The current time, always later than every time this state has returned or written. Fences use it."""
        return self.database.now()

    def close(self) -> None:
        """Close its connections."""
        self.database.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
