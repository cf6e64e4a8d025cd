"""Staging rows of a source for raw: read by our tasks as Arrow, or by Spark's own JDBC reader."""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

from lakehead.extract.protection import protected, protected_schema
from lakehead.extract.raw_rows import INGEST_SCHEMA, Ingest, RawPart, raw_schema, read_rows
from lakehead.extract.sink import Reading
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.run_context import RunContext
from lakehead.lake.staged_rows import Change
from lakehead.lake.stagers import ArrowStager, FrameStager
from lakehead.source import jdbc_reader
from lakehead.source.port import ReadPart


def ingest_of(run: RunContext, reading: Reading, slice_number: int, generation: int) -> Ingest:
    """The values of our own columns for a slice that this run reads."""
    return Ingest(
        load_date=run.load_date,
        loaded_at=datetime.fromtimestamp(run.clock.now_ns() / 1e9, UTC),
        run=run.run,
        source=reading.label,
        slice=slice_number,
        generation=generation,
    )


def raw_stager(
    run: RunContext,
    table: IcebergTable,
    reading: Reading,
    parts: Sequence[ReadPart],
    ingest: Ingest,
    change: Change,
) -> ArrowStager[RawPart] | FrameStager:
    """A stager for the given parts, with our own columns added."""
    session, ids = run.session, run.ids
    if reading.by_jdbc:
        frame = partial(_jdbc_frame, session, parts, ingest, reading)
        return FrameStager(session=session, table=table, ids=ids, frame=lambda _: frame(), change=change)
    raw_parts = [RawPart(part, ingest, reading.protections) for part in parts]
    return ArrowStager(session=session, table=table, ids=ids, read=read_rows, split=lambda _: raw_parts, change=change)


def frame_of(session: SparkSession, reading: Reading, parts: Sequence[ReadPart], ingest: Ingest) -> DataFrame:
    """The parts, with our own columns, as a data frame with one partition for each part."""
    if reading.by_jdbc:
        return _jdbc_frame(session, parts, ingest, reading)
    columns = protected_schema(parts[0].schema, reading.protections)
    schema = from_arrow_schema(raw_schema(columns), prefer_timestamp_ntz=True)
    pickled = session.createDataFrame(
        [(pickle.dumps(RawPart(part, ingest, reading.protections)),) for part in parts], "part binary"
    )
    return pickled.repartition(len(parts)).mapInArrow(_read_pickled, schema)


def _jdbc_frame(session: SparkSession, parts: Sequence[ReadPart], ingest: Ingest, reading: Reading) -> DataFrame:
    frame = jdbc_reader.frame(session, parts, fetch_rows=reading.fetch_rows)
    if rules := reading.protections:
        columns = parts[0].schema
        schema = from_arrow_schema(protected_schema(columns, rules), prefer_timestamp_ntz=True)
        # Columns by number: `mapInArrow` fails to resolve names that contain a dot.
        numbered = frame.toDF(*(str(number) for number in range(len(columns))))

        def protect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield protected(batch.rename_columns(columns.names), rules)

        frame = numbered.mapInArrow(protect, schema)
    for column, value in zip(INGEST_SCHEMA, ingest.values, strict=True):
        frame = frame.withColumn(column.name, f.lit(value).cast(from_arrow_type(column.type)))
    return frame


def _read_pickled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for part in batch.column("part").to_pylist():
            yield from read_rows(pickle.loads(part))  # noqa: S301 - from our own driver, through Spark's own channel
