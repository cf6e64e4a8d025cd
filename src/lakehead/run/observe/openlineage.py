"""OpenLineage events: for each table a START, and a COMPLETE or FAIL with its columns and rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import NAMESPACE_URL, UUID, uuid5

from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import (
    PhaseMarked,
    RunStart,
    TableDescribed,
    TableDone,
    TableFailed,
    TableSkipped,
    TableStart,
)

PRODUCER = "urn:lakehead"
SPEC = "https://openlineage.io/spec"
RUN_EVENT = f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
FACETS = {
    "schema": "1-1-1/SchemaDatasetFacet",
    "outputStatistics": "1-0-2/OutputStatisticsOutputDatasetFacet",
    "errorMessage": "1-0-1/ErrorMessageRunFacet",
    "parent": "1-0-1/ParentRunFacet",
    "nominalTime": "1-0-1/NominalTimeRunFacet",
    "jobType": "2-0-3/JobTypeJobFacet",
}
"""The version and the name of each facet that is sent."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset by OpenLineage's naming: a namespace, such as postgres://host:5432, and a name in it."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class TableLineage:
    """Where the rows of a table come from, and where they go."""

    source: Dataset
    raw: Dataset
    published: Dataset | None = None
    """The mirror or final table; None if readers read raw."""


@dataclass(slots=True)
class _Running:
    columns: Mapping[str, str] = field(default_factory=dict)
    raw_rows: int = 0
    mode: str = ""


class OpenLineageSubscriber:
    """Puts OpenLineage run events. A slow subscriber.

    Each table of a run is a run of the job `pipeline.table`, whose parent is the run of the pipeline.
    """

    def __init__(
        self, put: Callable[[Mapping[str, object]], None], tables: Mapping[str, TableLineage], *, namespace: str
    ) -> None:
        self._put = put
        self._tables = tables
        self._namespace = namespace
        self._pipeline = namespace
        self._running: dict[str, _Running] = {}

    def __call__(self, envelope: EventEnvelope) -> None:
        """Put the events of a table that begins or ends."""
        event, table = envelope.event, envelope.table
        if isinstance(event, RunStart):
            self._pipeline = event.pipeline
        if table is None or table not in self._tables:
            return
        known = self._running.setdefault(table, _Running())
        match event:
            case TableStart():
                self._running[table] = _Running(mode=event.mode)
                self._send(envelope, "START", _Running(mode=event.mode))
            case TableDescribed():
                known.columns = event.columns
            case PhaseMarked(phase="raw", state="done", rows=int(rows)):
                known.raw_rows += rows
            case TableDone():
                self._send(envelope, "COMPLETE", known, published=event.published)
            case TableSkipped():
                self._send(envelope, "COMPLETE", known)
            case TableFailed():
                error = {"message": event.error, "programmingLanguage": "python"}
                self._send(envelope, "FAIL", known, error=error)
            case _:
                pass

    def _send(
        self,
        envelope: EventEnvelope,
        kind: str,
        known: _Running,
        *,
        published: int | None = None,
        error: Mapping[str, object] | None = None,
    ) -> None:
        table = envelope.table or ""
        lineage = self._tables[table]
        columns = [{"name": name, "type": declared} for name, declared in known.columns.items()]
        schema = {"schema": _facet("schema", {"fields": columns})} if columns else {}
        outputs = [_output(lineage.raw, schema, known.raw_rows if kind != "START" else None)]
        if lineage.published is not None:
            outputs.append(_output(lineage.published, schema, published))
        run = run_id(envelope.run)
        parent = {"run": {"runId": run}, "job": {"namespace": self._namespace, "name": self._pipeline}}
        facets = {"parent": _facet("parent", parent)}
        if envelope.load_date is not None:
            facets["nominalTime"] = _facet("nominalTime", {"nominalStartTime": f"{envelope.load_date}T00:00:00Z"})
        if error is not None:
            facets["errorMessage"] = _facet("errorMessage", error)
        job_type = {"processingType": "BATCH", "integration": "LAKEHEAD", "jobType": "TABLE"}
        self._put(
            {
                "eventType": kind,
                "eventTime": envelope.at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "run": {"runId": str(uuid5(UUID(run), table)), "facets": facets},
                "job": {
                    "namespace": self._namespace,
                    "name": f"{self._pipeline}.{table}",
                    "facets": {"jobType": _facet("jobType", job_type)},
                },
                "inputs": [{"namespace": lineage.source.namespace, "name": lineage.source.name, "facets": schema}],
                "outputs": outputs,
                "producer": PRODUCER,
                "schemaURL": RUN_EVENT,
            }
        )


def run_id(run: str) -> str:
    """Return the UUID of a run: the run itself, or one that is made of it."""
    try:
        return str(UUID(run))
    except ValueError:
        return str(uuid5(NAMESPACE_URL, run))


def _output(dataset: Dataset, schema: Mapping[str, object], rows: int | None) -> dict[str, object]:
    counts = {} if rows is None else {"outputStatistics": _facet("outputStatistics", {"rowCount": rows})}
    return {
        "namespace": dataset.namespace,
        "name": dataset.name,
        "facets": schema,
        **({"outputFacets": counts} if counts else {}),
    }


def _facet(name: str, content: Mapping[str, object]) -> dict[str, object]:
    version, file = FACETS[name].split("/")
    return {"_producer": PRODUCER, "_schemaURL": f"{SPEC}/facets/{version}/{file}.json#/$defs/{file}", **content}
