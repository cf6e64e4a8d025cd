"""Named moments of a pipeline that consumes a queue: before and after everything that lasts.

They are wraps around methods, made in a process of a test's own, so production code knows nothing of them.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from lakehead.accept.overlaps import Overlaps
from lakehead.consume.object_stager import ObjectStager
from lakehead.consume.queues.manifest_queue import ManifestQueue
from lakehead.consume.queues.sqs_queue import SqsQueue
from lakehead.consume.shared_state import QueueSharedState
from lakehead.lake.dead_letters import DeadLetters
from lakehead.lake.iceberg_table import IcebergTable
from lakehead.lake.ledger import StoreLedger
from lakehead.lake.state_progress import StateProgress
from lakehead.state.history import History
from tests.faults.failpoints import Reach, around

STEPS: dict[str, tuple[tuple[type, str], ...]] = {
    "receive": ((SqsQueue, "receive"), (ManifestQueue, "receive")),
    "open": ((QueueSharedState, "open"),),
    "count try": ((QueueSharedState, "count_try"),),
    "plan": ((StateProgress, "plan"),),
    "stage": ((ObjectStager, "stage"),),
    "quarantine": ((Overlaps, "record"),),
    "publish": ((IcebergTable, "publish"),),
    "record": ((StoreLedger, "record"),),
    "settle": ((StateProgress, "settle"),),
    "history": ((QueueSharedState, "record"),),
    "letter": ((DeadLetters, "write"),),
    "bury": ((History, "bury"),),
    "acknowledge": ((SqsQueue, "acknowledge"), (ManifestQueue, "acknowledge")),
    "window": ((QueueSharedState, "acknowledge"),),
}
"""What each step of a pipeline is made by, in the order in which a message comes to them."""

NOTHING = ("receive", "settle")
"""Steps that also happen without a message, and then answer something false or empty: that is no moment."""


def watch_consumer(reach: Reach) -> None:
    """Call this at each moment of every pipeline of this process, from now on.

    A moment of a publication also names its table: `before publish raw.files`.
    """
    for step, places in STEPS.items():
        for owner, method in places:
            setattr(owner, method, _watched(getattr(owner, method), step, reach))


def _watched(call: Callable[..., Any], step: str, reach: Reach) -> Callable[..., Any]:
    def named(args: tuple[Any, ...]) -> str:
        return f"{step} {args[0].name}" if step == "publish" else step

    @wraps(call)
    async def answer(*args: Any, **kwargs: Any) -> Any:
        if step not in NOTHING:
            with around(named(args), reach):
                return await call(*args, **kwargs)
        given = await call(*args, **kwargs)
        if given:
            reach(f"after {step}")
        return given

    @wraps(call)
    def direct(*args: Any, **kwargs: Any) -> Any:
        with around(named(args), reach):
            return call(*args, **kwargs)

    return answer if inspect.iscoroutinefunction(call) else direct
