"""Which tests one process runs, where several share the work: those of a file, for they share its sessions and servers.

Simulations share nothing, and each takes long: they go one by one to whoever is free. The groups of xdist's own marks
have no effect with pytest 9.2, and nothing says so; here a group follows from the test's name alone.
"""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ONE_BY_ONE = "tests/sim/test_scenarios.py"


class ByFile(LoadScopeScheduling):  # type: ignore[misc] # xdist ships no types
    """Gives each process the tests of one file after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    config.option.loadscopereorder = False  # long files stand first, not those with many tests
    return ByFile(config, log)
