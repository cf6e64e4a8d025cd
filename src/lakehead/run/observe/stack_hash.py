"""A short hash of an error, by which repeated failures are grouped."""

import hashlib
import traceback
from collections.abc import Iterator

from lakehead.errors import LakeheadError

DIGITS = 12
VANISHING = {"<listcomp>", "<setcomp>", "<dictcomp>"}
"""Frames that newer Python versions no longer have."""


def stack_hash(error: BaseException) -> str:
    """Return 12 hex digits for an error: its type, the functions on its stack, and the errors that caused it.

    Messages, values, line numbers, paths and recursion depth are left out, so the same failure has the same hash in
    every run and on every machine. `LakeheadError.fault` tells apart errors that one function raises.
    """
    lines = "\n".join(_lines(error))
    return hashlib.sha256(lines.encode(errors="backslashreplace")).hexdigest()[:DIGITS]


def _lines(error: BaseException) -> Iterator[str]:
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:  # causes may form a cycle
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
