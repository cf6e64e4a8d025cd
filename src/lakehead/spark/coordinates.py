"""The Maven coordinates of the jars that a session needs."""

from collections.abc import Iterator
from dataclasses import dataclass

from lakehead.errors import Misconfigured
from lakehead.spark.settings import Properties, SparkSettings

ICEBERG = "1.11.0"
RUNTIME = f"org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:{ICEBERG}"

DRIVERS = {
    "jdbc:sqlite:": "org.xerial:sqlite-jdbc:3.50.3.0",
    "jdbc:postgresql:": "org.postgresql:postgresql:42.7.7",
    "jdbc:mariadb:": "org.mariadb.jdbc:mariadb-java-client:3.5.6",
    "jdbc:mysql:": "com.mysql:mysql-connector-j:9.4.0",
}
AWS = f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG}"
GOOGLE = f"org.apache.iceberg:iceberg-gcp-bundle:{ICEBERG}"
AZURE = f"org.apache.iceberg:iceberg-azure-bundle:{ICEBERG}"
CLOUDS = {"s3": AWS, "s3a": AWS, "s3n": AWS, "gs": GOOGLE, "abfs": AZURE, "abfss": AZURE, "wasb": AZURE, "wasbs": AZURE}
CLIENTS = {"org.apache.iceberg.aws.": AWS, "org.apache.iceberg.gcp.": GOOGLE, "org.apache.iceberg.azure.": AZURE}


@dataclass(frozen=True, slots=True, order=True)
class Coordinate:
    """One artifact of a Maven repository."""

    group: str
    artifact: str
    version: str

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @classmethod
    def parse(cls, text: str) -> "Coordinate":
        """Read `group:artifact:version`; raise `Misconfigured` for anything else."""
        parts = text.split(":")
        if len(parts) != 3 or not all(part and part.replace("-", "_").isprintable() for part in parts) or " " in text:
            raise Misconfigured(f"{text!r} is not a Maven coordinate. Write it as group:artifact:version.")
        return cls(*parts)


def needed(settings: SparkSettings) -> tuple[Coordinate, ...]:
    """Every coordinate that a session needs, each artifact once, in the order of the class path."""
    wanted = [RUNTIME]
    for properties in settings.all_catalogs.values():
        wanted += _of_catalog(properties)
    chosen = {}
    for coordinate in map(Coordinate.parse, [*wanted, *settings.jars]):
        chosen[coordinate.group, coordinate.artifact] = coordinate
    return tuple(chosen.values())


def driver(url: str) -> str | None:
    """The coordinate of the JDBC driver for a URL; None if it is unknown."""
    return next((coordinate for start, coordinate in DRIVERS.items() if url.startswith(start)), None)


def _of_catalog(properties: Properties) -> Iterator[str]:
    if jdbc := driver(properties.get("uri", "")):
        yield jdbc
    scheme = properties.get("warehouse", "").partition("://")[0]
    if scheme in CLOUDS:
        yield CLOUDS[scheme]
    if properties.get("type") == "glue":
        yield AWS
    for start, bundle in CLIENTS.items():
        if any(properties.get(key, "").startswith(start) for key in ("io-impl", "catalog-impl")):
            yield bundle
