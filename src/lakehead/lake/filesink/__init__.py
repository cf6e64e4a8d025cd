"""Parquet directories on local disk, HDFS or S3, one for each unit of work, seen whole or not at all."""
