"""The settings of a Spark session."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lakehead.errors import Misconfigured

CENTRAL = "Maven Central"
"""The repository whose address is built into Ivy."""
EMBEDDED = "lake"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Properties = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """How Spark is started. Nothing is read or written until `build_session` is called with it."""

    master: str = "local[*]"
    """Where the tasks run: `local[*]` is this process's machine, all cores; any Spark master URL."""

    app_name: str = "lakehead"
    """The name of this process in Spark's web pages and logs."""

    catalogs: Mapping[str, Properties] = field(default_factory=dict, repr=False)
    """Iceberg catalogs by name, each with Iceberg's own properties, passed unchanged. Default: one named `lake`,
    embedded in `lakehouse`. Not in `repr`: properties may contain secrets."""

    lakehouse: Path = Path("lakehouse")
    """The folder of the embedded catalog and its warehouse, created at the start; unused if `catalogs` are given.
    Default: `lakehouse` in the working directory."""

    jars: tuple[str, ...] = ()
    """Maven coordinates (`group:artifact:version`) besides those that the catalogs need. One that names the artifact of
    a needed one replaces it. Default: none."""

    repositories: tuple[str, ...] = field(default=(CENTRAL,), repr=False)
    """Addresses of Maven repositories, asked in this order, or the words `Maven Central`. Not in `repr`: an address may
    hold a password."""

    jar_folder: Path | None = None
    """A folder with every jar that is needed; then nothing is fetched. Default: none, jars are fetched once."""

    cache_folder: Path = field(default_factory=lambda: Path("~/.cache/lakehead").expanduser())
    """Where fetched jars and class-data archives are stored, shared by this user's processes.
    Default: `~/.cache/lakehead`."""

    class_data_archive: bool = True
    """Whether a missing class-data archive is created before the first start (up to a minute and 200 MB, once for each
    Java and class path; afterwards starts take half the time). An existing one is always used.
    Default: yes."""

    java_home: Path | None = None
    """The Java to use, by its folder. Default: none, the first `java` on the path."""

    path: str | None = None
    """Where to look for `java`, as in PATH. Default: none, the process's own path."""

    driver_memory: str = "2g"
    """The maximum heap of the driver, in Java's notation (`512m`, `2g`). With a local master tasks share it."""

    python: str | None = None
    """The Python that tasks run on, with `pyarrow` and `pandas`; Lakehead is sent to it. Default: none, which is this
    one with a local master and `python3` of the worker machines otherwise."""

    ui: bool = False
    """Whether Spark's web pages are served while the session lives. Default: no."""

    conf: Properties = field(default_factory=dict, repr=False)
    """Any other Spark setting. It overrides ours; class paths, Java options, extensions and redaction patterns are
    added to ours."""

    secret_keys: frozenset[str] = frozenset()
    """Settings of the session whose values Spark must redact, besides those whose names look like a secret."""

    def __post_init__(self) -> None:
        for name in self.catalogs:
            if not _NAME.fullmatch(name) or name == "spark_catalog":
                raise Misconfigured(
                    f"The catalog name {name!r} cannot be used in SQL as it stands. Name it with letters, digits and "
                    "underscores, other than spark_catalog."
                )

    @property
    def is_local(self) -> bool:
        """Whether tasks run inside the driver's own JVM."""
        return self.master == "local" or self.master.startswith("local[")

    @property
    def all_catalogs(self) -> Mapping[str, Properties]:
        """The catalogs that the session will know: those given, or the embedded one."""
        return self.catalogs or {EMBEDDED: embedded_catalog(self.lakehouse)}


def catalog_prefix(name: str) -> str:
    """The prefix of a catalog's settings, without the dot."""
    return f"spark.sql.catalog.{name}"


def embedded_catalog(folder: Path) -> dict[str, str]:
    """Iceberg's properties for a catalog in a SQLite file beside a local warehouse, both inside the folder.

    Processes of one machine may share it. PyIceberg's `SqlCatalog` with the same name, file and warehouse sees the same
    tables.
    """
    root = folder.expanduser().absolute()
    return {
        "type": "jdbc",
        "uri": f"jdbc:sqlite:{root / 'catalog.sqlite'}?journal_mode=WAL&busy_timeout=30000",
        "jdbc.schema-version": "V1",  # what PyIceberg writes too
        "warehouse": (root / "warehouse").as_uri(),
    }
