"""How much a test run does: `make test` enough to see a fault, `make soak` as much as it is given."""

import os
from typing import TypeVar

T = TypeVar("T")

SOAKING = bool(os.environ.get("LAKEHEAD_SOAK"))
"""Whether this is a run of `make soak`."""


def effort(test: T, *, soak: T) -> T:
    """What `make test` uses, or what `make soak` does: a number of rounds, of seconds, the values of a matrix."""
    return soak if SOAKING else test
