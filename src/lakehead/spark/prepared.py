"""The first part of a start of Spark: everything is checked, and the JVM starts, before PySpark is imported."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lakehead.spark.archive import archive_for
from lakehead.spark.conf import launch_conf, session_conf
from lakehead.spark.jars import Say, jars_for
from lakehead.spark.java import Java, find_java
from lakehead.spark.jvm_process import JvmProcess
from lakehead.spark.settings import SparkSettings


@dataclass(frozen=True, slots=True)
class StartingSpark:
    """A JVM that starts, and what its session will be like."""

    settings: SparkSettings
    java: Java
    jars: Sequence[Path]
    archive: Path | None
    """The class-data archive that it starts with."""

    conf: dict[str, str]
    process: JvmProcess


def start_jvm(settings: SparkSettings, *, say: Say) -> StartingSpark:
    """Check Java and the jars, and start a JVM with these settings, without waiting for it.

    `say` is called with a message before work that is done once and takes long. Raises `Misconfigured` or `Unavailable`
    with a one-sentence message.
    """
    java = find_java(settings)
    jars = jars_for(settings, java, say=say)
    archive = archive_for(settings, java, jars, say=say)
    if not settings.catalogs:
        settings.lakehouse.expanduser().mkdir(parents=True, exist_ok=True)
    conf = session_conf(settings, jars, archive)
    return StartingSpark(settings, java, jars, archive, conf, JvmProcess.launch(java, launch_conf(conf)))
