"""How the values of a column are kept out of the lakehouse. Configurations import it, so it imports no Arrow."""

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The column is not read."""

    word = "left out"


@dataclass(frozen=True, slots=True)
class Masked:
    """Each value of text becomes this one, and each value of another type NULL. NULL stays NULL."""

    text: str
    word = "masked"


@dataclass(frozen=True, slots=True)
class Hashed:
    """Each value becomes the HMAC-SHA-256 of its text under a secret, in hexadecimal. NULL stays NULL."""

    secret: str = field(repr=False)
    word = "hashed"


Protection: TypeAlias = LeftOut | Masked | Hashed
