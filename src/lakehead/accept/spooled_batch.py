"""A batch in a gateway's spool, and the errors that the spool raises."""

from dataclasses import dataclass

import pyarrow as pa

from lakehead.accept.acceptance import Submission
from lakehead.errors import Misconfigured, Unavailable
from lakehead.wire import spool_records as files
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.errors import BadFrame
from lakehead.wire.frame import frame_sha256
from lakehead.wire.frame_header import check_whole, decode_header, decode_prefix


class SpoolFull(Unavailable):
    """Try again later: the spool has no room for the batch until others are in the object store."""


class SpoolUnusable(Unavailable):
    """Look after the disk of the spool; nothing was accepted."""


class IdentityInSpool(Misconfigured):
    """Leave the identity alone: the spool holds a batch of it, which will be accepted."""


@dataclass(frozen=True, slots=True)
class SpooledBatch:
    """A batch in the spool."""

    identity: BatchIdentity
    size: int
    spooled_at_unix_ns: int
    sha256: str = ""
    """The hash of its frame; empty if the file was not read since the start."""

    @classmethod
    def found(cls, identity: BatchIdentity, size: int, modified_ns: int, sha256: str = "") -> "SpooledBatch":
        """A batch by its file, whose time is when it was accepted. A time that no record can have is not told."""
        return cls(identity, size, modified_ns if 0 <= modified_ns < 2**63 else 0, sha256)

    @property
    def key(self) -> str:
        """The name of its file."""
        return files.spooled_batch(self.identity)

    def submission(self, body: bytes) -> Submission:
        """Return what was submitted, from the bytes of the file. Raises `NewerFormat`, and `BadFrame` if they are
        not the frame that was accepted.
        """
        frame = pa.py_buffer(body)
        prefix = decode_prefix(frame)
        check_whole(frame, prefix)
        header = decode_header(frame, prefix)
        digest = frame_sha256(body)
        if header.identity != self.identity or self.sha256 not in ("", digest):
            raise BadFrame("bad_identity", f"The file holds another frame, of {header.identity}.")
        return Submission(
            body=body,
            identity=header.identity,
            kind=header.kind,
            sha256=digest,
            wire_version=header.wire_version,
            frame_version=header.frame_version,
            spooled_at_unix_ns=self.spooled_at_unix_ns,
        )
