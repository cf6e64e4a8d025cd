"""Where a queue keeps what: the keys of its manifests, its batches and what it has set aside."""

import re
from dataclasses import dataclass
from hashlib import sha256

from lakehead.ids import Ids

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_BATCH = re.compile(rf"{_UUID}\.batch")
_ENTRY = re.compile(rf"#{_UUID}\Z")


@dataclass(frozen=True, slots=True)
class Pair:
    """The keys of one pair of manifests. A queue has one for each partition."""

    producer: str
    consumer: str

    @classmethod
    def of(cls, manifest_path: str, partition: int = 0) -> "Pair":
        """The pair of a partition. That of partition 0 is the specification's."""
        producer = _marked(manifest_path, f"p{partition}") if partition else manifest_path
        return cls(producer, _marked(producer, "consumer"))


def new_batch(data_path_prefix: str, ids: Ids) -> str:
    """A location that no batch has had and none will have again."""
    return f"{data_path_prefix}/{ids.uuid()}.batch"


def is_batch(location: str, data_path_prefix: str | None) -> bool:
    """Whether the location is that of a batch which an ingestor of the queue has stored, and no other object's."""
    if data_path_prefix is None or not location.startswith(f"{data_path_prefix}/"):
        return False
    return _BATCH.fullmatch(location, len(data_path_prefix) + 1) is not None


def entry_for(key: str, ids: Ids) -> str:
    """A location for an object that is not the queue's own, so that each time it is queued is an entry of its own."""
    return f"{key}#{ids.uuid()}"


def object_key(location: str) -> str:
    """The key of the object that a location means."""
    return _ENTRY.sub("", location)


def owner_key(data_path_prefix: str) -> str:
    """The object that says which queue's batches lie below a prefix."""
    return f"{data_path_prefix}/_owner.json"


def quarantine_folder(manifest_path: str) -> str:
    """The folder of batches that could not be read."""
    return _marked(manifest_path, "quarantine", keep_extension=False)


def quarantine_name(location: str) -> str:
    """The name under which a location's object is set aside: legal whatever the location is."""
    return sha256(location.encode(errors="surrogatepass")).hexdigest()[:32]


def _marked(path: str, mark: str, *, keep_extension: bool = True) -> str:
    """The path with a word before its last segment's extension, or at its end where it has none."""
    folder, slash, name = path.rpartition("/")
    stem, dot, extension = name.rpartition(".")
    if not stem:
        return f"{path}.{mark}"
    return f"{folder}{slash}{stem}.{mark}" + (f"{dot}{extension}" if keep_extension else "")
