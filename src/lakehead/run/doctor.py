"""`lakehead doctor`: whether what Lakehead stands on works, and what to do where it does not."""

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
from lakehead.run.doctor_tables import check_table, check_tables_of, options_for
from lakehead.run.environment import spark_settings, state_password, store_settings
from lakehead.run.tables import CatalogName, CatalogProperties, LakehouseFolder, chosen
from lakehead.spark.settings import EMBEDDED, SparkSettings
from lakehead.storage.opening import open_store
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
        typer.Option(metavar="TABLE", help="A table to check, namespace.table: whether its metadata stays small."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A configuration whose tables to check, or that of --table."),
    ] = None,
    lakehouse: LakehouseFolder = None,
    catalog: CatalogName = None,
    catalog_property: CatalogProperties = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Check Java, jars and a session; agents and gateways need none.")
    ] = True,
) -> None:
    """Check the store, the state, tables, Java, the jars, and that Spark reaches a catalog. One line each: ok, or what
    to do.

    The store: it can be reached and honours the preconditions that Lakehead relies on. Two small objects are written
    below _probe/ and deleted again. Credentials, endpoint and region come from the usual variables: AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL, AWS_REGION, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME,
    AZURE_STORAGE_ACCOUNT_KEY.

    The state: it can be opened. Its tables are made if it has none, and brought up to date if they are older. The
    password is that of LAKEHEAD_STATE_PASSWORD, where it does not stand in the URL.

    Tables: every commit writes a table's metadata anew, so a table that is landed in every few seconds needs its
    snapshots expired. Where there are very many snapshots, metadata files or manifests, the line names the command.

    Spark: Java is that of JAVA_HOME, or the first on the path. Jars are fetched once into the cache (LAKEHEAD_CACHE,
    by default ~/.cache/lakehead), from LAKEHEAD_REPOSITORIES (by default Maven Central), or taken from a folder
    (LAKEHEAD_JARS). The first time also prepares quicker starts, unless LAKEHEAD_ARCHIVE is
    no. No table is created.

    Example: lakehead doctor --store file:///tmp/lake
    """
    opened = open_store(store, store_settings(store)) if store else None  # a URL that is wrong ends it here
    failures: list[LakeheadError] = []
    if store and opened:
        failures += _failures(lambda: _check_store(store, opened))
    if state:
        failures += _failures(lambda: _check_state(state, state_password()))
    if table:
        named = chosen(table, lakehouse, catalog, catalog_property, config=config)
        failures += _failures(lambda: check_table(named, options_for(named, lakehouse, config), typer.echo))
    elif config:
        failures += _failures(lambda: check_tables_of(config, typer.echo))
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
    """What a check raises, or finds."""
    try:
        return check() or []
    except LakeheadError as error:
        return [error]


def _check_store(url: str, store: Store) -> None:
    asyncio.run(probe(store, ids=RandomIds()))
    typer.echo(f"store ok: {url} creates only what is absent and replaces only the version named, writers racing")


def _check_state(url: str, password: str | None) -> None:
    # Not at the top: it loads SQLAlchemy, and a doctor without a state has no use for it.
    from lakehead.state.opening import StateSettings, open_state  # noqa: PLC0415 - see above

    with open_state(url, SystemClock(), RandomIds(), settings=StateSettings(password=password)) as opened:
        typer.echo(f"state ok: {opened.database.name} can be opened, its tables are up to date")


def _check_spark(settings: SparkSettings) -> None:
    # Not at the top: PySpark takes longer to load than all that the other commands do.
    from lakehead.spark.jars import jars_for  # noqa: PLC0415 - see above
    from lakehead.spark.java import find_java  # noqa: PLC0415 - see above
    from lakehead.spark.reasons import SPARKS_ERRORS, reason_of  # noqa: PLC0415 - see above
    from lakehead.spark.session import build_session, stop_session  # noqa: PLC0415 - see above

    java = find_java(settings)
    typer.echo(f"java ok: {java.version} in {java.home}")
    jars = jars_for(settings, java, say=_say)
    typer.echo(f"jars ok: {len(jars)} in {jars[0].parent}")
    if sys.stderr.isatty():
        _say("starting Spark")
    session = build_session(settings, say=_say)
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
            f"{jars[0].parent}: they must be whole and of versions that fit each other."
        ) from error
    finally:
        stop_session(session)


def _say(what: str) -> None:
    typer.echo(f"… {what}", err=True)
