"""The metadata gateway: one record of volume and one of runtime for every table that was loaded or failed."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

from lakehead.run.observe.outputs import AppendOnlyFile
from lakehead.run.observe.state_events import event_key
from lakehead.state.buffered import BufferedState
from lakehead.state.model import EventRecord
from lakehead.telemetry.background_sender import BackgroundSender, LostMessages
from lakehead.telemetry.emitter import EventEnvelope
from lakehead.telemetry.events import PhaseMarked, RunStart, TableDone, TableFailed, TableSkipped, TableStart

CLOSE_SECONDS = 10.0
"""How long the end of a run waits for the last records."""

INGESTION_VOLUME = "ingestion_volume"
INGESTION_RUNTIME = "ingestion_runtime"

Record = Mapping[str, object]


class MetadataGateway(Protocol):
    """Where records of runs go."""

    def put(self, record: Record, /) -> None:
        """Take a record. Errors that it raises are counted and do not stop a load."""
        ...

    @property
    def lost(self) -> LostMessages | None:
        """The records that did not arrive; None if all did."""
        ...

    def close(self) -> None:
        """Deliver what waits, for a bounded time."""
        ...


class MetadataGatewaySubscriber:
    """Puts an `ingestion_volume` and an `ingestion_runtime` record for every table that ends, as configured.

    A slow subscriber. Skipped tables have no records.
    """

    def __init__(self, gateway: MetadataGateway, *, volume: bool, runtime: bool) -> None:
        self._gateway = gateway
        self._volume = volume
        self._runtime = runtime
        self._pipeline = ""
        self._modes: dict[str, str] = {}
        self._landed: dict[str, int] = {}
        """Rows that each running table has landed in raw."""

    def __call__(self, envelope: EventEnvelope) -> None:
        """Put the records of a table that has ended."""
        event, table = envelope.event, envelope.table
        if isinstance(event, RunStart):
            self._pipeline = event.pipeline
        if table is None:
            return
        match event:
            case TableStart():
                self._modes[table], self._landed[table] = event.mode, 0
            case PhaseMarked(phase="raw", state="done", rows=int(rows)):
                self._landed[table] = self._landed.get(table, 0) + rows
            case TableDone():
                volume = {"rows": event.rows, "published": event.published, "slices": event.slices}
                self._put(envelope, "done", event.seconds, {**volume, "watermark": event.watermark}, {})
            case TableFailed():
                failure = {"error": event.error, "error_kind": event.error_kind, "stack_hash": event.stack_hash}
                self._put(envelope, "failed", event.seconds, {"rows": self._landed.get(table, 0)}, failure)
            case TableSkipped():
                self._modes.pop(table, None)
            case _:
                pass

    def _put(self, envelope: EventEnvelope, outcome: str, seconds: float, volume: Record, failure: Record) -> None:
        table = envelope.table or ""
        self._landed.pop(table, None)
        about: dict[str, object] = {
            "at": envelope.at.isoformat(timespec="microseconds"),
            "run": envelope.run,
            "pipeline": self._pipeline,
            "table": table,
            "mode": self._modes.pop(table, ""),
            "load_date": envelope.load_date.isoformat() if envelope.load_date else None,
            "outcome": outcome,
        }
        if self._volume:
            self._gateway.put({"kind": INGESTION_VOLUME, "id": f"{envelope.id}-v", **about, **volume})
        if self._runtime:
            self._gateway.put(
                {"kind": INGESTION_RUNTIME, "id": f"{envelope.id}-r", **about, "seconds": seconds, **failure}
            )


class StateRepository:
    """The local repository: records are kept in the state database, as events of their kinds."""

    @property
    def lost(self) -> LostMessages | None:
        """None: the state's own sink counts what it drops."""
        return None

    def __init__(self, state: BufferedState) -> None:
        self._sink = state.sink

    def put(self, record: Record) -> None:
        """Buffer the record; it is written with the next events."""
        apart = {"kind", "id", "at", "run"}
        self._sink.add(
            EventRecord(
                id=str(record["id"]),
                at=datetime.fromisoformat(str(record["at"])),
                kind=str(record["kind"]),
                table=event_key(str(record["table"])),
                run=event_key(str(record["run"])),
                payload={key: value for key, value in record.items() if key not in apart and value is not None},
            )
        )

    def close(self) -> None:
        """Do nothing: the state flushes at its end."""


class SentRecords:
    """Records as JSON, one message each, on a thread of its own."""

    def __init__(self, send: Callable[[bytes], None], name: str = "the metadata gateway") -> None:
        self._sender = BackgroundSender(send, name)

    @property
    def lost(self) -> LostMessages | None:
        """The records that did not arrive; None if all did."""
        return self._sender.lost

    def put(self, record: Record) -> None:
        """Queue the record."""
        self._sender.put(json.dumps(record).encode())

    def close(self) -> None:
        """Send what waits, for at most `CLOSE_SECONDS`."""
        self._sender.close(CLOSE_SECONDS)


class RecordFile:
    """Records as JSON lines, appended to a file. A full disk is only counted."""

    def __init__(self, file: AppendOnlyFile, name: str = "the metadata gateway") -> None:
        self._file = file
        self._name = name
        self._lost = 0
        self._reason = ""

    @property
    def lost(self) -> LostMessages | None:
        """The records that could not be written; None if all were."""
        return LostMessages(self._name, self._lost, self._reason) if self._lost else None

    def put(self, record: Record) -> None:
        """Write the record."""
        try:
            self._file.write(json.dumps(record) + "\n")
        except OSError as error:
            self._lost += 1
            self._reason = error.strerror or type(error).__name__

    def close(self) -> None:
        """Close the file."""
        self._file.close()
