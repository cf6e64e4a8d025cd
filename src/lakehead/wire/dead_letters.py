"""Dead letters: the object in which a message that could not be landed is kept, with its reason. No I/O."""

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from datetime import datetime
from hashlib import sha256
from typing import Literal

import msgspec

from lakehead.wire.errors import NewerFormat, Unreadable

VERSION = 1
ROOT = "dead-letters/v1"
NO_TABLE = "none"
"""The table of a message that could not be understood, so that it belongs to no table."""


class ClosedLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a dead letter was closed, and when. It stays closed."""

    how: Literal["landed", "dropped"]
    at: datetime
    snapshot: int | None = None
    """The snapshot in which its unit landed, if it is known."""


class DeadLetterObject(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of work that was given up, with the message that brought it."""

    version: int = VERSION
    table: str
    """The table's uuid, or `none`."""

    unit: str
    generation: int = 0
    reason: str
    tries: int = 0
    first_at: datetime
    """When it was given up for the first time."""

    last_at: datetime
    """When it was given up last."""

    burials: int = 1
    """How often it was given up: once more after each replay that failed."""

    queue: str | None = None
    message_id: str | None = None
    text: str | None = None
    """The message's body, if it is UTF-8."""

    base64: str | None = None
    """The message's body, if it is not."""

    uri: str | None = None
    """The object that the message announced."""

    replayed_at: datetime | None = None
    """When it was replayed last; None if it was not replayed since it was given up."""

    closed: ClosedLetter | None = None

    @property
    def key(self) -> str:
        """Where it is stored."""
        return letter_key(self.table, self.unit, self.generation)

    @property
    def body(self) -> bytes | None:
        """The message's body; None if no message brought the unit, as in a backfill."""
        if self.base64 is not None:
            return b64decode(self.base64, validate=True)
        return None if self.text is None else self.text.encode()

    def with_body(self, body: bytes) -> "DeadLetterObject":
        """The letter with a message's body: as text if it is UTF-8, else in base64."""
        try:
            return msgspec.structs.replace(self, text=body.decode(), base64=None)
        except UnicodeDecodeError:
            return msgspec.structs.replace(self, text=None, base64=b64encode(body).decode())

    def encode(self) -> bytes:
        """Encode the letter as it is stored."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, body: bytes, key: str) -> "DeadLetterObject":
        """Decode the letter stored at a key. Raises `NewerFormat` and `Unreadable`."""
        try:
            version = msgspec.json.decode(body, type=_Versioned).version
            if version > VERSION:
                raise NewerFormat(
                    f"The dead letter {key} has the format {version}, but this Lakehead reads {VERSION} at most. "
                    "Use the newer Lakehead that wrote it."
                )
            letter = msgspec.json.decode(body, type=cls)
            letter.body  # noqa: B018 - raises if it is no base64
        except (msgspec.MsgspecError, UnicodeError, RecursionError, NotBase64) as error:
            raise Unreadable(f"The dead letter {key} cannot be read ({error}). Repair or delete it by hand.") from None
        times = (letter.first_at, letter.last_at, letter.replayed_at, letter.closed.at if letter.closed else None)
        if letter.version < 1 or letter.key != key or any(time is not None and time.tzinfo is None for time in times):
            raise Unreadable(f"The object {key} is not the dead letter of that name. Repair or delete it by hand.")
        return letter


class _Versioned(msgspec.Struct):
    version: int


def message_unit(body: bytes) -> str:
    """The unit of a message that could not be understood. The same bytes are the same unit, whoever sent them."""
    return f"message:{sha256(body).hexdigest()}"


def letter_folder(table: str) -> str:
    """The folder of a table's dead letters."""
    return f"{ROOT}/table={table}"


def letter_id(unit: str, generation: int = 0) -> str:
    """A letter's name in its folder: the SHA-256 of its unit, and the generation after the first."""
    name = sha256(unit.encode()).hexdigest()
    return f"{name}-{generation}" if generation else name


def letter_key(table: str, unit: str, generation: int = 0) -> str:
    """The key of a unit's dead letter."""
    return f"{letter_folder(table)}/{letter_id(unit, generation)}.json"
