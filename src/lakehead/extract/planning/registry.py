"""Which planner a run plans with."""

from lakehead.extract.planning.adaptive import AdaptivePlanner
from lakehead.extract.planning.planner import Planner


class PlannerRegistry:
    """Holds the planner of a run: an `AdaptivePlanner`, until another one is registered in its place."""

    def __init__(self) -> None:
        self._default: Planner = AdaptivePlanner()

    @property
    def default(self) -> Planner:
        """The planner that tables are planned with."""
        return self._default

    def register(self, planner: Planner) -> None:
        """Plan with this one from now on."""
        self._default = planner
