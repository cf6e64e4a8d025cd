"""The planner that a run uses."""

from lakehead.extract.planning.adaptive import AdaptivePlanner
from lakehead.extract.planning.planner import Planner


class PlannerRegistry:
    """Holds the planner of a run: an `AdaptivePlanner`, unless another one is registered."""

    def __init__(self) -> None:
        self._default: Planner = AdaptivePlanner()

    @property
    def default(self) -> Planner:
        """The planner for all tables."""
        return self._default

    def register(self, planner: Planner) -> None:
        """Use this planner from now on."""
        self._default = planner
