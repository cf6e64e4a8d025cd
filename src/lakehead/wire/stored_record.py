"""What all JSON records of acceptance share: a schema with a version, a bounded size, and the key where they belong.

Extra keys are tolerated, so that a record can say more without a new version. Records that are replaced
(`VersionedRecord`) are written as a whole: a new key in one of those needs a new version of its schema, or an older
Lakehead would drop it.
"""

import re
from typing import Annotated, ClassVar, Self

import msgspec

from lakehead.wire.batch_identity import MAX_SEQUENCE, BatchIdentity
from lakehead.wire.errors import InvalidRecord, NewerFormat, Unreadable

MAX_BYTES = 64 << 10
"""The largest record that is read, unless its class says otherwise."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
UnixNs = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Nanoseconds since the Unix epoch."""

Sequence = Annotated[int, msgspec.Meta(ge=0, le=MAX_SEQUENCE)]
Version = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""A SHA-256 in lowercase hex."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]

_SCHEMA = re.compile(r"(.+)\.v([1-9][0-9]{0,8})")


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A JSON object that is stored at a key of its own. Its first key is `schema`, which is the tag of the class."""

    MAX_BYTES: ClassVar[int] = MAX_BYTES

    @property
    def key(self) -> str:
        """Where the record is stored."""
        raise NotImplementedError

    def belongs_at(self, key: str) -> bool:
        """Return whether the record is stored at this key."""
        return self.key == key

    def encode(self) -> bytes:
        """Encode the record as it is stored."""
        return msgspec.json.encode(self)

    def encode_checked(self) -> bytes:
        """Encode a record that holds what people have entered, of any length and form.

        Raises `InvalidRecord` if it could not be read back.
        """
        try:
            body = self.encode()
            msgspec.json.decode(body, type=type(self))
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise InvalidRecord(f"This cannot be stored at {self.key}: {error}.") from None
        if len(body) > self.MAX_BYTES:
            raise InvalidRecord(
                f"This cannot be stored at {self.key}: it has {len(body):,} bytes, and at most {self.MAX_BYTES:,} "
                "are allowed. Say it in fewer words, or remove what is not needed any more."
            )
        return body

    @classmethod
    def decode(cls, body: bytes, key: str) -> Self:
        """Decode the record that is stored at a key.

        Raises `NewerFormat` if its schema has a higher version, and `Unreadable` if it is another record, or damaged.
        """
        expected = schema_name(cls)
        found = schema_of(body, key, max_bytes=cls.MAX_BYTES)
        if found != expected:
            raise _another(found, expected, key)
        try:
            record = msgspec.json.decode(body, type=cls)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise Unreadable(f"The object {key} is not a valid {expected} ({error}). Repair it by hand.") from None
        if not record.belongs_at(key):
            raise Unreadable(f"The object {key} holds a {expected} that belongs to another key. Repair it by hand.")
        return record


class VersionedRecord(StoredRecord, frozen=True, kw_only=True):
    """A record that is replaced by compare-and-set. Each class has both as its last fields, as they are stored."""

    @property
    def version(self) -> int:
        """Grows with every replacement."""
        raise NotImplementedError

    @property
    def nonce(self) -> str:
        """A random value for each change, by which a writer knows its own again."""
        raise NotImplementedError


class IdentityRecord(StoredRecord, frozen=True, kw_only=True):
    """A record about one identity."""

    agent_id: str
    boot_id: str
    seq_start: Sequence
    seq_end: Sequence

    def __post_init__(self) -> None:
        self.identity  # noqa: B018 - raises if it is not valid

    @property
    def identity(self) -> BatchIdentity:
        """The identity that the record is about."""
        return BatchIdentity(self.agent_id, self.boot_id, self.seq_start, self.seq_end)


class _Schema(msgspec.Struct):
    schema: str


def schema_of(body: bytes, key: str, *, max_bytes: int = MAX_BYTES) -> str:
    """The schema that a record names. Raises `Unreadable`."""
    if len(body) > max_bytes:
        raise Unreadable(f"The object {key} has {len(body):,} bytes; no record has more than {max_bytes:,}.")
    try:
        return msgspec.json.decode(body, type=_Schema).schema
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Unreadable(f"The object {key} is not a record ({error}). Repair it by hand.") from None


def schema_name(kind: type[StoredRecord]) -> str:
    """The schema of a class of records."""
    return str(kind.__struct_config__.tag)


def _another(found: str, expected: str, key: str) -> Unreadable:
    ours, theirs = _SCHEMA.fullmatch(expected), _SCHEMA.fullmatch(found)
    if ours and theirs and ours[1] == theirs[1] and int(theirs[2]) > int(ours[2]):
        return NewerFormat(f"The object {key} was written by a newer Lakehead: it is a {found}. Update this reader.")
    return Unreadable(f"The object {key} is a {found[:80]!r}, but should be a {expected}. Repair it by hand.")
