"""Tests that are coroutines."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")

TIMEOUT_SECONDS = 100


def run_bounded(work: Coroutine[Any, Any, None], *, seconds: float = TIMEOUT_SECONDS) -> None:
    """Run a coroutine on an event loop of its own. It fails if it takes too long or leaves a task behind."""

    async def bounded() -> None:
        async with asyncio.timeout(seconds):
            await work
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(bounded())


def async_test(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test that is a coroutine, as `run_bounded` does."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_bounded(test(*args, **kwargs))

    return run
