"""Records a class-data archive, by running a session that does a small version of a landing.

Runs as a separate process: `python -m lakehead.spark.training JAVA_HOME ARCHIVE FOLDER JAR…`.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from lakehead.spark.archive import TRAINING_SECONDS, record
from lakehead.spark.conf import JAVA_OPTIONS, session_conf
from lakehead.spark.java import find_java
from lakehead.spark.session import start, stop_session
from lakehead.spark.settings import SparkSettings

WORK = (
    "CREATE NAMESPACE lake.training",
    "CREATE TABLE lake.training.t (id BIGINT, day DATE, name STRING) USING iceberg PARTITIONED BY (day)",
    "INSERT INTO lake.training.t SELECT id, DATE '2000-01-01', string(id) FROM range(100)",
    "SELECT day, count(*), max(name) FROM lake.training.t GROUP BY day",
)


def train(session: SparkSession) -> None:
    """Run a small part of what a first landing needs. More would make the archive larger and recording slower."""
    session.range(1000).count()
    session.newSession().createDataFrame(pa.table({"x": [1, 2]})).mapInArrow(_same, "x long").collect()
    for statement in WORK:
        session.sql(statement).collect()


def _same(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield from batches


def main(java_home: str, archive: str, folder: str, *jars: str) -> None:
    """Run the session in the folder, and write the archive."""
    lakehouse = Path(folder) / "lakehouse"
    lakehouse.mkdir()
    settings = SparkSettings(java_home=Path(java_home), lakehouse=lakehouse)
    conf = session_conf(settings, [Path(jar) for jar in jars], None)
    conf[JAVA_OPTIONS] += f" {record(Path(archive))}"
    session = start(settings, find_java(settings), conf)
    try:
        train(session)
    finally:
        stop_session(session, within=TRAINING_SECONDS)  # it writes the archive now, which takes long on a busy machine


if __name__ == "__main__":
    main(*sys.argv[1:])
