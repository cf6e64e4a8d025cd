"""How rows of a source become staged rows of raw: in tasks as Arrow, or through Spark's own JDBC reader."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

from lakehead.extract.rows import INGEST_SCHEMA, Ingest, RawPart, raw_schema, read_rows
from lakehead.extract.sink import Reading
from lakehead.ids import Ids
from lakehead.lake.landing import Reached, Share
from lakehead.lake.lane import ArrowStager, FrameStager
from lakehead.lake.rows import Change
from lakehead.lake.table import IcebergTable
from lakehead.source import jdbc
from lakehead.source.port import ReadPart


def raw_stager(
    session: SparkSession,
    table: IcebergTable,
    ids: Ids,
    reading: Reading,
    ingest: Callable[[Reached], Ingest],
    held: ExitStack,
    change: Change,
) -> ArrowStager[RawPart] | FrameStager:
    """Stages what is read, with our own columns. The source's snapshot is held until all of it is published."""
    source = reading.source

    def parts() -> tuple[ReadPart, ...]:
        number = reading.parts or session.sparkContext.defaultParallelism
        return source.parts(reading.query, number, held.enter_context(source.snapshot()))

    def split(_: Share, reached: Reached) -> list[RawPart]:
        told = ingest(reached)
        return [RawPart(part, told) for part in parts()]

    def frame(_: Sequence[Share], reached: Reached) -> DataFrame:
        return _with_ingest_cols(jdbc.frame(session, parts(), fetch_rows=reading.fetch_rows), ingest(reached))

    if reading.by_jdbc:
        return FrameStager(session=session, table=table, ids=ids, frame=frame, change=change)
    return ArrowStager(session=session, table=table, ids=ids, read=read_rows, split=split, change=change)


def frame_of(session: SparkSession, reading: Reading, ingest: Ingest, held: ExitStack) -> DataFrame:
    """What is read, with our own columns, as a data frame: a part of it in each of its partitions."""
    number = reading.parts or session.sparkContext.defaultParallelism
    parts = reading.source.parts(reading.query, number, held.enter_context(reading.source.snapshot()))
    if reading.by_jdbc:
        return _with_ingest_cols(jdbc.frame(session, parts, fetch_rows=reading.fetch_rows), ingest)
    schema = from_arrow_schema(raw_schema(parts[0].schema), prefer_timestamp_ntz=True)
    pickled = session.createDataFrame([(pickle.dumps(RawPart(part, ingest)),) for part in parts], "part binary")
    return pickled.repartition(len(parts)).mapInArrow(_read_pickled, schema)


def _read_pickled(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for part in batch.column("part").to_pylist():
            yield from read_rows(pickle.loads(part))  # noqa: S301 - from our own driver, through Spark's own channel


def _with_ingest_cols(frame: DataFrame, ingest: Ingest) -> DataFrame:
    for column, value in zip(INGEST_SCHEMA, ingest.values, strict=True):
        frame = frame.withColumn(column.name, f.lit(value).cast(from_arrow_type(column.type)))
    return frame
