"""What agents have answered, what the tables hold of it, and what of that cannot be true.

Every record has an id of its own. What an agent has answered is in the tables once in the end, what it was given and
has not answered at most once, and nothing else ever.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

import pyarrow as pa

from tests.chaos.agent_checker import Given
from tests.support.agent_requests import ids_in


def ids_of(rows: pa.Table) -> list[str]:
    """The ids of the rows of a table, as often as it has them."""
    return [each for batch in rows.to_batches() for each in ids_in(batch)]


def faults(given: Given, tables: Mapping[str, Sequence[str]]) -> list[str]:
    """Everything that is wrong with the ids in some tables, as sentences."""
    times = Counter(chain.from_iterable(tables.values()))
    found = [f"{each} was answered, and is lost" for each in sorted(given.answered - times.keys())]
    found += [f"{each} has landed {count} times" for each, count in sorted(times.items()) if count > 1]
    return found + [
        f"{each} is in {table}, and nobody gave it"
        for table, ids in tables.items()
        for each in sorted(set(ids) - given.given)
    ]
