"""The connection settings of a source. They are pickled into Spark tasks, and their repr shows no secret."""

from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from lakehead.errors import Misconfigured
from lakehead.source.tls import Tls

APPLICATION_NAME = "lakehead reader"
"""The name of our sessions on the server. They never write."""

_SECRET_OPTIONS = ("password", "passwd", "sslpassword", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """One database, and how to connect to it. `lakehead.source.dialects.parse_source_url` makes it from a URL."""

    dialect: str
    """The name of a registered dialect."""

    host: str = ""
    """Empty for a file and for a JDBC URL."""

    port: int | None = None
    database: str = ""
    """The name of the database; for SQLite the path of its file, for dialect jdbc the whole JDBC URL."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Parameters of the driver, such as `sslmode`."""

    secret_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Parameters of the driver that are secrets, such as `sslpassword`."""

    driver: str | None = None
    """The Java class of the JDBC driver, for dialect jdbc. Default: the one that Java finds for the URL."""

    tls: Tls | None = None
    """TLS settings, for dialects that take them. Default: TLS is not required."""

    connect_timeout: int = 10
    """Seconds to wait for a new connection."""

    batch_bytes: int = 8 << 20
    """The approximate maximum size of a record batch, in bytes."""

    part_bytes: int = 64 << 20
    """The approximate maximum size of a part in bytes, for drivers that cannot stream (MySQL)."""

    def __str__(self) -> str:
        """The source for messages, without user and secrets."""
        if self.host:
            return f"{self.dialect}://{self.authority}/{self.database}"
        if self.database.lower().startswith("jdbc:"):
            return self.database.partition("?")[0].partition(";")[0]
        return f"{self.dialect}:///{self.database}"

    @property
    def authority(self) -> str:
        """Host and port, as in URLs."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host

    def url(self, **more: str) -> str:
        """Return the URL for drivers, with all secrets and additional options. Never show it."""
        user = quote(self.user or "", safe="")
        secret = f":{quote(self.password, safe='')}" if self.password is not None else ""
        given = {**more, **dict(self.options), **dict(self.secret_options)}
        options = f"?{urlencode(given, quote_via=quote)}" if given else ""
        return f"{self.dialect}://{user}{secret}@{self.authority}/{quote(self.database, safe='')}{options}"

    def redact(self, text: str) -> str:
        """Replace the password and other secrets in a driver's message."""
        hidden = (*(value for _, value in self.secret_options), *(self.tls.secrets if self.tls else ()))
        for secret in (self.password, *hidden):
            for spelled in (secret, quote(secret, safe="")) if secret else ():
                text = text.replace(spelled, "***")
        return text


def parse_server_url(dialect: str, url: str, user: str | None, password: str | None) -> SourceSettings:
    """Parse `dialect://user:password@host:port/database?options`. Raises `Misconfigured` for an invalid URL."""
    form = f"{dialect}://user@host:port/database"
    parts = split_url(url, form)
    options = tuple(parse_qsl(parts.query))
    if hidden := sorted({name for name, _ in options if name.lower() in _SECRET_OPTIONS}):
        raise Misconfigured(f"The URL of the source has {hidden[0]!r} after '?'. Give user and password separately.")
    settings = SourceSettings(
        dialect=dialect,
        host=unquote(parts.hostname or ""),
        port=parts.port,
        database=unquote(parts.path.removeprefix("/")),
        user=user or (unquote(parts.username) if parts.username else None),
        password=password or (unquote(parts.password) if parts.password else None),
        options=options,
    )
    if not settings.host or not settings.database or not settings.user:
        raise Misconfigured(f"The URL of the source {settings} lacks a user, a host or a database. Write {form}.")
    return settings


def split_url(url: str, form: str) -> SplitResult:
    """Split a URL. Raises `Misconfigured` with its expected form for one that cannot be parsed."""
    try:
        parts = urlsplit(url)
        _ = parts.port, parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        parts = None
    if parts is None:
        # Raised outside of the handler: the parser's error, which may quote a part of the password, is not chained.
        raise Misconfigured(f"The URL of the source cannot be parsed. Write {form}.")
    return parts
