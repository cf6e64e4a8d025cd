"""What the commands about a consuming pipeline need of it: its state, its ledger's store, its tables and its queue."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol, TypeAlias

import typer

from lakehead.consume.queue import SendingQueue
from lakehead.errors import Misconfigured
from lakehead.storage.port import Store

if TYPE_CHECKING:
    from lakehead.accept.discarded_batches import DiscardedBatches
    from lakehead.state.state import State


@dataclass(frozen=True, slots=True)
class AcceptedStore:
    """A store of accepted batches that pipelines land."""

    url: str
    """Its URL, by which the units of its batches are named."""

    open_discarded: Callable[[], "DiscardedBatches"]
    """Opens the records of the batches that shall not land."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedTables:
    """An open pipeline, as far as the commands need it."""

    state: "State"
    store: Store
    """The store of the ledger, which also holds the dead letters."""

    tables: Mapping[str, str]
    """The uuid of each table, by its name in the lakehouse."""

    queue: SendingQueue | None = None
    """None if messages cannot be sent to the pipeline's queue, or several pipelines are open."""

    pipelines: tuple[str, ...] = ()
    """The names of the pipelines that are open."""

    accepted: tuple[AcceptedStore, ...] = ()
    """The stores of the accepted batches that they land."""

    def named(self, name: str | None) -> dict[str, str]:
        """The uuids of one table, or of all if no name is given. Raises `Misconfigured` for an unknown name."""
        if name is None:
            return dict(self.tables)
        if name not in self.tables:
            known = ", ".join(sorted(self.tables)) or "none"
            raise Misconfigured(f"The pipeline has no table {name!r}. It has: {known}.")
        return {name: self.tables[name]}


class OpenConsumedTables(Protocol):
    """Opens the tables of pipelines."""

    def __call__(self, config_file: Path, pipeline: str | None, /) -> AbstractContextManager[ConsumedTables]:
        """Open the tables of one pipeline of a configuration file, or of all."""
        ...


ConfigArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The configuration of the pipelines.", show_default=False)
]
TableOption: TypeAlias = Annotated[
    str | None, typer.Option("--table", metavar="TABLE", help="Only this table: namespace.table", show_default=False)
]
PipelineOption: TypeAlias = Annotated[
    str | None, typer.Option("--pipeline", metavar="NAME", help="Only this pipeline.", show_default="all")
]
