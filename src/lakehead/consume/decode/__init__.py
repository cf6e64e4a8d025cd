"""Objects of a bucket decoded to Arrow, exactly or not at all. Runs in Spark's tasks."""
