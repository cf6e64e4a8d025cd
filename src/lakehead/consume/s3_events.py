"""Notifications of S3: plain ones, and those by EventBridge."""

import re
from collections.abc import Iterator
from urllib.parse import unquote_plus

from lakehead.consume.json_fields import JsonObject, optional_size, optional_text, section, text
from lakehead.consume.objects import NotUnderstood, ObjectRef
from lakehead.consume.uris import is_folder, object_uri
from lakehead.consume.web_urls import InvalidUri, shown

MAX_RECORDS = 10_000

SOURCES = frozenset({"aws:s3", "minio:s3"})
"""Those that are known to form-encode keys."""

_NAME = re.compile(r"[A-Za-z]{1,40}(?::[A-Za-z]{1,40})?")
_CREATED = "ObjectCreated"
_IGNORED = {
    "IntelligentTiering": "the object changed its storage class",
    "LifecycleExpiration": "the object was removed",
    "LifecycleTransition": "the object changed its storage class",
    "ObjectAccessed": "the object was read",
    "ObjectAcl": "the object's permissions changed",
    "ObjectRemoved": "the object was removed",
    "ObjectRestore": "an archived object was restored, which was announced when it was created",
    "ObjectTagging": "the object's tags changed",
    "ReducedRedundancyLostObject": "the object was lost",
    "Replication": "the object was announced when it was created",
}
"""Events that create no object, by the first word of their names, and why they announce nothing."""

_BRIDGE_CREATED = "Object Created"
_BRIDGE_IGNORED = {
    "Object ACL Updated": "ObjectAcl",
    "Object Access Tier Changed": "IntelligentTiering",
    "Object Deleted": "ObjectRemoved",
    "Object Restore Completed": "ObjectRestore",
    "Object Restore Expired": "ObjectRestore",
    "Object Restore Initiated": "ObjectRestore",
    "Object Storage Class Changed": "LifecycleTransition",
    "Object Tags Added": "ObjectTagging",
    "Object Tags Deleted": "ObjectTagging",
}


def s3_records(fields: JsonObject) -> Iterator[ObjectRef | str]:
    """Yield for each of a notification's `Records` the object that was created, or why it announces none.

    Raises `NotUnderstood` if any of them is of another shape.
    """
    records = fields["Records"]
    if not isinstance(records, list) or not 0 < len(records) <= MAX_RECORDS:
        raise NotUnderstood(f"Records should be a list of 1 to {MAX_RECORDS} events of S3.")
    for number, record in enumerate(records):
        path = f"Records[{number}]"
        if not isinstance(record, dict):
            raise NotUnderstood(f"{path} should be an event of S3, and is not an object.")
        yield _s3_record(record, path)


def bridge_event(fields: JsonObject) -> ObjectRef | str:
    """Return the object that an event by EventBridge says was created, or why it announces none."""
    source = text(fields, "source", "The event")
    if source != "aws.s3":
        raise NotUnderstood(f"The event by EventBridge has the source {shown(source)}. Expected 'aws.s3'.")
    kind = text(fields, "detail-type", "The event")
    if reason := _BRIDGE_IGNORED.get(kind):
        return f"{kind}: {_IGNORED[reason]}"
    if kind != _BRIDGE_CREATED:
        raise NotUnderstood(
            f"The event by EventBridge is {shown(kind)}, which is not known. Expected 'Object Created'."
        )
    detail = section(fields, "detail", "The event")
    _check_version(optional_text(detail, "event-version", "detail") or "1.", "1.")
    created = section(detail, "object", "detail")
    return new_object(
        scheme="s3",
        bucket=text(section(detail, "bucket", "detail"), "name", "detail.bucket"),
        key=text(created, "key", "detail.object"),  # EventBridge, unlike S3's own notifications, does not encode it
        size=optional_size(created, "size", "detail.object"),
        etag=optional_text(created, "etag", "detail.object"),
        version=optional_text(created, "version-id", "detail.object"),
    )


def new_object(
    *, scheme: str, bucket: str, key: str, size: int | None, etag: str | None, version: str | None
) -> ObjectRef | str:
    """Return a created object, or that it is but the empty marker of a folder.

    Raises `NotUnderstood` for a key that `object_uri` refuses.
    """
    try:
        uri = object_uri(scheme, bucket, key)
    except InvalidUri as error:
        raise NotUnderstood(f"The message announces an object that cannot be read. {error}") from None
    if not is_folder(uri):
        return ObjectRef(uri=uri, size=size, etag=(etag or "").strip('"') or None, version=version)
    if size == 0:
        return "the object is the empty marker of a folder"
    raise NotUnderstood(f"The key {shown(key)} ends with a slash, but is not the empty marker of a folder.")


def _s3_record(record: JsonObject, path: str) -> ObjectRef | str:
    source = text(record, "eventSource", path)
    if source not in SOURCES:
        raise NotUnderstood(f"{path}.eventSource is {shown(source)}. Expected 'aws:s3'.")
    _check_version(text(record, "eventVersion", path), "2.")
    name = text(record, "eventName", path).removeprefix("s3:")
    kind = name.partition(":")[0]
    if (reason := _IGNORED.get(kind)) and _NAME.fullmatch(name):
        return f"{name}: {reason}"
    if kind != _CREATED:
        raise NotUnderstood(f"{path}.eventName is {shown(name)}, which is not known. Expected ObjectCreated:….")
    s3 = section(record, "s3", path)
    bucket = text(section(s3, "bucket", f"{path}.s3"), "name", f"{path}.s3.bucket")
    created = section(s3, "object", f"{path}.s3")
    path = f"{path}.s3.object"
    return new_object(
        scheme="s3",
        bucket=bucket,
        key=_form_decoded(text(created, "key", path), path),
        size=optional_size(created, "size", path),
        etag=optional_text(created, "eTag", path),
        version=optional_text(created, "versionId", path),
    )


def _check_version(version: str, known: str) -> None:
    if not version.startswith(known):
        raise NotUnderstood(f"The event is of version {shown(version)}. Expected {known}x.")


def _form_decoded(key: str, path: str) -> str:
    """Decode a key as S3 writes it, as in a form: `+` is a space, `%2B` a plus."""
    try:
        return unquote_plus(key, errors="strict")
    except UnicodeDecodeError:
        raise NotUnderstood(f"{path}.key is not UTF-8 when percent-decoded: {shown(key)}.") from None
