"""Objects that messages announce."""

from dataclasses import dataclass
from enum import StrEnum

from lakehead.errors import LakeheadError


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """An object as a message names it."""

    uri: str
    """Normalised, so that every spelling of one object is the same text: `s3://bucket/key with spaces`."""

    size: int | None = None
    """Its bytes, as far as the message tells."""

    etag: str | None = None
    """Without quotes."""

    version: str | None = None
    """The version id or generation, in a bucket that keeps versions."""


class MessageFormat(StrEnum):
    """How the body of a message names objects."""

    AUTO = "auto"
    """By its content: a notification of S3 or GCS (also inside SNS or EventBridge), else a URI."""

    RAW_URI = "raw_uri"
    """The body is a URI, or one URI in each line."""

    LISTED = "listed"
    """The body is one normalised URI, to the letter, as listings have it: keys may have spaces at their ends."""

    S3 = "s3"
    """A notification of S3, plain, in an SNS envelope or by EventBridge."""

    GCS = "gcs"
    """A notification of GCS, by Pub/Sub or as its JSON."""

    LOCATION = "location"
    """A location of a manifest queue: a key in the queue's own store."""

    ACCEPTED = "accepted"
    """A location of a manifest queue whose batches hold keys of accepted batches: each of them is announced."""

    INLINE = "inline"
    """The body is the content itself."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What a message says."""

    objects: tuple[ObjectRef, ...] = ()
    ignored: tuple[str, ...] = ()
    """Why records of the message announce nothing to land: removals, test events."""


class NotUnderstood(LakeheadError):
    """Keep the message, as a dead letter: what it announces is not known, so it must not be acknowledged as done."""
