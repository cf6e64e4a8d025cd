"""Values arrive as they are in every table, by both readers, or stop it. Partitions and columns are as told."""

# ruff: noqa: S608, DTZ001 - tests write their SQL in place; moments without a zone are what this is about

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform

from tests.integration.pipeline_support import MARKS, ONE_SERVER, PLUGINS, Scene

pytest_plugins = PLUGINS
pytestmark = MARKS
READERS = pytest.mark.parametrize("reader", ["arrow", "jdbc"])

MOMENT = datetime(2024, 3, 31, 2, 30, 0, 123456)
"""It does not exist on a clock of central Europe."""

Exact = Mapping[str, tuple[str, str, object]]
"""By column: its declared type, a value in SQL, and what must arrive."""

EXACT: dict[str, Exact] = {
    "postgresql": {
        "at": ("timestamp", "'2024-03-31 02:30:00.123456'", MOMENT),
        "zoned": ("timestamptz", "'2024-03-31 02:30:00.123456-04'", datetime(2024, 3, 31, 6, 30, 0, 123456, UTC)),
        "day": ("date", "'0001-01-01'", date(1, 1, 1)),
        "wide": ("numeric(50,10)", "1.5", Decimal("1.5000000000")),
        "unbounded": ("numeric", "123456789012345678901234567890", Decimal(123456789012345678901234567890)),
        "endless": ("numeric", f"0.{'3' * 60}", f"0.{'3' * 60}"),
        "largest": ("bigint", "9223372036854775807", 2**63 - 1),
        "one": ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        "yes": ("boolean", "true", True),
        "bytes": ("bytea", "'\\x00ff'", b"\x00\xff"),
        "clock": ("time", "'24:00:00'", "24:00:00"),
        "half": ("double precision", "0.30000000000000004", 0.30000000000000004),
        "nothing": ("integer", "NULL", None),
    },
    "mysql": {
        "at": ("datetime(6)", "'2024-03-31 02:30:00.123456'", MOMENT),
        "zoned": ("timestamp(6)", "'2024-03-31 02:30:00.123456'", datetime(2024, 3, 31, 2, 30, 0, 123456, UTC)),
        "day": ("date", "'1000-01-01'", date(1000, 1, 1)),
        "wide": ("decimal(50,10)", "1.5", Decimal("1.5000000000")),
        "unbounded": ("decimal(65,0)", "123456789012345678901234567890", Decimal(123456789012345678901234567890)),
        "endless": ("decimal(65,30)", "1.5", f"1.5{'0' * 29}"),
        "largest": ("bigint unsigned", "18446744073709551615", Decimal(2**64 - 1)),
        "one": ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        "yes": ("bit(1)", "b'1'", True),
        "bytes": ("varbinary(2)", "x'00ff'", b"\x00\xff"),
        "clock": ("time(6)", "'-838:59:59'", "-838:59:59.000000"),
        "half": ("double", "0.30000000000000004", 0.30000000000000004),
        "zero": ("date", "'0000-00-00'", "0000-00-00"),
        "nothing": ("int", "NULL", None),
    },
}
AS_DECIMAL = {"wide": "decimal(38, 10)", "unbounded": "decimal(38, 0)"}
AS_TEXT = ["endless", "clock", "zero"]

REFUSED = {
    "postgresql": {"wide": "numeric(50,10)", "unbounded": "numeric", "clock": "time", "span": "interval"},
    "mysql": {"wide": "decimal(50,10)", "clock": "time", "flags": "bit(5)"},
}
"""Columns that are refused before a row is read."""

BAD = {
    "postgresql": [
        ("numeric(10,2)", "'NaN'", None),
        ("numeric", "1.23456", "decimal(38, 2)"),
        ("numeric(50,10)", f"'{'9' * 40}'", "decimal(38, 10)"),
        ("date", "'infinity'", None),
        ("timestamp", "'-infinity'", None),
        ("timestamptz", "'infinity'", None),
        ("date", "'0044-03-15 BC'", None),
    ],
    "mysql": [
        ("date", "'0000-00-00'", None),
        ("date", "'2024-02-00'", None),
        ("datetime(6)", "'0000-00-00 00:00:00'", None),
        ("timestamp", "'0000-00-00 00:00:00'", None),
        ("decimal(50,10)", "9" * 40, "decimal(38, 10)"),
        ("decimal(65,5)", "1.23456", "decimal(38, 2)"),
    ],
}
"""Values that are refused: the column's type, the value in SQL, and as what decimal it is asked for."""


@pytest.fixture(autouse=True)
def lenient(request: pytest.FixtureRequest) -> None:
    """Let MariaDB take zero dates."""
    if "scene" in request.fixturenames and request.getfixturevalue("scene").database.kind == "mysql":
        scene: Scene = request.getfixturevalue("scene")
        scene.sql("SET sql_mode = ''", "SET time_zone = '+00:00'")


def quoted(scene: Scene, name: str) -> str:
    return scene.database.source.quote(name)


def one_row(scene: Scene, columns: Exact) -> str:
    """A table with one row of these values."""
    name = scene.name()
    declared = ", ".join(f"{quoted(scene, column)} {kind} NULL" for column, (kind, _, _) in columns.items())
    scene.sql(
        f"CREATE TABLE {name} (id int PRIMARY KEY, {declared})",
        f"INSERT INTO {name} VALUES (1, {', '.join(value for _, value, _ in columns.values())})",
    )
    return name


def nothing_is_made(scene: Scene, name: str) -> bool:
    return not any(scene.pipeline.exists(f"{root}.{name}") for root in ("raw", "final", "mirror"))


@READERS
def test_every_value_arrives_as_it_is_in_raw_final_and_mirror(scene: Scene, reader: str) -> None:
    columns = EXACT[scene.database.kind]
    name = one_row(scene, columns)
    read: dict[str, Any] = {"table": name, "reader": reader, "as_text": [n for n in AS_TEXT if n in columns]}
    read["as_decimal"] = AS_DECIMAL

    ran = scene.run(
        {**read, "mode": "full", "name": f"{name}_full"},
        {**read, "mode": "scd1", "name": f"{name}_scd1", "incremental_column": "at", "primary_keys": ["id"]},
    )

    assert ran.errors == {}
    expected = {"id": 1, **{column: value for column, (_, _, value) in columns.items()}}
    for table in (f"raw.{name}_full", f"final.{name}_full", f"raw.{name}_scd1", f"mirror.{name}_scd1"):
        assert scene.rows(table).to_pylist() == [expected], table


@READERS
def test_a_view_of_raw_has_the_same_values(scene: Scene, reader: str) -> None:
    name = one_row(scene, {"at": EXACT[scene.database.kind]["at"], "wide": EXACT[scene.database.kind]["wide"]})

    ran = scene.run(
        {"table": name, "mode": "full", "finalize": "view", "reader": reader, "as_decimal": {"wide": "decimal(38, 10)"}}
    )

    assert ran.errors == {}
    [row] = scene.spark.sql(
        f"SELECT CAST(at AS string) AS at, CAST(wide AS string) AS w FROM lake.final.{name}"
    ).collect()
    assert (row["at"], row["w"]) == ("2024-03-31 02:30:00.123456", "1.5000000000")


def test_columns_that_no_type_holds_are_all_named_and_nothing_is_made(scene: Scene) -> None:
    columns = REFUSED[scene.database.kind]
    name = one_row(scene, {column: (kind, "NULL", None) for column, kind in columns.items()})

    ran = scene.run({"table": name, "mode": "full"})

    assert ran.exit_code == 1
    assert all(
        f"Column '{column}' of type {kind.partition('(')[0]}" in ran.errors[name] for column, kind in columns.items()
    )
    assert "as_text" in ran.errors[name]
    assert nothing_is_made(scene, name)


@READERS
def test_a_value_that_no_type_holds_stops_its_table_and_names_the_column(scene: Scene, reader: str) -> None:
    bad = BAD[scene.database.kind]
    tables = list[dict[str, Any]]()
    for kind, value, decimal in bad:
        name = one_row(scene, {"odd": (kind, value, None)})
        more = {"as_decimal": {"odd": decimal}} if decimal else {}
        tables.append({"table": name, "mode": "full", "reader": reader, **more})

    ran = scene.run(*tables)

    assert ran.exit_code == 1
    assert len(ran.errors) == len(bad)
    for (kind, value, _), table in zip(bad, tables, strict=True):
        said = ran.errors[table["table"]]
        assert "column 'odd'" in said, (kind, value, said)
        assert "\n" not in said
        assert "Traceback" not in said
        assert scene.pipeline.snapshots(f"raw.{table['table']}") == []
        assert scene.pipeline.snapshots(f"final.{table['table']}") == []


@READERS
def test_odd_values_are_carried_as_text_where_the_configuration_says_so(scene: Scene, reader: str) -> None:
    given = {
        "postgresql": {"n": ("numeric(10,2)", "'NaN'", "NaN"), "d": ("date", "'infinity'", "infinity")},
        "mysql": {"n": ("decimal(65,5)", "1.5", "1.50000"), "d": ("date", "'2024-02-00'", "2024-02-00")},
    }[scene.database.kind]
    name = one_row(scene, given)

    ran = scene.run({"table": name, "mode": "full", "reader": reader, "as_text": ["n", "d"]})

    assert ran.errors == {}
    [row] = scene.rows(f"final.{name}").to_pylist()
    assert row == {"id": 1, **{column: expected for column, (_, _, expected) in given.items()}}


def in_both_modes(name: str, **more: object) -> list[dict[str, object]]:
    """A table of the source as a final table and as a mirror."""
    keys = {"table": name, "incremental_column": "id", "primary_keys": ["id"], **more}
    return [{**keys, "name": f"{name}_{mode}", "mode": mode} for mode in ("full", "scd1")]


@ONE_SERVER
def test_final_and_mirror_are_partitioned_as_the_configuration_says(scene: Scene) -> None:
    name = scene.name()
    moment = {"postgresql": "timestamp", "mysql": "datetime(6)"}[scene.database.kind]
    scene.sql(
        f"CREATE TABLE {name} (id int PRIMARY KEY, kind varchar(10), code varchar(10), at {moment})",
        f"INSERT INTO {name} VALUES (1, 'a', 'xyz', '2024-01-01 10:00'), (2, 'b', 'xyw', '2024-01-02 10:00'), "
        "(3, NULL, NULL, '2024-01-02 11:00')",
    )

    ran = scene.run(
        *in_both_modes(name, partition_by=["kind", "days(at)", "bucket(4, id)", "truncate(2, code)"]),
    )

    assert ran.errors == {}
    for out in (f"final.{name}_full", f"mirror.{name}_scd1"):
        spec, parts = partitions_of(scene, out)
        assert spec == [
            ("kind", IdentityTransform()),
            ("at", DayTransform()),
            ("id", BucketTransform(4)),
            ("code", TruncateTransform(2)),
        ]
        assert {(kind, day, code) for kind, day, _, code in parts} == {
            ("a", date(2024, 1, 1), "xy"),
            ("b", date(2024, 1, 2), "xy"),
            (None, date(2024, 1, 2), None),
        }
        assert sorted(scene.rows(out)["id"].to_pylist()) == [1, 2, 3]


def partitions_of(scene: Scene, name: str) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """A table's partition spec, and the partitions that have rows."""
    catalog = scene.pipeline.catalog()
    try:
        table = catalog.load_table(name)
        columns = table.schema()
        spec = [(columns.find_column_name(field.source_id), field.transform) for field in table.spec().fields]
        return spec, [tuple(part.values()) for part in table.inspect.partitions()["partition"].to_pylist()]
    finally:
        catalog.close()


@pytest.mark.parametrize(
    ("by", "said"),
    [("nowhere", "'nowhere': it has no such column"), ("days(kind)", "day of 'kind', a string")],
)
@ONE_SERVER
def test_a_partition_that_cannot_be_is_one_sentence_and_nothing_is_made(scene: Scene, by: str, said: str) -> None:
    name = one_row(scene, {"kind": ("varchar(10)", "'a'", "a")})

    ran = scene.run(*in_both_modes(name, partition_by=[by]))

    assert (ran.exit_code, len(ran.errors)) == (1, 2)
    for table, error in ran.errors.items():
        assert said in error
        assert nothing_is_made(scene, str(table))


@ONE_SERVER
def test_a_table_that_is_partitioned_otherwise_than_the_configuration_says_is_refused(scene: Scene) -> None:
    name = one_row(scene, {"kind": ("varchar(10)", "'a'", "a")})
    assert scene.run(*in_both_modes(name, partition_by=["bucket(4, id)"])).errors == {}

    same = scene.run(*in_both_modes(name, partition_by=["bucket(4, id)"]))
    silent = scene.run(*in_both_modes(name))
    other = scene.run(*in_both_modes(name, partition_by=["kind"]), reload=True)

    assert (same.errors, silent.errors) == ({}, {})
    assert len(other.errors) == 2
    for error in other.errors.values():
        assert "is partitioned by bucket[4](id), and partition_by says kind. Change the table with" in error


Change = Callable[[str], list[str]]
CHANGES: dict[str, tuple[Change, str]] = {
    "new": (lambda name: [f"ALTER TABLE {name} ADD COLUMN extra int"], "the source has a new column 'extra'"),
    "dropped": (
        lambda name: [f"ALTER TABLE {name} DROP COLUMN word"],
        "the source has no column 'word' of type string any more",
    ),
    "changed": (
        lambda name: [f"ALTER TABLE {name} DROP COLUMN word", f"ALTER TABLE {name} ADD COLUMN word date"],
        "column 'word' was string and is date (date32[day]) now",
    ),
    "widened": (
        lambda name: [f"ALTER TABLE {name} DROP COLUMN size", f"ALTER TABLE {name} ADD COLUMN size bigint"],
        "column 'size' was int32 and is bigint (int64) now",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@ONE_SERVER
def test_a_source_that_has_changed_is_refused_by_name_before_anything_is_written(scene: Scene, change: str) -> None:
    name = one_row(scene, {"word": ("varchar(10)", "'a'", "a"), "size": ("int", "1", 1)})
    tables = in_both_modes(name, schema_policy={"new": "freeze", "widened": "freeze"})
    assert scene.run(*tables).errors == {}

    def standing() -> list[object]:
        kept = [f"raw.{name}_full", f"final.{name}_full", f"raw.{name}_scd1", f"mirror.{name}_scd1"]
        return [
            (scene.pipeline.snapshots(each), scene.rows(each).schema, scene.rows(each).to_pylist()) for each in kept
        ]

    before = standing()
    alter, said = CHANGES[change]
    scene.sql(f"INSERT INTO {name} VALUES (2, 'b', 2)", *alter(name))

    ran = scene.run(*tables, reload=True)

    assert (ran.exit_code, len(ran.errors)) == (1, 2)
    assert all(said in error for error in ran.errors.values())
    assert standing() == before
