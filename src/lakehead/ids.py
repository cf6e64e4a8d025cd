"""Ids and randomness, as arguments."""

import uuid
from random import Random
from typing import Protocol

__all__ = ["Ids", "Random", "RandomIds", "SeededIds", "system_random"]


class Ids(Protocol):
    """Where a component gets names that nobody else has."""

    def uuid(self) -> str:
        """A new UUID v4 in its canonical form."""
        ...


class RandomIds:
    """Ids from the machine's randomness."""

    def uuid(self) -> str:
        """A new UUID v4 in its canonical form."""
        return str(uuid.uuid4())


class SeededIds:
    """Ids that repeat with the seed: for simulations, never for production."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def uuid(self) -> str:
        """A new UUID v4 in its canonical form."""
        drawn = f"{self._random.getrandbits(122):032x}"  # uuid.UUID would take most of a simulation's time
        return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-a{drawn[17:20]}-{drawn[20:]}"


def system_random() -> Random:
    """Randomness for jitter, seeded by the machine."""
    return Random()
