"""How a source is reached. Tasks take it along: it is small, can be pickled, and its repr holds no secret."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from lakehead.errors import Misconfigured
from lakehead.source.tls import Tls

READER = "lakehead reader"
"""What our sessions are called on a server that asks: they never write."""

Kind = Literal["postgresql", "mysql", "sqlite", "jdbc"]

FORMS = (
    "postgresql://user@host:port/database, mysql://user@host:port/database, sqlite:///path/to/file or "
    "jdbc:driver:address"
)
SCHEMES: Mapping[str, Kind] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": "sqlite",
}
_SECRET = ("password", "passwd", "sslpassword", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """One database, and how to talk to it. `parse` makes it from a URL."""

    kind: Kind
    host: str = ""
    port: int | None = None
    database: str = ""
    """The database's name; for SQLite the path of its file, for other JDBC drivers their whole URL."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of the driver, such as `sslmode`, that stood behind the `?`."""

    secret_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Settings of the driver that nobody may see, such as `sslpassword`."""

    tls: Tls | None = None
    """How a MySQL server proves who it is. Default: it need not. PostgreSQL's driver has options for it."""

    connect_timeout: int = 10
    """Seconds to wait for a server to answer a new connection."""

    batch_bytes: int = 8 << 20
    """About how large a record batch may become, in bytes."""

    part_bytes: int = 64 << 20
    """About how much a part may hold, in bytes, where a driver cannot stream and a part is read as one (MySQL)."""

    @classmethod
    def parse(cls, url: str, *, user: str | None = None, password: str | None = None) -> "SourceSettings":
        """Read a URL; raise `Misconfigured` for one that is none. A password may stand in it, or be given."""
        if url.startswith("jdbc:"):
            return cls(kind="jdbc", database=_without_secret(url), user=user, password=password)
        parts = _split(url)
        if parts is None:
            # Raised here: the error of the parser, which is in no chain then, may hold a piece of the password.
            raise Misconfigured(f"The source's URL cannot be read. Write {FORMS}.")
        host, port = unquote(parts.hostname or ""), parts.port
        options = tuple(parse_qsl(parts.query))
        kind = SCHEMES.get(parts.scheme)
        if kind is None:
            raise Misconfigured(f"The source's URL has a scheme that is not known. Write {FORMS}.")
        if hidden := sorted({name for name, _ in options if name.lower() in _SECRET}):
            raise Misconfigured(f"The source's URL has {hidden[0]!r} after '?'. Give user and password by themselves.")
        if kind == "sqlite":
            return cls(kind=kind, database=_file(unquote(parts.path), host, options))
        made = cls(
            kind=kind,
            host=host,
            port=port,
            database=unquote(parts.path.removeprefix("/")),
            user=user or (unquote(parts.username) if parts.username else None),
            password=password or (unquote(parts.password) if parts.password else None),
            options=options,
        )
        if not made.host or not made.database or not made.user:
            raise Misconfigured(f"The source's URL {made} lacks a user, a host or a database. Write {FORMS}.")
        if kind == "mysql" and options:
            raise Misconfigured(
                f"The source's URL {made} has settings after '?', and MySQL has none there. Give TLS by itself, as tls."
            )
        return made

    def __str__(self) -> str:
        """The source as it may be said aloud."""
        match self.kind:
            case "sqlite":
                return f"sqlite:///{self.database}"
            case "jdbc":
                return self.database.partition("?")[0].partition(";")[0]
            case _:
                return f"{self.kind}://{self.authority}/{self.database}"

    @property
    def authority(self) -> str:
        """Host and port as URLs write them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}" if self.port else host

    def url(self, **more: str) -> str:
        """The URL as drivers want it, with the secret in it and more options: never to be said aloud."""
        user = quote(self.user or "", safe="")
        secret = f":{quote(self.password, safe='')}" if self.password is not None else ""
        given = {**more, **dict(self.options), **dict(self.secret_options)}
        options = f"?{urlencode(given, quote_via=quote)}" if given else ""
        return f"{self.kind}://{user}{secret}@{self.authority}/{quote(self.database, safe='')}{options}"

    def scrubbed(self, text: str) -> str:
        """A driver's words, without the password and other secrets should they hold them."""
        hidden = (*(value for _, value in self.secret_options), *(self.tls.secrets if self.tls else ()))
        for secret in (self.password, *hidden):
            for spelled in (secret, quote(secret, safe="")) if secret else ():
                text = text.replace(spelled, "***")
        return text


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port, parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        return None
    return parts


def _file(path: str, host: str, options: tuple[tuple[str, str], ...]) -> str:
    name = path.removeprefix("/")
    if host or options or not name or name == ":memory:":
        raise Misconfigured("A source in SQLite is a file. Write sqlite:///path/to/file.")
    return name


def _without_secret(url: str) -> str:
    told = url.lower()
    if any(f"{name}=" in told for name in ("password", "passwd", "pwd")) or "@" in told.partition("?")[0]:
        raise Misconfigured("The source's JDBC URL has a user or a password in it. Give them by themselves.")
    return url
