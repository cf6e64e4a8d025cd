"""http(s) URLs of objects in S3, GCS and Azure, and how URIs are shown in messages to people."""

import re
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from lakehead.errors import LakeheadError

_S3_HOST = re.compile(
    r"(?:(?P<bucket>[a-z0-9][a-z0-9._-]*)\.)?"
    r"s3(?:-accelerate|-fips)?(?:\.dualstack)?(?:[.-][a-z]{2}(?:-[a-z]+)+-[0-9]+)?\.amazonaws\.com(?:\.cn)?"
)
_GCS_HOST = re.compile(r"(?:(?P<bucket>[a-z0-9][a-z0-9._-]*)\.)?storage\.googleapis\.com|storage\.cloud\.google\.com")
_GCS_API = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)")
_AZURE_HOST = re.compile(r"[a-z0-9-]+\.(?:blob|dfs)\.core\.(?:windows\.net|usgovcloudapi\.net|chinacloudapi\.cn)")

_OTHER_THAN_THE_OBJECT = frozenset(
    {"acl", "comp", "partnumber", "restype", "snapshot", "tagging", "uploadid", "uploads"}
)
"""Parameters with which a URL names something else than the content of an object."""

_QUERY = re.compile(r"\?[^\s\"'<>\\]*")
_USER = re.compile(r"//[^/\s\"']*@")
_SECRET = re.compile(
    r"((?:sig|signature|token|secret|passw|credential|accesskey|apikey)[\w-]*[\"']?\s*[=:]|bearer)\s*"
    r"(?:\"[^\"]*\"?|'[^']*'?|[^\s&\"']+)",
    re.IGNORECASE,
)
_SHOWN = 120


class InvalidUri(LakeheadError):
    """Write another URI: this one names no object, or could lead out of a prefix."""


class WebUrl(NamedTuple):
    """The object of an http(s) URL."""

    scheme: str
    bucket: str
    key: str
    version: str | None


def parse_web_url(text: str) -> WebUrl:
    """Return the object of a URL of S3 (virtual-hosted or path style), GCS or Azure, percent-decoded.

    Its `+` stays a plus. A version is taken from `versionId` or `generation`; everything else after the `?` is dropped,
    such as the signature of a presigned URL. Raises `InvalidUri`.
    """
    parts = _split(text)
    host = parts.hostname or ""
    try:
        version = _version(parts, text)
        if match := _S3_HOST.fullmatch(host):
            return WebUrl("s3", *_bucket_and_key(match["bucket"], parts.path), version)
        if match := _GCS_API.fullmatch(parts.path):
            if host in ("storage.googleapis.com", "www.googleapis.com"):
                return WebUrl("gs", _decoded(match[1]), _decoded(match[2]), version)
        elif match := _GCS_HOST.fullmatch(host):
            return WebUrl("gs", *_bucket_and_key(match["bucket"], parts.path), version)
        if _AZURE_HOST.fullmatch(host):
            return WebUrl("az", *_bucket_and_key(None, parts.path), version)
    except UnicodeDecodeError:
        raise InvalidUri(f"{shown(text)} is not UTF-8 when percent-decoded.") from None
    raise InvalidUri(
        f"{shown(text)} has a host that is not known. Write s3://bucket/key, and the endpoint in the settings."
    )


def shown(text: str) -> str:
    """Return a text as an error shows it: one line of at most 120 characters, without passwords and signatures."""
    text = _QUERY.sub("?…", _USER.sub("//…@", text[: 10 * _SHOWN]))
    text = _SECRET.sub(r"\1…", text)
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        standard = parts.port in (None, 80, 443)
    except ValueError:
        raise InvalidUri(f"{shown(text)} is not a valid URL.") from None
    if "@" in parts.netloc:
        raise InvalidUri(f"{shown(text)} contains credentials. Write it without them.")
    if "#" in text or not standard:
        raise InvalidUri(f"{shown(text)} has a '#' or a port. Write %23 for a '#' in a key, and no port.")
    return parts


def _version(parts: SplitResult, text: str) -> str | None:
    query = {name.lower(): value for name, value in parse_qsl(parts.query, keep_blank_values=True, errors="strict")}
    if not _OTHER_THAN_THE_OBJECT.isdisjoint(query):
        raise InvalidUri(f"{shown(text)} names something else than the content of an object.")
    version = query.get("versionid", query.get("generation"))
    if version == "":
        raise InvalidUri(f"{shown(text)} has an empty version.")
    return version


def _bucket_and_key(bucket: str | None, path: str) -> tuple[str, str]:
    if bucket is not None:
        return bucket, _decoded(path[1:])
    name, _, key = path[1:].partition("/")
    return _decoded(name), _decoded(key)


def _decoded(text: str) -> str:
    return unquote(text, errors="strict")
