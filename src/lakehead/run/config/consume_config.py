"""The configuration of pipelines that consume queues."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, model_validator

from lakehead.consume.decode.rows import OWN_COLUMNS, FormatName, SchemaMode
from lakehead.consume.large_objects import MAX_OBJECT_BYTES
from lakehead.consume.objects import MessageFormat
from lakehead.consume.s3_tags import tags_problem
from lakehead.lake.column_names import folded, is_usable
from lakehead.run.config.base import TABLE_NAME, ConfigModel, NonEmptyText, TextOrSecret, invalid

Count = Annotated[StrictInt, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=7 * 24 * 3600)]

COLUMN_TYPE = (
    r"^(boolean|int|long|float|double|string|binary|date|time|timestamp|timestamptz|uuid"
    r"|decimal\(\s*([1-9]|[12][0-9]|3[0-8])\s*,\s*[0-9]{1,2}\s*\))$"
)


class SqsQueueConfig(ConfigModel):
    """An SQS queue. Its credentials come from the environment, as for the AWS tools. Needs `lakehead[sqs]`."""

    type: Literal["sqs"] = Field(description="The type of the queue: sqs.")
    queue: NonEmptyText = Field(description="The URL of the queue, or its name in the account of the credentials.")
    region: NonEmptyText | None = Field(None, description="The region. Default: that of the URL, or the environment's.")
    endpoint: NonEmptyText | None = Field(
        None, description="The address of a server other than AWS's own, such as http://127.0.0.1:4566. Default: none."
    )


class ManifestQueueConfig(ConfigModel):
    """The queue of an `Ingestor`, in object storage."""

    type: Literal["manifest"] = Field(description="The type of the queue: manifest.")
    store: NonEmptyText = Field(
        description="The URL of the store that the ingestors write to, such as s3://bucket/prefix."
    )
    manifest_path: NonEmptyText | None = Field(
        None, description="The manifest's path, as the ingestors have it. Default: theirs."
    )
    data_path_prefix: NonEmptyText | None = Field(
        None, description="The prefix of the batches, as the ingestors have it. Default: theirs."
    )


class FolderQueueConfig(ConfigModel):
    """A folder or prefix that is watched: each file that appears in it is landed."""

    type: Literal["folder"] = Field(description="The type of the queue: folder.")
    url: NonEmptyText = Field(description="The folder: a path, or a URL such as s3://bucket/prefix.")
    rest_seconds: Seconds = Field(2.0, description="How long a file must not have changed before it is read.")
    scan_seconds: Seconds = Field(1.0, description="Seconds between two listings.")


class FilesQueueConfig(ConfigModel):
    """A fixed list of files. The pipeline ends when they have landed."""

    type: Literal["files"] = Field(description="The type of the queue: files.")
    uris: tuple[NonEmptyText, ...] = Field(description="The URIs of the files, or paths.")


QueueConfig = Annotated[
    SqsQueueConfig | ManifestQueueConfig | FolderQueueConfig | FilesQueueConfig, Field(discriminator="type")
]


class ColumnConfig(ConfigModel):
    """A column of a table."""

    name: NonEmptyText = Field(description="The name.")
    type: Annotated[str, Field(pattern=COLUMN_TYPE)] = Field(
        description="boolean, int, long, float, double, decimal(p,s), string, binary, date, time, timestamp, "
        "timestamptz or uuid."
    )


class CsvConfig(ConfigModel):
    """How CSV is written."""

    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = Field(",", description="What separates fields.")
    quote: Annotated[str, Field(min_length=1, max_length=1)] = Field('"', description="What encloses fields.")
    header: StrictBool = Field(default=True, description="Whether the first row has the names of the columns.")
    null_text: str = Field("", description="What stands for NULL, unless it is quoted.")


class TableRouteConfig(ConfigModel):
    """The objects that land in one table, and how they are read."""

    table: Annotated[str, Field(pattern=TABLE_NAME)] = Field(description="The table: namespace.table.")
    prefixes: tuple[NonEmptyText, ...] = Field(
        (), description="Beginnings of URIs; end one with a slash for a folder. Default: any."
    )
    include: tuple[NonEmptyText, ...] = Field(
        (), description="Globs of which one must match, such as *.json or in/**/*.csv. Default: any."
    )
    exclude: tuple[NonEmptyText, ...] = Field((), description="Globs of which none may match. Default: none.")
    format: FormatName = Field(description="What objects hold: ndjson, csv, parquet, key_value or frames.")
    kind: Literal["samples", "logs"] | None = Field(
        None,
        description="For frames: which records land in the table. It has their columns, is partitioned by the day of "
        "their time, and sorted. Default: none.",
    )
    csv: CsvConfig = Field(CsvConfig(), description="How CSV objects are written.")
    value: Literal["raw", "json"] = Field(
        "raw", description="For key_value: whether values are bytes (raw) or JSON objects that become columns (json)."
    )
    schema_mode: SchemaMode = Field(
        SchemaMode.ADD_COLUMNS,
        description="What happens to new columns. add_columns: they are added to the table. rescue: their values go to "
        "_rescued. fail: the object is refused. Values that do not fit their column go to _rescued, or the object is "
        "refused with fail.",
    )
    bad_rows: Literal["fail", "rescue"] = Field(
        "fail",
        description="What happens to a row that cannot be parsed. fail: its object is refused. rescue: it goes to "
        "_rescued as text.",
    )
    columns: tuple[ColumnConfig, ...] = Field(
        (), description="The table's columns. Default: those of its first objects."
    )
    properties: Mapping[str, TextOrSecret] = Field(
        {}, description="Iceberg's properties of the table, when it is created. Default: none."
    )

    @model_validator(mode="after")
    def _namespaced(self) -> "TableRouteConfig":
        if "." not in self.table:
            raise invalid("table must have a namespace: namespace.table.")
        if (self.kind is not None) != (self.format is FormatName.FRAMES):
            raise invalid("format frames and kind need each other.")
        if self.kind is not None and (self.columns or self.prefixes or self.include or self.exclude):
            raise invalid("format frames has columns of its own and takes frames by kind: no columns, no filters.")
        names = [folded(column.name) for column in self.columns]
        if len(set(names)) < len(names) or not OWN_COLUMNS.isdisjoint(names):
            raise invalid(
                "columns must have names that differ in more than case, and none of _uri, _row, _landed_at and "
                "_rescued: else engines could not tell them apart."
            )
        if unusable := [column.name for column in self.columns if not is_usable(column.name)]:
            raise invalid(
                f"no column can have the name {unusable[0]!r}: Iceberg has one of its own, or it is too long."
            )
        return self


class ConsumeConfig(ConfigModel):
    """A pipeline that lands what a queue announces."""

    queue: QueueConfig = Field(description="The queue.")
    messages: MessageFormat | None = Field(
        None,
        description="How messages name objects: auto, raw_uri, listed, s3, gcs, location, accepted (batches of keys "
        "that gateways have accepted, for frames) or inline. Default: location for a manifest queue, listed for a "
        "folder, raw_uri for files, else auto.",
    )
    tables: tuple[TableRouteConfig, ...] = Field(
        json_schema_extra={"minItems": 1},
        description="Which objects land in which table. The first entry that takes an object wins; objects that none "
        "takes are counted and not landed.",
    )
    sink: NonEmptyText | None = Field(None, description="The Iceberg sink. Default: the only one.")
    identity: Literal["uri", "uri_and_version", "uri_and_etag", "message"] = Field(
        "uri",
        description="What makes an object another one: its URI, so that one that is overwritten counts as landed, or "
        "its URI together with its version id or its ETag. Of inline messages it is the content, so that equal ones "
        "land once; with message it is the queue's id of the message, so that each of them lands.",
    )
    after_landing: Literal["keep", "delete", "move", "tag"] = Field(
        "keep",
        description="What becomes of an object that has landed, before its message is acknowledged. keep: nothing. "
        "delete: it is deleted. move: it is moved to move_to. tag: it gets the tags, in S3 alone. An object that has "
        "changed since is left alone; identity is uri_and_etag with all but keep.",
    )
    move_to: NonEmptyText | None = Field(
        None,
        description="The folder that landed objects are moved to, each under its whole key. No table may take objects "
        "from it. Needed by after_landing move.",
    )
    tags: Mapping[NonEmptyText, str] = Field(
        {},
        description="The tags that landed objects get, beside those that they have: at most 10 in all. Needed by "
        "after_landing tag, and lakehead[s3].",
    )
    commit_timeout_seconds: Seconds = Field(10.0, description="How long an object waits at most for its landing.")
    max_messages: Count = Field(10_000, description="Objects in one landing, at most.")
    max_bytes: Count = Field(2**30, description="Bytes of one landing, at most, as far as messages tell them.")
    max_object_bytes: Count = Field(
        MAX_OBJECT_BYTES,
        description="Bytes of one object in one landing, at most: plain NDJSON and Parquet of more land in several, so "
        "that a pipeline that ends goes on where it was. CSV and what is compressed lands at once. It may be changed "
        "at any time.",
    )
    max_tries: Annotated[StrictInt, Field(ge=3)] = Field(
        5, description="After so many tries an object that cannot be landed becomes a dead letter."
    )
    retry_delay_seconds: Seconds = Field(
        5.0, description="The pause before a failed object is tried again; doubled with each try, up to 5 minutes."
    )
    visibility_seconds: Seconds = Field(
        60.0, description="How long a received message stays invisible to others; extended while it is worked on."
    )
    deduplication_window_duration_secs: Count = Field(
        7 * 24 * 3600,
        description="Seconds for which a landed object is remembered after its message was acknowledged. It must be "
        "longer than the queue keeps messages.",
    )
    deduplication_window_max_messages: Count = Field(
        1_000_000, description="Landed objects that are remembered, at most; the oldest are forgotten first."
    )
    deduplication_cleanup_interval_secs: Count = Field(
        60, description="Seconds between two clean-ups of what is remembered, over all pipelines of a table."
    )

    @model_validator(mode="after")
    def _frames_are_accepted(self) -> "ConsumeConfig":
        kinds = [table.kind for table in self.tables]
        is_accepted = self.messages is MessageFormat.ACCEPTED
        if any(kinds) is not is_accepted or (is_accepted and None in kinds):
            raise invalid('messages = "accepted" and format frames need each other, in all tables of the pipeline.')
        if is_accepted and self.queue.type != "manifest":
            raise invalid('messages = "accepted" is for a queue of the type manifest, which gateways write.')
        if is_accepted and self.identity != "uri":
            raise invalid('identity must be uri with messages = "accepted": records are known by agent, boot and seq.')
        if is_accepted and len(set(kinds)) < len(kinds):
            raise invalid("each kind of frames lands in one table: have at most one with samples and one with logs.")
        return self

    @model_validator(mode="after")
    def _messages_are_the_queues(self) -> "ConsumeConfig":
        # Else the name of a batch or file would be taken for its content: it could land as no rows, and be removed.
        messages, queue = self.messages, self.queue.type
        ours = (MessageFormat.LOCATION, MessageFormat.ACCEPTED)
        if queue == "manifest" and messages is not None and messages not in ours:
            raise invalid("messages must be location or accepted for a queue of the type manifest, or be left out.")
        if queue != "manifest" and messages is MessageFormat.LOCATION:
            raise invalid('messages = "location" is for a queue of the type manifest.')
        if queue in ("folder", "files") and messages is MessageFormat.INLINE:
            raise invalid(
                f'messages = "inline" is not for a queue of the type {queue}: its messages are names of files.'
            )
        return self

    @model_validator(mode="after")
    def _actions_are_possible(self) -> "ConsumeConfig":
        if (self.move_to is not None) != (self.after_landing == "move"):
            raise invalid("after_landing move and move_to need each other.")
        if bool(self.tags) != (self.after_landing == "tag"):
            raise invalid("after_landing tag and tags need each other.")
        if self.tags and self.messages is MessageFormat.GCS:
            raise invalid("after_landing tag is for objects of S3, and messages are of GCS.")
        if (problem := tags_problem(self.tags)) is not None:
            raise invalid(f"tags: {problem}.")
        if self.identity == "message" and self.messages is not MessageFormat.INLINE:
            raise invalid('identity message is for messages = "inline": objects are known by their URIs.')
        if self.identity == "uri_and_version" and self.queue.type in ("folder", "manifest"):
            raise invalid(
                f"identity must be uri or uri_and_etag: a queue of the type {self.queue.type} does not tell "
                "versions, so each of its objects would become a dead letter."
            )
        if self.after_landing != "keep":
            if self.queue.type == "manifest" or self.messages is MessageFormat.INLINE:
                raise invalid("after_landing must be keep: the queue removes its batches itself.")
            if self.identity == "uri_and_version":
                raise invalid("after_landing must be keep with identity uri_and_version. Use uri_and_etag.")
        return self
