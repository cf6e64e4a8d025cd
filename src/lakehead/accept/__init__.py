"""Acceptance of batches: blobs, identity manifests, and what follows from them in the object store."""
