"""Named moments of reconcilers and of garbage collection: before and after everything that lasts.

They are wraps around what they write and delete in the store, put there in a process of a test's own.
"""

import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from lakehead.run.main import command
from lakehead.storage.probed_store import ProbedStore
from lakehead.wire import acceptance_keys as keys
from tests.faults.failpoints import Deadly, Reach, around

RECONCILER = {
    keys.RECONCILER_HEARTBEAT: "sign of life",
    "accepted-by-time/": "index by time",
    "accepted-by-blob/": "index by blob",
    "raw-blobs-by-time/": "frame by time",
    "quarantine-by-blob/": "quarantine by blob",
    "repairs/": "repair",
    keys.RECONCILER_CHECKPOINT: "checkpoint",
    keys.COMPLETED_AUDIT: "audit",
}
QUEUE = {"landing-queue/data/": "queued entries", "landing-queue/manifest.json": "queue"}
"""What a reconciler writes that queues a batch."""

GARBAGE = {
    f"{keys.VOIDING}/": "begun void",
    "accepted/": "void",
    "raw-blobs/": "deletion",
    "quarantine/": "quarantine manifest",
    "quarantine-by-blob/": "quarantine by blob",
}
RETIREMENT = {f"{keys.RETIRED}/": "retired", "raw-blobs/": "deletion"}
STEPS = {**RECONCILER, **QUEUE, **GARBAGE, **RETIREMENT}
"""What each change is, by the beginning of its key. The second one of a kind is a moment of its own too: `repair 2`."""


def killed_command(moment: str, words: Sequence[str], log: Path) -> None:
    """Run `lakehead` in this process, which is killed at a moment. It tells the moment first."""
    for number in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    reach = Deadly(moment, lambda told: print(f"killed {told}", flush=True))
    count = Counter[str]()
    for name in ("create", "replace", "put", "delete"):
        setattr(ProbedStore, name, _watched(getattr(ProbedStore, name), reach, count))
    sys.argv = ["lakehead", *words]
    command()


def _watched(change: Callable[..., Awaitable[Any]], reach: Reach, count: Counter[str]) -> Callable[..., Awaitable[Any]]:
    @wraps(change)
    async def watched(self: ProbedStore, key: str, *args: Any) -> Any:
        step = next((step for start, step in STEPS.items() if key.startswith(start)), None)
        if step is None:
            return await change(self, key, *args)
        count[step] += 1
        with around(step, reach), around(f"{step} {count[step]}", reach):
            return await change(self, key, *args)

    return watched
