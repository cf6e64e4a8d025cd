"""The S3 bucket policy that protects an acceptance authority from mistakes of people and programs.

Denials hold for everybody, also for those whom another policy allows everything. docs/bucket-policy.md explains them.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, TypeAlias

from lakehead.accept.bucket_roles import ALL_FOLDERS, APPEND_ONLY, RAW_BLOBS, ROLE_ACCESS, TOKENS, BucketRole
from lakehead.errors import Misconfigured

Statement: TypeAlias = dict[str, object]
Condition: TypeAlias = dict[str, dict[str, str | list[str]]]
Encryption: TypeAlias = Literal["AES256", "aws:kms", "aws:kms:dsse"]

ACCOUNT = "ACCOUNT-ID"
"""Stands in the policy where no role was named. S3 refuses a policy with it."""

QUEUE = "landing-queue"
"""Where gateways put accepted batches that are to be landed, unless their configuration says otherwise."""

MAX_BYTES = 20 * 1024
"""The largest policy that S3 takes."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.'()=/-]*")
_PRINCIPAL = re.compile(rf"arn:(aws[a-z-]*):iam::(?:[0-9]{{12}}|{ACCOUNT}):(?:role|user)/[A-Za-z0-9+=,.@_/-]+")
_KEY = re.compile(r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+")

_DELETES = ("s3:DeleteObject", "s3:DeleteObjectVersion")
_REPLICATION = ("s3:ReplicateDelete", "s3:ReplicateObject")
_SETTINGS = (
    "s3:GetBucketLocation",
    "s3:GetBucketObjectLockConfiguration",
    "s3:GetBucketPolicy",
    "s3:GetBucketVersioning",
    "s3:GetEncryptionConfiguration",
    "s3:GetLifecycleConfiguration",
    "s3:GetReplicationConfiguration",
)
"""What gateways and `lakehead doctor` look at."""

_BYPASS = "s3:BypassGovernanceRetention"
_PROTECTION = (
    *("s3:DeleteBucket*", "s3:PutBucket*", "s3:Put*Configuration"),
    *("s3:PutObject?*", "s3:DeleteObject*Tagging", _BYPASS),  # ACLs, tags and locks, not `PutObject`
)
"""What would make objects expire, open them to others, or let them be deleted. Lifecycle rules may go by tags."""

# Parts of a multipart upload carry no condition: only what makes an object does, and `CompleteMultipartUpload` is that.
# A server that does not know the key must refuse too much rather than too little: hence `IfExists`.
_MAKES_AN_OBJECT: Condition = {"BoolIfExists": {"s3:ObjectCreationOperation": "true"}}
_NO_CREATE: Condition = {"Null": {"s3:if-none-match": "true"}, **_MAKES_AN_OBJECT}
_NO_CONDITION: Condition = {"Null": {"s3:if-none-match": "true", "s3:if-match": "true"}, **_MAKES_AN_OBJECT}
_IS_COPY: Condition = {"Null": {"s3:x-amz-copy-source": "false"}}
_SSE, _SSE_KEY, _SSE_CUSTOMER = (
    f"s3:x-amz-server-side-encryption{end}" for end in ("", "-aws-kms-key-id", "-customer-algorithm")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPolicySettings:
    """What a policy is for. Raises `Misconfigured` for what could stand in none, or would mean something else there."""

    bucket: str
    principals: Mapping[BucketRole, str]
    """The ARN of the IAM role or user of each role that is named; `placeholder` where it is not known yet."""

    prefix: str = ""
    """The prefix of the authority in the bucket, without slashes around it."""

    queue: str = QUEUE
    """The folder of the queue of accepted batches below the prefix, as `queue_path` of a gateway says."""

    encryption: Encryption | None = None
    """The server-side encryption of all objects below the prefix, or in the bucket if there is none. None: any."""

    kms_key: str = ""
    """The ARN of the only key that they may be encrypted with. Empty: any of the account."""

    blobs_by_create_only: bool = False
    """Whether raw blobs need If-None-Match too. Then a corrupt one can only be replaced after GC has deleted it."""

    def __post_init__(self) -> None:
        """Check all settings."""
        for problem in self._problems():
            raise Misconfigured(problem)

    def _problems(self) -> Iterator[str]:
        if not _BUCKET.fullmatch(self.bucket):
            yield f"{self.bucket!r} cannot be the name of a bucket. Give its name alone, as s3://NAME has it."
        for name, folder in (("prefix", self.prefix), ("queue", self.queue or "/")):
            if not _PREFIX.fullmatch(folder) or folder != folder.strip("/") or "//" in folder:
                yield f"The {name} {folder!r} cannot stand in a policy. Give it without slashes around it, * or ?."
        yield from self._problems_of_principals()
        if any(_overlap(f"{self.queue}/", f"{folder}/") for folder in ALL_FOLDERS):
            yield f"The queue {self.queue!r} and folders of the authority contain each other. Give the queue its own."
        if self.kms_key and (self.encryption in (None, "AES256") or not _KEY.fullmatch(self.kms_key)):
            yield f"{self.kms_key!r} is not the ARN of a key, or the encryption is not aws:kms. Give both, or neither."

    def _problems_of_principals(self) -> Iterator[str]:
        if not self.principals:
            yield "No role is named. Name at least one."
        for role, arn in self.principals.items():
            if not _PRINCIPAL.fullmatch(arn):
                yield f"{arn!r} for {role} is not the ARN of an IAM role or user: arn:aws:iam::123456789012:role/NAME."
        if len({arn.split(":")[1] for arn in self.principals.values()}) > 1:
            yield "The roles are of different partitions of AWS. A bucket has one."
        if len(set(self.principals.values())) < len(self.principals):
            yield "One ARN is named for two roles. What one may do, the other may not: give each its own."

    def at(self, folder: str) -> str:
        """The keys of a folder of the authority, as the beginning of them in the bucket."""
        return f"{self.prefix}/{folder}/" if self.prefix else f"{folder}/"

    @property
    def partition(self) -> str:
        """The partition of AWS: `aws`, `aws-cn` or `aws-us-gov`."""
        return next(iter(self.principals.values())).split(":")[1]


def placeholder(role: BucketRole) -> str:
    """An ARN for a role that is not known yet: S3 refuses it until `ACCOUNT-ID` is replaced."""
    return f"arn:aws:iam::{ACCOUNT}:role/lakehead-{role}"


def bucket_policy(settings: BucketPolicySettings) -> dict[str, object]:
    """Return the policy as a JSON document. Raises `Misconfigured` if it is larger than S3 takes."""
    statements = [*denials_for_everybody(settings), *_for_all_roles(settings)]
    for role in BucketRole:
        if role in settings.principals:
            statements += _writes(role, settings)
    statements += _deletes(settings)
    if settings.prefix:  # so that two authorities can share a bucket: a Sid is there once
        suffix = sha256(settings.prefix.encode()).hexdigest()[:6]
        statements = [{**each, "Sid": f"{each['Sid']}{suffix}"} for each in statements]
    policy: dict[str, object] = {"Version": "2012-10-17", "Id": "lakehead", "Statement": statements}
    size = len(json.dumps(policy, separators=(",", ":")))
    if size > MAX_BYTES:
        raise Misconfigured(f"The policy has {size:,} bytes, and S3 takes {MAX_BYTES:,}. Use shorter names.")
    return policy


def denials_for_everybody(settings: BucketPolicySettings) -> Iterator[Statement]:
    """Yield the denials that hold for everybody, whoever the roles are."""
    append_only, blobs = _objects(APPEND_ONLY, settings), _objects((RAW_BLOBS,), settings)
    created = [*append_only, *(blobs if settings.blobs_by_create_only else ())]
    yield _deny("AppendOnlyIsCreated", "s3:PutObject", created, _NO_CREATE)
    yield _deny("AppendOnlyIsNotCopied", "s3:PutObject", append_only, _IS_COPY)
    yield _deny("AppendOnlyIsNotDeleted", (*_DELETES, *_REPLICATION, _BYPASS), append_only)
    gc = settings.principals.get(BucketRole.GC)
    not_gc: Condition | None = {"ArnNotEquals": {"aws:PrincipalArn": gc}} if gc else None
    yield _deny("BlobsAreDeletedByGcAlone", _DELETES, blobs, not_gc)
    yield _deny("BlobDeletesAreNotReplicated", "s3:ReplicateDelete", blobs)
    if settings.encryption:
        everything = [_arn(f"{settings.prefix}/*" if settings.prefix else "*", settings)]
        # A write without these headers gets the bucket's default encryption.
        asked: Condition = {"Null": {_SSE: "false"}, "StringNotEquals": {_SSE: settings.encryption}}
        yield _deny("EncryptionIsAsRequired", "s3:PutObject", everything, asked)
        yield _deny("KeysAreNotBrought", "s3:PutObject", everything, {"Null": {_SSE_CUSTOMER: "false"}})
        if settings.kms_key:
            other: Condition = {"Null": {_SSE_KEY: "false"}, "StringNotEquals": {_SSE_KEY: settings.kms_key}}
            yield _deny("KeyIsAsRequired", "s3:PutObject", everything, other)
            # Without a key of its own such a write would get the one that AWS manages, whatever the bucket's default.
            unnamed: Condition = {"Null": {_SSE: "false", _SSE_KEY: "true"}}
            yield _deny("KeyIsNamed", "s3:PutObject", everything, unnamed)


def _for_all_roles(settings: BucketPolicySettings) -> Iterator[Statement]:
    """What roles have in common. It is said once, because a policy has little room."""
    named = {role: ROLE_ACCESS[role] for role in BucketRole if role in settings.principals}
    everywhere = [_arn("*", settings)]
    # Listing is not limited to the prefix: without it S3 answers 403 for a key that is absent, and we must know.
    yield _allow("RolesList", ("s3:ListBucket", *_SETTINGS), [_bucket(settings)], named, settings)
    readable = _objects(_with_indexes([folder for folder in ALL_FOLDERS if folder != TOKENS]), settings)
    yield _allow("RolesRead", "s3:GetObject", readable, named, settings)
    yield _deny("RolesChangeNoProtection", _PROTECTION, [_bucket(settings), *everywhere], _by(named, settings))
    tokens = _objects((TOKENS,), settings)
    if blind := [role for role, access in named.items() if not access.reads_tokens]:
        yield _deny("RolesDoNotReadTokens", ("s3:GetObject", "s3:GetObjectVersion"), tokens, _by(blind, settings))
    if seeing := [role for role in named if role not in blind]:
        yield _allow("RolesReadTokens", "s3:GetObject", tokens, seeing, settings)
    if queueing := [role for role, access in named.items() if access.uses_queue]:
        yield _allow("RolesReadQueue", "s3:GetObject", _objects((settings.queue,), settings), queueing, settings)
    if writing := [role for role, access in named.items() if access.writes]:
        created = {folder for access in ROLE_ACCESS.values() for folder in access.creates} - set(APPEND_ONLY)
        by = _by(writing, settings)
        yield _deny("RolesCreate", "s3:PutObject", _objects(sorted(created), settings), {**_NO_CREATE, **by})
        yield _deny("RolesWriteOnCondition", "s3:PutObject", everywhere, {**_NO_CONDITION, **by})
        yield _deny("RolesDoNotCopy", "s3:PutObject", everywhere, {**_IS_COPY, **by})
    if reading := [role for role in named if role not in writing]:
        yield _deny("RolesOnlyRead", ("s3:PutObject", *_DELETES), everywhere, _by(reading, settings))


def _writes(role: BucketRole, settings: BucketPolicySettings) -> Iterator[Statement]:
    """What a role writes, and that it writes nothing elsewhere."""
    access, by, name = ROLE_ACCESS[role], _by([role], settings), role.capitalize()
    if not access.writes:
        return
    queue = _objects((settings.queue,), settings) if access.uses_queue else []
    writes = [*_objects(access.writes, settings), *queue]
    yield _allow(f"{name}Writes", ("s3:AbortMultipartUpload", "s3:PutObject"), writes, [role], settings)
    yield _deny(f"{name}WritesNothingElse", "s3:PutObject", writes, by, otherwise=True)


def _deletes(settings: BucketPolicySettings) -> Iterator[Statement]:
    """What roles delete, and that they delete nothing else. Roles that delete the same are named together."""
    groups: dict[tuple[str, ...], list[BucketRole]] = {}
    for role in BucketRole:
        if role in settings.principals and ROLE_ACCESS[role].deletes:
            groups.setdefault(ROLE_ACCESS[role].deletes, []).append(role)
    for folders, roles in groups.items():
        name, objects = "".join(role.capitalize() for role in roles), _objects(folders, settings)
        yield _allow(f"{name}Deletes", _DELETES, objects, roles, settings)
        yield _deny(f"{name}DeletesNothingElse", _DELETES, objects, _by(roles, settings), otherwise=True)


def _deny(
    sid: str,
    actions: str | Sequence[str],
    objects: Sequence[str],
    condition: Condition | None = None,
    *,
    otherwise: bool = False,
) -> Statement:
    """A denial for everybody for whom the condition holds; with `otherwise`, for all other objects than these."""
    denial: Statement = {"Sid": sid, "Effect": "Deny", "Principal": "*", "Action": _one_or_sorted(actions)}
    denial["NotResource" if otherwise else "Resource"] = _one_or_many(objects)
    return denial | ({"Condition": condition} if condition else {})


def _allow(
    sid: str,
    actions: str | Sequence[str],
    resources: Sequence[str],
    roles: Iterable[BucketRole],
    settings: BucketPolicySettings,
) -> Statement:
    principal = {"AWS": _one_or_many([settings.principals[role] for role in roles])}
    allowance: Statement = {"Sid": sid, "Effect": "Allow", "Principal": principal, "Action": _one_or_sorted(actions)}
    return allowance | {"Resource": _one_or_many(resources)}


def _by(roles: Iterable[BucketRole], settings: BucketPolicySettings) -> Condition:
    """Holds for these roles. Not as principals: S3 keeps their ids, and would not know a role that was made again."""
    return {"ArnEquals": {"aws:PrincipalArn": _one_or_many([settings.principals[role] for role in roles])}}


def _one_or_sorted(actions: str | Sequence[str]) -> str | list[str]:
    return actions if isinstance(actions, str) else sorted(actions)


def _one_or_many(values: Sequence[str]) -> str | list[str]:
    return list(values) if len(values) > 1 else values[0]


def _with_indexes(folders: Sequence[str]) -> list[str]:
    """The folders, each as one pattern with its indexes (`accepted`, `accepted-by-time`): a policy has little room."""
    stems = tuple(sorted({folder.partition("-by-")[0] for folder in folders if "-by-" in folder}))
    return [*(f"{stem}*/v1" for stem in stems), *(folder for folder in folders if not folder.startswith(stems))]


def _objects(folders: Sequence[str], settings: BucketPolicySettings) -> list[str]:
    return [_arn(f"{settings.at(folder)}*", settings) for folder in folders]


def _arn(key: str, settings: BucketPolicySettings) -> str:
    return f"{_bucket(settings)}/{key}"


def _bucket(settings: BucketPolicySettings) -> str:
    return f"arn:{settings.partition}:s3:::{settings.bucket}"


def _overlap(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)
