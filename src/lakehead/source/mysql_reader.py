"""MySQL's and MariaDB's rows as Arrow, by ConnectorX. It runs in tasks.

ConnectorX rounds decimals to ten places, fails on zero dates and cannot stop for a slow reader. So whatever it is not
exact about is asked for as text and converted here, and a part is small enough to be held as one.
"""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from lakehead.source.mysql import SESSION, connect
from lakehead.source.port import ReadPart
from lakehead.source.sentences import told
from lakehead.source.settings import SourceSettings
from lakehead.source.tls import for_connectorx
from lakehead.source.values import exact

_LEAST_ROWS = 1_024


def address(settings: SourceSettings) -> str:
    """The URL as ConnectorX wants it, with the secret in it."""
    return settings.url(**(for_connectorx(settings.tls) if settings.tls else {}))


def read(part: ReadPart) -> Iterator[pa.RecordBatch]:
    """The part's rows, in batches."""
    settings = part.settings
    with told(settings):
        import connectorx  # noqa: PLC0415 - a driver that only this needs

        # ConnectorX tries for half a minute to log in, whatever is wrong; one that can be told at once is.
        with closing(connect(settings)):
            pass
        table: pa.Table = connectorx.read_sql(
            address(settings), part.sql(), return_type="arrow", pre_execution_query=list(SESSION)
        )
    rows = max(_LEAST_ROWS, table.num_rows * settings.batch_bytes // max(1, table.nbytes))
    for batch in table.to_batches(max_chunksize=rows):
        yield exact(batch, part.columns, part.table)
