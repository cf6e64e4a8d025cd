"""The settings of a bucket that acceptance depends on, as S3 has them, and what can be found in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, TypeAlias

from lakehead.accept.bucket_policy import QUEUE, Encryption

Document: TypeAlias = Mapping[str, Any]
"""A part of S3's answer, by S3's names."""


class Check(StrEnum):
    """What is looked at. Each is a field of `BucketSettings`."""

    VERSIONING = "versioning"
    LIFECYCLE = "lifecycle"
    OBJECT_LOCK = "object_lock"
    POLICY = "policy"
    REPLICATION = "replication"
    ENCRYPTION = "encryption"


class Severity(StrEnum):
    """How bad a finding is."""

    DANGER = "danger"
    """Accepted batches can be lost, or accepted a second time."""

    WARNING = "warning"
    """A protection is weaker than it should be, or something may go wrong later."""

    UNKNOWN = "unknown"
    """A setting could not be checked. It may be anything."""

    ADVICE = "advice"
    """Nothing is wrong. It could be better."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an operator should know of a bucket."""

    check: Check
    severity: Severity
    problem: str
    """What was found, and what it means."""

    advice: str
    """What to do."""

    def __str__(self) -> str:
        """Return it as a line for people."""
        return f"{self.severity}: {self.problem} {self.advice}"


@dataclass(frozen=True, slots=True)
class Unread:
    """A setting that could not be read."""

    reason: str
    advice: str = "Check it by hand."


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """What S3 answers about a bucket; None where nothing is set."""

    versioning: str | Unread
    """`Enabled`, `Suspended`, or empty if it never was on."""

    lifecycle: Sequence[Document] | Unread
    object_lock: Document | Unread | None
    policy: str | Unread | None
    """A JSON document."""

    replication: Document | Unread | None
    encryption: Document | Unread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityPlace:
    """Where the objects of an acceptance authority are in a bucket."""

    bucket: str
    prefix: str = ""
    """Without slashes around it."""

    queue: str = QUEUE
    """The folder of the queue of accepted batches, below the prefix."""

    encryption: Encryption | None = None
    """The default encryption that the bucket should have. None: any."""

    is_aws: bool = True
    """Whether the server is that of AWS, which knows all condition keys of a policy. Others may pass over a denial."""

    def keys_of(self, folder: str) -> str:
        """Return the beginning of all keys of a folder of the authority."""
        return f"{self.prefix}/{folder}/" if self.prefix else f"{folder}/"


def all_unread(reason: str, advice: str) -> BucketSettings:
    """Return settings none of which could be read."""
    return BucketSettings(**{each.name: Unread(reason, advice) for each in fields(BucketSettings)})


def reaches(rule_prefix: str, keys: str) -> bool:
    """Return whether a rule for a prefix applies to some of the keys that begin so."""
    return rule_prefix.startswith(keys) or keys.startswith(rule_prefix)
