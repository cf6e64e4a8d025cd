"""How rows of a source become staged rows of raw: in tasks as Arrow, or through Spark's own JDBC reader."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_type

from lakehead.extract.rows import INGEST_SCHEMA, Ingest, RawPart, read_rows
from lakehead.extract.sink import Reading
from lakehead.extract.table import Reader
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

    if reading.reader is Reader.JDBC or (reading.reader is Reader.AUTO and not source.can.arrow):
        return FrameStager(session=session, table=table, ids=ids, frame=frame, change=change)
    return ArrowStager(session=session, table=table, ids=ids, read=read_rows, split=split, change=change)


def _with_ingest_cols(frame: DataFrame, ingest: Ingest) -> DataFrame:
    for column, value in zip(INGEST_SCHEMA, ingest.values, strict=True):
        frame = frame.withColumn(column.name, f.lit(value).cast(from_arrow_type(column.type)))
    return frame
