"""Waiting for the next change of something."""

import asyncio


class Changes:
    """Wakes all who wait for the next change."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def next(self) -> None:
        """Return at the next change. Whoever looks first and then waits must not await anything between."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(woken)
        try:
            await woken
        finally:
            if woken in self._waiting:
                self._waiting.remove(woken)

    def tell(self) -> None:
        """There was a change."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
