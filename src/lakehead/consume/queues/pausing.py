"""Waiting for a time or an event, whichever comes first, by the clock that was given."""

import asyncio
from typing import Any

from lakehead.clock import Clock


async def pause(clock: Clock, seconds: float, *events: asyncio.Event) -> None:
    """Sleep for that many seconds, but not longer than until one of the events is set."""
    if seconds <= 0 or any(event.is_set() for event in events):
        return
    waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(clock.sleep(seconds))]
    waiting += [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
