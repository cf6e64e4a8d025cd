"""The Spark configuration of a session."""

import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from lakehead.spark.archive import use
from lakehead.spark.settings import SparkSettings, catalog_prefix

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
CATALOG = "org.apache.iceberg.spark.SparkCatalog"

CLASS_PATH = "spark.driver.extraClassPath"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTORS_JAVA_OPTIONS = "spark.executor.extraJavaOptions"
DRIVER_MEMORY = "spark.driver.memory"
LIBRARY_PATH = "spark.driver.extraLibraryPath"
REDACTED = "spark.redaction.regex"
HADOOP = "spark.hadoop."

# Spark's own pattern does not match the secret settings of Iceberg and of the clouds.
_HIDDEN = "(?i)secret|password|passphrase|token|credential|(access|account|private|shared|api)[._-]?key"

# A user's value for these is appended to ours instead of replacing it.
_JOINED = {
    CLASS_PATH: os.pathsep,
    JAVA_OPTIONS: " ",
    EXECUTORS_JAVA_OPTIONS: " ",
    "spark.jars": ",",
    "spark.sql.extensions": ",",
    REDACTED: "|",
}
AT_LAUNCH = (CLASS_PATH, JAVA_OPTIONS, DRIVER_MEMORY, LIBRARY_PATH, "spark.master")
"""The settings on the command line of the JVM, which all users of the machine can read."""


def session_conf(settings: SparkSettings, jars: Sequence[Path], archive: Path | None) -> dict[str, str]:
    """The whole configuration of a session."""
    conf = {
        "spark.master": settings.master,
        "spark.app.name": settings.app_name,
        "spark.submit.deployMode": "client",
        DRIVER_MEMORY: settings.driver_memory,
        CLASS_PATH: os.pathsep.join(map(str, jars)),
        JAVA_OPTIONS: _java_options(archive),
        EXECUTORS_JAVA_OPTIONS: "-Duser.timezone=UTC",
        "spark.executorEnv.TZ": "UTC",
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": EXTENSIONS,
        REDACTED: "|".join([_HIDDEN, *map(_exactly, sorted(settings.secret_keys))]),
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what every reader of Parquet knows
    }
    if settings.is_local:
        # Not reachable from outside, and independent of what the machine's name resolves to.
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Spark's default of 200 is for a cluster: with two cores, expiring a few snapshots takes four times as long
        # with it, and merging into three million rows takes a third longer with 16 than with 4.
        conf["spark.sql.shuffle.partitions"] = str(2 * _cores(settings.master))
        if settings.python is None:
            conf["spark.python.daemon.module"] = "lakehead.spark.workers"
    else:
        conf["spark.jars"] = ",".join(jar.as_uri() for jar in jars)
    for name, properties in settings.all_catalogs.items():
        prefix = catalog_prefix(name)
        conf[prefix] = CATALOG
        conf[f"{prefix}.cache-enabled"] = "false"  # a session would otherwise use an outdated head
        conf |= {f"{prefix}.{key}": value for key, value in properties.items()}
    for key, value in settings.conf.items():
        conf[key] = f"{conf[key]}{_JOINED[key]}{value}" if key in _JOINED and conf.get(key) else value
    return conf


def launch_conf(conf: dict[str, str]) -> dict[str, str]:
    """The settings that the JVM needs when it starts. They are on its command line, so they contain no secrets."""
    return {key: conf[key] for key in AT_LAUNCH if key in conf}


def _java_options(archive: Path | None) -> str:
    quiet = f'-Duser.timezone=UTC -Dlog4j2.configurationFile="{files("lakehead.spark") / "log4j2.properties"}"'
    return f"{quiet} {use(archive)}" if archive else quiet


def _exactly(key: str) -> str:
    """A pattern for exactly this setting; Hadoop's settings are also shown without Spark's prefix."""
    bare = key.removeprefix(HADOOP)
    return f"^{f'({re.escape(HADOOP)})?' if bare != key else ''}{re.escape(bare)}$"


def _cores(master: str) -> int:
    """How many tasks a local master runs in parallel."""
    named = re.fullmatch(r"local\[(\d+).*\]", master)
    return int(named[1]) if named else 1 if master == "local" else os.cpu_count() or 1
