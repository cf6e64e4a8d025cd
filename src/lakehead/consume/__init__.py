"""Messages of a queue: what they announce lands in Iceberg tables, each object exactly once."""
