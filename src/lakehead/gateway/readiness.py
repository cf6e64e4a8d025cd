"""Whether a gateway is ready for batches: its store can be used, and somebody looks after what it leaves."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehead.clock import Clock
from lakehead.errors import LakeheadError
from lakehead.gateway.ports import CopyInMemory, ReconcilerHeartbeats
from lakehead.gateway.settings import ReadinessSettings
from lakehead.ids import Ids
from lakehead.storage.port import Store
from lakehead.storage.probe import probe
from lakehead.wire import acceptance_keys as keys


@dataclass(frozen=True, slots=True)
class ReadinessReport:
    """What was checked, each with its problem; an empty one is none."""

    checks: dict[str, str]
    tolerated: frozenset[str] = frozenset()
    """Checks whose problems are told, and do not keep the gateway from accepting batches."""

    reconciler_age_seconds: float | None = None
    """How old the reconciler's last sign of life is; None if it is not known, or there was none."""

    @property
    def is_ready(self) -> bool:
        """Whether nothing is wrong."""
        return not any(problem for name, problem in self.checks.items() if name not in self.tolerated)


@dataclass(slots=True, kw_only=True)
class Readiness:
    """Checks what a gateway depends on, at most once in a while however many ask."""

    store: Store
    ids: Ids
    clock: Clock
    reconciler: ReconcilerHeartbeats | None = None
    """None: nobody looks after this gateway's acceptances."""

    needs_reconciler: bool = True
    """Whether the gateway is ready only while the reconciler gives signs of life. Else they are told."""

    copies: Mapping[str, CopyInMemory] = field(default_factory=dict)
    """What no batch is accepted without, by the names of their checks."""

    tolerated: frozenset[str] = frozenset()
    """Checks whose problems are told, and do not make the gateway unready: what a spool can do without for a while."""

    settings: ReadinessSettings = field(default_factory=ReadinessSettings)
    is_stopping: bool = False
    _last: ReadinessReport | None = field(default=None, init=False)
    _checked_at: float = field(default=0.0, init=False)
    _probed_at: float | None = field(default=None, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def check(self) -> ReadinessReport:
        """Return what was found now, or a few seconds ago. Never raises."""
        if self.is_stopping:
            return ReadinessReport({"gateway": "It stops."})
        async with self._lock:
            is_fresh = self.clock.monotonic() - self._checked_at < self.settings.cache_seconds
            if self._last is None or not is_fresh:
                store = await self._problem_of_store()
                is_away = bool(store) and self._can_do_without_store
                reconciler, age = await self._problem_of_reconciler(is_out_of_sight=is_away)
                self._last = ReadinessReport(
                    {"store": store, "reconciler": reconciler}
                    | {name: _problem_of(copy) for name, copy in self.copies.items()},
                    self.tolerated | ({"reconciler"} if is_away or not self.needs_reconciler else set()),
                    age,
                )
                self._checked_at = self.clock.monotonic()
            return self._last

    @property
    def _can_do_without_store(self) -> bool:
        return "store" in self.tolerated

    async def _problem_of_store(self) -> str:
        settings = self.settings
        seconds = settings.tolerated_seconds if self._can_do_without_store else settings.check_seconds
        try:
            async with asyncio.timeout(seconds):
                await self.store.head(keys.AUTHORITY)
            seconds = settings.check_seconds
            async with asyncio.timeout(seconds):
                await self._probe_now_and_then()
        except TimeoutError:
            return f"The store did not answer within {seconds:g} s."
        except LakeheadError as error:
            return str(error)
        return ""

    async def _probe_now_and_then(self) -> None:
        """Probe the store's preconditions if that was long ago, or failed."""
        now = self.clock.monotonic()
        if self._probed_at is not None and now - self._probed_at < self.settings.probe_seconds:
            return
        self._probed_at = None
        await probe(self.store, ids=self.ids)
        self._probed_at = now

    async def _problem_of_reconciler(self, *, is_out_of_sight: bool) -> tuple[str, float | None]:
        """The problem, and the age of the last sign of life, if it is known."""
        if self.reconciler is None:
            return "", None
        if is_out_of_sight:
            return "Its signs of life are in the store.", None
        seconds = self.settings.check_seconds
        try:
            async with asyncio.timeout(seconds):
                age = await self.reconciler.age_seconds()
        except TimeoutError:
            return f"The reconciler's heartbeat could not be read within {seconds:g} s.", None
        except LakeheadError as error:
            return str(error), None
        return self._problem_of_age(age), age

    def _problem_of_age(self, age: float | None) -> str:
        if age is None:
            return "No reconciler was ever started here. Start one: lakehead reconcile CONFIG"
        if age > self.settings.reconciler_seconds:
            return f"The reconciler gave its last sign of life {age:.0f} s ago. Look after it."
        if age < -self.settings.reconciler_seconds:
            return (
                f"The reconciler's last sign of life is of a time in {-age:.0f} s. Correct the clocks of both machines."
            )
        return ""


def _problem_of(copy: CopyInMemory) -> str:
    try:
        copy.check()
    except LakeheadError as error:
        return str(error)
    return ""
