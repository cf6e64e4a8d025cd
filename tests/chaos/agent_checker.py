"""What agents were given and have answered, what gateways have accepted of it, and what of that cannot be true.

Every record has an id of its own. What an agent has answered is accepted once in the end, what it was given and has not
answered at most once, and nothing else ever.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import chain

from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, decode_at_identity
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame
from tests.support.agent_requests import ids_in

AT_ONCE = 16


@dataclass
class Given:
    """What callers have given to agents, and were told of it."""

    given: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    """Of which an agent has said that it is on disk."""


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """A frame that a gateway has stored, whether or not it was accepted."""

    identity: BatchIdentity
    sha256: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Stored:
    """What gateways have stored."""

    frames: Mapping[str, StoredFrame]
    """Every frame that they were sent, by its hash."""

    accepted: Mapping[BatchIdentity, str]
    """The hash that counts for each identity."""

    voids: frozenset[BatchIdentity] = frozenset()
    """Identities under which nothing was, or will be, accepted."""

    def of(self, is_meant: Callable[[BatchIdentity], bool]) -> "Stored":
        """The part of it that is of some identities."""
        return Stored(
            {key: each for key, each in self.frames.items() if is_meant(each.identity)},
            {each: key for each, key in self.accepted.items() if is_meant(each)},
            frozenset(filter(is_meant, self.voids)),
        )


async def read_stored(store: Store) -> Stored:
    """Read all that gateways have stored, frame by frame."""
    places, accepted, voids = asyncio.Semaphore(AT_ONCE), dict[BatchIdentity, str](), set[BatchIdentity]()

    async def body_of(key: str) -> bytes:
        async with places:
            found = await store.get(key)
        assert found is not None, f"{key} is listed, and not there"
        return found.body

    async def frame(key: str) -> StoredFrame:
        body = await body_of(key)
        assert sha256(body).hexdigest() == keys.parse_raw_blob(key), f"{key} has another hash"
        decoded = decode_frame(body)
        return StoredFrame(decoded.header.identity, sha256(body).hexdigest(), tuple(ids_in(decoded.records)))

    async def manifest(key: str) -> None:
        identity = keys.parse_accepted(key)
        assert identity is not None, key
        record = decode_at_identity(await body_of(key), identity)
        if isinstance(record, IdentityManifest):
            accepted[identity] = record.frame_sha256
        else:
            voids.add(identity)

    frames = await asyncio.gather(*[frame(key) async for key in _listed(store, keys.RAW_BLOBS)])
    await asyncio.gather(*[manifest(key) async for key in _listed(store, keys.ACCEPTED)])
    return Stored({each.sha256: each for each in frames}, accepted, frozenset(voids))


async def _listed(store: Store, folder: str) -> AsyncIterator[str]:
    async for page in store.list(folder):
        for each in page:
            yield each.key


def faults(given: Given, stored: Stored) -> list[str]:
    """Everything that is wrong, as sentences."""
    missing = [identity for identity, hash_ in stored.accepted.items() if hash_ not in stored.frames]
    accepted = [stored.frames[hash_] for hash_ in stored.accepted.values() if hash_ in stored.frames]
    times = Counter(chain.from_iterable(frame.ids for frame in accepted))
    found = [f"{each} was answered, and is lost" for each in sorted(given.answered - times.keys())]
    found += [f"{each} was accepted {count} times" for each, count in sorted(times.items()) if count > 1]
    found += [f"{each} was accepted, and nobody gave it" for each in sorted(times.keys() - given.given)]
    found += [f"{each} is accepted, and its frame is missing" for each in missing]
    found += [
        f"{identity} is accepted with a frame of {stored.frames[hash_].identity}"
        for identity, hash_ in stored.accepted.items()
        if hash_ in stored.frames and stored.frames[hash_].identity != identity
    ]
    return [*found, *_changed(stored.frames.values()), *_numbers([*stored.accepted, *stored.voids])]


def _changed(frames: Iterable[StoredFrame]) -> Iterable[str]:
    """Batches that were sent with different bytes."""
    hashes: dict[BatchIdentity, set[str]] = defaultdict(set)
    for frame in frames:
        hashes[frame.identity].add(frame.sha256)
    return [f"{each} was sent with {len(known)} contents" for each, known in hashes.items() if len(known) > 1]


def _numbers(identities: Sequence[BatchIdentity]) -> Iterable[str]:
    """Sequence numbers of a boot that are missing, or were used twice."""
    boots: dict[tuple[str, str], list[BatchIdentity]] = defaultdict(list)
    for each in identities:
        boots[each.agent_id, each.boot_id].append(each)
    for (agent, boot), of_boot in sorted(boots.items()):
        next_number = 0
        for each in sorted(of_boot, key=lambda one: (one.seq_start, one.seq_end)):
            if each.seq_start > next_number:
                yield f"{agent}, boot {boot}: nothing has the numbers {next_number} to {each.seq_start - 1}"
            elif each.seq_start < next_number:
                yield f"{agent}, boot {boot}: {each.seq_start} to {each.seq_end} overlaps what came before"
            next_number = max(next_number, each.seq_end + 1)
