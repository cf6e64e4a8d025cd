"""Which tables take which kind of accepted batches, by the pipelines of a configuration. No Spark is started."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakehead.consume.messages import uri_in_store
from lakehead.consume.objects import MessageFormat
from lakehead.run.config.consume_config import ConsumeConfig, ManifestQueueConfig
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.wire.record_schemas import FrameKind

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from lakehead.run.consume_wiring import ConsumeWiring


@dataclass(frozen=True, slots=True)
class PipelineTable:
    """A table of a pipeline."""

    catalog: str
    name: str


def accepted_store(pipeline: ConsumeConfig) -> str | None:
    """Return the URL of the store whose accepted batches a pipeline lands; None if it lands others."""
    is_accepted = pipeline.messages is MessageFormat.ACCEPTED
    return pipeline.queue.store if is_accepted and isinstance(pipeline.queue, ManifestQueueConfig) else None


def accepted_pipelines(config: PipelineConfig, store_url: str) -> dict[str, ConsumeConfig]:
    """Return the pipelines that land what is accepted in a store, by name, whichever of its queues they read."""
    here = uri_in_store(store_url, "x")
    return {
        name: each
        for name, each in config.pipelines.items()
        if (url := accepted_store(each)) is not None and uri_in_store(url, "x") == here
    }


def accepted_tables(
    wiring: "ConsumeWiring", pipelines: Iterable[ConsumeConfig]
) -> dict[FrameKind, tuple[PipelineTable, ...]]:
    """Return the tables of each kind that pipelines land, each of them once and in the order of the pipelines."""
    found: dict[FrameKind, dict[PipelineTable, None]] = {}
    for pipeline in pipelines:
        for route in pipeline.tables:
            if route.kind is not None:
                table = PipelineTable(wiring.catalog_of(pipeline), route.table)
                found.setdefault(frame_kind(route.kind), {})[table] = None
    return {kind: tuple(tables) for kind, tables in found.items()}


def table_uuids(wiring: "ConsumeWiring", tables: Iterable[PipelineTable]) -> Mapping[PipelineTable, str | None]:
    """Return the uuids of tables as they are now; None for one that does not exist. Raises `CannotOpen`."""
    by_catalog: dict[str, list[PipelineTable]] = {}
    for table in tables:
        by_catalog.setdefault(table.catalog, []).append(table)
    found: dict[PipelineTable, str | None] = {}
    for name, some in by_catalog.items():
        if not wiring.is_catalog_made(name):
            found |= dict.fromkeys(some)
            continue
        with closing(wiring.open_catalog(name)) as catalog:
            found |= {table: table_uuid(catalog, table) for table in some}
    return found


def table_uuid(catalog: "Catalog", table: PipelineTable) -> str | None:
    """Return the uuid of a table in its catalog; None if it does not exist. Raises `CannotOpen`."""
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - slow to load

    from lakehead.run.error_messages import open_errors_as  # noqa: PLC0415 - slow to load

    advice = "If its metadata is lost or damaged, restore it from a backup."
    with open_errors_as(f"The table {table.name} in the catalog {table.catalog!r}", advice):
        try:
            return str(catalog.load_table(table.name).metadata.table_uuid)
        except NoSuchTableError:
            return None


def frame_kind(name: str) -> FrameKind:
    """Return the kind of frames that the configuration names."""
    return FrameKind[name.upper()]
