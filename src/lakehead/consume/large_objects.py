"""Objects that are too large for one landing: plain NDJSON and Parquet of more than `max_object_bytes`.

Such an object lands in several landings, each with the next of its bytes, so that a pipeline that dies goes on where it
was. Its unit stays one: one message, one lease, one count of tries, one dead letter. The last landing completes it, and
only then is its message acknowledged and the object deleted or moved.

How an object is divided is decided anew by each landing and stored nowhere. What is stored, with each landing in its
snapshot and with the unit in the state, is how far the object has landed: up to which byte, with how many records (so
that the next record has the next `_row`), and of which content. The rule that nothing lands twice follows from it: a
landing begins at the byte that the transaction of its plan has read, and is published only at the head of that plan
(`UnitRemainder`). Therefore `max_object_bytes` may change at any time, also between two pipelines on one queue: an
object that was begun is continued, in parts of another size or in one, and one that has landed whole has landed.

- The size is that of the object when a task opens it. It does not matter whether the message told it.
- All parts are read of the same ETag. If the object is replaced between two landings, the rest of its content is gone:
  it is refused, and becomes a dead letter. An object without an ETag is not divided.
- A line belongs to the part that has the byte before it, wherever it is cut (`ObjectPart`); a part within one long line
  has no records. Of Parquet, a part begins with a row group, and a row group is never divided.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.consume.decode.rows import ObjectPart

MAX_OBJECT_BYTES = 2**30
"""The default of `max_object_bytes`."""


@dataclass(frozen=True, slots=True)
class UnfinishedObject:
    """What a landing holds of an object, if more of it is to follow."""

    start: int
    end: int
    etag: str


def next_parts(parts: Sequence[ObjectPart], *, start: int, limit: int) -> tuple[list[ObjectPart], int | None]:
    """Return those parts of the rest of an object, which begins at `start`, that one landing takes: at least one.

    Also returns the byte where they end; None if they are all that was left.
    """
    taken: list[ObjectPart] = []
    for part in parts:
        if taken and part.stop - start > limit:
            return taken, taken[-1].stop
        taken.append(part)
    return taken, None
