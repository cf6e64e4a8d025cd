"""Stops what runs on an event loop by Ctrl-C or SIGTERM."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """Call `stop` on Ctrl-C and SIGTERM, with who has asked for it; a second Ctrl-C ends the process at once."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        loop.remove_signal_handler(signal.SIGINT)
        stop("you (Ctrl-C)")

    loop.add_signal_handler(signal.SIGINT, interrupted)
    loop.add_signal_handler(signal.SIGTERM, stop, "SIGTERM")
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        loop.remove_signal_handler(signal.SIGTERM)
