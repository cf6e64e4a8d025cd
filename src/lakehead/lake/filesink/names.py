"""How a unit of work is spelled as a directory, and where everything of a file sink lies."""

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
"""The longest id that is spelled out; with its generation it stays below the 255 bytes that a file name may have."""

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
    """Where the directories of one file sink lie."""

    root: str

    @classmethod
    def below(cls, root: str) -> "Places":
        """Those below a root, with or without a slash at its end."""
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
    """The unit's name: no other unit has it, and no file system, Spark or glob reads anything into it."""
    if unit.generation < 0:
        raise InvalidUnit(
            f"The unit {unit.id!r} has the generation {unit.generation}. Generations are counted from 0 upwards."
        )
    return f"{key_of(unit)}.g{unit.generation}"


def key_of(unit: Unit) -> str:
    """The unit's id, spelled so that it can be part of a name.

    Small letters, digits, `-`, `_` and `.` stand for themselves. A capital letter is `~` and its small letter, because
    some file systems do not tell them apart; any other byte of the id in UTF-8, and a `_` or `.` at its beginning,
    which would hide the directory, is `~0` and two hexadecimal digits. A very long id ends in its hash instead.
    """
    if not unit.id:
        raise InvalidUnit("A unit with an empty id cannot name a directory. Give it an id.")
    first = _spell(unit.id[0]).replace("_", "~05f").replace(".", "~02e")
    spelled = first + "".join(map(_spell, unit.id[1:]))
    if len(spelled) > MAX_SPELLED:
        digest = sha256(_bytes(unit.id)).hexdigest()
        # Two tildes stand nowhere else, so that no short id is spelled like this.
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
