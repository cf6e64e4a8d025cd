"""The fork server that children of tests come from: all is imported there, so that one costs a moment.

There is one for all modules, because a test process has one: what it imports is settled when its first child starts.
It opens nothing, for a store's threads do not survive a fork.
"""

import multiprocessing

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "__main__",
        "tests.chaos.buffer_child",
        "tests.chaos.file_sink_child",
        "tests.chaos.landing_child",
        "tests.chaos.local_store_child",
        "tests.chaos.run_child",
        "tests.support.commands",
    ]
)
