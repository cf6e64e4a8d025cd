"""Ids and randomness that components take as arguments, instead of drawing them from the system."""

import uuid
from random import Random, SystemRandom
from typing import Protocol

__all__ = ["Ids", "Random", "RandomIds", "SeededIds", "system_bytes", "system_random"]


class Ids(Protocol):
    """A source of unique ids."""

    def uuid(self) -> str:
        """Return a new UUID v4 in its canonical form."""
        ...


class RandomIds:
    """Random ids from the system."""

    def uuid(self) -> str:
        """Return a new UUID v4 in its canonical form."""
        return str(uuid.uuid4())


class SeededIds:
    """Ids that depend only on the seed: for simulations, never for production."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def uuid(self) -> str:
        """Return a new UUID v4 in its canonical form."""
        drawn = f"{self._random.getrandbits(122):032x}"  # uuid.UUID would take most of a simulation's time
        return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-a{drawn[17:20]}-{drawn[20:]}"


def system_random() -> Random:
    """Return randomness for jitter, seeded by the system."""
    return Random()


def system_bytes(size: int) -> bytes:
    """Return so many random bytes for a secret, from the system's source for those."""
    return SystemRandom().randbytes(size)
