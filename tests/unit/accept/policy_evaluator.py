"""What S3 makes of a request under a bucket policy: a small evaluator that knows no more than our policies use.

An explicit denial wins, then an allowance, else the request is denied. Anything that it does not know is an error, so
that no element of a policy is passed over.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from typing import Any

SSE = "x-amz-server-side-encryption"
_CONTEXT = {
    "If-None-Match": "s3:if-none-match",
    "If-Match": "s3:if-match",
    "x-amz-copy-source": "s3:x-amz-copy-source",
    SSE: f"s3:{SSE}",
    f"{SSE}-aws-kms-key-id": f"s3:{SSE}-aws-kms-key-id",
    f"{SSE}-customer-algorithm": f"s3:{SSE}-customer-algorithm",
}
"""The condition key of each header."""

_OPERATIONS: Mapping[str, tuple[str, str | None]] = {
    "GetObject": ("s3:GetObject", None),
    "GetObjectVersion": ("s3:GetObjectVersion", None),
    "PutObject": ("s3:PutObject", "true"),
    "CopyObject": ("s3:PutObject", "true"),
    "CompleteMultipartUpload": ("s3:PutObject", "true"),
    "CreateMultipartUpload": ("s3:PutObject", "false"),
    "UploadPart": ("s3:PutObject", "false"),
    "UploadPartCopy": ("s3:PutObject", "false"),
    "AbortMultipartUpload": ("s3:AbortMultipartUpload", None),
    "DeleteObject": ("s3:DeleteObject", None),
    "DeleteObjectVersion": ("s3:DeleteObjectVersion", None),
    "ReplicateObject": ("s3:ReplicateObject", None),
    "ReplicateDelete": ("s3:ReplicateDelete", None),
    "ListObjectsV2": ("s3:ListBucket", None),
    "GetBucketVersioning": ("s3:GetBucketVersioning", None),
    "GetBucketLifecycleConfiguration": ("s3:GetLifecycleConfiguration", None),
    "PutBucketLifecycleConfiguration": ("s3:PutLifecycleConfiguration", None),
    "PutBucketPolicy": ("s3:PutBucketPolicy", None),
    "DeleteBucketPolicy": ("s3:DeleteBucketPolicy", None),
    "GetBucketPolicy": ("s3:GetBucketPolicy", None),
    "PutBucketVersioning": ("s3:PutBucketVersioning", None),
    "PutObjectLockConfiguration": ("s3:PutBucketObjectLockConfiguration", None),
    "GetObjectLockConfiguration": ("s3:GetBucketObjectLockConfiguration", None),
    "PutBucketReplication": ("s3:PutReplicationConfiguration", None),
    "GetBucketReplication": ("s3:GetReplicationConfiguration", None),
    "PutBucketEncryption": ("s3:PutEncryptionConfiguration", None),
    "GetBucketEncryption": ("s3:GetEncryptionConfiguration", None),
    "PutBucketAcl": ("s3:PutBucketAcl", None),
    "DeleteBucket": ("s3:DeleteBucket", None),
    "PutObjectAcl": ("s3:PutObjectAcl", None),
    "PutObjectVersionAcl": ("s3:PutObjectVersionAcl", None),
    "PutObjectTagging": ("s3:PutObjectTagging", None),
    "PutObjectVersionTagging": ("s3:PutObjectVersionTagging", None),
    "DeleteObjectTagging": ("s3:DeleteObjectTagging", None),
    "PutObjectRetention": ("s3:PutObjectRetention", None),
    "PutObjectLegalHold": ("s3:PutObjectLegalHold", None),
    "BypassGovernanceRetention": ("s3:BypassGovernanceRetention", None),
}
"""The action of each operation, and its `s3:ObjectCreationOperation`."""


@dataclass(frozen=True)
class S3Request:
    principal: str
    operation: str
    resource: str
    """The ARN of the object or bucket."""

    headers: Mapping[str, str] = field(default_factory=dict)
    is_remade: bool = False
    """Whether the role was deleted and made again since the policy was stored, which has its id, not its ARN."""

    server_knows_parts: bool = True
    """Whether the server knows `s3:ObjectCreationOperation`, as that of AWS does."""

    @property
    def action(self) -> str:
        return _OPERATIONS[self.operation][0]

    @property
    def context(self) -> dict[str, str]:
        copies = {"x-amz-copy-source": "elsewhere/key"} if self.operation in ("CopyObject", "UploadPartCopy") else {}
        found = {_CONTEXT[name]: value for name, value in {**copies, **self.headers}.items()}
        creation = _OPERATIONS[self.operation][1] if self.server_knows_parts else None
        return (
            found
            | {"aws:PrincipalArn": self.principal}
            | ({"s3:ObjectCreationOperation": creation} if creation else {})
        )


def is_allowed(policy: Mapping[str, Any], request: S3Request, *, by_identity: bool = False) -> bool:
    """Whether S3 takes a request. `by_identity`: a policy of the principal's own allows it everything."""
    assert policy["Version"] == "2012-10-17"
    effects = {statement["Effect"] for statement in policy["Statement"] if _applies(statement, request)}
    assert effects <= {"Allow", "Deny"}
    return "Deny" not in effects and (by_identity or "Allow" in effects)


def _applies(statement: Mapping[str, Any], request: S3Request) -> bool:
    known = {"Sid", "Effect", "Principal", "Action", "Resource", "NotResource", "Condition"}
    assert set(statement) <= known, statement
    assert ("Resource" in statement) != ("NotResource" in statement), statement
    matches = _any_matches(statement.get("Resource") or statement["NotResource"], request.resource)
    return (
        _is_principal(statement["Principal"], request)
        and _any_matches(statement["Action"], request.action)
        and matches == ("Resource" in statement)
        and all(_holds(operator, tests, request.context) for operator, tests in statement.get("Condition", {}).items())
    )


def _is_principal(principal: object, request: S3Request) -> bool:
    if principal == "*":
        return True
    assert isinstance(principal, Mapping), principal
    assert set(principal) == {"AWS"}, principal
    return request.principal in _each(principal["AWS"]) and not request.is_remade


def _holds(operator: str, tests: Mapping[str, str | Sequence[str]], context: Mapping[str, str]) -> bool:
    """All keys of a condition must hold. A negated operator holds for a key that is absent."""
    return all(_test(operator, context.get(key), value) for key, value in tests.items())


def _test(operator: str, found: str | None, value: str | Sequence[str]) -> bool:
    match operator:
        case "Null":
            return (found is None) == (value == "true")
        case "BoolIfExists":
            return found in (None, value)
        case "Bool" | "StringEquals" | "ArnEquals":
            return found in _each(value)
        case "StringNotEquals" | "ArnNotEquals":
            return found not in _each(value)
        case _:
            raise AssertionError(f"unknown operator {operator}")


def _any_matches(patterns: str | Sequence[str], text: str) -> bool:
    return any(_compiled(pattern).match(text) for pattern in _each(patterns))


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern.replace("[", "[[]")))


def _each(value: str | Sequence[str]) -> Sequence[str]:
    return [value] if isinstance(value, str) else value
