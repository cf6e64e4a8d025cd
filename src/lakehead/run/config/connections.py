"""Where data comes from and goes to: sources, sinks, and the Spark that does the work."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from lakehead.run.config.parts import LATER, Part, Secret, SecretReference, Setting, Switch, Text, wrong

Dialect = Literal["postgresql", "mysql", "sqlite", "jdbc"]
FORMS: Mapping[str, str] = {
    "postgresql": "postgresql://host:port/database",
    "mysql": "mysql://host:port/database",
    "sqlite": "sqlite:///path/to/file",
    "jdbc": "jdbc:name:…",
}
OUTSIDE = 'must not hold a password. Write beside it: "password": {"env": "NAME"}.'
_SECRET_SETTING = re.compile(r"(?i)(passw\w*|pwd|secret\w*|token)\s*=")
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?")


class Tls(Part):
    """TLS to a MySQL server. Its files are read wherever rows are: on a cluster by the workers too."""

    ca: Text = Field(
        description="The file of the certificates, in PEM, one of which the server's must be signed by; that of the "
        "machine's own is often /etc/ssl/certs/ca-certificates.crt."
    )
    verify: Literal["identity", "ca"] = Field(
        "identity",
        description="identity: the server's certificate must also be for the host in the URL. ca: for any host.",
    )
    certificate: Text | None = Field(
        None, description="The file of our own certificate, in PEM, for servers that ask for one. Default: none."
    )
    key: Text | None = Field(None, repr=False, description="The file of the certificate's key, in PEM.")
    key_password: SecretReference | None = Field(
        None, description="Where the key's password stands. Default: it has none."
    )
    key_store: Text | None = Field(
        None,
        repr=False,
        description="The file of certificate and key in PKCS12: with a certificate of our own, rows are read by JDBC, "
        "which wants them so.",
    )
    key_store_password: SecretReference | None = Field(None, description="Where the key store's password stands.")

    @model_validator(mode="after")
    def _whole(self) -> "Tls":
        ours = {name: getattr(self, name) for name in ("certificate", "key", "key_store", "key_store_password")}
        lacking = [name for name, value in ours.items() if value is None]
        if lacking and (len(lacking) < len(ours) or self.key_password is not None):
            raise wrong(f"lacks {lacking[0]}: a certificate of our own needs {', '.join(ours)}.")
        return self


class Source(Part):
    """A database that tables are read from."""

    dialect: Dialect = Field(
        description="How the database is spoken to. mysql is MariaDB's too; jdbc is any database with a JDBC driver."
    )
    url: Text = Field(
        description="Where the database is, without a password: postgresql://host:port/database, "
        "mysql://host:port/database, sqlite:///path/to/file, or jdbc:… as the driver's manual writes it."
    )
    user: Text | None = Field(None, description="The user to log in as. Default: the one in the URL, or none.")
    password: SecretReference | None = Field(None, description="Where the user's password stands. Default: none.")
    driver: Text | None = Field(
        None,
        description="The class of the JDBC driver, with dialect jdbc. Default: the one that Java finds by the URL. "
        f"{LATER}",
    )
    properties: Mapping[str, Setting] = Field(
        {},
        repr=False,
        description="Further settings of a postgresql connection, in the driver's words. Default: none.",
    )

    tls: Tls | None = Field(
        None,
        description="TLS of a mysql connection. Default: none is asked for. A postgresql connection has sslmode and "
        "sslrootcert among its properties, a jdbc one its driver's settings in the URL.",
    )

    @field_validator("tls")
    @classmethod
    def _tls(cls, tls: Tls | None, info: ValidationInfo) -> Tls | None:
        if tls is not None and info.data.get("dialect") not in (None, "mysql"):
            raise wrong(
                "must be left out: only the dialect mysql has it. For postgresql write sslmode and sslrootcert among "
                "properties, for jdbc the driver's own settings in the URL."
            )
        return tls

    @field_validator("properties")
    @classmethod
    def _properties(cls, given: Mapping[str, str | Secret], info: ValidationInfo) -> Mapping[str, str | Secret]:
        if given and info.data.get("dialect") not in (None, "postgresql"):
            raise wrong("must be empty: only those of the dialect postgresql are known.")
        return given

    @field_validator("url")
    @classmethod
    def _url(cls, url: str, info: ValidationInfo) -> str:
        dialect = info.data.get("dialect")
        scheme = {"sqlite": "sqlite:///", "jdbc": "jdbc:"}.get(str(dialect), f"{dialect}://")
        if dialect is not None and not url.startswith(scheme):
            raise wrong(f"must be an address of the dialect {dialect}: {FORMS[dialect]}.")
        if holds_a_password(url):
            raise wrong(OUTSIDE)
        return url

    @field_validator("user")
    @classmethod
    def _user(cls, user: str | None, info: ValidationInfo) -> str | None:
        if user is not None and _split(str(info.data.get("url", "")))[0]:
            raise wrong("is given twice: here and in the URL. Take it out of one of them.")
        return user


class IcebergSink(Part):
    """Tables of an Iceberg catalog."""

    type: Literal["iceberg"] = Field(description="What the sink is: iceberg.")
    catalog: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        "lake", description="The catalog's name in SQL, of letters, digits and underscores. It must never change."
    )
    properties: Mapping[str, Setting] = Field(
        {},
        repr=False,
        description="Iceberg's own properties of the catalog, passed through as they are; type is jdbc, rest, hive or "
        "glue. Default: none, and then it is a SQLite file beside a local warehouse, in spark.lakehouse.",
    )


class FileSink(Part):
    """Parquet files in directories."""

    type: Literal["files"] = Field(description="What the sink is: files.")
    root: Text = Field(description="The directory of everything: a path, or file:, hdfs: or s3a: with one.")
    publish: Literal["rename", "pointer"] | None = Field(
        None,
        description="How a finished directory becomes visible. Default: by rename where the file system renames "
        "directories in one step, by a pointer file elsewhere.",
    )


Sink = Annotated[IcebergSink | FileSink, Field(discriminator="type")]


class Spark(Part):
    """How Spark is started. Java, and where jars are fetched from and kept, come from the environment."""

    master: Text = Field("local[*]", description="Where tasks run: local[*] is this machine, or a Spark master's URL.")
    app_name: Text = Field("lakehead", description="What Spark's own pages call the process.")
    lakehouse: Path = Field(
        Path("lakehouse"), description="The folder of the embedded catalog and its warehouse, where one is used."
    )
    jars: tuple[Text, ...] = Field(
        (), description="Maven coordinates (group:artifact:version) of further jars, such as JDBC drivers."
    )
    driver_memory: Annotated[str, Field(pattern=r"^[0-9]+[kmgt]$")] = Field(
        "2g", description="The driver's heap, as Java writes it (512m, 2g). With a local master tasks share it."
    )
    python: Text | None = Field(
        None, description="The Python of the tasks. Default: this one with a local master, python3 of the workers else."
    )
    ui: Switch = Field(default=False, description="Whether Spark's web pages are served during the run.")
    conf: Mapping[str, Setting] = Field(
        {}, repr=False, description="Any other Spark setting; it wins over Lakehead's. Default: none."
    )


def holds_a_password(url: str) -> bool:
    """Whether a URL holds what must not be in it. One whose host cannot be told is taken to."""
    login, hosts, rest = _split(url)
    return bool(
        ":" in login
        or "/" in login
        or not all(_HOST.fullmatch(host) for host in hosts.split(","))
        or _SECRET_SETTING.search(url)
        or "@" in rest.partition("=")[0]  # a password with a question mark in it
    )


def _split(url: str) -> tuple[str, str, str]:
    """Who logs in, where, and what comes after '?' or ';'."""
    address, _, rest = re.sub("[;#]", "?", url.removeprefix("jdbc:"), count=1).partition("?")
    login, _, hosts = address.partition("//")[2].partition("/")[0].rpartition("@")
    if "thin:" in address:  # Oracle's thin:user/password@host
        login = address.partition("thin:")[2].rpartition("@")[0]
    return login, hosts, rest
