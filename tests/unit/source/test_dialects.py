"""A dialect is one record: to add a database is one new module and its registration, and nothing else asks for it."""

import ast
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from lakehead.errors import Misconfigured
from lakehead.run.config.config_file import read_config
from lakehead.run.config.pipeline_config import json_schema
from lakehead.run.config.problems import InvalidConfig
from lakehead.run.resolved_config import ResolvedConfig
from lakehead.source.dialects import DIALECTS, DialectRegistry, open_source, parse_source_url, read_part
from lakehead.source.filters import parse_filter
from lakehead.source.port import Query, SourceWindow, TableName
from tests.unit.run.config_files import changed, written
from tests.unit.source.example_dialect import EXAMPLE, ExampleSource

SOURCE = Path(__file__).parents[3] / "src" / "lakehead"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DIALECTS, "_dialects", dict(DIALECTS._dialects))
    DIALECTS.register(EXAMPLE)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, city TEXT)")
        connection.executemany("INSERT INTO orders VALUES (?, ?)", [(n, f"city {n % 3}") for n in range(1000)])
    return file


def config_file(folder: Path, **source: object) -> Path:
    return written(folder, changed({("sources", "shop"): {"dialect": "example", "url": "example:///x.db", **source}}))


@pytest.mark.usefixtures("registered")
def test_a_registered_dialect_is_accepted_by_the_configuration_and_read(tmp_path: Path, shop: Path) -> None:
    config = read_config(config_file(tmp_path, url=f"example:///{shop}"))
    settings = ResolvedConfig(config, {}).source_settings(config.sources["shop"])

    with closing(open_source(settings)) as source:
        table = source.describe_table(TableName("ORDERS"))
        kept = parse_filter("city <> 'city 1'", table.column_names, source.sql_dialect)
        query = Query(table=table, filter=kept, window=SourceWindow(column="id", lower=9, upper=899))
        parts = source.parts(query, 4)
        rows = [row for part in parts for batch in read_part(part) for row in batch.to_pylist()]

    assert isinstance(source, ExampleSource)
    assert len(parts) == 4
    assert sorted(row["id"] for row in rows) == [n for n in range(10, 900) if n % 3 != 1]


def test_a_dialect_that_is_not_registered_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"sources\.shop\.dialect: must be 'postgresql', 'mysql', 'sqlite' or"):
        read_config(config_file(tmp_path))
    with pytest.raises(
        Misconfigured, match=r"unknown scheme\. Write postgresql://user@host:port/database, .* or jdbc:"
    ):
        parse_source_url("example:///x.db")


@pytest.mark.usefixtures("registered")
def test_the_schema_for_editors_lists_what_is_registered() -> None:
    dialect = json_schema()["$defs"]["SourceConfig"]["properties"]["dialect"]

    assert dialect["enum"] == ["postgresql", "mysql", "sqlite", "jdbc", "example"]


@pytest.mark.usefixtures("registered")
def test_a_key_that_the_dialect_does_not_take_is_refused(tmp_path: Path) -> None:
    for key, value in {"tls": {"ca": "ca.pem"}, "properties": {"a": "b"}}.items():
        with pytest.raises(InvalidConfig, match=rf"sources\.shop\.{key}: is not supported by the dialect example"):
            read_config(config_file(tmp_path, **{key: value}))
    with pytest.raises(InvalidConfig, match="must be a URL of the dialect example: example:///path/to/file"):
        read_config(config_file(tmp_path, url="sqlite:///x.db"))


@pytest.mark.usefixtures("registered")
def test_an_error_of_its_driver_means_what_the_dialect_says(shop: Path) -> None:
    with closing(open_source(parse_source_url(f"example:///{shop}", user="me"))) as source:
        assert isinstance(source, ExampleSource)
        with pytest.raises(Misconfigured, match="User 'me' may not read the table in example:///"):
            source.rows("SELECT * FROM secret")


@pytest.mark.usefixtures("registered")
def test_its_tables_can_be_read_by_jdbc_and_spark_gets_its_jar(tmp_path: Path) -> None:
    tables = [{"table": "orders", "mode": "full", "reader": "jdbc"}]
    source = {"dialect": "example", "url": "example:///x.db"}
    config = read_config(written(tmp_path, changed({("sources", "shop"): source, ("tables",): tables})))
    resolved = ResolvedConfig(config, {"PATH": ""})

    assert resolved.spark_settings.jars == ("org.example:example-jdbc:1.0",)
    assert EXAMPLE.jdbc.url(resolved.source_settings(config.sources["shop"])) == "jdbc:example:x.db"


def test_two_dialects_cannot_share_a_name_or_the_start_of_their_urls() -> None:
    registry = DialectRegistry(EXAMPLE)

    for other in (replace(EXAMPLE, url_prefixes=("other:",)), replace(EXAMPLE, name="other")):
        with pytest.raises(Misconfigured, match="has the name or a URL prefix of 'example'"):
            registry.register(other)
    with pytest.raises(Misconfigured, match=r"'oracle' is unknown\. Known dialects are example\."):
        registry.named("oracle")


@pytest.mark.parametrize("dialect", ["jdbc", "narrow"])
def test_the_configured_dialect_counts_where_the_urls_of_two_begin_alike(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DIALECTS, "_dialects", dict(DIALECTS._dialects))
    DIALECTS.register(replace(EXAMPLE, name="narrow", url_prefixes=("jdbc:narrow:",)))
    config = read_config(config_file(tmp_path, dialect=dialect, url="jdbc:narrow:x"))

    assert ResolvedConfig(config, {}).source_settings(config.sources["shop"]).dialect == dialect
    assert parse_source_url("jdbc:narrow:x").dialect == "narrow"  # the longer beginning says more
    assert parse_source_url("jdbc:other:x").dialect == "jdbc"


@pytest.mark.slow
def test_only_the_modules_of_a_dialect_and_the_registry_know_it() -> None:
    found = []
    for name in DIALECTS.names:
        own = [*(SOURCE / "source").glob(f"{name}*.py"), SOURCE / "source" / "dialects.py"]
        others = [
            *(SOURCE / "source").glob("*.py"),
            *(SOURCE / "extract").rglob("*.py"),
            *(SOURCE / "run").glob("*.py"),
        ]
        others += [SOURCE / "run" / "config" / "connections.py", SOURCE / "run" / "config" / "rules.py"]
        for file in set(others) - set(own) - {SOURCE / "run" / "demo.py"}:
            tree = ast.parse(file.read_text())
            constants = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
            modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
            # "jdbc" is also a reader, which every dialect has, and a type of Iceberg's catalogs.
            if (name in constants and name != "jdbc") or f"lakehead.source.{name}" in modules:
                found.append(f"{file.name}: {name}")

    assert found == []
