"""Spark, borrowed: Java, jars, a quick and quiet start, sessions for threads and jobs by table."""
