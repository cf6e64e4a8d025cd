"""A durable buffer on object storage: ingestors store batches, a queue of two manifests tells collectors of them."""
