"""The one place of garbage collection that deletes: it can delete raw blobs, and nothing else."""

from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys


async def delete_blob(store: Store, frame_sha256: str) -> None:
    """Delete the raw blob with this hash. Call it only for a frame whose identity is void, or that is retired.

    Raises `InvalidKeyPart` if it is no hash, `Unavailable` and `OutcomeUnknown`; repeating it is safe.
    """
    await store.delete(keys.raw_blob(frame_sha256))
