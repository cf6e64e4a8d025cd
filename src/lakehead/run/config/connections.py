"""The configuration of sources, sinks and Spark."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticKnownError

from lakehead.run.config.base import (
    ConfigModel,
    NonEmptyText,
    SecretField,
    SecretReference,
    TextOrSecret,
    invalid,
)
from lakehead.source.dialects import DIALECTS

UNSAFE_URL = 'must not contain a password. Add "password": {"env": "NAME"} instead.'
_SECRET_SETTING = re.compile(r"(?i)(passw\w*|pwd|secret\w*|token)\s*=")
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?")


class TlsConfig(ConfigModel):
    """TLS settings of a source. On a cluster the files must exist on every worker too."""

    ca: NonEmptyText = Field(
        description="PEM file of the trusted certificate authorities. That of the machine is often "
        "/etc/ssl/certs/ca-certificates.crt."
    )
    verify: Literal["identity", "ca"] = Field(
        "identity",
        description="identity: the certificate must be valid for the host in the URL. ca: for any host.",
    )
    certificate: NonEmptyText | None = Field(
        None, description="PEM file of the client certificate, for servers that require one. Default: none."
    )
    key: NonEmptyText | None = Field(None, repr=False, description="PEM file of the client certificate's private key.")
    key_password: SecretField | None = Field(None, description="The password of the private key. Default: none.")
    key_store: NonEmptyText | None = Field(
        None,
        repr=False,
        description="PKCS12 file of client certificate and key, for JDBC: a source with a client certificate is read "
        "by JDBC.",
    )
    key_store_password: SecretField | None = Field(None, description="The password of the key store.")

    @model_validator(mode="after")
    def _complete(self) -> "TlsConfig":
        client = {name: getattr(self, name) for name in ("certificate", "key", "key_store", "key_store_password")}
        lacking = [name for name, value in client.items() if value is None]
        if lacking and (len(lacking) < len(client) or self.key_password is not None):
            raise invalid(f"lacks {lacking[0]}: a client certificate needs {', '.join(client)}.")
        return self


def _registered(name: str) -> str:
    if name not in DIALECTS.names:
        *names, last = (repr(each) for each in DIALECTS.names)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})
    return name


def _add_names(schema: dict[str, object]) -> None:
    schema["enum"] = list(DIALECTS.names)


DialectName = Annotated[str, AfterValidator(_registered), Field(json_schema_extra=_add_names)]


class SourceConfig(ConfigModel):
    """A database that tables are read from."""

    dialect: DialectName = Field(
        description="The kind of database. mysql includes MariaDB; jdbc is any database with a JDBC driver."
    )
    url: NonEmptyText = Field(
        description="The URL of the database, without a password: postgresql://host:port/database, "
        "mysql://host:port/database, sqlite:///path/to/file, or jdbc:… as in the driver's manual."
    )
    user: NonEmptyText | None = Field(None, description="The user name. Default: the one in the URL, or none.")
    password: SecretField | None = Field(None, description="The password of the user. Default: none.")
    driver: NonEmptyText | None = Field(
        None,
        description="The class of the JDBC driver, with dialect jdbc. Default: the one that Java finds for the URL.",
    )
    properties: Mapping[str, TextOrSecret] = Field(
        {},
        repr=False,
        description="Connection parameters of the driver, for dialect postgresql. Default: none.",
    )

    tls: TlsConfig | None = Field(
        None,
        description="TLS settings, for dialect mysql. Default: TLS is not required. For postgresql set sslmode and "
        "sslrootcert in properties; for jdbc use the driver's settings in the URL.",
    )

    @field_validator("driver")
    @classmethod
    def _driver(cls, driver: str | None, info: ValidationInfo) -> str | None:
        dialect = info.data.get("dialect")
        if driver is not None and dialect is not None and not DIALECTS.named(dialect).takes_driver:
            raise invalid(f"is not supported by the dialect {dialect}, which has its own. Remove it.")
        return driver

    @field_validator("tls")
    @classmethod
    def _tls(cls, tls: TlsConfig | None, info: ValidationInfo) -> TlsConfig | None:
        dialect = info.data.get("dialect")
        if tls is not None and dialect is not None and not DIALECTS.named(dialect).takes_tls:
            raise invalid(
                f"is not supported by the dialect {dialect}. Remove it, and set TLS by the driver's own settings: in "
                "properties, or in the URL for jdbc."
            )
        return tls

    @field_validator("properties")
    @classmethod
    def _properties(
        cls, given: Mapping[str, str | SecretReference], info: ValidationInfo
    ) -> Mapping[str, str | SecretReference]:
        dialect = info.data.get("dialect")
        if given and dialect is not None and not DIALECTS.named(dialect).takes_properties:
            raise invalid(f"is not supported by the dialect {dialect}. Remove it.")
        return given

    @field_validator("url")
    @classmethod
    def _url(cls, url: str, info: ValidationInfo) -> str:
        name = info.data.get("dialect")
        dialect = DIALECTS.named(name) if name is not None else None
        if dialect is not None and not url.startswith(dialect.url_prefixes[0]):
            raise invalid(f"must be a URL of the dialect {name}: {dialect.url_form}.")
        if contains_password(url):
            raise invalid(UNSAFE_URL)
        return url

    @field_validator("user")
    @classmethod
    def _user(cls, user: str | None, info: ValidationInfo) -> str | None:
        if user is not None and _split(str(info.data.get("url", "")))[0]:
            raise invalid("is given twice: here and in the URL. Remove one of them.")
        return user


class IcebergSinkConfig(ConfigModel):
    """Tables of an Iceberg catalog."""

    type: Literal["iceberg"] = Field(description="The type of the sink: iceberg.")
    catalog: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        "lake", description="The name of the catalog in SQL: letters, digits and underscores. Never change it."
    )
    properties: Mapping[str, TextOrSecret] = Field(
        {},
        repr=False,
        description="Iceberg's properties of the catalog, passed on unchanged; type is jdbc, rest, hive or glue. "
        "Default: none; then the catalog is a SQLite file with a local warehouse, in spark.lakehouse.",
    )


class FileSinkConfig(ConfigModel):
    """Parquet files in directories."""

    type: Literal["files"] = Field(description="The type of the sink: files.")
    root: NonEmptyText = Field(description="The root directory: a path, or a file:, hdfs: or s3a: URL.")
    publish: Literal["rename", "pointer"] | None = Field(
        None,
        description="How a finished directory becomes visible. Default: rename if the file system renames directories "
        "atomically, else pointer (a pointer file).",
    )


SinkConfig = Annotated[IcebergSinkConfig | FileSinkConfig, Field(discriminator="type")]


class SparkConfig(ConfigModel):
    """Settings of the Spark session. Java and the sources of jars are set in the environment."""

    master: NonEmptyText = Field(
        "local[*]", description="Where tasks run: local[*] for this machine, or the URL of a Spark master."
    )
    app_name: NonEmptyText = Field("lakehead", description="The application name in the Spark UI.")
    lakehouse: Path = Field(
        Path("lakehouse"), description="The folder of the embedded catalog and its warehouse, if one is used."
    )
    jars: tuple[NonEmptyText, ...] = Field(
        (), description="Maven coordinates (group:artifact:version) of additional jars, such as JDBC drivers."
    )
    driver_memory: Annotated[str, Field(pattern=r"^[0-9]+[kmgt]$")] = Field(
        "2g", description="The heap size of the driver, such as 512m or 2g. With a local master, tasks share it."
    )
    python: NonEmptyText | None = Field(
        None, description="The Python of the tasks. Default: this one with a local master, else python3 on the workers."
    )
    ui: StrictBool = Field(default=False, description="Whether the Spark UI is served during the run.")
    conf: Mapping[str, TextOrSecret] = Field(
        {}, repr=False, description="Other Spark settings, which override Lakehead's. Default: none."
    )


def contains_password(url: str) -> bool:
    """Whether a URL contains a password, or cannot be parsed well enough to exclude that."""
    login, hosts, rest = _split(url)
    return bool(
        ":" in login
        or "/" in login
        or not all(_HOST.fullmatch(host) for host in hosts.split(","))
        or _SECRET_SETTING.search(url)
        or "@" in rest.partition("=")[0]  # a password with a question mark in it
    )


def _split(url: str) -> tuple[str, str, str]:
    """Return the login, the hosts, and everything after '?' or ';'."""
    address, _, rest = re.sub("[;#]", "?", url.removeprefix("jdbc:"), count=1).partition("?")
    login, _, hosts = address.partition("//")[2].partition("/")[0].rpartition("@")
    if "thin:" in address:  # Oracle's thin:user/password@host
        login = address.partition("thin:")[2].rpartition("@")[0]
    return login, hosts, rest
