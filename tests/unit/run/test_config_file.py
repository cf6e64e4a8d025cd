"""A configuration is read from JSON or TOML alike, and a secret is never in it."""

import json
import traceback
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from lakehead.errors import Misconfigured
from lakehead.extract.planning.axis import Kind
from lakehead.extract.planning.slicing import SliceBy, SlicingPolicy
from lakehead.extract.table_settings import PartitionField
from lakehead.run.config.base import SecretReference
from lakehead.run.config.config_file import read_config
from lakehead.run.config.connections import FileSinkConfig, IcebergSinkConfig
from lakehead.run.config.pipeline_config import PipelineConfig
from lakehead.run.config.problems import InvalidConfig
from lakehead.run.wiring import table_settings
from lakehead.state.model import Value
from tests.unit.run.config_files import SMALL, changed, written

EXAMPLES = Path(__file__).parents[3] / "examples" / "conf"
TOO_MUCH = "The file has an invalid number or is nested too deeply."
CANARY = "c4n4ry-hunter2"


def faults_of(path: Path) -> list[tuple[str, str]]:
    with pytest.raises(InvalidConfig) as caught:
        read_config(path)
    return [(problem.path, problem.message) for problem in caught.value.problems]


def test_the_same_configuration_in_both_syntaxes_is_equal() -> None:
    config = read_config(EXAMPLES / "shop.json")

    assert config == read_config(EXAMPLES / "shop.toml")
    assert [table.full_name for table in config.tables] == ["public.cities", "public.orders"]
    orders = config.tables[1]
    assert orders.initial_watermark == datetime(2024, 1, 1, tzinfo=UTC)
    assert orders.partition_by == (PartitionField("ordered_at", "month"), PartitionField("id", "bucket", 16))
    assert config.source_of(orders).password == SecretReference(file="/run/secrets/shop")
    assert isinstance(config.sink_of(orders), IcebergSinkConfig)


@pytest.mark.parametrize("name", ["conf", "conf.txt", "conf.JSON"])
def test_without_a_telling_ending_the_first_character_tells_the_syntax(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\ufeff \n" + (EXAMPLES / "shop.json").read_text())
    (tmp_path / "plain").write_text((EXAMPLES / "shop.toml").read_text())

    assert read_config(tmp_path / name) == read_config(tmp_path / "plain")


def test_a_small_configuration_gets_every_default(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, SMALL))

    assert config.runtime.max_parallel_tables == 4
    assert config.runtime.finalize_full_refresh
    assert config.runtime.staging.ttl_hours == 72
    assert config.runtime.state.url == "sqlite:///lakehead-state.sqlite"
    assert config.runtime.scd1_slicing.policy() == SlicingPolicy()
    assert not config.runtime.metadata_gateway.ingestion_metrics
    assert config.sinks == {"lake": IcebergSinkConfig(type="iceberg")}
    assert config.tables[1].lag_seconds == 0


def test_slicing_and_tables_become_what_the_planner_takes(tmp_path: Path) -> None:
    slicing = {"by": "duration", "slice_seconds": 60, "target_rows": 9, "max_partitions": 3, "probe": False}
    config = read_config(
        written(
            tmp_path,
            changed(
                {
                    ("runtime", "scd1_slicing"): slicing,
                    ("tables", 1, "lag_seconds"): 5,
                    ("tables", 1, "initial_watermark"): "2024-03-31T02:30:00.123456",
                }
            ),
        )
    )

    assert config.runtime.scd1_slicing.policy() == SlicingPolicy(
        by=SliceBy.DURATION, slice_seconds=60, target_rows=9, max_partitions=3, probe=False
    )
    table = table_settings(config.tables[1], finalizes=True, reload=False)
    assert (table.name, table.incremental_column, table.incremental_kind, table.lag_seconds) == (
        "public.orders",
        "updated_at",
        Kind.TIMESTAMP,
        5,
    )
    assert table.initial_watermark == datetime(2024, 3, 31, 2, 30, 0, 123456, tzinfo=UTC).replace(tzinfo=None)


def test_metadata_under_runtime_is_the_same_as_at_the_top(tmp_path: Path) -> None:
    metadata = {"enabled": True, "cache_path": "cache", "ttl_hours": 3, "schema_policy": {"require_snapshot": True}}

    inner = read_config(written(tmp_path, changed({("runtime", "metadata"): metadata})))
    outer = read_config(written(tmp_path, changed({("metadata",): metadata})))

    assert inner == outer
    assert inner.metadata.cache_path == "cache"
    assert inner.metadata.schema_policy.require_snapshot


def test_sinks_of_both_kinds_can_stand_side_by_side(tmp_path: Path) -> None:
    sinks = {"lake": {"type": "iceberg"}, "files": {"type": "files", "root": "hdfs://name/lake", "publish": "rename"}}
    config = read_config(
        written(
            tmp_path,
            changed({("sinks",): sinks, ("tables", 0, "sink"): "files", ("tables", 1, "sink"): "lake"}),
        )
    )

    assert isinstance(config.sink_of(config.tables[0]), FileSinkConfig)
    assert isinstance(config.sink_of(config.tables[1]), IcebergSinkConfig)


@pytest.mark.parametrize(
    ("kind", "in_json", "in_toml", "value"),
    [
        ("integer", "42", "42", 42),
        ("integer", '"42"', "42", 42),
        ("decimal", "1.50", "1.50", Decimal("1.50")),
        ("decimal", '"1.50"', "1.50", Decimal("1.50")),
        ("date", '"2024-02-29"', "2024-02-29", date(2024, 2, 29)),
        ("timestamp", '"2024-03-31T02:30:00.123456"', "2024-03-31T02:30:00.123456", None),
        ("timestamptz", '"2024-03-31T02:30:00.123456+02:00"', "2024-03-31T02:30:00.123456+02:00", None),
        ("text", '"a17"', '"a17"', "a17"),
    ],
)
def test_a_watermark_is_the_same_in_both_syntaxes_to_the_microsecond(
    tmp_path: Path, kind: str, in_json: str, in_toml: str, value: Value | None
) -> None:
    small = json.dumps(changed({("tables", 1, "incr_col_type"): kind, ("tables", 1, "initial_watermark"): "HERE"}))
    (tmp_path / "a.json").write_text(small.replace('"HERE"', in_json))
    (tmp_path / "a.toml").write_text(
        '[runtime]\nraw_root = "raw"\nfinal_root = "final"\nintermediate = "mirror"\n'
        '[sources.shop]\ndialect = "postgresql"\nurl = "postgresql://host:5432/shop"\n'
        '[[tables]]\nschema = "public"\ntable = "cities"\nmode = "full"\n'
        '[[tables]]\nschema = "public"\ntable = "orders"\nmode = "scd1"\nincremental_column = "updated_at"\n'
        f'primary_keys = ["id"]\nincr_col_type = "{kind}"\ninitial_watermark = {in_toml}\n'
    )
    half_past = datetime(2024, 3, 31, 2, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    expected = {"timestamp": half_past.replace(tzinfo=None), "timestamptz": half_past}.get(kind, value)

    config = read_config(tmp_path / "a.json")

    assert config == read_config(tmp_path / "a.toml")
    assert config.tables[1].initial_watermark == expected
    assert type(config.tables[1].initial_watermark) is type(expected)
    assert getattr(config.tables[1].initial_watermark, "tzinfo", None) is (UTC if kind == "timestamptz" else None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"runtime": }', "The file is not valid JSON: Expecting value, in line 1, column 13."),
        ("{}}", "The file is not valid JSON: Extra data, in line 1, column 3."),
        ("runtime = [", "The file is not valid TOML: Invalid value (at end of document)."),
        (
            "[runtime]\nraw_root = 1\nraw_root = 2\n",
            "The file is not valid TOML: Cannot overwrite a value (at line 3, column 13).",
        ),
        ('{"runtime": NaN}', TOO_MUCH),
        ('{"a": ' * 100_000, TOO_MUCH),
        (
            '{"a": ' + "1" * 5_000 + "}",
            TOO_MUCH,
        ),
    ],
)
def test_a_file_that_is_not_a_configuration_is_reported_with_its_place(
    tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "conf").write_text(text)

    assert faults_of(tmp_path / "conf") == [("", sentence)]


def test_a_file_that_is_not_text_not_an_object_or_missing_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"a": "\xff"}')
    (tmp_path / "b.json").write_text("[1]")

    assert faults_of(tmp_path / "a.json") == [("", "The file is not UTF-8 text.")]
    assert faults_of(tmp_path / "b.json") == [("", "The file must be an object in curly braces.")]
    with pytest.raises(Misconfigured, match=r"missing\.json cannot be read: No such file"):
        read_config(tmp_path / "missing.json")
    with pytest.raises(Misconfigured, match="cannot be read: Is a directory"):
        read_config(tmp_path)


def test_a_duplicate_key_in_json_is_reported_with_its_place_beside_all_other_problems(tmp_path: Path) -> None:
    text = json.dumps(changed({("tables", 1, "primary_keys"): None}))
    text = text.replace('"table": "orders"', '"table": "x", "table": "orders"').replace('"raw_root"', '"raw_rot"')
    path = tmp_path / "conf.json"
    path.write_text(text)

    assert [place for place, _ in faults_of(path)] == [
        "runtime.raw_root",
        "runtime.raw_rot",
        "tables[1].primary_keys",
        "tables[1].table",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {("sources", "shop", "password"): CANARY},
        {("sources", "shop", "password"): {"env": "X", "value": CANARY}},
        {("sources", "shop", "password"): [CANARY]},
        {("sources", "shop", "url"): f"postgresql://me:{CANARY}@host/shop"},
        {("sources", "shop", "url"): f"postgresql://me:{CANARY}/x@host/shop"},
        {("sources", "shop", "url"): f"postgresql://me:{CANARY}?x@host/shop"},
        {("sources", "shop", "url"): f"postgresql://me:1?{CANARY}@host/shop"},
        {("sources", "shop", "url"): f"postgresql://host/shop?password={CANARY}"},
        {("sources", "shop", "url"): f"mysql://me:{CANARY}@host/shop"},
        {("sources", "shop"): {"dialect": "jdbc", "url": f"jdbc:sqlserver://h:1;user=me;password={CANARY}"}},
        {("sources", "shop"): {"dialect": "jdbc", "url": f"jdbc:oracle:thin:me/{CANARY}@//host:1521/shop"}},
        {("sources", "shop"): {"dialect": "jdbc", "url": f"jdbc:mysql://me:{CANARY}@host/shop"}},
        {("sources", "shop", "properties"): {"sslpassword": CANARY}},
        {("sources", "shop", "properties"): {"sslpassword": [CANARY]}},
        {("sinks",): {"lake": {"type": "iceberg", "properties": {"type": "rest", "credential": CANARY}}}},
        {("sinks",): {"lake": {"type": "iceberg", "properties": {"type": "rest", "s3.secret-access-key": CANARY}}}},
        {("sinks",): {"lake": {"type": CANARY}}},
        {("spark", "conf"): {"spark.hadoop.fs.s3a.secret.key": CANARY}},
        {("runtime", "state"): {"url": f"postgresql://me:{CANARY}@host/db"}},
        {("runtime", "state"): {"url": "postgresql://me@host/db", "password": CANARY}},
        {("runtime", "ledger"): {"url": f"s3://key:{CANARY}@bucket/x"}},
        {("runtime", "max_parallel_tables"): CANARY},
        {("tables", 0, "mode"): CANARY},
        {("tables", 1, "initial_watermark"): CANARY},
        {("tables", 1, "partition_by"): [f"{CANARY}(x)", f"bucket({CANARY})"]},
    ],
)
def test_a_secret_that_stands_in_the_file_is_refused_and_in_no_message(
    tmp_path: Path, changes: dict[tuple[str | int, ...], object]
) -> None:
    path = written(tmp_path, changed(changes))

    with pytest.raises(InvalidConfig) as caught:
        read_config(path)

    error = caught.value
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(error.problems)
    assert CANARY not in shown
    assert error.__context__ is None, "what Pydantic raised holds values"


def test_references_are_all_that_a_configuration_shows_of_a_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(CANARY + "\n")
    properties = {"sslpassword": {"env": "SHOP"}, "sslmode": "require", "prepareThreshold": -1, "ssl": True}
    config = read_config(
        written(
            tmp_path,
            changed(
                {("sources", "shop", "password"): {"file": str(secret)}, ("sources", "shop", "properties"): properties}
            ),
        )
    )

    shop = config.sources["shop"]
    assert shop.password is not None
    assert shop.password.resolve({}) == CANARY
    assert shop.properties == {
        "sslpassword": SecretReference(env="SHOP"),
        "sslmode": "require",
        "prepareThreshold": "-1",
        "ssl": "true",
    }
    assert CANARY not in repr(config) + str(config) + config.model_dump_json()


def test_a_secret_that_is_not_where_it_should_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")

    assert SecretReference(env="A").resolve({"A": ""}) == ""
    with pytest.raises(Misconfigured, match="variable A is not set"):
        SecretReference(env="A").resolve({"B": "b"})
    with pytest.raises(Misconfigured, match=r"cannot be read \(No such file or directory\)"):
        SecretReference(file=str(tmp_path / "none")).resolve({})
    with pytest.raises(Misconfigured, match="it is not text"):
        SecretReference(file=str(tmp_path / "bytes")).resolve({})


def test_a_configuration_cannot_be_changed(tmp_path: Path) -> None:
    config: PipelineConfig = read_config(written(tmp_path, SMALL))

    with pytest.raises(ValueError, match="frozen"):
        config.runtime.raw_root = "elsewhere"  # type: ignore[misc] # what is tried here


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"after_landing": "move"}, "need each other"),
        ({"after_landing": "tag"}, "need each other"),
        ({"tags": {"a": "b"}}, "need each other"),
        ({"after_landing": "tag", "tags": {"a": "b"}, "messages": "gcs"}, "messages are of GCS"),
        ({"after_landing": "tag", "tags": {"a": "b" * 300}}, "256 at most"),
        ({"move_to": "done"}, "need each other"),
        ({"after_landing": "delete", "identity": "uri_and_version"}, "Use uri_and_etag"),
        ({"after_landing": "delete", "messages": "inline"}, "must be keep"),
        ({"identity": "message"}, 'is for messages = "inline"'),
        ({"after_landing": "delete", "queue": {"type": "manifest", "store": "s3://b"}}, "must be keep"),
        ({"identity": "uri_and_version", "queue": {"type": "folder", "url": "s3://b/in"}}, "does not tell versions"),
        ({"identity": "uri_and_version", "queue": {"type": "manifest", "store": "s3://b"}}, "does not tell versions"),
        ({"messages": "location"}, "is for a queue of the type manifest"),
        ({"messages": "inline", "queue": {"type": "manifest", "store": "s3://b"}}, "must be location or accepted"),
        ({"messages": "auto", "queue": {"type": "manifest", "store": "s3://b"}}, "must be location or accepted"),
        ({"messages": "inline", "queue": {"type": "folder", "url": "s3://b/in"}}, "its messages are names of files"),
        ({"messages": "inline", "queue": {"type": "files", "uris": ["s3://b/in"]}}, "its messages are names of files"),
    ],
)
def test_actions_and_identities_that_are_not_possible_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    pipeline = {"queue": {"type": "sqs", "queue": "q"}, "tables": [{"table": "a.b", "format": "csv"}], **changes}

    with pytest.raises(InvalidConfig, match=message):
        read_config(written(tmp_path, {"pipelines": {"events": pipeline}}))


FRAMES = {"table": "a.b", "format": "frames", "kind": "samples"}
ACCEPTED = {"queue": {"type": "manifest", "store": "s3://b"}, "messages": "accepted"}


@pytest.mark.parametrize(
    ("changes", "tables", "message"),
    [
        ({}, [{"table": "a.b", "format": "frames"}], "format frames and kind need each other"),
        ({}, [{"table": "a.b", "format": "csv", "kind": "logs"}], "format frames and kind need each other"),
        ({}, [{**FRAMES, "prefixes": ["s3://b/"]}], "no columns, no filters"),
        ({}, [{**FRAMES, "columns": [{"name": "a", "type": "long"}]}], "no columns, no filters"),
        ({}, [FRAMES, {"table": "a.c", "format": "csv"}], "in all tables"),
        ({}, [{"table": "a.c", "format": "csv"}], "in all tables"),
        ({"messages": "location"}, [FRAMES], "need each other, in all tables"),
        ({"queue": {"type": "sqs", "queue": "q"}}, [FRAMES], "of the type manifest"),
        ({"identity": "uri_and_etag"}, [FRAMES], "identity must be uri"),
        ({}, [FRAMES, {**FRAMES, "table": "a.c"}], "each kind of frames lands in one table"),
    ],
)
def test_frames_land_from_a_queue_of_accepted_batches_by_kind_alone(
    tmp_path: Path, changes: dict[str, Any], tables: list[dict[str, Any]], message: str
) -> None:
    right = {"pipelines": {"p": {**ACCEPTED, "tables": [FRAMES, {**FRAMES, "table": "a.c", "kind": "logs"}]}}}
    assert read_config(written(tmp_path, right)).pipelines["p"].tables[1].kind == "logs"

    with pytest.raises(InvalidConfig, match=message):
        read_config(written(tmp_path, {"pipelines": {"p": {**ACCEPTED, "tables": tables, **changes}}}))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "a"], "differ in more than case"),
        (["city", "City"], "differ in more than case"),
        (["a", "_URI"], "none of _uri"),
        (["_file"], "Iceberg has one of its own"),
    ],
)
def test_columns_that_engines_could_not_tell_apart_are_refused(tmp_path: Path, names: list[str], message: str) -> None:
    columns = [{"name": name, "type": "long"} for name in names]
    tables = [{"table": "a.b", "format": "csv", "columns": columns}]

    with pytest.raises(InvalidConfig, match=message):
        read_config(written(tmp_path, {"pipelines": {"p": {"queue": {"type": "sqs", "queue": "q"}, "tables": tables}}}))
