"""`spark.read.format("lakehead")`: objects as a pipeline reads them, for a notebook. Nothing is landed or recorded.

register(spark)
spark.read.format("lakehead").option("format", "ndjson").load("s3://bucket/prefix")
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from lakehead.consume.data_source_objects import ObjectPiece, find_objects, partitions_of
from lakehead.consume.decode.decode import infer_columns, read_object
from lakehead.consume.decode.rows import (
    RESCUED,
    ROW,
    URI,
    FormatName,
    ObjectFormat,
    ObjectRefused,
    ReadReport,
    SchemaMode,
)
from lakehead.consume.decode.seen_types import unify
from lakehead.consume.object_reader import ObjectReader
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.lake.conform import conform
from lakehead.storage.connect import StoreSettings

NAME = "lakehead"

INFERRED_OBJECTS = 10
"""How many objects are read for a schema that is not given."""

_OWN: dict[str, DataType] = {URI: StringType(), ROW: LongType(), RESCUED: StringType()}
_OPTIONS = frozenset({"path", "paths", "format", "value", "bad_rows", "delimiter", "quote", "header", "null_text"})
_BOOLEANS = {"true": True, "false": False}


def register(spark: SparkSession, stores: Mapping[str, StoreSettings] | None = None) -> None:
    """Let a session read the format `lakehead`. Sessions made by `spark.newSession()` need a call of their own.

    `stores` say how to reach the buckets of a scheme: s3, gs or az. Without them a bucket is reached as the cloud's own
    tools would do it where the tasks run, such as by a role. They are sent to the tasks with their secrets.
    """
    known = dict(stores or {})

    class Registered(LakeheadDataSource):
        stores = known

    spark.dataSource.register(Registered)


class LakeheadDataSource(DataSource):
    """Reads NDJSON, CSV, Parquet, batches of an `Ingestor` and frames by a pipeline's own decoders.

    Options: `path` (or several paths for `load`): objects, folders, or prefixes of a bucket; `format`: ndjson, csv,
    parquet, key_value or frames; `value`: raw or json, for key_value; `bad_rows`: fail or rescue; and for CSV
    `delimiter`, `quote`, `header` and `null_text`. The columns are those of the first objects, then `_uri`, `_row` and
    `_rescued`, which has what does not fit; with `.schema(...)` they are those given.
    """

    stores: Mapping[str, StoreSettings] = {}

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns of the first objects. Raises `ObjectRefused` for one that cannot be read."""
        form, reader = object_format(self.options), ObjectReader(self.stores)
        kinds: dict[str, list[pa.DataType]] = {}
        for found in find_objects(_urls(self.options), form, self.stores)[:INFERRED_OBJECTS]:
            source, _, _ = reader.open(found.uri)
            with source:
                try:
                    columns = infer_columns(source, form)
                except ObjectRefused as error:
                    raise _of_object(found.uri, error) from None
            for field in columns:
                kinds.setdefault(field.name, []).append(field.type)
        fields = [StructField(name, _spark_type(reduce(unify, seen))) for name, seen in kinds.items()]
        return StructType([*fields, *(StructField(name, kind) for name, kind in _OWN.items())])

    def reader(self, schema: StructType) -> "LakeheadReader":
        """Return what reads the objects."""
        for field in schema:
            if field.name in _OWN and field.dataType != _OWN[field.name]:
                raise Misconfigured(
                    f"The column {field.name} has the type {_OWN[field.name].simpleString()}. Give it that type."
                )
        return LakeheadReader(_urls(self.options), object_format(self.options), schema, self.stores)


class LakeheadReader(DataSourceReader):
    """Reads objects in Spark's tasks. Small objects share a task, large ones are split over several."""

    def __init__(
        self, urls: Sequence[str], form: ObjectFormat, schema: StructType, stores: Mapping[str, StoreSettings]
    ) -> None:
        self._urls = urls
        self._format = form
        self._schema = schema
        self._stores = stores

    def partitions(self) -> Sequence[InputPartition]:
        """Return what each task reads."""
        found = find_objects(self._urls, self._format, self._stores)
        groups = partitions_of(found, self._format, ObjectReader(self._stores))
        return [InputPartition(group) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of some objects. Raises `ObjectRefused` with the URI of the object, and line and column."""
        reader, schema = ObjectReader(self._stores), to_arrow_schema(self._schema)
        for piece in partition.value:
            try:
                yield from self._rows(reader, piece, schema)
            except LakeheadError as error:
                raise _of_object(piece.uri, error) from None

    def _rows(self, reader: ObjectReader, piece: ObjectPiece, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        columns = pa.schema([field for field in schema if field.name not in _OWN])
        source, _, _ = reader.open(piece.uri)
        with source:
            for batch in read_object(
                source, self._format, columns, ReadReport(), first_row=piece.first_row, part=piece.part
            ):
                uris = pa.repeat(pa.scalar(piece.uri, pa.string()), batch.num_rows)
                named = batch.append_column(URI, uris)
                chosen = pa.RecordBatch.from_arrays([named.column(name) for name in schema.names], schema=schema)
                yield conform(chosen, schema)  # which refuses null in a column that must not have any


def object_format(options: Mapping[str, str]) -> ObjectFormat:
    """Convert the options of a reader. Raises `Misconfigured`."""
    given = {key.lower(): value for key, value in options.items()}
    if unknown := sorted(given.keys() - _OPTIONS):
        raise Misconfigured(f"There is no option {unknown[0]!r}. Use one of {', '.join(sorted(_OPTIONS))}.")

    def chosen(name: str, default: str | None, values: Mapping[str, Any]) -> Any:
        value = given.get(name, default)
        if value is None or value.lower() not in values:
            raise Misconfigured(f"Set the option {name} to one of {', '.join(values)}.")
        return values[value.lower()]

    delimiter, quote = given.get("delimiter", ","), given.get("quote", '"')
    if len(delimiter) != 1 or len(quote) != 1:
        raise Misconfigured("Set the options delimiter and quote to one character each.")
    return ObjectFormat(
        name=chosen("format", None, {each.value: each for each in FormatName}),
        mode=SchemaMode.RESCUE,
        rescue_bad_rows=chosen("bad_rows", "fail", {"fail": False, "rescue": True}),
        value_json=chosen("value", "raw", {"raw": False, "json": True}),
        header=chosen("header", "true", _BOOLEANS),
        delimiter=delimiter,
        quote=quote,
        null_text=given.get("null_text", ""),
    )


def _urls(options: Mapping[str, str]) -> list[str]:
    """Return the paths of a reader. Spark hands over several of them as JSON."""
    urls = json.loads(options["paths"]) if "paths" in options else [options["path"]] if "path" in options else []
    if not urls:
        raise Misconfigured("Name the objects to read: load(path), with a path or URL of an object or a folder.")
    return list(urls)


def _spark_type(kind: pa.DataType) -> DataType:
    """Return Spark's type for a column; text for what Spark has no type for, because text holds every value."""
    try:
        return from_arrow_type(kind, prefer_timestamp_ntz=True)
    except PySparkTypeError:
        return StringType()


def _of_object(uri: str, error: LakeheadError) -> ObjectRefused:
    return ObjectRefused(f"{uri}: {error}")
