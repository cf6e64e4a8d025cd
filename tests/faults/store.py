"""A store that wraps any store and injects network faults, drawn from a seed.

The faults are injected below `ReliableWrites`, which a remote store uses too, so that protocols are tested with the
outcomes that a remote store returns, and `ReliableWrites` is tested along with them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, TypeVar

from lakehead.clock import Clock
from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.ids import Ids
from lakehead.retry import Backoff
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Store, Version
from lakehead.storage.reliable_writes import KeyState, ReliableWrites, WriteRefused

T = TypeVar("T")


class Fault(Enum):
    """What can happen to one request."""

    CONFLICT = "409"
    PRECONDITION = "412"
    PRECONDITION_APPLIED = "412, though applied"
    UNAVAILABLE = "503, not applied"
    UNAVAILABLE_APPLIED = "503, applied"
    TIMEOUT = "timeout, not applied"
    TIMEOUT_APPLIED = "timeout, applied"
    TIMEOUT_APPLIED_LATER = "timeout, applied later"
    TIMEOUT_APPLIED_MUCH_LATER = "timeout, applied minutes later"


LOST_READS = {Fault.UNAVAILABLE, Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT, Fault.TIMEOUT_APPLIED}
LATE = {Fault.TIMEOUT_APPLIED_LATER, Fault.TIMEOUT_APPLIED_MUCH_LATER}
TIMEOUTS = {Fault.TIMEOUT, Fault.TIMEOUT_APPLIED, *LATE}
APPLIED = {None, Fault.PRECONDITION_APPLIED, Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT_APPLIED}
REFUSALS = {Fault.CONFLICT, Fault.PRECONDITION, Fault.PRECONDITION_APPLIED}
MUCH_LATER = (30, 480)
"""After how many timeouts a write is applied that is applied much later."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How often each fault happens to a request, and how long requests take."""

    probability: dict[Fault, float]
    median_seconds: float = 0.01
    """Half of the requests take longer each way; one in a thousand takes sixty times as long."""

    timeout_seconds: float = 1.0
    longest_seconds: float = 90.0
    """No request takes longer than this each way."""

    lost_reads: float = 0.0
    """How often a read fails besides those that a fault hits. It does not make the outcome of a write unknown."""

    @classmethod
    def all(cls, probability: float) -> "Faults":
        """Every fault with the same probability."""
        return cls(dict.fromkeys(Fault, probability))


NO_FAULTS = Faults({})


class FaultyNetwork:
    """Single requests to a store, with faults. Each runs on the server's side: it goes on if the client dies."""

    def __init__(
        self,
        inner: Store,
        faults: Faults,
        *,
        random: Random,
        clock: Clock,
        note: Callable[[str], None],
        latency: Callable[[], float] | None,
    ) -> None:
        self._inner = inner
        self._random = random
        self._clock = clock
        self._note = note
        self._latency = latency or self._any_latency
        self._nonces: dict[tuple[str, Version], str] = {}
        self._server_tasks: list[asyncio.Task[None]] = []
        self.change_faults(faults)

    def change_faults(self, faults: Faults) -> None:
        self._faults = faults
        self._any_fault = sum(faults.probability.values())

    async def write_once(self, key: str, body: bytes, *, nonce: str, expected: Version | None) -> Version:
        async def apply() -> Version:
            if expected is None:
                created = await self._inner.create(key, body)
                if isinstance(created, Exists):
                    raise WriteRefused("412")
                version = created.version
            else:
                replaced = await self._inner.replace(key, body, expected)
                if isinstance(replaced, Stale):
                    raise WriteRefused("412")
                version = replaced.version
            self._nonces[key, version] = nonce
            return version

        return await self._write("create" if expected is None else "replace", key, apply)

    async def put(self, key: str, body: bytes) -> Version:
        return await self._write("put", key, lambda: self._inner.put(key, body))

    async def delete(self, key: str) -> None:
        await self._write("delete", key, lambda: self._inner.delete(key))

    async def key_state(self, key: str) -> KeyState | None:
        meta = await self.read("head", key, lambda: self._inner.head(key))
        return KeyState(meta.version, self._nonces.get((key, meta.version))) if meta else None

    async def read(self, verb: str, key: str, ask: Callable[[], Awaitable[T]]) -> T:
        fault = self._draw()
        await self._clock.sleep(self._faults.timeout_seconds if fault in TIMEOUTS else self._latency())
        lost_reads = self._faults.lost_reads
        if fault in LOST_READS or (lost_reads and self._random.random() < lost_reads):
            self._note(f"{verb} {key}: lost")
            raise Unavailable(f"{verb} {key}: no answer")
        answer = await ask()
        await self._clock.sleep(self._latency())
        return answer

    async def _write(self, verb: str, key: str, apply: Callable[[], Awaitable[T]]) -> T:
        fault = self._draw()
        if fault is not None:
            self._note(f"{verb} {key}: {fault.value}")
        if fault in LATE:
            self._detach(self._apply_later(apply, much=fault is Fault.TIMEOUT_APPLIED_MUCH_LATER))
        elif fault in APPLIED:
            answer = await self._on_the_server(apply)
            await self._clock.sleep(self._latency())
            if fault is None:
                return answer
        if fault in TIMEOUTS:
            await self._clock.sleep(self._faults.timeout_seconds)
        elif fault not in APPLIED:
            await self._clock.sleep(self._latency())
        if fault in REFUSALS:
            raise WriteRefused(fault.value)
        raise OutcomeUnknown(f"{verb} {key}: no clear answer")

    async def _on_the_server(self, apply: Callable[[], Awaitable[T]]) -> T:
        """Run outside the simulated process: a request that was sent is carried out even if its sender has died."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def serve() -> None:
            await self._clock.sleep(self._latency())
            try:
                result = await apply()
            except Exception as error:  # noqa: BLE001 - the answer, whatever it is
                if not answer.done():
                    answer.set_exception(error)
                    answer.exception()  # its sender may be dead: do not log it as never retrieved
            else:
                if not answer.done():
                    answer.set_result(result)

        self._detach(serve())
        return await answer

    async def _apply_later(self, apply: Callable[[], Awaitable[object]], *, much: bool) -> None:
        timeouts = self._random.uniform(*MUCH_LATER) if much else 1
        await self._clock.sleep(timeouts * self._faults.timeout_seconds + 10 * self._latency())
        try:
            await apply()
        except WriteRefused:
            return
        self._note("a late write is applied")

    def _detach(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._server_tasks.append(task)  # a loop keeps only weak references to its tasks
        if len(self._server_tasks) > 100:
            self._server_tasks = [each for each in self._server_tasks if not each.done()]

    def _draw(self) -> Fault | None:
        drawn = self._random.random()
        if drawn < self._any_fault:
            for fault, probability in self._faults.probability.items():
                drawn -= probability
                if drawn < 0:
                    return fault
        return None

    def _any_latency(self) -> float:
        taken = self._faults.median_seconds * 0.63 * self._random.paretovariate(1.5)
        return min(taken, self._faults.longest_seconds)


class FaultStore:
    """A client's view of a store over a faulty network, with the same `ReliableWrites` as a remote store."""

    def __init__(
        self,
        inner: Store,
        faults: Faults,
        *,
        random: Random,
        clock: Clock,
        ids: Ids,
        note: Callable[[str], None] = lambda _: None,
        latency: Callable[[], float] | None = None,
        backoff: Backoff = Backoff(attempts=4),  # noqa: B008 - frozen
    ) -> None:
        """`latency` returns the seconds of a request each way, instead of those that `faults` gives."""
        self.network = FaultyNetwork(inner, faults, random=random, clock=clock, note=note, latency=latency)
        self._inner = inner
        self._writes = ReliableWrites(requests=self.network, clock=clock, ids=ids, random=random, backoff=backoff)

    def change_faults(self, faults: Faults) -> None:
        """Inject other faults from now on. Writes that are to be applied later still are."""
        self.network.change_faults(faults)

    async def create(self, key: str, body: bytes) -> Created | Exists:
        return await self._writes.create(key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        return await self._writes.replace(key, body, version)

    async def put(self, key: str, body: bytes) -> Version:
        return await self._writes.put(key, body)

    async def delete(self, key: str) -> None:
        await self._writes.delete(key)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        return await self.network.read("get", key, lambda: self._inner.get(key, start=start, end=end))

    async def head(self, key: str) -> ObjectMeta | None:
        return await self.network.read("head", key, lambda: self._inner.head(key))

    async def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        pages = self._inner.list(folder, start_after=start_after)
        while True:
            page = await self.network.read("list", folder, lambda: anext(pages, None))
            if page is None:
                return
            yield page
