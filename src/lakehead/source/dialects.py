"""The registered dialects, and how a source is opened and read by its dialect."""

from typing import TYPE_CHECKING

from lakehead.errors import Misconfigured
from lakehead.source.dialect import Dialect
from lakehead.source.jdbc import JDBC
from lakehead.source.mysql import MYSQL
from lakehead.source.postgresql import POSTGRESQL
from lakehead.source.source_settings import SourceSettings
from lakehead.source.sqlite import SQLITE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from lakehead.source.port import ReadPart, Source


class DialectRegistry:
    """The dialects that a configuration may name."""

    def __init__(self, *dialects: Dialect) -> None:
        self._dialects: dict[str, Dialect] = {}
        for dialect in dialects:
            self.register(dialect)

    def register(self, dialect: Dialect) -> None:
        """Add a dialect. Raises `Misconfigured` if its name or one of its URL prefixes is taken."""
        for other in self._dialects.values():
            if other.name == dialect.name or set(other.url_prefixes) & set(dialect.url_prefixes):
                raise Misconfigured(f"The dialect {dialect.name!r} has the name or a URL prefix of {other.name!r}.")
        self._dialects[dialect.name] = dialect

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all dialects, in the order of their registration."""
        return tuple(self._dialects)

    @property
    def url_forms(self) -> str:
        """An example URL of every dialect, for messages."""
        *forms, last = [dialect.url_form for dialect in self._dialects.values()]
        return f"{', '.join(forms)} or {last}"

    def named(self, name: str) -> Dialect:
        """Return a dialect by its name. Raises `Misconfigured` for an unknown one."""
        if name not in self._dialects:
            raise Misconfigured(f"The dialect {name!r} is unknown. Known dialects are {', '.join(self.names)}.")
        return self._dialects[name]

    def for_url(self, url: str) -> Dialect | None:
        """Return the dialect of a URL, by its longest matching prefix; None if no dialect has one."""
        start = url.lower()
        by_prefix = {prefix: each for each in self._dialects.values() for prefix in each.url_prefixes}
        found = max((prefix for prefix in by_prefix if start.startswith(prefix)), key=len, default=None)
        return None if found is None else by_prefix[found]


DIALECTS = DialectRegistry(POSTGRESQL, MYSQL, SQLITE, JDBC)
"""All dialects. Register a new one here, so that the tasks of Spark know it too."""


def parse_source_url(url: str, *, user: str | None = None, password: str | None = None) -> SourceSettings:
    """Parse the URL of a source; user and password may be in it or be given separately.

    Raises `Misconfigured` for an invalid URL. No message contains the password.
    """
    dialect = DIALECTS.for_url(url)
    if dialect is None:
        raise Misconfigured(f"The URL of the source has an unknown scheme. Write {DIALECTS.url_forms}.")
    return dialect.parse_url(dialect.name, url, user, password)


def open_source(settings: SourceSettings, session: "SparkSession | None" = None) -> "Source":
    """Connect to a source. Only sources that are reached by JDBC need the Spark session.

    Raises `Misconfigured` for what must be fixed (a password, a name, a missing driver), and `Unavailable` for a server
    that does not answer. No message contains the password.
    """
    return DIALECTS.named(settings.dialect).open(settings, session)


def read_part(part: "ReadPart") -> "Iterator[pa.RecordBatch]":
    """Read the rows of a part as record batches of bounded size, every value exactly as in the source.

    Raises `NotExact` for a value that has no exact counterpart, and what `open_source` raises.
    """
    dialect = DIALECTS.named(part.settings.dialect)
    if dialect.read is None:
        raise Misconfigured(f"{part.settings} has no Arrow driver. Set the table's reader to jdbc.")
    return dialect.read(part)
