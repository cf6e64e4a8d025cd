"""What a resident process tells in its log."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Write what Lakehead logs to standard error, each line with its time in UTC and its level."""
    lines = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S")
    lines.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(lines)
    log = logging.getLogger("lakehead")
    level_before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level_before)
        log.removeHandler(handler)
