"""Measuring several things in turns, so that what changes with time meets all of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Measured(Protocol):
    """Where seconds are added to."""

    def add(self, name: str, seconds: float) -> None:
        """The seconds of one turn."""
        ...


def alternate(
    measured: Measured,
    turns: int,
    prepare: Callable[[int], T],
    works: Sequence[Callable[[T], Mapping[str, float]]],
    *,
    warm_up: int = 1,
) -> None:
    """Do every work once a turn, each time beginning with another one, and add the seconds that they tell by name.

    `prepare` is called before each turn, and the works with what it answers. Turns before the first are numbered below
    zero; they warm up, and what they took is not added.
    """
    for turn in range(-warm_up, turns):
        prepared = prepare(turn)
        for work in rotated(works, turn):
            told = work(prepared)
            for name, seconds in told.items() if turn >= 0 else ():
                measured.add(name, seconds)


def rotated(works: Sequence[T], turn: int) -> list[T]:
    """The works of a turn, in their order: the first one of one turn is the last one of the next."""
    first = turn % len(works) if works else 0
    return [*works[first:], *works[:first]]
