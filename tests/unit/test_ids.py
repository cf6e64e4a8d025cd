"""Ids are unique, also in children that are forked, and in threads."""

import multiprocessing
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lakehead.ids import RandomIds

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

MANY = 1_000


def _tell(to: "Connection[list[str], None]") -> None:
    to.send([RandomIds().uuid() for _ in range(MANY)])
    to.close()


def test_ids_are_canonical_and_of_version_4() -> None:
    for _ in range(MANY):
        found = RandomIds().uuid()
        assert str(uuid.UUID(found)) == found
        assert uuid.UUID(found).version == 4
        assert uuid.UUID(found).variant == uuid.RFC_4122


@pytest.mark.slow
def test_a_forked_child_has_other_ids_than_its_parent() -> None:
    first = RandomIds().uuid()  # so that some are drawn already
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_tell, args=(theirs,))
    child.start()
    theirs.close()

    found = {first, *ours.recv(), *(RandomIds().uuid() for _ in range(MANY))}
    child.join()

    assert len(found) == 2 * MANY + 1


def test_threads_have_different_ids() -> None:
    with ThreadPoolExecutor(8) as threads:
        drawn = list(threads.map(lambda _: [RandomIds().uuid() for _ in range(MANY)], range(8)))

    assert len({each for some in drawn for each in some}) == 8 * MANY
