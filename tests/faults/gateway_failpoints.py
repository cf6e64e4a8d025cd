"""Named moments of an upload at which a gateway can be killed: before and after everything that lasts, and its answer.

They are wraps around what a gateway writes to its store, put there in the process of the gateway before it starts.
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from lakehead.gateway.uploads import Uploads
from lakehead.storage.local_store import LocalStore
from lakehead.storage.probed_store import ProbedStore
from lakehead.wire.spool_records import BATCHES, BOOTS, KnownBoot
from tests.faults.failpoints import Deadly, Reach, around

STEPS = {
    "raw-blobs/": "blob",
    "raw-blobs-by-time/": "blob by time",
    "accepted/": "manifest",
    "accepted-by-time/": "index by time",
    "accepted-by-blob/": "index by blob",
    "quarantine/": "quarantine manifest",
    "quarantine-by-blob/": "quarantine by blob",
    "landing-queue/data/": "queued entries",
    "landing-queue/manifest.json": "queue",
}
"""What each write is, by the beginning of its key."""

WRITES = ("create", "replace", "put")
SPOOL_STEPS = ("boot learned", "spooled batch", "boot landed", "removal")
"""What a gateway with a spool does on its own disk, in the order of a batch."""


def kill_gateway_at(moment: str) -> None:
    """Let the gateway of this process be killed at a moment, which it tells first."""
    reach = Deadly(moment, lambda told: print(f"killed {told}", flush=True))
    for name in WRITES:
        setattr(ProbedStore, name, _watched_write(getattr(ProbedStore, name), reach))
    setattr(Uploads, "answer", _watched_answer(Uploads.answer, reach))  # noqa: B010 - mypy would not have a method replaced


def kill_spooling_gateway_at(moment: str) -> None:
    """The same for a gateway with a spool, whose disk has moments too."""
    reach = Deadly(moment, lambda told: print(f"killed {told}", flush=True))
    for name in WRITES:
        setattr(ProbedStore, name, _watched_write(getattr(ProbedStore, name), reach))
    for name in (*WRITES, "delete"):
        setattr(LocalStore, name, _watched_on_disk(getattr(LocalStore, name), name, reach))
    setattr(Uploads, "answer", _watched_answer(Uploads.answer, reach))  # noqa: B010 - mypy would not have a method replaced


def _watched_on_disk(call: Callable[..., Awaitable[Any]], name: str, reach: Reach) -> Callable[..., Awaitable[Any]]:
    @wraps(call)
    async def watched(self: LocalStore, key: str, *args: Any) -> Any:
        if key.startswith(f"{BATCHES}/"):
            step = "removal" if name == "delete" else "spooled batch"
        elif key.startswith(f"{BOOTS}/") and name == "put":
            step = "boot landed" if KnownBoot.decode(args[0], key).recent else "boot learned"
        else:
            return await call(self, key, *args)
        with around(step, reach):
            return await call(self, key, *args)

    return watched


def _watched_write(write: Callable[..., Awaitable[Any]], reach: Reach) -> Callable[..., Awaitable[Any]]:
    @wraps(write)
    async def watched(self: ProbedStore, key: str, *args: Any) -> Any:
        step = next((step for start, step in STEPS.items() if key.startswith(start)), None)
        if step is None or key.endswith("/_owner.json"):  # whose folder it is, before the first entries of a queue
            return await write(self, key, *args)
        with around(step, reach):
            return await write(self, key, *args)

    return watched


def _watched_answer(answer: Callable[..., Awaitable[Any]], reach: Reach) -> Callable[..., Awaitable[Any]]:
    @wraps(answer)
    async def watched(*args: Any) -> Any:
        given = await answer(*args)
        reach("before answer")
        return given

    return watched
