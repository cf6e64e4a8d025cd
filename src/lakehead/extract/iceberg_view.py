"""A view of one slice of a raw table: publishes a full refresh without writing its rows a second time."""

from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lakehead.errors import Misconfigured
from lakehead.extract.raw_rows import SLICE
from lakehead.spark.names import quoted
from lakehead.spark.reasons import SPARKS_ERRORS, reason_of

SHOWN = "lakehead.slice"
"""The property that says which slice a view shows."""


def shown_slice(session: SparkSession, view: str) -> int | None:
    """The slice that a view shows; None if the view does not exist."""
    if not session.catalog.tableExists(view) and not _view_exists(session, view):
        return None
    try:
        rows = session.sql(f"SHOW TBLPROPERTIES {view}").collect()
    except AnalysisException:
        return None  # it was dropped since
    properties = {row["key"]: row["value"] for row in rows}
    if SHOWN not in properties:
        raise Misconfigured(
            f"{view} exists, but Lakehead did not create it as a view. Rename or drop it, or set finalize to table."
        )
    return int(properties[SHOWN])


def _view_exists(session: SparkSession, view: str) -> bool:
    """Whether an Iceberg catalog has the view. Spark's `tableExists` finds only tables there."""
    namespace, _, name = view.rpartition(".")
    if not session.catalog.databaseExists(namespace):
        return False
    try:
        views = session.sql(f"SHOW VIEWS IN {namespace}").collect()
    except AnalysisException as error:
        if (error.getCondition() or "").startswith("MISSING_CATALOG_ABILITY"):
            return False  # the catalog does not support views
        raise
    return any(quoted(row["viewName"]) == name and not row["isTemporary"] for row in views)


def show_slice(
    session: SparkSession, view: str, raw: str, columns: Sequence[str], number: int, conditions: Sequence[str]
) -> None:
    """Replace the view with one slice of raw. Readers see either the previous slice or this one."""
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
            f"The view {view} could not be created: {reason_of(error)}. If the catalog does not support views, set "
            "finalize to table."
        ) from error
