"""Ages as they are typed, and a catalog's properties from the command line and the environment."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest
import typer
from pyiceberg.schema import Schema

from lakehead.errors import Misconfigured
from lakehead.lake.catalog import open_catalog
from lakehead.lake.ledger import StoreLedger
from lakehead.run.environment import catalog_properties
from lakehead.run.table_options import TableRef, parse_age, resolve_table
from lakehead.spark.settings import EMBEDDED, embedded_catalog
from lakehead.storage.open_store import open_store


@pytest.mark.parametrize(
    ("said", "meant"),
    [("90s", timedelta(seconds=90)), ("5 m", timedelta(minutes=5)), ("12h", timedelta(hours=12)), ("3d", timedelta(3))],
)
def test_an_age_is_a_number_and_a_letter(said: str, meant: timedelta) -> None:
    assert parse_age(said) == meant


@pytest.mark.parametrize(
    "said", ["", "3", "d", "-3d", "3 weeks", "1.5h", "99999999999999d", "1000000000d", f"{'9' * 5000}s"]
)
def test_any_other_age_is_refused(said: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_age(said)


def test_a_property_may_come_from_a_variable_that_is_set() -> None:
    given = {"type": "rest", "credential": "env:SECRET"}

    assert catalog_properties(given, {"SECRET": "x:y"}) == {"type": "rest", "credential": "x:y"}
    with pytest.raises(Misconfigured, match="credential refers to the environment variable SECRET, which is not set"):
        catalog_properties(given, {})


def test_a_warehouse_on_s3_takes_what_was_not_given_from_the_clouds_own_variables() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://there", "AWS_ACCESS_KEY_ID": "k", "AWS_REGION": "r"}

    on_s3 = catalog_properties({"warehouse": "s3://bucket/w", "client.region": "mine"}, environment)
    local = catalog_properties({"warehouse": "file:///w"}, environment)

    assert (on_s3["s3.endpoint"], on_s3["s3.access-key-id"], on_s3["client.region"]) == ("http://there", "k", "mine")
    assert "s3.secret-access-key" not in on_s3
    assert local == {"warehouse": "file:///w"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration of one table, which nobody has loaded."""
    file = tmp_path / "shop.json"
    runtime = {"raw_root": "raw", "final_root": "final", "state": {"url": f"sqlite:///{tmp_path}/state.db"}}
    written = {
        "runtime": runtime,
        "sources": {"shop": {"dialect": "sqlite", "url": "sqlite:///shop.db"}},
        "spark": {"lakehouse": str(tmp_path / "lakehouse")},
        "tables": [{"table": "orders", "mode": "full"}],
    }
    file.write_text(json.dumps(written))
    return file


@pytest.mark.parametrize("table", ["raw.orders", "final.orders"])
def test_a_configuration_names_catalog_state_and_ledger(config: Path, table: str) -> None:
    named = resolve_table(table, None, None, None, config=config)

    assert (named.table, named.catalog) == (table, EMBEDDED)
    assert named.properties == embedded_catalog(config.parent / "lakehouse")
    assert named.state == f"sqlite:///{config.parent}/state.db"
    assert named.ledger == f"file://{config.parent}/lakehouse/ledger"


def test_commands_start_spark_as_the_runs_of_their_configuration_do(config: Path) -> None:
    written = json.loads(config.read_text())
    given = {"driver_memory": "3g", "conf": {"spark.sql.shuffle.partitions": "7"}, "jars": ["group:artifact:1"]}
    config.write_text(json.dumps(written | {"spark": {**written["spark"], **given}}))

    spark = resolve_table("raw.orders", None, None, None, config=config).spark

    assert (spark.driver_memory, spark.conf, spark.jars) == ("3g", given["conf"], ("group:artifact:1",))


def test_what_was_chosen_shows_no_password_of_the_state(tmp_path: Path) -> None:
    (tmp_path / "catalog.sqlite").touch()

    named = resolve_table("raw.orders", tmp_path, None, None, state="postgresql://me:canary@host/state")

    assert "canary" not in repr(named)


def test_a_configuration_and_what_it_names_are_not_both_given(config: Path) -> None:
    with pytest.raises(Misconfigured, match="Give either --config or those options"):
        resolve_table("raw.orders", None, None, None, config=config, state="sqlite:///state.db")


def test_a_table_that_the_configuration_does_not_have_is_refused_with_those_that_it_has(config: Path) -> None:
    with pytest.raises(
        Misconfigured, match=r"has no table raw\.x in the lakehouse\. It has: final\.orders, raw\.orders\."
    ):
        resolve_table("raw.x", None, None, None, config=config)


def test_a_command_that_needs_a_state_and_a_ledger_says_how_to_name_them() -> None:
    named = TableRef("raw.orders", "lake", {})

    with pytest.raises(
        Misconfigured, match="Name the state with --state, or the configuration of the runs with --config"
    ):
        named.open_state()
    with pytest.raises(Misconfigured, match="Name the ledger with --ledger, or the configuration"):
        named.open_with_ledger()


def test_a_command_without_a_ledger_gets_an_empty_one_that_nothing_else_in_the_process_writes(tmp_path: Path) -> None:
    catalog = open_catalog(EMBEDDED, embedded_catalog(tmp_path))
    catalog.create_namespace("sales")
    catalog.create_table("sales.orders", Schema())
    catalog.close()
    named = TableRef("sales.orders", EMBEDDED, embedded_catalog(tmp_path))

    async def keys(ledger: StoreLedger) -> list[str]:
        return [entry.key async for page in ledger.store.list() for entry in page]

    async def story() -> None:
        shared = open_store("memory://")
        await shared.create("of/somebody", b"")
        try:
            with named.open() as (_, first), named.open() as (_, second):
                await first.store.create("of/the/first", b"")
                assert await keys(first) == ["of/the/first"]
                assert await keys(second) == []
        finally:
            await shared.delete("of/somebody")

    asyncio.run(story())
