"""`lakehead doctor`: checks whether the store, state, tables, Java and Spark work."""

import asyncio
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lakehead.clock import SystemClock
from lakehead.errors import LakeheadError, Misconfigured
from lakehead.ids import RandomIds
from lakehead.run.doctor_bucket import check_bucket_of, check_bucket_of_gateway
from lakehead.run.doctor_tables import check_table, check_tables_of, options_for
from lakehead.run.environment import spark_settings, state_password, store_settings
from lakehead.run.table_options import CatalogName, CatalogProperties, LakehouseFolder, resolve_table
from lakehead.spark.settings import EMBEDDED, SparkSettings
from lakehead.storage.open_store import open_store
from lakehead.storage.port import Store
from lakehead.storage.probe import probe


def doctor(
    *,
    store: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The store to check: file:///folder, memory://, s3://…, gs://… or az://…"),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The state to check: sqlite:///file, postgresql://… or mysql://…"),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="A table to check: namespace.table."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The configuration whose tables and whose gateway's bucket to check, or the one that has --table.",
        ),
    ] = None,
    lakehouse: LakehouseFolder = None,
    catalog: CatalogName = None,
    catalog_property: CatalogProperties = None,
    spark: Annotated[
        bool,
        typer.Option("--spark/--no-spark", help="Check Java, jars and a Spark session. Agents and gateways need none."),
    ] = True,
) -> None:
    """Check the store, its bucket, the state, tables, Java, jars, Spark and a catalog. Prints one line each: ok, or
    what to do. Exit codes: 0 nothing is wrong, 1 something is, 2 the configuration is wrong.

    The store: can be reached and honours conditional writes. Two small objects are written below _probe/ and deleted
    again. Credentials, endpoint and region come from the usual variables: AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_REGION, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME,
    AZURE_STORAGE_ACCOUNT_KEY.

    The bucket, if gateways accept batches there (--store, or the gateway of --config): versioning, lifecycle rules,
    object lock, policy, replication and default encryption of S3. What endangers accepted batches makes the exit code
    1; what could not be read is told, and is not ok. Needs boto3, the extra s3.

    The state: can be opened. Its tables are created or upgraded if needed. The password comes from
    LAKEHEAD_STATE_PASSWORD if it is not in the URL.

    Tables: every commit rewrites a table's metadata, so a table with frequent commits needs its snapshots expired.
    Where there are too many snapshots, metadata files or manifests, the line names the command to run.

    Spark: Java comes from JAVA_HOME, or is the first on the path. Jars are downloaded once into the cache
    (LAKEHEAD_CACHE, by default the user's cache folder, such as ~/.cache/lakehead) from LAKEHEAD_REPOSITORIES (by
    default Maven Central), or taken from a folder (LAKEHEAD_JARS). The first time also prepares faster starts, unless
    LAKEHEAD_ARCHIVE is no. No table is created.

    Example: lakehead doctor --store file:///tmp/lake

    Example: lakehead doctor --no-spark --config conf/gateway.toml
    """
    opened = open_store(store, store_settings(store)) if store else None  # raises for an invalid URL
    failures: list[LakeheadError] = []
    if store and opened:
        failures += _failures(lambda: _check_store(store, opened)) or _failures(
            lambda: check_bucket_of(store, opened, store_settings(store), typer.echo)
        )
    if state:
        failures += _failures(lambda: _check_state(state, state_password()))
    if table:
        named = resolve_table(table, lakehouse, catalog, catalog_property, config=config)
        failures += _failures(lambda: check_table(named, options_for(named, lakehouse, config), typer.echo))
    elif config:
        failures += _failures(lambda: check_tables_of(config, typer.echo))
        failures += _failures(lambda: check_bucket_of_gateway(config, typer.echo))
    if spark:
        with tempfile.TemporaryDirectory(prefix="lakehead-doctor-") as folder:
            settings = replace(spark_settings(), app_name="lakehead doctor", lakehouse=Path(folder))
            failures += _failures(lambda: _check_spark(settings))
    failures.sort(key=lambda error: isinstance(error, Misconfigured))  # the last one decides the exit code
    for error in failures[:-1]:
        typer.echo(f"lakehead: {error}", err=True)
    for error in failures[-1:]:
        raise error


def _failures(check: Callable[[], list[LakeheadError] | None]) -> list[LakeheadError]:
    """Run a check and return the errors that it raises or returns."""
    try:
        return check() or []
    except LakeheadError as error:
        return [error]


def _check_store(url: str, store: Store) -> None:
    asyncio.run(probe(store, ids=RandomIds()))
    typer.echo(f"store ok: {url} honours conditional creates and replaces, also with concurrent writers")


def _check_state(url: str, password: str | None) -> None:
    # Imported here: loads SQLAlchemy, which is only needed for a state.
    from lakehead.state.opening import StateSettings, open_state  # noqa: PLC0415 - see above

    with open_state(url, SystemClock(), RandomIds(), settings=StateSettings(password=password)) as opened:
        typer.echo(f"state ok: {opened.database.name} can be opened, its tables are up to date")


def _check_spark(settings: SparkSettings) -> None:
    # Imported here: PySpark is slow to load.
    from lakehead.spark.jars import jars_for  # noqa: PLC0415 - see above
    from lakehead.spark.java import find_java  # noqa: PLC0415 - see above
    from lakehead.spark.reasons import SPARKS_ERRORS, reason_of  # noqa: PLC0415 - see above
    from lakehead.spark.session import build_session, stop_session  # noqa: PLC0415 - see above

    java = find_java(settings)
    typer.echo(f"java ok: {java.version} in {java.home}")
    jars = jars_for(settings, java, say=_print_step)
    typer.echo(f"jars ok: {len(jars)} in {jars[0].parent}")
    if sys.stderr.isatty():
        _print_step("starting Spark")
    session = build_session(settings, say=_print_step)
    checked = "a first job on"
    try:
        session.range(1).count()
        typer.echo(f"spark ok: {session.version} on {settings.master}")
        checked = "an embedded catalog on"
        session.sql(f"SHOW NAMESPACES IN {EMBEDDED}").collect()
        typer.echo("catalog ok: an embedded one can be opened")
    except SPARKS_ERRORS as error:
        raise Misconfigured(
            f"Spark started, but {checked} {settings.master} failed: {reason_of(error)}. Check the jars in "
            f"{jars[0].parent}: they must be complete and of matching versions."
        ) from error
    finally:
        stop_session(session)


def _print_step(step: str) -> None:
    typer.echo(f"… {step}", err=True)
