"""What processes have told of a queue, and what of it cannot be true of one that loses and doubles nothing."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

Line = Mapping[str, Any]


def faults(lines: Iterable[Line], *, ordered: bool) -> list[str]:
    """Everything that is wrong, as sentences. The lines of one process stand in its order, those of several do not."""
    told = sorted(lines, key=lambda line: float(line["at"]))
    by_word: dict[str, list[Line]] = defaultdict(list)
    for line in told:
        by_word[line["word"]].append(line)
    sent, durable, refused = ({line["entry"] for line in by_word[word]} for word in ("sent", "durable", "refused"))
    got = {line["entry"] for line in by_word["got"]}
    found = [f"{entry} is durable and never came" for entry in sorted(durable - got)]
    found += [f"{entry} came and was never sent" for entry in sorted(got - sent)]
    found += [f"{entry} came though its sender was told that it is not queued" for entry in sorted(got & refused)]
    found += _late(told)
    found += _places(by_word["got"])
    if ordered:
        found += _out_of_order(by_word["got"])
    return found


def _late(told: Iterable[Line]) -> Iterable[str]:
    """What was handed out after it was acknowledged."""
    acknowledged: set[str] = set()
    for line in told:
        if line["word"] == "acknowledged":
            acknowledged.add(line["location"])
        elif line["word"] == "got" and line["location"] in acknowledged:
            yield f"{line['entry']} came again after it was acknowledged"


def _places(got: Iterable[Line]) -> Iterable[str]:
    """What came from more than one batch."""
    places: dict[str, set[str]] = defaultdict(set)
    for line in got:
        places[line["entry"]].add(line["location"])
    return [f"{entry} came from {len(found)} batches" for entry, found in sorted(places.items()) if len(found) > 1]


def _out_of_order(got: Iterable[Line]) -> Iterable[str]:
    """Of one sender, an entry that came after a later one in the same epoch."""
    last: dict[tuple[str, int], int] = {}
    for line in got:
        sender, _, number = str(line["entry"]).rpartition(".")
        where = (sender, int(line["epoch"]))
        if int(number) <= last.get(where, -1):
            yield f"{line['entry']} came after {sender}.{last[where]}"
        last[where] = int(number)
