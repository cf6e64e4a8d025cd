"""URIs of objects: every spelling of one object becomes the same text, which is the id of its unit.

Percent-decoded are the path of an http(s) URL, the path of a `file:` URI, and the value after `?versionId=`. Nothing
else is: in `s3://bucket/a%20b` the key has a percent sign. A plain path is taken as it is. The normalised form of a
file is percent-encoded, as `Path.as_uri` writes it; the normalised form of everything else holds the key as it is.
"""

import hashlib
import re
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import quote, unquote

from lakehead.consume.objects import ObjectRef
from lakehead.consume.web_urls import InvalidUri, parse_web_url, shown
from lakehead.errors import LakeheadError

FORMS = "s3://bucket/key, gs://bucket/key, az://container/key, file:///path or an https URL of S3, GCS or Azure"

MAX_KEY_BYTES = 4096
"""No store has longer keys: 1,024 characters in Azure, 4,096 bytes in file systems."""

MAX_CLOUD_KEY_BYTES = 1024
"""S3 and GCS have no longer keys, and would refuse each try to read one."""

_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
    "wasb": "az",
    "wasbs": "az",
    "memory": "memory",
}
MAX_URI_CHARACTERS = 32_768
"""Room for a key that is percent-encoded, and the signature of a presigned URL."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_BUCKET = re.compile(r"\$?[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_IDENTITY = re.compile(r"\?(versionId|generation|etag)=([^?#/]*)\Z")
_UNKNOWN_ETAG = "?etag="
_PART = re.compile(r"#[0-9]+-[0-9]+\Z")


class Identity(StrEnum):
    """What makes two announcements the same unit, which lands once."""

    URI = "uri"
    """An object that is overwritten counts as seen."""

    URI_AND_VERSION = "uri_and_version"
    """Every version of an object lands, in a bucket that keeps versions."""

    URI_AND_ETAG = "uri_and_etag"
    """Every content of an object lands."""


class IdentityMissing(LakeheadError):
    """Look the object up first: its version or ETag is part of its unit's id, and the message did not tell it."""


class ObjectAddress(NamedTuple):
    """Where the object of a normalised URI is."""

    scheme: str
    """s3, gs, az, file or memory."""

    bucket: str
    """Empty for a file."""

    key: str
    """As the store knows it; of a file, its path without the leading slash."""


def normalise(text: str) -> str:
    """Return the one text for the object that a URI names, without version and query. Raises `InvalidUri`."""
    return parse_uri(text).uri


def parse_uri(text: str) -> ObjectRef:
    """Return the object that a URI names, with the version or ETag that stands after its `?`.

    Takes s3, s3a and s3n, gs and gcs, az, azure, abfs(s) and wasb(s), file and memory, http(s) URLs of S3, GCS and
    Azure, and absolute paths. The region, Azure's account and the signature of a presigned URL are dropped.
    In s3, gs, az and memory only `?versionId=`, `?generation=` and `?etag=` are not part of the key.
    Raises `InvalidUri` for anything else, for a part of an object (`#0-100`), and for keys that could leave a prefix.
    """
    if len(text) > MAX_URI_CHARACTERS:
        raise InvalidUri(f"{shown(text)} has {len(text)} characters; at most {MAX_URI_CHARACTERS} are allowed.")
    if _CONTROL.search(text) or not _is_unicode(text):
        raise InvalidUri(f"{shown(text)} contains a control character, or is not Unicode. Write {FORMS}.")
    if text.startswith("/"):
        return ObjectRef(uri=object_uri("file", "", text[1:]))
    match = _URI.fullmatch(text)
    if not match:
        raise InvalidUri(f"{shown(text)} is not a URI. Write {FORMS}.")
    scheme, rest = match[1].lower(), match[2]
    if scheme in ("http", "https"):
        url = parse_web_url(text)
        return ObjectRef(uri=object_uri(url.scheme, url.bucket, url.key), version=url.version)
    rest, version, etag = _split_identity(rest)
    uri = _file(rest, text) if scheme == "file" else _in_bucket(scheme, rest, text)
    return ObjectRef(uri=uri, version=version, etag=etag)


def object_uri(scheme: str, bucket: str, key: str) -> str:
    """Return the normalised URI of an object whose bucket and key are known as they are, such as from a notification.

    Raises `InvalidUri` for a key with an empty segment, `.` or `..`, and for the few that would read as something else.
    """
    _check_bucket(scheme, bucket)
    _check_key(key, MAX_CLOUD_KEY_BYTES if scheme in ("s3", "gs") else MAX_KEY_BYTES)
    uri = f"file:///{quote(key, safe='/')}" if scheme == "file" else f"{scheme}://{bucket}/{key}"
    if _IDENTITY.search(uri) or _PART.search(uri):
        raise InvalidUri(
            f"The key {shown(key)} ends like a version (?versionId=…) or a part (#0-100) of an object. Rename it."
        )
    return uri


def split_uri(uri: str) -> ObjectAddress:
    """Take a normalised URI apart."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    return ObjectAddress(scheme, bucket, unquote(key, errors="strict") if scheme == "file" else key)


def normalise_prefix(text: str) -> str:
    """Return the beginning that the normalised URIs of all objects with this prefix have. Raises `InvalidUri`.

    It ends as it was written: `s3://bucket/in` is also the beginning of `s3://bucket/input.csv`. A bucket may stand
    alone.
    """
    if text == "/" or re.fullmatch(r"file:/+", text, re.IGNORECASE):
        return "file:///"
    match = re.fullmatch(r"([A-Za-z0-9]+)://([^/]+)/?", text)
    if match and (scheme := _SCHEMES.get(match[1].lower())):
        bucket = _bucket(scheme, match[2])
        _check_bucket(scheme, bucket)
        return f"{scheme}://{bucket}/"
    ref = parse_uri(text)
    if ref.version is not None or ref.etag is not None:
        raise InvalidUri(f"The prefix {shown(text)} names a version of an object. Write it without.")
    return ref.uri


def is_folder(uri: str) -> bool:
    """Return whether a normalised URI ends with a slash, as the empty objects do by which consoles show folders."""
    return uri.endswith("/")


def unit_id(ref: ObjectRef, *, by: Identity) -> str:
    """Return the id of the unit that an object is: its URI, with `?versionId=…` or `?etag=…` if that is part of it.

    No two different units have the same id, and `parse_uri` reads it back. Raises `IdentityMissing` if the version or
    ETag is not known, and `InvalidUri` if the URI is not normalised.
    """
    if normalise(ref.uri) != ref.uri:
        raise InvalidUri(
            f"{shown(ref.uri)} is not normalised: it would be another unit than {shown(normalise(ref.uri))}."
        )
    match by:
        case Identity.URI:
            return ref.uri
        case Identity.URI_AND_VERSION:
            return f"{ref.uri}?versionId={_known(ref, 'version', ref.version)}"
        case Identity.URI_AND_ETAG:
            return f"{ref.uri}?etag={_known(ref, 'ETag', ref.etag)}"


def object_of(unit: str) -> str:
    """Return the URI of the object that a unit is, or is a version or a part of."""
    return _IDENTITY.sub("", _PART.sub("", unit))


def unknown_etag_id(uri: str) -> str:
    """Return the id of the unit that an object is whose ETag should be part of it, but which does not exist.

    No object has it: `parse_uri` refuses it.
    """
    return f"{uri}{_UNKNOWN_ETAG}"


def uri_of_unknown_etag(unit: str) -> str | None:
    """Return the URI of a unit whose ETag is not known; None for any other unit."""
    return unit.removesuffix(_UNKNOWN_ETAG) if unit.endswith(_UNKNOWN_ETAG) else None


def inline_id(content: bytes) -> str:
    """Return the id of a message's own content: the same content is the same unit, whoever sends it."""
    return f"inline:{hashlib.sha256(content).hexdigest()}"


def is_inline(unit: str) -> bool:
    """Return whether a unit is a message's own content, and no object."""
    return unit.startswith("inline:")


def inline_message_id(message_id: str) -> str:
    """Return the id of a message's own content, by the queue's name of the message: equal contents are two units."""
    if not message_id:
        raise IdentityMissing("The message has no id. Identify inline messages by their content.")
    return f"inline:message={quote(message_id, safe='')}"


def _split_identity(rest: str) -> tuple[str, str | None, str | None]:
    match = _IDENTITY.search(rest)
    if not match:
        return rest, None, None
    try:
        value = unquote(match[2], errors="strict")
    except UnicodeDecodeError:
        value = ""
    if not value or "&" in match[2]:
        raise InvalidUri(f"The ?{match[1]}= of {shown(rest)} has no valid value. Write one version after it, or none.")
    before = rest[: match.start()]
    return (before, None, value) if match[1] == "etag" else (before, value, None)


def _file(rest: str, text: str) -> str:
    path = rest.removeprefix("//")
    if not path.startswith("/"):
        raise InvalidUri(f"{shown(text)} has a host or no absolute path. Write file:///path.")
    if "?" in path or "#" in path:
        raise InvalidUri(f"{shown(text)} has a '?' or '#' in its path. Write %3F or %23.")
    try:
        return object_uri("file", "", unquote(path[1:], errors="strict"))
    except UnicodeDecodeError:
        raise InvalidUri(f"{shown(text)} is not UTF-8 when percent-decoded.") from None


def _in_bucket(spelling: str, rest: str, text: str) -> str:
    scheme = _SCHEMES.get(spelling)
    if scheme is None or not rest.startswith("//"):
        raise InvalidUri(f"{shown(text)} is of an unknown kind. Write {FORMS}.")
    authority, _, key = rest[2:].partition("/")
    return object_uri(scheme, _bucket(scheme, authority), key)


def _bucket(scheme: str, authority: str) -> str:
    """Drop Azure's account: az:// URIs do not have it, and a pipeline reads from one account."""
    return authority.partition("@")[0] if scheme == "az" else authority


def _check_bucket(scheme: str, bucket: str) -> None:
    if not _BUCKET.fullmatch(bucket) and not (bucket == "" and scheme in ("file", "memory")):
        raise InvalidUri(f"{shown(f'//{bucket}')} is not the name of a bucket. Write {FORMS}.")


def _check_key(key: str, longest: int) -> None:
    if not _is_unicode(key):
        raise InvalidUri(f"The key {shown(key)} is not valid Unicode text.")
    segments = key.removesuffix("/").split("/")
    if segments == [""]:
        raise InvalidUri(f"A URI without a key names no object. Write {FORMS}.")
    if (size := len(key.encode())) > longest:
        raise InvalidUri(f"The key {shown(key)} has {size} bytes; at most {longest} are allowed.")
    if _CONTROL.search(key):
        raise InvalidUri(f"The key {shown(key)} contains a control character.")
    if not {"", ".", ".."}.isdisjoint(segments):
        raise InvalidUri(f"The key {shown(key)} has an empty segment, '.' or '..', which may lead out of a prefix.")


def _is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON can have and no store's keys."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _known(ref: ObjectRef, name: str, value: str | None) -> str:
    if not value:
        raise IdentityMissing(f"The {name} of {shown(ref.uri)} is not known. Look it up, or identify objects by URI.")
    return quote(value, safe="")
