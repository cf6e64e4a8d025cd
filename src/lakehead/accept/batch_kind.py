"""What the records of accepted batches are: by the identity manifest, else by the frame itself."""

from lakehead.storage.port import Store
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.errors import NewerFormat, Unreadable
from lakehead.wire.frame import peek_frame
from lakehead.wire.frame_header import MAX_HEAD_BYTES
from lakehead.wire.record_schemas import FrameKind


async def batch_kind(manifest: IdentityManifest, store: Store) -> FrameKind | None:
    """Return the kind of an accepted batch; None if neither manifest nor frame names one that is known.

    Manifests of older gateways do not tell it. Raises `Unavailable`.
    """
    if manifest.kind:
        return FrameKind.named(manifest.kind)
    head = await store.get(manifest.raw_blob_key, end=MAX_HEAD_BYTES)
    try:
        return head_kind(None if head is None else head.body)
    except NewerFormat:
        return None


def head_kind(head: bytes | None) -> FrameKind | None:
    """Return what a frame's own header says; None if it is missing or damaged.

    `head` has the first `MAX_HEAD_BYTES` of the frame. Raises `NewerFormat`.
    """
    try:
        return None if head is None else peek_frame(head).kind
    except NewerFormat:
        raise
    except Unreadable:
        return None
