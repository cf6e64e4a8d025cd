"""Whether the frame of an accepted batch is there and is what was accepted."""

from dataclasses import dataclass
from hashlib import sha256

from lakehead.errors import Unavailable
from lakehead.maintain.reconcile_settings import VerifyMode
from lakehead.storage.port import Store
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.maintenance_records import BlobProblem

PART_BYTES = 8 << 20
"""What is read of a frame at once."""

_TRIES = 3


@dataclass(frozen=True, slots=True)
class BlobCheck:
    """Checks frames in a store."""

    store: Store
    verify: VerifyMode = "hash"

    async def problem(self, manifest: IdentityManifest) -> BlobProblem | None:
        """Return what is wrong with the frame of a batch; None if nothing is. Raises `Unavailable`."""
        if self.verify == "size":
            meta = await self.store.head(manifest.raw_blob_key)
            if meta is None:
                return "missing"
            return None if meta.size == manifest.frame_bytes else "corrupt"
        for _ in range(_TRIES):
            found = await self._hashed(manifest)
            if found is not None:
                return None if found == manifest.frame_sha256 else ("corrupt" if found else "missing")
        raise Unavailable(f"{manifest.raw_blob_key} was changed each time that it was read. Try again later.")

    async def _hashed(self, manifest: IdentityManifest) -> str | None:
        """The hash of the stored bytes, up to one more than the frame has; empty if they are missing.

        None if they were changed while they were read.
        """
        digest, start, version = sha256(), 0, None
        most = manifest.frame_bytes + 1  # one more tells a longer object from the frame
        while start < most:
            part = await self.store.get(manifest.raw_blob_key, start=start, end=min(start + PART_BYTES, most))
            if part is None:
                return "" if version is None else None
            if version not in (None, part.meta.version):
                return None
            version = part.meta.version
            digest.update(part.body)
            start += len(part.body)
            if not part.body or start >= part.meta.size:
                break
        return digest.hexdigest()
