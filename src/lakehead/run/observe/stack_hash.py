"""A short name for a fault, by which the same one is known again."""

import hashlib
import traceback
from collections.abc import Iterator

from lakehead.errors import LakeheadError

DIGITS = 12
VANISHING = {"<listcomp>", "<setcomp>", "<dictcomp>"}
"""Frames that newer Pythons do not have any more."""


def stack_hash(error: BaseException) -> str:
    """12 hex digits of the error's type and of where it was raised, and of the errors that caused it.

    Where is the modules and functions on the way, from whoever catches it on; an error of ours may name its `fault`
    besides. Neither messages, values, lines nor paths count, nor how often a function called itself: the same fault has
    the same hash in every run, on every machine.
    """
    told = "\n".join(_told(error))
    return hashlib.sha256(told.encode(errors="backslashreplace")).hexdigest()[:DIGITS]


def _told(error: BaseException) -> Iterator[str]:
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:  # errors may cause each other in a circle
        seen.add(id(at))
        yield f"error {type(at).__module__}.{type(at).__qualname__}"
        if isinstance(at, LakeheadError) and at.fault:
            yield f"fault {at.fault}"
        last = None
        for frame, _ in traceback.walk_tb(at.__traceback__):
            here = f"at {frame.f_globals.get('__name__', '?')} {frame.f_code.co_qualname}"
            if here != last and frame.f_code.co_name not in VANISHING:
                yield here
                last = here
        at = at.__cause__
