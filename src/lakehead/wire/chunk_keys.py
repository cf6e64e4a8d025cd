"""Where the chunks of rollups and indexes are, and the manifests that list them: keys as in `acceptance_keys`."""

import re
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import quote, unquote

from lakehead.wire.errors import InvalidKeyPart
from lakehead.wire.key_parts import checked, inside
from lakehead.wire.utc_hours import UtcHour

CHUNK_MANIFESTS = "manifests/v1"
ROLLUP = "rollup/v1"
INDEX = "index/v1"

MAX_METRIC_BYTES = 240
"""The longest metric name, escaped, that stands in a key itself. Of a longer one the key has the hash, after a `~`."""

_WINDOW = re.compile(r"[0-9a-z]{1,16}")
_CHUNK_ID = re.compile(r"[0-9A-Za-z_-]{1,128}")
_MANIFEST = re.compile(r"([0-9a-z]{1,16})-([0-9]{20})")
_ROLLUP = re.compile(r"window=([^/]+)/([^/]+/[^/]+)/metric=([^/]*)/([^/]+)")
_LONG_METRIC = re.compile(r"~[0-9a-f]{64}")
_MAX_NUMBER = 10**20 - 1


@dataclass(frozen=True, slots=True)
class RollupChunk:
    """What the key of a chunk of a rollup says."""

    window: str
    hour: UtcHour
    """The hour of the samples."""

    metric: str | None
    """The metric; None if its name is too long for a key. The chunk itself has it."""

    chunk_id: str


def chunk_manifest(hour: UtcHour, window: str, number: int) -> str:
    """The manifest of this number, which lists the live chunks of a window (or of an index) in an hour."""
    if not 0 <= number <= _MAX_NUMBER:
        raise InvalidKeyPart(f"A manifest of chunks cannot have the number {number}.")
    return f"{CHUNK_MANIFESTS}/{hour.path}/{checked(window, _WINDOW)}-{number:020}.json"


def parse_chunk_manifest(key: str) -> tuple[UtcHour, str, int] | None:
    """The hour, the window and the number."""
    path, _, name = inside(key, f"{CHUNK_MANIFESTS}/", ".json").rpartition("/")
    hour, match = UtcHour.parse(path), _MANIFEST.fullmatch(name)
    return (hour, match[1], int(match[2])) if hour and match else None


def rollup_chunk(window: str, hour: UtcHour, metric: str, chunk_id: str) -> str:
    """A chunk of a rollup of one metric."""
    folder = f"{ROLLUP}/window={checked(window, _WINDOW)}/{hour.path}"
    return f"{folder}/metric={metric_part(metric)}/{checked(chunk_id, _CHUNK_ID)}.lmrollup.zst"


def parse_rollup_chunk(key: str) -> RollupChunk | None:
    """The window, hour, metric and id of a chunk."""
    match = _ROLLUP.fullmatch(inside(key, f"{ROLLUP}/", ".lmrollup.zst"))
    if not match or not _WINDOW.fullmatch(match[1]) or not _CHUNK_ID.fullmatch(match[4]):
        return None
    hour, part = UtcHour.parse(match[2]), match[3]
    metric = None if _LONG_METRIC.fullmatch(part) else _parse_metric(part)
    if hour is None or (metric is None and not _LONG_METRIC.fullmatch(part)):
        return None
    return RollupChunk(match[1], hour, metric, match[4])


def index_chunk(hour: UtcHour, chunk_id: str) -> str:
    """A chunk of an index."""
    return f"{INDEX}/{hour.path}/{checked(chunk_id, _CHUNK_ID)}.lmindex.zst"


def parse_index_chunk(key: str) -> tuple[UtcHour, str] | None:
    """The hour and the id of a chunk."""
    path, _, chunk_id = inside(key, f"{INDEX}/", ".lmindex.zst").rpartition("/")
    hour = UtcHour.parse(path)
    return (hour, chunk_id) if hour and _CHUNK_ID.fullmatch(chunk_id) else None


def metric_part(metric: str) -> str:
    """A metric's name as part of a key: ASCII letters, digits and `_-.` as they are, other bytes as `%XX`.

    A dot at the end is `%2E`, because some stores drop it.
    """
    try:
        escaped = quote(metric, safe="").replace("~", "%7E")
    except UnicodeEncodeError:
        raise InvalidKeyPart(f"The metric name {metric[:80]!r} is not valid Unicode text.") from None
    if escaped.endswith("."):
        escaped = f"{escaped[:-1]}%2E"
    return escaped if len(escaped) <= MAX_METRIC_BYTES else f"~{sha256(metric.encode()).hexdigest()}"


def _parse_metric(part: str) -> str | None:
    try:
        metric = unquote(part, errors="strict")
        return metric if metric_part(metric) == part else None
    except (UnicodeDecodeError, InvalidKeyPart):
        return None
