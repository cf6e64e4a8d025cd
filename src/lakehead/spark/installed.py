"""The Spark that PySpark brings, found without importing PySpark: a JVM can start before that is imported."""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path


def _home() -> Path:
    package = find_spec("pyspark")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("PySpark is not installed.", name="pyspark")
    return Path(package.origin).parent


SPARK_HOME = _home()
SPARK_VERSION = version("pyspark")
