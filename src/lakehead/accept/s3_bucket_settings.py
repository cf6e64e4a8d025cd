"""Reads the settings of a bucket in S3, by boto3. Every call blocks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lakehead.accept.bucket_settings import BucketSettings, Check, Unread, all_unread
from lakehead.errors import Misconfigured
from lakehead.storage.connect import StoreSettings
from lakehead.storage.s3_client import open_s3_client

REQUEST_SECONDS = 10.0
"""How long each of the requests may take."""

_STATUS_NOT_IMPLEMENTED = (405, 501)


@dataclass(frozen=True, slots=True)
class _Request:
    """One setting: how it is asked for, where it is in the answer, and S3's code if it is not set."""

    method: str
    field: str
    not_set: str
    permission: str


_REQUESTS: Mapping[Check, _Request] = {
    Check.VERSIONING: _Request("get_bucket_versioning", "Status", "", "s3:GetBucketVersioning"),
    Check.LIFECYCLE: _Request(
        "get_bucket_lifecycle_configuration", "Rules", "NoSuchLifecycleConfiguration", "s3:GetLifecycleConfiguration"
    ),
    Check.OBJECT_LOCK: _Request(
        "get_object_lock_configuration",
        "ObjectLockConfiguration",
        "ObjectLockConfigurationNotFoundError",
        "s3:GetBucketObjectLockConfiguration",
    ),
    Check.POLICY: _Request("get_bucket_policy", "Policy", "NoSuchBucketPolicy", "s3:GetBucketPolicy"),
    Check.REPLICATION: _Request(
        "get_bucket_replication",
        "ReplicationConfiguration",
        "ReplicationConfigurationNotFoundError",
        "s3:GetReplicationConfiguration",
    ),
    Check.ENCRYPTION: _Request(
        "get_bucket_encryption",
        "ServerSideEncryptionConfiguration",
        "ServerSideEncryptionConfigurationNotFoundError",
        "s3:GetEncryptionConfiguration",
    ),
}
_NOTHING: Mapping[Check, object] = {Check.VERSIONING: "", Check.LIFECYCLE: ()}
"""What stands for a setting that is not set, where that is not None."""


def read_bucket_settings(bucket: str, settings: StoreSettings) -> BucketSettings:
    """Read all settings. What cannot be read is `Unread`, with the reason; without boto3 that is everything."""
    quick = replace(settings, request_timeout=min(settings.request_timeout, REQUEST_SECONDS))
    try:
        client = open_s3_client(quick, purpose="Checks of the bucket's settings", attempts=2)
    except Misconfigured as error:
        return all_unread(str(error), "Until then check it by hand.")
    return settings_of(bucket, client)


def settings_of(bucket: str, client: Any) -> BucketSettings:
    """Read all settings with a client of boto3."""
    return BucketSettings(**{check.value: value for check, value in _read(client, bucket)})


def _read(client: Any, bucket: str) -> Iterator[tuple[Check, Any]]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra, not always installed

    out_of_reach: Unread | None = None
    for check, request in _REQUESTS.items():
        if out_of_reach:
            yield check, out_of_reach  # each further request would wait for its time-out too
            continue
        ask: Callable[..., Mapping[str, Any]] = getattr(client, request.method)
        try:
            yield check, _value(check, ask(Bucket=bucket))
        except ClientError as error:
            yield check, _of_error(check, error.response)
        except BotoCoreError as error:
            out_of_reach = Unread(f"S3 did not answer ({error}).", "It is tried again later.")
            yield check, out_of_reach


def _value(check: Check, answer: Mapping[str, Any]) -> object:
    field = _REQUESTS[check].field
    if field not in answer and check is not Check.VERSIONING:  # a bucket that never was versioned has no status
        return Unread(f"the server's answer has no {field}.", "It may not implement this. Check it by hand.")
    return answer.get(field, _NOTHING.get(check))


def _of_error(check: Check, response: Mapping[str, Any]) -> object:
    """Return that a setting is not set, if that is what the server says, else why it is not known."""
    code, said = (str(response.get("Error", {}).get(name, "")) for name in ("Code", "Message"))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    request = _REQUESTS[check]
    if code and code == request.not_set:
        return _NOTHING.get(check)
    reason = f"the server answered {status} {code}{f': {said}' if said and said != code else ''}."
    if status == 403:
        return Unread(reason, f"Allow {request.permission}: docs/bucket-policy.md.")
    if status in _STATUS_NOT_IMPLEMENTED or code == "NotImplemented":
        return Unread(reason, "The server does not implement this. Check by hand what it does instead.")
    return Unread(reason)
