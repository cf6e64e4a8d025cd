"""The keys of a queue's objects: manifests, batches, and what is in quarantine."""

import re
from dataclasses import dataclass
from hashlib import sha256

from lakehead.ids import Ids

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_BATCH = re.compile(rf"{_UUID}\.batch")
_ENTRY_ID = re.compile(rf"#{_UUID}\Z")


@dataclass(frozen=True, slots=True)
class ManifestKeys:
    """The keys of a partition's two manifests."""

    producer: str
    consumer: str

    @classmethod
    def of(cls, manifest_path: str, partition: int = 0) -> "ManifestKeys":
        """Return the keys for a partition. Those of partition 0 are the specification's."""
        producer = _with_suffix(manifest_path, f"p{partition}") if partition else manifest_path
        return cls(producer, _with_suffix(producer, "consumer"))


def new_batch_key(data_path_prefix: str, ids: Ids) -> str:
    """Return a new, unique key for a batch."""
    return f"{data_path_prefix}/{ids.uuid()}.batch"


def is_batch_key(location: str, data_path_prefix: str | None) -> bool:
    """Return whether the location is the key of a batch that an ingestor of the queue stored under its prefix."""
    if data_path_prefix is None or not location.startswith(f"{data_path_prefix}/"):
        return False
    return _BATCH.fullmatch(location, len(data_path_prefix) + 1) is not None


def entry_location(key: str, ids: Ids) -> str:
    """Return a new, unique location for an object that is not the queue's own, so that it can be queued repeatedly."""
    return f"{key}#{ids.uuid()}"


def object_key(location: str) -> str:
    """Return the key of the object at a location."""
    return _ENTRY_ID.sub("", location)


def owner_key(data_path_prefix: str) -> str:
    """Return the key of the object that names the queue which owns a prefix."""
    return f"{data_path_prefix}/_owner.json"


def quarantine_folder(manifest_path: str) -> str:
    """Return the folder of the queue's quarantine."""
    return _with_suffix(manifest_path, "quarantine", keep_extension=False)


def quarantine_name(location: str) -> str:
    """Return the name of a location's object in quarantine, which is a valid key whatever the location is."""
    return sha256(location.encode(errors="surrogatepass")).hexdigest()[:32]


def _with_suffix(path: str, suffix: str, *, keep_extension: bool = True) -> str:
    """Insert a suffix before the file extension, or at the end if there is none."""
    folder, slash, name = path.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    if not stem:
        return f"{path}.{suffix}"
    return f"{folder}{slash}{stem}.{suffix}" + (f"{dot}{extension}" if keep_extension else "")
