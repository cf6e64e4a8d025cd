"""Opens what an audit of accepted batches reads: the store, the state, and the tables. No Spark is started."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from lakehead.accept.discarded_batches import DiscardedLookup
from lakehead.accept.s3_object_versions import S3ObjectVersions
from lakehead.consume.accepted_units import accepted_unit
from lakehead.errors import Misconfigured
from lakehead.maintain.acceptance_audit import AcceptanceAudit, AuditParts, AuditSettings
from lakehead.maintain.acceptance_audit_landed import LandedCheck
from lakehead.maintain.acceptance_audit_report import AuditReport
from lakehead.maintain.acceptance_audit_rows import RowsUnread, TableRows, read_rows
from lakehead.maintain.landed_batches import LandedBatches, StateRanges
from lakehead.run.accepted_tables import (
    PipelineTable,
    accepted_pipelines,
    accepted_store,
    accepted_tables,
    table_uuid,
)
from lakehead.run.config.consume_config import ConsumeConfig
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.run.consume_wiring import ConsumeWiring
from lakehead.run.environment import ENVIRONMENT, store_settings
from lakehead.run.error_messages import CannotOpen, open_errors_as
from lakehead.run.gateway_wiring import GatewayWiring
from lakehead.storage.open_store import locate
from lakehead.storage.read_only_store import ReadOnlyStore
from lakehead.storage.s3_client import open_s3_client
from lakehead.wire.dead_letters import NO_TABLE
from lakehead.wire.record_schemas import FrameKind

ATTEMPTS = 4
"""Of each request for versions."""

Progress = Callable[[str, AuditReport], object]


@dataclass(frozen=True, slots=True)
class _CatalogRows:
    """Reads the rows of tables as they are when it is called."""

    catalogs: Mapping[str, Catalog]
    tables: Mapping[FrameKind, PipelineTable]

    def __call__(self, kind: FrameKind, /, *, progress: Callable[[int], object]) -> TableRows:
        found = self.tables[kind]
        try:
            with open_errors_as(f"The table {found.name}", "Its rows were not compared."):
                return read_rows(self.catalogs[found.catalog].load_table(found.name), progress=progress)
        except CannotOpen as error:
            if isinstance(error.__cause__, NoSuchTableError):
                return TableRows()
            raise RowsUnread(str(error)) from error


@contextmanager
def open_audit(
    config: PipelineConfig, gateway: GatewayWiring, settings: AuditSettings, progress: Progress
) -> Iterator[AcceptanceAudit]:
    """Open an audit of the authority of a gateway. Raises `Misconfigured`, and `CannotOpen` for a catalog."""
    store = ReadOnlyStore(gateway.store)
    with ExitStack() as opened:
        versions, no_versions = _versions(gateway)
        parts = AuditParts(versions=versions, not_checked=no_versions)
        if pipelines := tuple(accepted_pipelines(config, gateway.config.store).values()):
            parts = _with_tables(parts, config, pipelines, gateway, store, opened)
        else:
            told = (
                f"Whether batches have landed: no pipeline of the configuration lands those of {gateway.config.store}."
            )
            parts = replace(parts, not_checked=(*parts.not_checked, told))
        yield AcceptanceAudit(store, gateway.clock, settings, parts, progress)


def _with_tables(
    parts: AuditParts,
    config: PipelineConfig,
    pipelines: Sequence[ConsumeConfig],
    gateway: GatewayWiring,
    store: ReadOnlyStore,
    opened: ExitStack,
) -> AuditParts:
    wiring = ConsumeWiring(config, ENVIRONMENT)
    wiring.check()
    catalogs: dict[str, Catalog] = {}
    tables: dict[FrameKind, PipelineTable] = {}
    uuids: dict[FrameKind, str] = {}
    others: list[str] = []
    for kind, (table, *more) in accepted_tables(wiring, pipelines).items():
        if table.catalog not in catalogs:
            catalogs[table.catalog] = opened.enter_context(closing(wiring.open_catalog(table.catalog)))
        tables[kind], uuids[kind] = table, table_uuid(catalogs[table.catalog], table) or NO_TABLE
        others += [f"The table {each.name}: {kind.word} are compared with {table.name}." for each in more]
    state = opened.enter_context(wiring.open_state(gateway.clock, gateway.ids))
    store_url = accepted_store(pipelines[0]) or gateway.config.store
    landed = LandedCheck(
        LandedBatches(StateRanges(state), uuids),
        state,
        DiscardedLookup(store),
        lambda identity: accepted_unit(identity, store_url),
    )
    not_checked = (*parts.not_checked, *others)
    return replace(parts, landed=landed, rows=_CatalogRows(catalogs, tables), not_checked=not_checked)


def _versions(gateway: GatewayWiring) -> tuple[S3ObjectVersions | None, tuple[str, ...]]:
    """What lists the versions of objects, or why nothing does."""
    url, what = gateway.config.store, "Delete markers and older versions below accepted/v1/"
    scheme = url.partition("://")[0]
    if scheme != "s3":
        return None, (f"{what}: they are listed in buckets of S3 only, and this store is {scheme}://.",)
    bucket, located = locate(url, store_settings(url, gateway.environment))
    try:
        client = open_s3_client(located, purpose=what, attempts=ATTEMPTS)
    except Misconfigured as error:
        return None, (str(error),)
    return S3ObjectVersions(client, bucket.name, bucket.prefix), ()
