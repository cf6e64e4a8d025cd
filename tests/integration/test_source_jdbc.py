"""Spark's JDBC reader gives the rows and types of the Arrow reader, from every kind of source."""

# ruff: noqa: S608 - tests write their SQL in place, about tables of their own

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from urllib.parse import quote

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.run.environment import spark_settings
from lakehead.source.dialects import open_source, parse_source_url, read_part
from lakehead.source.errors import NotExact
from lakehead.source.filters import parse_filter
from lakehead.source.jdbc_reader import frame
from lakehead.source.jdbc_source import JdbcSource
from lakehead.source.port import EVERY_REFUSED, Overrides, Query, TableName
from tests.servers.postgres import PASSWORD, USER, Postgres
from tests.support.source_support import AS_TEXT, Database, all_rows, careless, wilful
from tests.support.source_values import MYSQL, MYSQL_REFUSED, POSTGRESQL, POSTGRESQL_REFUSED, SQLITE, SQLITE_REFUSED
from tests.support.spark import shared_session

pytest_plugins = ["tests.support.state_fixtures", "tests.support.source_fixtures"]
pytestmark = [
    pytest.mark.timeout(300),  # the very first start fetches jars and prepares quicker ones
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # PySpark leaves them to the collector
]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    return shared_session(replace(spark_settings(), lakehouse=tmp_path_factory.mktemp("lakehouse")))


def every_type(database: Database) -> str:
    """A table with a column for each type that the server has, its edges below its NULLs, and names hard to spell."""
    if database.kind == "postgresql":
        database.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        database.run("CREATE TYPE pair AS (a integer, b text)")
        database.run("CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE > 0)")
        database.run("CREATE DOMAIN dear_price AS price CHECK (VALUE > 1)")
    exact, text = {
        "postgresql": (POSTGRESQL, POSTGRESQL_REFUSED),
        "mysql": (MYSQL, {declared: value for declared, (value, _) in MYSQL_REFUSED.items()}),
        "sqlite": (SQLITE, {declared: value for declared, (value, _) in SQLITE_REFUSED.items()}),
    }[database.kind]
    columns = [(declared, list(values)) for declared, _, values in exact]
    columns += [(declared, [value]) for declared, value in text.items()]
    name, quote = database.name(), database.source.quote
    said = ", ".join(f"{quote(f'c `{number}`.')} {declared} NULL" for number, (declared, _) in enumerate(columns))
    database.run(f"CREATE TABLE {name} (id integer, {said})")
    for row in range(-1, max(len(values) for _, values in columns)):
        values = [given[row] if 0 <= row < len(given) else "NULL" for _, given in columns]
        database.run(f"INSERT INTO {name} VALUES ({row}, {', '.join(values)})")
    return name


def test_every_type_is_the_same_by_jdbc_and_by_arrow(database: Database, spark: SparkSession) -> None:
    table = database.table(every_type(database), Overrides(as_text=frozenset({EVERY_REFUSED})))
    query = Query(table=table)
    by_arrow = all_rows(database, query).sort_by("id")

    with database.source.snapshot() as snapshot:
        by_jdbc = frame(spark, database.source.parts(query, 1, snapshot)).toArrow().sort_by("id")

    assert by_jdbc.schema.names == by_arrow.schema.names
    assert [str(kind) for kind in by_jdbc.schema.types] == [str(kind) for kind in by_arrow.schema.types]
    for name in by_arrow.schema.names:
        assert str(by_jdbc[name].to_pylist()) == str(by_arrow[name].to_pylist()), table.column(name).declared


def test_parts_are_read_as_arrow_in_tasks(database: Database, spark: SparkSession) -> None:
    name = database.name()
    database.numbers(name, 5_000)
    with database.source.snapshot() as snapshot:
        parts = database.source.parts(Query(table=database.table(name)), 4, snapshot)

        counted = (
            spark.sparkContext.parallelize(parts, 2)
            .map(lambda part: sum(b.num_rows for b in read_part(part)))
            .collect()
        )

    assert len(counted) == 4
    assert sum(counted) == 5_000


def test_parts_by_jdbc_see_one_snapshot(postgresql: Database, spark: SparkSession) -> None:
    name = postgresql.name()
    postgresql.numbers(name, 5_000, v="0")

    with postgresql.source.snapshot() as snapshot:
        parts = postgresql.source.parts(Query(table=postgresql.table(name)), 4, snapshot)
        rows = frame(spark, parts)
        postgresql.run(f"UPDATE {name} SET v = 1")
        postgresql.run(f"DELETE FROM {name} WHERE id % 2 = 0")
        read: pa.Table = rows.toArrow()

    assert rows.rdd.getNumPartitions() == 4
    assert sorted(read["id"].to_pylist()) == list(range(1, 5_001))
    assert set(read["v"].to_pylist()) == {0}


def test_timeouts_of_a_database_do_not_end_a_read_by_jdbc(postgres: Postgres, spark: SparkSession) -> None:
    url = postgres.database()
    with postgres.connect(url.rpartition("/")[2]) as connection:
        connection.execute("CREATE VIEW slow AS SELECT id, pg_sleep(0.75) IS NULL AS late FROM (VALUES (1), (2)) v(id)")
        connection.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET statement_timeout = '1s'".encode())
    source = open_source(parse_source_url(url))
    try:
        with source.snapshot() as snapshot:
            parts = source.parts(Query(table=source.describe_table(TableName("slow"))), 1, snapshot)

            assert frame(spark, parts).count() == 2
    finally:
        source.close()


@pytest.mark.parametrize("name", ["odd%41", "odd?ssl=true", "o d/d"])
def test_the_database_that_is_named_is_read_by_jdbc_however_its_name_is_spelled(
    name: str, postgres: Postgres, spark: SparkSession
) -> None:
    postgres.database(name)
    with postgres.connect(name) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS id")
    url = f"postgresql://127.0.0.1:{postgres.port}/{quote(name, safe='')}"
    with closing(open_source(parse_source_url(url, user=USER, password=PASSWORD))) as source:
        parts = source.parts(Query(table=source.describe_table(TableName("t"))), 1)

        assert frame(spark, parts).count() == 1


def test_values_as_text_by_jdbc_do_not_depend_on_the_settings_of_a_database(
    postgres: Postgres, spark: SparkSession
) -> None:
    with closing(open_source(parse_source_url(wilful(postgres)))) as source:
        table = source.describe_table(TableName("t"), Overrides(as_text=frozenset(AS_TEXT)))
        [row] = frame(spark, source.parts(Query(table=table), 1)).collect()

    assert row.asDict() == AS_TEXT


def test_settings_of_a_mysql_server_neither_cut_a_read_by_jdbc_nor_show_what_is_not_committed(
    mysql: Database, spark: SparkSession
) -> None:
    with careless(mysql) as name:
        rows = frame(spark, mysql.source.parts(Query(table=mysql.table(name)), 1)).collect()

    assert sorted(row["id"] for row in rows) == list(range(1, 11))


def test_a_value_that_cannot_be_carried_stops_a_read_by_jdbc_too(postgresql: Database, spark: SparkSession) -> None:
    name = postgresql.name()
    postgresql.run(f"CREATE TABLE {name} (at timestamp)")
    postgresql.run(f"INSERT INTO {name} VALUES ('infinity')")

    rows = frame(spark, postgresql.source.parts(Query(table=postgresql.table(name)), 1))

    with pytest.raises(PySparkException, match=r"column 'at' of type .* has the value 'infinity'"):
        rows.collect()


def test_a_database_that_is_only_known_by_its_jdbc_url_is_read_whole(postgresql: Database, spark: SparkSession) -> None:
    name = f"{postgresql.name()}_x"  # with a wildcard of the catalogue in it
    postgresql.run(
        f'CREATE TABLE {name} (id integer PRIMARY KEY, "a `b`." numeric(9,2), at timestamp, big numeric, z timestamptz)'
    )
    postgresql.run(f"INSERT INTO {name} VALUES (1, 1.5, '2024-03-31 02:30:00.123456', 5, now())")
    postgresql.run(f"INSERT INTO {name} VALUES (2)")
    postgresql.run(f"CREATE TABLE {name.replace('_', 'y')} (id text)")
    known = postgresql.settings
    settings = parse_source_url(
        f"jdbc:postgresql://{known.host}:{known.port}/{known.database}", user=known.user, password=known.password
    )
    source = open_source(settings, spark)
    try:
        with pytest.raises(NotExact, match=r"Column 'big' of type .* Column 'z' of type"):
            source.describe_table(TableName(name)).readable()
        table = source.describe_table(TableName(name), Overrides(as_text=frozenset({"big"})))
        query = Query(table=table, columns=("id", "a `b`.", "at", "big"))
        rows = frame(spark, source.parts(query, 4)).toArrow().sort_by("id")

        assert source.count(query) == 2
        assert not source.capabilities.incremental
        assert table.primary_key == ("id",)
        assert [str(kind) for kind in rows.schema.types] == ["int32", "decimal128(9, 2)", "timestamp[us]", "string"]
        assert rows.to_pylist()[0] == {
            "id": 1,
            "a `b`.": Decimal("1.50"),
            "at": datetime(2024, 3, 31, 2, 30, 0, 123456),  # noqa: DTZ001 - it has no zone
            "big": "5",
        }
    finally:
        source.close()


@pytest.fixture
def by_mariadb_driver(mysql: Database, spark: SparkSession) -> Iterator[JdbcSource]:
    """The database of the MySQL source, known only by its JDBC URL."""
    known = mysql.settings
    url = f"jdbc:mariadb://{known.host}:{known.port}/{known.database}"
    source = JdbcSource(parse_source_url(url, user=known.user, password=known.password), spark)
    yield source
    source.close()


@pytest.mark.parametrize("written", ["id < 5", "`id` < 5", 'id < 5 AND status = "it\'s"', "`a b` = 'x' AND id < 5"])
def test_a_filter_by_jdbc_is_written_in_the_sql_of_its_server(
    mysql: Database, spark: SparkSession, by_mariadb_driver: JdbcSource, written: str
) -> None:
    name = mysql.name()
    mysql.run(f"CREATE TABLE {name} (id integer PRIMARY KEY, status varchar(9), `a b` varchar(9))")
    mysql.run(f"INSERT INTO {name} SELECT seq, 'it\\'s', 'x' FROM seq_1_to_9")
    table = by_mariadb_driver.describe_table(TableName(name))

    query = Query(table=table, filter=parse_filter(written, table.column_names, by_mariadb_driver.sql_dialect))
    rows = frame(spark, by_mariadb_driver.parts(query, 1)).toArrow().sort_by("id")

    assert rows.to_pylist() == [{"id": number, "status": "it's", "a b": "x"} for number in range(1, 5)]
    assert by_mariadb_driver.count(query) == 4


def test_numbers_by_mariadbs_driver_stay_numbers_and_moments_of_a_session_are_refused(
    mysql: Database, spark: SparkSession, by_mariadb_driver: JdbcSource
) -> None:
    name = mysql.name()
    mysql.run(f"CREATE TABLE {name} (id integer, few tinyint(1), y year, b bit(1), at datetime(6), ts timestamp NULL)")
    mysql.run(f"INSERT INTO {name} VALUES (1, 2, 2024, b'1', '2024-03-31 02:30:00.123456', NULL)")
    table = by_mariadb_driver.describe_table(TableName(name))

    with pytest.raises(NotExact, match="Column 'ts' of type TIMESTAMP"):
        table.readable()
    query = Query(table=table, columns=("id", "few", "y", "b", "at"))
    [row] = frame(spark, by_mariadb_driver.parts(query, 1)).toArrow().to_pylist()

    at = datetime(2024, 3, 31, 2, 30, 0, 123456)  # noqa: DTZ001 - it has no zone
    assert row == {"id": 1, "few": 2, "y": 2024, "b": True, "at": at}


def test_a_server_that_takes_sparks_quotes_for_texts_is_refused_and_one_that_does_not_is_read(
    by_mariadb_driver: JdbcSource,
) -> None:
    by_mariadb_driver.settings = replace(by_mariadb_driver.settings, database="jdbc:unheardof:x")
    by_mariadb_driver._check_quotes("c0")  # without any

    with pytest.raises(Misconfigured, match=r"Spark quotes a column as \"c0\", but its driver as `c0`"):
        by_mariadb_driver._check_quotes('"c0"')


def test_a_filter_by_jdbc_is_refused_where_the_sql_of_the_server_is_not_known(by_mariadb_driver: JdbcSource) -> None:
    by_mariadb_driver.settings = replace(by_mariadb_driver.settings, database="jdbc:unheardof:x")

    with pytest.raises(
        Misconfigured, match=r"The SQL of jdbc:unheardof:x is unknown, so it takes no filter\. Remove source_filter"
    ):
        _ = by_mariadb_driver.sql_dialect


@pytest.mark.parametrize(
    ("url", "error", "said"),
    [
        ("jdbc:postgresql://{host}:{port}/{database}", Misconfigured, "refused user 'lakehead' or the password"),
        ("jdbc:postgresql://127.0.0.1:1/x", Unavailable, "cannot be reached"),
        ("jdbc:unheardof:x", Misconfigured, "no JDBC driver"),
    ],
)
def test_what_goes_wrong_by_jdbc_is_one_sentence_without_the_password(
    postgresql: Database, spark: SparkSession, url: str, error: type[LakeheadError], said: str
) -> None:
    known = postgresql.settings
    place = url.format(host=known.host, port=known.port, database=known.database)

    with pytest.raises(error, match=said) as raised:
        open_source(parse_source_url(place, user="lakehead", password="c4nary"), spark)
    assert "c4nary" not in repr(raised.value) + repr(raised.value.__context__)


def test_the_driver_that_is_named_connects_and_reads(sqlite: Database, spark: SparkSession) -> None:
    name = sqlite.name()
    sqlite.run(f"CREATE TABLE {name} (v text)")
    sqlite.run(f"INSERT INTO {name} VALUES ('a'), ('b')")
    known = parse_source_url(f"jdbc:{sqlite.url.replace('sqlite:///', 'sqlite:')}")
    settings = replace(known, driver="org.sqlite.JDBC")

    with closing(open_source(settings, spark)) as source:
        parts = source.parts(Query(table=source.describe_table(TableName(name))), 1)
        assert sorted(row[0] for row in frame(spark, parts).collect()) == ["a", "b"]
    with pytest.raises(Misconfigured, match=r"There is no JDBC driver 'org\.no\.Driver'"):
        open_source(replace(known, driver="org.no.Driver"), spark)
    with pytest.raises(Misconfigured, match=r"'org\.mariadb\.jdbc\.Driver' is not for jdbc:sqlite"):
        open_source(replace(known, driver="org.mariadb.jdbc.Driver"), spark)
