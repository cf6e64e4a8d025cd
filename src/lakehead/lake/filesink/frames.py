"""Spark's part: a DataFrame written into a staged directory."""

from pyspark.sql import DataFrame

from lakehead.lake.filesink.file_sink import Write


def parquet_of(frame: DataFrame) -> Write:
    """Writes all rows of the frame as Parquet, by Spark's own settings for it; what the frame raises is raised."""

    def write(directory: str) -> None:
        frame.write.parquet(directory)

    return write
