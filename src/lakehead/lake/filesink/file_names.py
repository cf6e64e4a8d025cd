"""The directory names of units, and the folders of a file sink."""

import re
from dataclasses import dataclass
from hashlib import sha256

from lakehead.errors import LakeheadError, Misconfigured
from lakehead.lake.landing import Unit

SUCCESS = "_SUCCESS"
"""In a directory whose rows are all written."""
LANDED = "_LANDED"
"""In a directory that has been published."""
LABEL = "_UNIT"
"""In a directory that is staged: which unit it holds."""

MAX_SPELLED = 180
"""The longest id that is written out; with its generation the name stays below the limit of 255 bytes."""

_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")
_NAME = re.compile(r"(?P<key>[a-z0-9~-][a-z0-9~_.-]*)\.g(?P<generation>0|[1-9][0-9]*)")


class InvalidUnit(LakeheadError):
    """Give the unit another id or generation: this one cannot name a directory."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """What a directory's name says: units of one id have the same key."""

    key: str
    generation: int


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one file sink."""

    root: str

    @classmethod
    def below(cls, root: str) -> "Places":
        """The folders below a root, with or without a slash at its end."""
        if not root.strip("/") or root.rstrip("/").endswith(":"):
            raise Misconfigured(f"A file sink cannot have the root {root!r}. Name a folder of its own.")
        return cls(root.rstrip("/"))

    @property
    def published(self) -> str:
        """Directories that were published by rename. Nothing else is in it, so that it can be read by a glob:
        a glob, unlike a listing, also matches names that start with an underscore."""
        return f"{self.root}/published"

    @property
    def pointers(self) -> str:
        """Files that each name the staged directory by which a unit is published."""
        return f"{self.root}/_pointers"

    @property
    def staging(self) -> str:
        """A folder for each unit, with a directory for each attempt."""
        return f"{self.root}/_staging"


def name_of(unit: Unit) -> str:
    """The unit's directory name: unique, and without characters that are special to file systems, Spark or globs."""
    if unit.generation < 0:
        raise InvalidUnit(
            f"The unit {unit.id!r} has the generation {unit.generation}. Generations are counted from 0 upwards."
        )
    return f"{key_of(unit)}.g{unit.generation}"


def key_of(unit: Unit) -> str:
    """The unit's id, escaped so that it can be part of a directory name.

    Small letters, digits, `-`, `_` and `.` are kept. A capital letter becomes `~` and its small letter, because some
    file systems ignore case; any other byte of the id in UTF-8, and a `_` or `.` at its beginning, which would hide the
    directory, becomes `~0` and two hexadecimal digits. A very long id is cut and ends in its hash.
    """
    if not unit.id:
        raise InvalidUnit("A unit with an empty id cannot name a directory. Give it an id.")
    first = _spell(unit.id[0]).replace("_", "~05f").replace(".", "~02e")
    spelled = first + "".join(map(_spell, unit.id[1:]))
    if len(spelled) > MAX_SPELLED:
        digest = sha256(_bytes(unit.id)).hexdigest()
        # Two tildes occur nowhere else, so that no short id has such a name.
        spelled = f"{spelled[: MAX_SPELLED - len(digest) - 2]}~~{digest}"
    return spelled


def spelled_in(name: str) -> Spelled | None:
    """What a directory's name says, or None if it is not the name of a unit."""
    found = _NAME.fullmatch(name)
    return Spelled(found["key"], int(found["generation"])) if found else None


def _spell(character: str) -> str:
    if character in _PLAIN:
        return character
    if character.isascii() and character.isupper():
        return f"~{character.lower()}"
    return "".join(f"~0{byte:02x}" for byte in _bytes(character))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")  # half a character is an id too
