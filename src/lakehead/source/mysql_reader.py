"""Reads parts of MySQL and MariaDB as Arrow by ConnectorX, in Spark tasks.

ConnectorX rounds decimals to ten places, fails on zero dates, and cannot stream. So inexact types are fetched as text
and converted here, and parts are small enough to fit in memory.
"""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from lakehead.source.driver_errors import translate_errors
from lakehead.source.exact_values import exact_batch
from lakehead.source.mysql import SESSION
from lakehead.source.mysql_source import connect
from lakehead.source.port import ReadPart
from lakehead.source.source_settings import SourceSettings
from lakehead.source.tls import connectorx_options

_MIN_BATCH_ROWS = 1_024


def connectorx_url(settings: SourceSettings) -> str:
    """Return the URL for ConnectorX, with the password. Never show it."""
    return settings.url(**(connectorx_options(settings.tls) if settings.tls else {}))


def read(part: ReadPart) -> Iterator[pa.RecordBatch]:
    """Read a part in batches."""
    settings = part.settings
    with translate_errors(settings):
        import connectorx  # noqa: PLC0415 - a driver that only this needs

        # ConnectorX retries a failed login for half a minute, so connection errors are found by PyMySQL first.
        with closing(connect(settings)):
            pass
        table: pa.Table = connectorx.read_sql(
            connectorx_url(settings), part.sql(), return_type="arrow", pre_execution_query=list(SESSION)
        )
    rows = max(_MIN_BATCH_ROWS, table.num_rows * settings.batch_bytes // max(1, table.nbytes))
    for batch in table.to_batches(max_chunksize=rows):
        yield exact_batch(batch, part.columns, part.table)
