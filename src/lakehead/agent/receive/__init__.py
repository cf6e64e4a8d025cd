"""What senders push to an agent, decoded to records: OTLP, Prometheus's remote write and JSON lines."""
