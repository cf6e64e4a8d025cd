"""What messages announce: notifications of S3 and GCS, URIs, and locations of a manifest queue, read without I/O.

`AUTO` looks at the body. If it begins with `{` it is JSON, and its fields say which: `Type` an SNS envelope, whose
`Message` is looked at in turn; `Records` or `Event` a notification of S3; `detail-type` an event by EventBridge;
`message` the envelope of a Pub/Sub push, whose data are looked at in turn; `kind` the metadata of an object of GCS.
An empty body with the attributes of GCS is a notification of GCS. Anything else is one URI in each line.
A location or inline content is never guessed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import unquote, urlsplit

from lakehead.consume.gcs_events import KIND, gcs_event, is_gcs_event, pushed
from lakehead.consume.json_fields import JsonObject, field_names, parse_object, text
from lakehead.consume.objects import Announced, MessageFormat, NotUnderstood, ObjectRef
from lakehead.consume.s3_events import bridge_event, s3_records
from lakehead.consume.uris import is_folder, object_uri, parse_uri, split_uri
from lakehead.consume.web_urls import InvalidUri, shown
from lakehead.errors import Misconfigured
from lakehead.storage.object_keys import InvalidKey, check_key

MAX_BODY_BYTES = 1 << 20
"""The largest message of SQS. Inline content has other limits."""

MAX_URIS = 10_000
"""The most URIs in one message."""

MAX_ENVELOPES = 4
"""How many envelopes may be in one another."""

_EXPECTED = {
    MessageFormat.AUTO: "a notification of S3 or GCS, or a URI in each line",
    MessageFormat.S3: "a notification of S3, plain, in an SNS envelope or by EventBridge",
    MessageFormat.GCS: "a notification of GCS: the metadata of an object, or a Pub/Sub push",
    MessageFormat.RAW_URI: "a URI in each line",
    MessageFormat.LISTED: "a normalised URI",
    MessageFormat.LOCATION: "a key of the queue's store",
    MessageFormat.ACCEPTED: "a key of the queue's store",
}
_UNIQUE = re.compile(r"#[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\Z")

Finding = ObjectRef | str
"""An object, or why a record announces none."""


def announced(
    body: bytes,
    format: MessageFormat,  # noqa: A002 - it is the word of the configuration
    *,
    attributes: Mapping[str, str] | None = None,
    store_url: str | None = None,
) -> Announced:
    """Return the objects that a message announces, each once, and why other records of it announce nothing.

    `attributes` are those of a Pub/Sub message. `store_url` is the URL of the queue's store, which a `LOCATION` needs.
    The answer is empty for `INLINE` alone, where the body is the content and left to the caller; for every other format
    it has an object or a reason.
    Raises `NotUnderstood` if any part of the message is not understood, whatever its bytes.
    """
    if format is MessageFormat.INLINE:
        return Announced()
    if len(body) > MAX_BODY_BYTES:
        raise NotUnderstood(f"The message has {len(body)} bytes; at most {MAX_BODY_BYTES} are read for {format.value}.")
    decoded = _decoded(body)
    if format is MessageFormat.LISTED:
        return Announced((_listed(decoded),))
    if format in (MessageFormat.LOCATION, MessageFormat.ACCEPTED):
        return Announced((_location(decoded.strip(), store_url),))
    return _collected(_findings(decoded, format, attributes or {}, MAX_ENVELOPES))


def _findings(body: str, format: MessageFormat, attributes: Mapping[str, str], envelopes: int) -> Iterable[Finding]:  # noqa: A002
    if format is MessageFormat.RAW_URI:
        return _uris(body)
    if format is not MessageFormat.S3 and not body.strip() and is_gcs_event(attributes):
        return [gcs_event(None, attributes)]
    if format is MessageFormat.AUTO and not body.lstrip().startswith("{"):
        return _uris(body)
    fields = parse_object(body, _EXPECTED[format])
    match _shape(fields, format):
        case "sns":
            return _findings(_sns(fields), format, {}, _opened(envelopes))
        case "push":
            data, attributes = pushed(fields)
            return _findings(_decoded(data), format, attributes, _opened(envelopes))
        case "s3":
            return s3_records(fields)
        case "bridge":
            return [bridge_event(fields)]
        case "gcs":
            return [gcs_event(fields, attributes)]
        case "test":
            return ["s3:TestEvent: S3 tries whether the queue can be reached"]
        case _:
            raise NotUnderstood(
                f"The message is a JSON object with {field_names(fields)}. Expected {_EXPECTED[format]}."
            )


def _shape(fields: JsonObject, format: MessageFormat) -> str | None:  # noqa: A002
    if format is not MessageFormat.GCS:
        for name, shape in (("Type", "sns"), ("Records", "s3"), ("detail-type", "bridge")):
            if name in fields:
                return shape
        if fields.get("Event") == "s3:TestEvent":
            return "test"
    if format is not MessageFormat.S3:
        if "message" in fields:
            return "push"
        if fields.get("kind") == KIND or format is MessageFormat.GCS:
            return "gcs"
    return None


def _collected(findings: Iterable[Finding]) -> Announced:
    objects: dict[tuple[str, str | None, str | None], ObjectRef] = {}
    ignored: list[str] = []
    for finding in findings:
        if isinstance(finding, str):
            ignored.append(finding)
        else:
            objects.setdefault((finding.uri, finding.version, finding.etag), finding)
    return Announced(tuple(objects.values()), tuple(ignored))


def _decoded(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise NotUnderstood(f"The message is not UTF-8 text. It begins with {body[:16]!r}.") from None


def _opened(envelopes: int) -> int:
    if not envelopes:
        raise NotUnderstood(f"The message has more than {MAX_ENVELOPES} envelopes in one another.")
    return envelopes - 1


def _sns(fields: JsonObject) -> str:
    kind = text(fields, "Type", "The envelope")
    if kind == "Notification":
        message = fields.get("Message")
        if not isinstance(message, str):
            raise NotUnderstood("The SNS envelope should have a text as its Message.")
        return message
    if kind == "SubscriptionConfirmation":
        raise NotUnderstood(
            "SNS asks to confirm this queue's subscription to a topic, and sends nothing before. Confirm it in SNS."
        )
    raise NotUnderstood(f"The SNS envelope is of the type {shown(kind)}. Expected 'Notification'.")


def _uris(body: str) -> Iterator[ObjectRef]:
    lines = [stripped for line in body.split("\n", MAX_URIS) if (stripped := line.strip(" \t\r"))]
    if not 0 < len(lines) <= MAX_URIS:
        raise NotUnderstood(f"Expected 1 to {MAX_URIS} URIs, one in each line; the message has {len(lines) or 'none'}.")
    for number, line in enumerate(lines, 1):
        try:
            ref = parse_uri(line)
        except InvalidUri as error:
            raise NotUnderstood(f"Line {number} of the message is not the URI of an object. {error}") from None
        if is_folder(ref.uri):
            raise NotUnderstood(
                f"Line {number} of the message names a folder, {shown(line)}. Name each of its objects."
            )
        yield ref


def _listed(uri: str) -> ObjectRef:
    """Return the object of a normalised URI. What it may not be taken for: a version of another, or several URIs."""
    try:
        if object_uri(*split_uri(uri)) == uri and not is_folder(uri):
            return ObjectRef(uri=uri)
    except (InvalidUri, UnicodeDecodeError) as error:
        raise NotUnderstood(f"The listed object {shown(uri)} cannot be read. {error}") from None
    raise NotUnderstood(f"The message is not the normalised URI of an object: {shown(uri)}.")


def _location(location: str, store_url: str | None) -> ObjectRef:
    """Return the object at a key of the queue's store; `<key>#<uuid>` is an entry of its own for the same key."""
    if store_url is None:
        raise Misconfigured("Locations need the URL of the queue's store.")
    key = _UNIQUE.sub("", location)
    try:
        check_key(key)
    except InvalidKey as error:
        raise NotUnderstood(
            f"The message is not a location. Expected {_EXPECTED[MessageFormat.LOCATION]}. {error}"
        ) from None
    try:
        return ObjectRef(uri=uri_in_store(store_url, key))
    except InvalidUri as error:
        raise NotUnderstood(f"The message's location {shown(key)} cannot be read. {error}") from None


def uri_in_store(store_url: str, key: str) -> str:
    """Return the normalised URI of the object at a key of a store. Raises `InvalidUri`."""
    root = urlsplit(store_url)
    prefix = unquote(root.path).strip("/")  # a store's URL is percent-decoded, see open_store
    return object_uri(root.scheme, root.netloc, f"{prefix}/{key}" if prefix else key)
