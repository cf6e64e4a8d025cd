"""How Hypothesis chooses examples: the same in each `make test`, few in `make check`, new and more in `make soak`."""

from hypothesis import HealthCheck, settings

from tests.support.effort import SOAKING

INDEPENDENT_OF_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No test fails because others use the machine too."""

settings.register_profile("test", INDEPENDENT_OF_SPEED, derandomize=True)
settings.register_profile("check", settings.get_profile("test"), max_examples=20)
settings.register_profile("soak", INDEPENDENT_OF_SPEED, max_examples=1_000, print_blob=True)
settings.load_profile("soak" if SOAKING else "test")
