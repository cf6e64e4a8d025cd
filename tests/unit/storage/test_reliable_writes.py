"""What a conditional write comes to when the store's answers leave it open, request by request."""

from dataclasses import dataclass, field

import pytest

from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import Random, SeededIds
from lakehead.retry import Backoff
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, Version
from lakehead.storage.probed_store import ProbedStore
from lakehead.storage.reliable_writes import KeyState, ReliableWrites, WriteRefused, WriteRequests
from tests.support.simulation import World

EXPIRED = Misconfigured("ExpiredToken")
DOWN = Unavailable("503")


@dataclass
class ScriptedRequests:
    """Requests that fail as the test says, one after the other."""

    writes: list[Exception] = field(default_factory=list)
    states: list[Exception] = field(default_factory=list)

    async def write_once(self, *_: object, **__: object) -> Version:
        raise self.writes.pop(0)

    async def put(self, *_: object, **__: object) -> Version:
        raise self.writes.pop(0)

    async def delete(self, *_: object, **__: object) -> None:
        raise self.writes.pop(0)

    async def key_state(self, *_: object, **__: object) -> KeyState | None:
        raise self.states.pop(0)


def reliable(requests: WriteRequests, world: World) -> ReliableWrites:
    backoff = Backoff(attempts=3, first_seconds=0.0)
    return ReliableWrites(
        requests=requests, clock=world.clock, ids=SeededIds(Random(7)), random=world.random, backoff=backoff
    )


def created(requests: ScriptedRequests) -> Created | Exists:
    world = World(0)
    return world.loop.simulate(reliable(requests, world).create("key", b"body"))


@pytest.mark.parametrize(
    "requests",
    [
        ScriptedRequests([WriteRefused("412, though applied")], [EXPIRED]),
        ScriptedRequests([WriteRefused("412, though applied"), EXPIRED], [DOWN]),
    ],
    ids=["while reading", "at the next attempt"],
)
def test_refused_credentials_after_a_refusal_that_could_not_be_checked_leave_the_outcome_unknown(
    requests: ScriptedRequests,
) -> None:
    with pytest.raises(OutcomeUnknown, match="ExpiredToken"):
        created(requests)


def test_refused_credentials_at_the_first_attempt_are_told_as_they_are() -> None:
    with pytest.raises(Misconfigured, match="ExpiredToken"):
        created(ScriptedRequests([EXPIRED]))


@dataclass
class UnreadableRequests(ScriptedRequests):
    """Requests of a user who may write objects and not read them."""

    keys: set[str] = field(default_factory=set)

    async def write_once(self, *arguments: object, **_: object) -> Version:
        key = str(arguments[0])
        if key in self.keys:
            raise WriteRefused("412")
        self.keys.add(key)
        return Version(key)

    async def key_state(self, *_: object, **__: object) -> KeyState | None:
        raise Misconfigured("AccessDenied")


class UnreadableStore(MemoryStore):
    """A store whose creates go through these requests."""

    def __init__(self, world: World) -> None:
        super().__init__(clock=world.clock)
        self._writes_of_ours = reliable(UnreadableRequests(), world)

    async def create(self, key: str, body: bytes) -> Created | Exists:
        return await self._writes_of_ours.create(key, body)


def test_a_store_that_may_not_be_read_is_misconfigured_for_a_probe() -> None:
    world = World(0)
    store = ProbedStore(UnreadableStore(world), SeededIds(Random(8)), identity=object())
    with pytest.raises(Misconfigured, match="AccessDenied"):
        world.loop.simulate(store.ensure_probed())
