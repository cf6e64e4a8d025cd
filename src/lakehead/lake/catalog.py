"""PyIceberg's catalog for the properties that a Spark catalog has: both sides see the same tables."""

from urllib.parse import quote, urlsplit

from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy.exc import OperationalError, ProgrammingError

from lakehead.errors import Misconfigured
from lakehead.spark.settings import Properties

BUSY_SECONDS = 30
"""How long a commit to a catalog in SQLite waits for another one."""

_JAVA_ONLY = ("catalog-impl", "io-impl", "cache-enabled")


def open_catalog(name: str, properties: Properties) -> Catalog:
    """The catalog of this name, reached by PyIceberg.

    The name matters: a catalog in SQL keeps its tables under it. JDBC on SQLite or PostgreSQL becomes PyIceberg's SQL
    catalog; REST, Hive and Glue take the properties as they are. Raises `Misconfigured` for any other.
    """
    given = {key: value for key, value in properties.items() if key not in _JAVA_ONLY}
    given["py-io-impl"] = "pyiceberg.io.pyarrow.PyArrowFileIO"  # whose file systems tasks can take along
    if region := given.get("client.region"):
        given.setdefault("s3.region", region)
    match given.get("type"):
        case "jdbc":
            user, password = given.pop("jdbc.user", ""), given.pop("jdbc.password", "")
            given |= {"type": "sql", "uri": _sql_url(given.get("uri", ""), user, password)}
            try:
                return load_catalog(name, **given)
            except (OperationalError, ProgrammingError):
                # Whoever opens a new catalog makes its tables; of two at once, one finds them there.
                return load_catalog(name, **given)
        case "rest" | "hive" | "glue":
            return load_catalog(name, **given)
        case kind:
            raise Misconfigured(
                f"The catalog {name!r} has the type {kind!r}. Set 'type' to jdbc, rest, hive or glue: landings are "
                "committed through PyIceberg, which knows these."
            )


def _sql_url(uri: str, user: str, password: str) -> str:
    if uri.startswith("jdbc:sqlite:"):
        return f"sqlite:///{uri.removeprefix('jdbc:sqlite:').partition('?')[0]}?timeout={BUSY_SECONDS}"
    if uri.startswith("jdbc:postgresql://"):
        parts = urlsplit(uri.removeprefix("jdbc:"))
        login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
        return f"postgresql+psycopg://{login}{parts.netloc}{parts.path}"
    raise Misconfigured(
        "A JDBC catalog must be on SQLite (jdbc:sqlite:FILE) or PostgreSQL (jdbc:postgresql://HOST/NAME)."
    )
