"""Tasks inside ingestors and collectors are cancelled, as by code that cancels all tasks of an event loop."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from types import CodeType
from typing import Any

from lakehead.buffer.config import CollectorMode
from tests.sim.buffer_disruptions import buffer, pause
from tests.sim.buffer_pipelines import Pipeline
from tests.sim.buffer_support import QueueSimulation, Variant
from tests.support.simulation import Scenario, Violation

CALLED = ("ingest", "flush", "close", "next_batch", "ack", "await_durable")
"""Tasks that the application itself has started."""


@dataclass
class Cancelling(Pipeline):
    """A pipeline whose own tasks are never cancelled: every call returns or raises an error."""

    async def produce(self, name: str) -> None:
        await never_cancelled(super().produce(name))

    async def collect(self) -> None:
        await never_cancelled(super().collect())


async def never_cancelled(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except asyncio.CancelledError as error:
        raise Violation("a call was cancelled, and only a task inside of it was") from error


async def cancel_inside(sim: QueueSimulation) -> None:
    """Cancel one task inside a process's ingestor or collector, or all of them."""
    world = sim.world
    victim = world.random.choice([*sim.producers, *sim.collectors])
    inside = [(task, code) for task in world.loop.tasks_of(victim) if _is_inside(code := _code(task))]
    if inside and victim.alive:
        for task, code in inside if world.random.random() < 0.3 else [world.random.choice(inside)]:
            world.note(f"cancels {code.co_qualname} of {victim.name}")
            task.cancel()


def _code(task: "asyncio.Task[Any]") -> CodeType:
    code: CodeType = task.get_coro().cr_code  # type: ignore[union-attr]  # asyncio.create_task takes coroutines only
    return code


def _is_inside(code: CodeType) -> bool:
    return "lakehead/buffer" in code.co_filename and code.co_name not in CALLED


CANCELLED_SOUND: dict[str, Scenario] = {
    "buffer_cancelled": buffer(
        Variant(), CollectorMode.COMPETING, cancel_inside, cancel_inside, pause, kind=Cancelling
    ),
}
