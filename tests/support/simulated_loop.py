"""An event loop with virtual time, in which the order of callbacks is drawn from a seed.

Protocol code is plain asyncio that takes its store, clock, ids and randomness as arguments. Here it runs in every
interleaving that its awaits allow, without threads, sockets or real time. Any ready callback may be the next to run.
Time passes only when nothing is ready, and then it jumps to the next timer.
"""

import asyncio
from array import array
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from hashlib import blake2b
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MAX_STEPS = 200_000
MAX_FINALLY_BLOCKS = 100


class Deadlock(Exception):
    """Nothing is ready and no timer is set."""


class Livelock(Exception):
    """The simulation does not end within a number of steps."""


class Unseen(Exception):
    """A task raised an exception that was never retrieved."""


class Owner(Protocol):
    """The simulated process that a callback belongs to."""

    number: int
    is_running: bool
    """Whether its callbacks run: it is neither dead nor paused. Asked before every step."""

    def withholds(self, handle: "Handle") -> bool:
        """Return whether the callback must not run now: its process is dead, or paused and keeps it for later."""
        ...


OWNER: ContextVar[Owner | None] = ContextVar("owner", default=None)
"""Carried by the context of every task, so that all that a process starts belongs to it."""


class Handle(list[Any]):
    """A callback that waits to run: callback, arguments, context, time. A cancelled one is empty.

    A list, because it is what Python makes and takes apart fastest, and there are hundreds for each seed.
    """

    __slots__ = ()

    def cancel(self) -> None:
        """Never run."""
        self.clear()

    def cancelled(self) -> bool:
        """Whether it will never run."""
        return not self

    def when(self) -> float:
        """The time at which it becomes ready."""
        return float(self[3])


def _close(coroutine: Any) -> None:
    """End a coroutine that will not go on. Each `finally` block that tries to await something is ended too."""
    for _ in range(MAX_FINALLY_BLOCKS):
        try:
            coroutine.close()
            return
        except RuntimeError:
            continue
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - what an abandoned task raises concerns nobody
            return


class SimulatedLoop(asyncio.AbstractEventLoop):
    """Runs one simulation. The same seed gives the same trace."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._now = 0.0
        self._ready: list[Handle] = []
        self._timers: list[tuple[float, int, Handle | asyncio.Future[None]]] = []
        self._timer_numbers = count()
        self._tasks: list[asyncio.Task[Any]] = []
        self._owners: list[Owner | None] = []
        self._trace = array("q")
        self.after_each_step: Callable[[], None] | None = None

    def simulate(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until `main` has ended; other tasks are dropped then."""
        asyncio._set_running_loop(self)
        try:
            task: asyncio.Task[T] = self.create_task(main)
            self._run_until_done(task)
            result = task.result()
            self._raise_unretrieved()
            return result
        finally:
            self._drop_what_is_left()
            asyncio._set_running_loop(None)

    def mark(self, number: int) -> None:
        """Add an event to the trace."""
        self._trace.append(number)

    def make_ready(self, handles: list[Handle]) -> None:
        """Make withheld callbacks ready to run."""
        self._ready.extend(handles)

    def tasks_of(self, owner: Owner) -> list["asyncio.Task[Any]"]:
        """Return the tasks that a process has started and that have not ended."""
        tasks = zip(self._tasks, self._owners, strict=True)
        return [task for task, whose in tasks if whose is owner and not task.done()]

    @property
    def steps(self) -> int:
        """The length of the trace so far."""
        return len(self._trace)

    def trace_hash(self) -> str:
        """Return a hash of everything that has happened, in order."""
        return blake2b(self._trace.tobytes(), digest_size=8).hexdigest()

    def _run_until_done(self, task: "asyncio.Task[Any]") -> None:
        ready, trace, draw, check = self._ready, self._trace, self._random.random, self.after_each_step
        for _ in range(MAX_STEPS):
            if task.done():
                return
            if not ready:
                self._let_time_pass()
            handle = ready.pop()
            chosen = 0
            if ready:
                chosen = int(draw() * (len(ready) + 1))
                if chosen < len(ready):
                    handle, ready[chosen] = ready[chosen], handle
            if not handle:
                continue
            callback, args, context, _when = handle
            owner = context.get(OWNER)
            if owner is not None:
                if not owner.is_running and owner.withholds(handle):
                    continue
                chosen += owner.number << 32
            trace.append(chosen)
            context.run(callback, *args)
            if check is not None:
                check()
        raise Livelock(f"nothing has ended after {MAX_STEPS} steps, at {self._now:.3f} s:\n{self._waiting()}")

    def _let_time_pass(self) -> None:
        timers = self._timers
        while not self._ready:
            if not timers:
                raise Deadlock(f"nothing is ready and no timer is set, at {self._now:.3f} s:\n{self._waiting()}")
            self._now = timers[0][0]
            while timers and timers[0][0] <= self._now:
                self._expire(heappop(timers)[2])
        self._trace.append(int(self._now * 1e6))

    def _expire(self, timer: "Handle | asyncio.Future[None]") -> None:
        """Make a callback ready whose time has come, or the task that sleeps until now."""
        if isinstance(timer, Handle):
            if timer:
                self._ready.append(timer)
        elif not timer.done():
            timer.set_result(None)

    def _waiting(self) -> str:
        lines = []
        for task in self._tasks:
            if not task.done() and (stack := task.get_stack()):
                frame = stack[-1]
                lines.append(f"  {task.get_name()} waits at {frame.f_code.co_filename}:{frame.f_lineno}")
        return "\n".join(lines)

    def _drop_what_is_left(self) -> None:
        """Close the coroutines that a crash, a pause or the end of the run has left."""
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own switch
                _close(task.get_coro())

    def _raise_unretrieved(self) -> None:
        """Raise `Unseen` for an exception that was never retrieved, which asyncio would only log."""
        for task in self._tasks:
            if task.done() and not task.cancelled() and task._log_traceback:
                error = task.exception()
                raise Unseen(f"{task.get_name()} died and nobody looked: {error!r}") from error

    # --- what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> Any:
        handle = Handle((callback, args, copy_context() if context is None else context, self._now))
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> Any:
        handle = Handle((callback, args, copy_context() if context is None else context, when))
        heappush(self._timers, (when, next(self._timer_numbers), handle))
        return handle

    def sleep(self, seconds: float) -> "asyncio.Future[None]":
        """A future that is done after so many seconds.

        Being woken is no step of its own: the task that waits for it is ready at once, and is drawn among the others.
        """
        sleeper: asyncio.Future[None] = asyncio.Future(loop=self)
        heappush(self._timers, (self._now + seconds, next(self._timer_numbers), sleeper))
        return sleeper

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None, **_: Any) -> Any:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        self._owners.append(OWNER.get() if context is None else context.get(OWNER))
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Called by garbage collection, which is not part of a simulation; see `_raise_unretrieved`."""

    get_debug = bool
    """False, told by a built-in function: every future that is made asks."""

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False
