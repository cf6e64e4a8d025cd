"""Ids and randomness that components take as arguments, instead of drawing them from the system."""

import os
import uuid
from collections import deque
from random import Random, SystemRandom
from typing import Protocol

__all__ = ["Ids", "Random", "RandomIds", "SeededIds", "system_bytes", "system_random"]


class Ids(Protocol):
    """A source of unique ids."""

    def uuid(self) -> str:
        """Return a new UUID v4 in its canonical form."""
        ...


_ID_BYTES = 16
_DRAWN_AT_ONCE = 256
_DRAWN: deque[bytes] = deque()
"""Random bytes for the next ids. To ask the system takes longer than all else, for one id or for many."""

os.register_at_fork(after_in_child=_DRAWN.clear)  # or parent and child would have the same ids


class RandomIds:
    """Random ids from the system. Threads may share it."""

    def uuid(self) -> str:
        """Return a new UUID v4 in its canonical form."""
        try:
            drawn = _DRAWN.popleft()
        except IndexError:
            many = system_bytes(_ID_BYTES * _DRAWN_AT_ONCE)
            drawn = many[:_ID_BYTES]
            _DRAWN.extend(many[at : at + _ID_BYTES] for at in range(_ID_BYTES, len(many), _ID_BYTES))
        return str(uuid.UUID(bytes=drawn, version=4))


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
