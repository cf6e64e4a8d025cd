"""What must hold of a table, its dead letters and its queue when consumers are done, whatever happened to them."""

from collections.abc import Collection
from pathlib import Path

from tests.consumer import Consumer


def faults(consumer: Consumer, good: Collection[str], broken: Collection[str], *, rows: int) -> list[str]:
    """What is wrong: a row of a good object that is missing or there twice, a broken one that is no dead letter."""
    found = consumer.counts()
    wanted = {(uri, row) for uri in good for row in range(rows)}
    given_up = {str(letter.uri) for letter in consumer.letters()}
    return [
        *(f"lost: row {row} of {uri}" for uri, row in sorted(wanted - found.keys())),
        *(f"{times} times: row {row} of {uri}" for (uri, row), times in sorted(found.items()) if times > 1),
        *(f"of nobody: row {row} of {uri}" for uri, row in sorted(found.keys() - wanted)),
        *(f"no dead letter: {uri}" for uri in sorted(set(broken) - given_up)),
        *(f"a dead letter: {uri}" for uri in sorted(given_up - set(broken))),
    ]


def stored(folder: Path, name: str, body: bytes) -> str:
    """The URI of a file, which is written."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(body)
    return (folder / name).as_uri()
