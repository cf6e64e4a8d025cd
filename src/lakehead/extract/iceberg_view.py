"""A view that shows one slice of a raw table: what a full refresh becomes where nothing is to be written twice."""

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lakehead.errors import Misconfigured
from lakehead.extract.rows import SLICE
from lakehead.spark.names import quoted
from lakehead.spark.reasons import SPARKS_ERRORS, reason_of

SHOWN = "lakehead.slice"
"""The property that says which slice a view shows."""


def shown_slice(session: SparkSession, view: str) -> int | None:
    """The slice that a view shows; None if there is no such view."""
    if not session.catalog.tableExists(view) and not _view_exists(session, view):
        return None
    try:
        rows = session.sql(f"SHOW TBLPROPERTIES {view}").collect()
    except AnalysisException:
        return None  # it has gone since
    told = {row["key"]: row["value"] for row in rows}
    if SHOWN not in told:
        raise Misconfigured(
            f"There is something named {view} that is no view of Lakehead's. Rename or drop it, or set finalize to "
            "table."
        )
    return int(told[SHOWN])


def _view_exists(session: SparkSession, view: str) -> bool:
    """Whether a catalog of Iceberg's has such a view: to Spark's `tableExists` only tables exist there."""
    namespace, _, name = view.rpartition(".")
    if not session.catalog.databaseExists(namespace):
        return False
    try:
        views = session.sql(f"SHOW VIEWS IN {namespace}").collect()
    except AnalysisException as error:
        if (error.getCondition() or "").startswith("MISSING_CATALOG_ABILITY"):
            return False  # it has no views at all
        raise
    return any(quoted(row["viewName"]) == name and not row["isTemporary"] for row in views)


def show_slice(
    session: SparkSession, view: str, raw: str, columns: Sequence[str], number: int, conditions: Sequence[str]
) -> None:
    """Let the view show one slice of raw. Readers see the slice that was shown before, or this one."""
    where = " AND ".join([f"{SLICE} = {number}", *conditions])
    names = ", ".join(map(quoted, columns))
    namespace = view.rpartition(".")[0]
    try:
        session.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        session.sql(
            f"CREATE OR REPLACE VIEW {view} TBLPROPERTIES ('{SHOWN}' = '{number}') "  # noqa: S608 - quoted names
            f"AS SELECT {names} FROM {raw} WHERE {where}"
        )
    except SPARKS_ERRORS as error:
        raise Misconfigured(
            f"The view {view} could not be made: {reason_of(error)}. A catalog that has no views needs finalize set to "
            "table."
        ) from error
