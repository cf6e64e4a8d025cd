"""Notifications of GCS by Pub/Sub: the event is in a message's attributes, the object's metadata in its body."""

import binascii
from base64 import b64decode
from collections.abc import Mapping

from lakehead.consume.json_fields import JsonObject, optional_size, optional_text, section, text
from lakehead.consume.objects import NotUnderstood, ObjectRef
from lakehead.consume.s3_events import new_object
from lakehead.consume.web_urls import shown

KIND = "storage#object"
"""What the metadata of an object says it is."""

_IGNORED = {
    "OBJECT_ARCHIVE": "a version of the object became noncurrent",
    "OBJECT_DELETE": "the object was removed",
    "OBJECT_METADATA_UPDATE": "the object's metadata changed",
}


def is_gcs_event(attributes: Mapping[str, str]) -> bool:
    """Return whether the attributes of a message are those of a notification of GCS."""
    return "eventType" in attributes and "bucketId" in attributes


def gcs_event(fields: JsonObject | None, attributes: Mapping[str, str]) -> ObjectRef | str:
    """Return the object that a notification says was created, or why it announces none.

    Without the attribute `eventType`, metadata without `timeDeleted` count as those of a new object.
    Without metadata (the payload format NONE) the attributes name the object.
    """
    event = attributes.get("eventType")
    if reason := _IGNORED.get(event or ""):
        return f"{event}: {reason}"
    if event is not None and event != "OBJECT_FINALIZE":
        raise NotUnderstood(f"The attribute eventType is {shown(event)}, which is not known. Expected OBJECT_FINALIZE.")
    if fields is None:
        return _named_by(attributes)
    if (kind := optional_text(fields, "kind", "The metadata") or KIND) != KIND:
        raise NotUnderstood(f"The metadata are of a {shown(kind)}. Expected {KIND}.")
    bucket, name = text(fields, "bucket", "The metadata"), text(fields, "name", "The metadata")
    if (attributes.get("bucketId", bucket), attributes.get("objectId", name)) != (bucket, name):
        raise NotUnderstood(f"The attributes name another object than the metadata, {shown(f'gs://{bucket}/{name}')}.")
    if event is None and optional_text(fields, "timeDeleted", "The metadata"):
        return "timeDeleted: the object was removed"
    return new_object(
        scheme="gs",
        bucket=bucket,
        key=name,
        size=optional_size(fields, "size", "The metadata"),
        etag=None,  # the JSON API's ETag is another one than readers get; the generation says the same
        version=_generation(fields, "generation", "The metadata"),
    )


def pushed(fields: JsonObject) -> tuple[bytes, dict[str, str]]:
    """Return the body and the attributes of a message in the envelope of a Pub/Sub push."""
    message = section(fields, "message", "The envelope")
    attributes = message.get("attributes") or {}
    if not isinstance(attributes, dict) or not all(isinstance(value, str) for value in attributes.values()):
        raise NotUnderstood("message.attributes should be an object of texts.")
    data = message.get("data")
    if data is None or data == "":
        return b"", attributes
    try:
        return b64decode(data, validate=True), attributes
    except (binascii.Error, TypeError, ValueError):
        raise NotUnderstood("message.data should be in base64.") from None


def _named_by(attributes: Mapping[str, str]) -> ObjectRef | str:
    fields = dict(attributes)
    return new_object(
        scheme="gs",
        bucket=text(fields, "bucketId", "The attributes"),
        key=text(fields, "objectId", "The attributes"),
        size=None,
        etag=None,
        version=_generation(fields, "objectGeneration", "The attributes"),
    )


def _generation(fields: JsonObject, name: str, path: str) -> str | None:
    generation = optional_size(fields, name, path)
    return None if generation is None else str(generation)
