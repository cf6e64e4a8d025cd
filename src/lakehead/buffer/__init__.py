"""A durable buffer on object storage: ingestors store batches, a queue of two manifests passes them to collectors."""
