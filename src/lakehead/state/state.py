"""The whole state, as one value."""

from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Self

from lakehead.state.database import Database
from lakehead.state.history import History
from lakehead.state.landings import Landings
from lakehead.state.leases import Leases
from lakehead.state.progress import Progress
from lakehead.state.shards import Shards
from lakehead.state.slices import SlicePlans


@dataclass(frozen=True, slots=True)
class State:
    """What is known, by subject. Safe to share between threads; close it, or use it in a `with`."""

    database: Database
    landings: Landings
    shards: Shards
    slices: SlicePlans
    progress: Progress
    history: History
    leases: Leases

    @classmethod
    def of(cls, database: Database) -> Self:
        """The state in a database whose tables are there."""
        leases = Leases(database)
        return cls(
            database=database,
            landings=Landings(database),
            shards=Shards(database, leases),
            slices=SlicePlans(database),
            progress=Progress(database),
            history=History(database),
            leases=leases,
        )

    def now(self) -> datetime:
        """A moment later than every one that this state has given or written before. Fences are dated with it."""
        return self.database.now()

    def close(self) -> None:
        """Close its connections."""
        self.database.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
