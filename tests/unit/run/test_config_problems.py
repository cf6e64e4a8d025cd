"""Every problem of a configuration is reported with its place and how to fix it."""

from pathlib import Path
from typing import Any

import pytest

from lakehead.run.config.config_file import read_config
from lakehead.run.config.problems import InvalidConfig
from tests.unit.run.config_files import changed, written

REST = {"type": "rest", "uri": "http://host"}

FILES = {"files": {"type": "files", "root": "/lake"}}
MYSQL = ("sources", "shop")
MYSQL_SOURCE = {"dialect": "mysql", "url": "mysql://host/shop"}
CLIENT_CERTIFICATE = {
    "ca": "ca.pem",
    "certificate": "us.pem",
    "key": "us.key",
    "key_store": "us.p12",
    "key_store_password": {"env": "STORE"},
}
PROBLEMS: list[tuple[dict[tuple[str | int, ...], Any], str, str]] = [
    # keys
    ({("runtme",): {}}, "runtme", "is unknown. Did you mean runtime?"),
    ({("raw_root",): "x"}, "raw_root", "is unknown. Did you mean runtime.raw_root?"),
    ({("runtime", "zzz"): 1}, "runtime.zzz", "is unknown. Known keys are pipeline, raw_root"),
    ({("runtime", "scd1_slicing"): {"targetrows": 1}}, "runtime.scd1_slicing.targetrows", "Did you mean target_rows?"),
    ({("tables", 1, "primary_key"): ["id"]}, "tables[1].primary_key", "Did you mean primary_keys?"),
    ({("tables", 1, "schema_name"): "x"}, "tables[1].schema_name", "is unknown."),
    ({("sources", "my shop"): {"dialct": "x"}}, 'sources["my shop"].dialct', "Did you mean dialect?"),
    ({("sinks",): {"lake": {"type": "iceberg", "catlog": 1}}}, "sinks.lake.catlog", "Did you mean catalog?"),
    ({("tables", 0, "table"): None}, "tables[0].table", "is missing. The name of the table in the source."),
    ({("tables", 0, "mode"): None}, "tables[0].mode", "is missing. full: read all rows once per load date"),
    ({("runtime",): None}, "runtime", "is missing."),
    ({("sources",): None}, "sources", "is missing."),
    ({("tables",): None}, "tables", "is missing."),
    ({("tables",): []}, "tables", "must not be empty."),
    ({("sources",): {}}, "sources", "must not be empty."),
    ({("sinks",): {}}, "sinks", "must not be empty."),
    # values
    ({("tables",): {}}, "tables", "must be a list."),
    ({("tables", 0): 5}, "tables[0]", "must be an object with keys."),
    ({("runtime",): "x"}, "runtime", "must be an object with keys."),
    ({("sources",): [1]}, "sources", "must be an object with keys."),
    ({("runtime", "max_parallel_tables"): "4"}, "runtime.max_parallel_tables", "must be an integer."),
    ({("runtime", "max_parallel_tables"): True}, "runtime.max_parallel_tables", "must be an integer."),
    ({("runtime", "max_parallel_tables"): 1.5}, "runtime.max_parallel_tables", "must be an integer."),
    ({("runtime", "max_parallel_tables"): 0}, "runtime.max_parallel_tables", "must be at least 1."),
    ({("runtime", "max_parallel_tables"): 10**9}, "runtime.max_parallel_tables", "must be at most 1000."),
    ({("runtime", "finalize_full_refresh"): "yes"}, "runtime.finalize_full_refresh", "must be true or false."),
    ({("runtime", "raw_root"): 5}, "runtime.raw_root", "must be a string."),
    ({("runtime", "raw_root"): ""}, "runtime.raw_root", "must not be empty."),
    ({("runtime", "staging"): {"ttl_hours": 0}}, "runtime.staging.ttl_hours", "must be at least 1."),
    ({("runtime", "logging"): {"json": "x"}}, "runtime.logging.json", "must be true or false."),
    ({("runtime", "logging"): {"level": "inof"}}, "runtime.logging.level", "Did you mean 'info'?"),
    (
        {("runtime", "scd1_slicing"): {"max_partitions": 10**6}},
        "runtime.scd1_slicing.max_partitions",
        "must be at most 10000.",
    ),
    ({("runtime", "scd1_slicing"): {"by": "duration"}}, "runtime.scd1_slicing.slice_seconds", "is missing: with"),
    (
        {("metadata",): {"guardrails": {"max_precision": 50}}},
        "metadata.guardrails.max_precision",
        "must be at most 38.",
    ),
    ({("spark", "driver_memory"): "2 GB"}, "spark.driver_memory", "has an invalid format. The heap size"),
    ({("spark", "lakehouse"): 5}, "spark.lakehouse", "must be a path (a string)."),
    ({("tables", 0, "mode"): "ful"}, "tables[0].mode", "must be 'full', 'scd1' or 'append'. Did you mean 'full'?"),
    ({("tables", 0, "mode"): "scd2"}, "tables[0].mode", "must be 'full', 'scd1' or 'append'."),
    ({("tables", 1, "incr_col_type"): "timestmp"}, "tables[1].incr_col_type", "Did you mean 'timestamp'?"),
    ({("tables", 1, "primary_keys"): "id"}, "tables[1].primary_keys", "must be a list."),
    ({("tables", 1, "primary_keys"): [1]}, "tables[1].primary_keys[0]", "must be a string."),
    ({("tables", 1, "primary_keys"): ["id", "id"]}, "tables[1].primary_keys", "must not contain duplicates."),
    ({("tables", 1, "lag_seconds"): -1}, "tables[1].lag_seconds", "must be at least 0."),
    ({("tables", 1, "name"): "a b"}, "tables[1].name", "has an invalid format. The name of the table"),
    ({("tables", 1, "as_decimal"): {"x": "decimal(39, 1)"}}, "tables[1].as_decimal.x", "at most 38 digits"),
    ({("tables", 1, "as_decimal"): {"a b": "numeric"}}, 'tables[1].as_decimal["a b"]', "at most 38 digits"),
    (
        {("tables", 1, "reconciliation"): {"sample_keys": -1}},
        "tables[1].reconciliation.sample_keys",
        "must be at least 0.",
    ),
    # watermarks
    (
        {("tables", 1, "initial_watermark"): "yesterday"},
        "tables[1].initial_watermark",
        "a timestamp without a time zone",
    ),
    ({("tables", 1, "initial_watermark"): 7}, "tables[1].initial_watermark", "a timestamp without a time zone"),
    (
        {("tables", 1, "initial_watermark"): "2024-01-01T00:00:00Z"},
        "tables[1].initial_watermark",
        "a timestamp without a time zone",
    ),
    (
        {("tables", 1, "initial_watermark"): "2024-01-01T00:00:00.1234567"},
        "tables[1].initial_watermark",
        "a timestamp without a time zone",
    ),
    (
        {("tables", 1, "incr_col_type"): "timestamptz", ("tables", 1, "initial_watermark"): "2024-01-01"},
        "tables[1].initial_watermark",
        "must be a timestamp with a time zone",
    ),
    (
        {("tables", 1, "incr_col_type"): "integer", ("tables", 1, "initial_watermark"): True},
        "tables[1].initial_watermark",
        "must be an integer",
    ),
    (
        {("tables", 1, "incr_col_type"): "decimal", ("tables", 1, "initial_watermark"): "NaN"},
        "tables[1].initial_watermark",
        "must be a number",
    ),
    (
        {("tables", 1, "incr_col_type"): None, ("tables", 1, "initial_watermark"): 7},
        "tables[1].initial_watermark",
        "needs incr_col_type",
    ),
    (
        {("tables", 1, "incr_col_type"): "integer", ("tables", 1, "lag_seconds"): 5},
        "tables[1].lag_seconds",
        "must be 0: a lag does not apply to a column of type integer.",
    ),
    # TLS
    (
        {("sources", "shop", "tls"): {"ca": "ca.pem"}},
        "sources.shop.tls",
        "is not supported by the dialect postgresql. Remove it, and set TLS",
    ),
    (
        {MYSQL: MYSQL_SOURCE, ("sources", "shop", "tls"): {"verify": "ca"}},
        "sources.shop.tls.ca",
        "is missing",
    ),
    (
        {MYSQL: MYSQL_SOURCE, ("sources", "shop", "tls"): {"ca": "ca.pem", "verify": "none"}},
        "sources.shop.tls.verify",
        "must be 'identity' or 'ca'.",
    ),
    (
        {MYSQL: MYSQL_SOURCE, ("sources", "shop", "tls"): {"ca": "ca.pem", "certificate": "us.pem", "key": "us.key"}},
        "sources.shop.tls",
        "lacks key_store: a client certificate needs certificate, key, key_store, key_store_password.",
    ),
    (
        {MYSQL: MYSQL_SOURCE, ("sources", "shop", "tls"): CLIENT_CERTIFICATE, ("tables", 0, "reader"): "arrow"},
        "tables[0].reader",
        "must be jdbc or auto: a source with a client certificate can only be read by JDBC.",
    ),
    # partitions
    ({("tables", 1, "partition_by"): ["dys(at)"]}, "tables[1].partition_by[0]", "Did you mean days?"),
    ({("tables", 1, "partition_by"): ["a", "bucket(id)"]}, "tables[1].partition_by[1]", "bucket(16, column)"),
    ({("tables", 1, "partition_by"): ["truncate(0, id)"]}, "tables[1].partition_by[0]", "truncate(16, column)"),
    ({("tables", 1, "partition_by"): ["days()"]}, "tables[1].partition_by[0]", "must name a column: days(column)."),
    ({("tables", 1, "partition_by"): [5]}, "tables[1].partition_by[0]", "must be a string: a column, or a transform"),
    ({("tables", 1, "partition_by"): ["days(a)", "day(a)"]}, "tables[1].partition_by", "must not contain duplicates."),
    # what a mode needs
    ({("tables", 1, "incremental_column"): None}, "tables[1].incremental_column", "is missing: mode scd1"),
    ({("tables", 1, "primary_keys"): None}, "tables[1].primary_keys", "is missing: mode scd1"),
    ({("tables", 1, "primary_keys"): []}, "tables[1].primary_keys", "is missing: mode scd1"),
    ({("tables", 0, "mode"): "append"}, "tables[0].incremental_column", "is missing: mode append"),
    (
        {("tables", 1, "mode"): "append", ("tables", 1, "null_watermarks"): "include"},
        "tables[1].null_watermarks",
        "every run would add such rows again",
    ),
    (
        {("tables", 1, "mode"): "append", ("tables", 1, "null_keys"): "exclude"},
        "tables[1].null_keys",
        "readers see every raw row",
    ),
    ({("runtime", "raw_root"): None}, "runtime.raw_root", "is missing. Where raw rows land."),
    ({("runtime", "final_root"): None}, "runtime.final_root", "set finalize_full_refresh to false"),
    ({("runtime", "intermediate"): None}, "runtime.intermediate", "is missing: tables of mode scd1 are merged there."),
    ({("runtime", "final_root"): "raw/"}, "runtime.final_root", "is the namespace 'raw', the same as raw_root."),
    (
        {("runtime", "raw_root"): "s3://a/lake", ("runtime", "final_root"): "s3://b/Lake/"},
        "runtime.final_root",
        "is the namespace 'Lake', the same as raw_root",
    ),
    (
        {("runtime", "final_root"): "raw.public", ("tables", 1, "name"): "cities"},
        "tables[1]",
        "would be raw.public.cities below final_root, the same as tables[0] below raw_root",
    ),
    # names and references
    ({("tables", 1, "table"): "Cities"}, "tables[1]", "is named public.Cities, the same as tables[0]."),
    ({("tables", 1, "name"): "public.cities"}, "tables[1]", "is named public.cities, the same as tables[0]."),
    ({("tables", 1, "table"): "x; drop table y"}, "tables[1]", "Set name: words of letters"),
    ({("sinks",): FILES, ("tables", 0, "finalize"): "view"}, "tables[0].finalize", "a file sink has no views"),
    (
        {("sinks",): FILES, ("tables", 1, "partition_by"): ["id"]},
        "tables[1].partition_by",
        "not supported by a file sink",
    ),
    ({("sinks",): FILES, ("tables", 1, "merge_filters"): ["id > 1"]}, "tables[1].merge_filters", "a file sink"),
    ({("sinks",): FILES, ("runtime", "raw_root"): "s3://b/raw"}, "runtime.raw_root", "must be a folder name"),
    (
        {
            ("sources", "shop", "dialect"): "mysql",
            ("sources", "shop", "url"): "mysql://h/shop",
            ("sources", "shop", "properties"): {"a": "b"},
        },
        "sources.shop.properties",
        "is not supported by the dialect mysql",
    ),
    ({("tables", 1, "source"): "shp"}, "tables[1].source", "is not one of sources. There are shop."),
    ({("tables", 1, "sink"): "files"}, "tables[1].sink", "is not one of sinks. There are lake."),
    (
        {("sources", "b"): {"dialect": "sqlite", "url": "sqlite:///b"}},
        "tables[0].source",
        "there are several, shop, b.",
    ),
    # sources and sinks
    ({("sources", "shop", "dialect"): "postgres"}, "sources.shop.dialect", "Did you mean 'postgresql'?"),
    ({("sources", "shop", "url"): "mysql://host/shop"}, "sources.shop.url", "postgresql://user@host:port/database"),
    ({("sources", "shop", "password"): {"env": ""}}, "sources.shop.password", 'write {"env": "NAME"}'),
    ({("sources", "shop", "password"): {"env": "A", "file": "b"}}, "sources.shop.password", 'write {"env": "NAME"}'),
    (
        {("sources", "shop", "url"): "postgresql://me@host/shop", ("sources", "shop", "user"): "me"},
        "sources.shop.user",
        "is given twice: here and in the URL.",
    ),
    ({("sources", "shop", "properties"): {"a": [1]}}, "sources.shop.properties.a", "must be a string, an integer"),
    ({("sinks",): {"lake": {}}}, "sinks.lake", "needs a type: iceberg or files."),
    ({("sinks",): {"lake": {"type": "hudi"}}}, "sinks.lake", "must have one of these types: 'iceberg', 'files'."),
    ({("sinks",): {"lake": {"type": "files"}}}, "sinks.lake.root", "is missing. The root directory"),
    (
        {
            ("sinks",): {"lake": {"type": "iceberg", "properties": {"type": "hadoop"}}},
            ("runtime", "ledger", "url"): "s3://b",
        },
        "sinks.lake.properties.type",
        "must be one of jdbc, rest, hive, glue.",
    ),
    ({("sinks",): {"lake": {"type": "iceberg", "properties": REST}}}, "runtime.ledger.url", "is missing"),
    (
        {("sinks",): {"lake": {"type": "iceberg", "catalog": "my lake"}}},
        "sinks.lake.catalog",
        "has an invalid format.",
    ),
    ({("runtime", "state"): {"url": "oracle://host"}}, "runtime.state.url", "must be sqlite:///path/to/file"),
    ({("runtime", "ledger"): {"url": "/folder"}}, "runtime.ledger.url", "must be file:///folder"),
    ({("metadata",): {}, ("runtime", "metadata"): {}}, "runtime.metadata", "is given twice"),
]


@pytest.mark.parametrize(("changes", "place", "message"), PROBLEMS, ids=[f"{f[1]}-{n}" for n, f in enumerate(PROBLEMS)])
def test_a_problem_is_reported_with_its_place_and_how_to_fix_it(
    tmp_path: Path, changes: dict[tuple[str | int, ...], Any], place: str, message: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        read_config(written(tmp_path, changed(changes)))

    reported = {problem.path: problem.message for problem in caught.value.problems}
    assert place in reported, reported
    assert message in reported[place]


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    plain = {"schema": "s", "mode": "full"}
    tables: list[dict[str, Any]] = [{**plain, "table": f"t{number}"} for number in range(12)]
    tables[2] |= {"mode": "scd1", "lag": 5}
    tables[10] |= {"partition_by": ["dayz(x)"], "source": "nowhere"}
    tables[11] |= {"table": "t0"}
    path = written(tmp_path, changed({("tables",): tables, ("runtime", "intermediate"): None}))

    with pytest.raises(InvalidConfig) as caught:
        read_config(path)

    assert [problem.path for problem in caught.value.problems] == [
        "runtime.intermediate",
        "tables[2].incremental_column",
        "tables[2].lag",
        "tables[2].primary_keys",
        "tables[10].partition_by[0]",
        "tables[10].source",
        "tables[11]",
    ]
    assert str(caught.value).splitlines()[0] == f"{path} is invalid: 7 problems."
    assert len(str(caught.value).splitlines()) == 8


@pytest.mark.parametrize(
    "changes",
    [
        {("runtime", "final_root"): None, ("runtime", "finalize_full_refresh"): False},
        {("runtime", "final_root"): None, ("tables", 0): {"table": "x", "mode": "append", "incremental_column": "id"}},
        {("tables", 1, "partition_by"): ["identity(f(x))", "a b", "Truncate( 4 , dot.ted)", "hours(at)"]},
        {
            ("sinks",): {"l": {"type": "iceberg", "properties": {**REST, "token-refresh-enabled": "true"}}},
            ("runtime", "ledger", "url"): "file:///ledger",
        },
        {("sources", "shop"): {"dialect": "sqlite", "url": "sqlite:///with@/a:b.db"}},
        {("sources", "shop"): {"dialect": "jdbc", "url": "jdbc:oracle:thin:@//host:1521/shop", "user": "me"}},
        {("sources", "shop"): {"dialect": "jdbc", "url": "jdbc:sqlserver://h\\i:1433;encrypt=true", "user": "me"}},
        {("sources", "shop", "url"): "postgresql://me@[::1]:5432,other:5433/shop?sslmode=require"},
        {("$schema",): "lakehead.schema.json"},
        {("runtime", "notifications"): {"webhook": {"env": "HOOK"}}, ("runtime", "metadata_gateway"): {}},
    ],
)
def test_a_valid_configuration_is_accepted(tmp_path: Path, changes: dict[tuple[str | int, ...], Any]) -> None:
    read_config(written(tmp_path, changed(changes)))
