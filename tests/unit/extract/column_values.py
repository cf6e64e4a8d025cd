"""A column of values that can be counted, for plans to be tried on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

from lakehead.errors import Unavailable
from lakehead.extract.planning.axis import Kind
from lakehead.extract.planning.planner import Capabilities, IncrementalTable, PlannerRequest, SourceFacts
from lakehead.extract.planning.slicing import SlicingPolicy
from lakehead.extract.planning.watermarks import Reach
from lakehead.extract.planning.windows import Bound, Window
from lakehead.state.model import Value

NOON = datetime(2024, 3, 31, 12, tzinfo=UTC)
TODAY = date(2024, 4, 1)


def plain(*parts: int) -> datetime:
    """A moment without a zone."""
    return datetime(*parts, tzinfo=UTC).replace(tzinfo=None)  # type: ignore[misc,arg-type] # the parts end before it


def below(one: Value, other: Value) -> bool:
    less: Any = one
    return bool(less < other)


def holds(window: Window, value: Value) -> bool:
    """Whether a value is inside, told by comparing alone."""
    return _after(window.lower, value) and _before(window.upper, value)


def _after(bound: Bound | None, value: Value) -> bool:
    if bound is None:
        return True
    return not below(value, bound.value) and (bound.included or value != bound.value)


def _before(bound: Bound, value: Value) -> bool:
    return not below(bound.value, value) and (bound.included or value != bound.value)


@dataclass
class Rows:
    """A column's values, and a probe that counts them."""

    values: Sequence[Value]
    fails_after: int | None = None
    asked: list[Window] = field(default_factory=list)

    def count(self, window: Window) -> int:
        self.asked.append(window)
        if self.fails_after is not None and len(self.asked) > self.fails_after:
            raise Unavailable("The source counts no more.")
        return sum(map(partial(holds, window), self.values))


def request(kind: Kind, policy: SlicingPolicy | None = None, **changes: Any) -> PlannerRequest:
    table = {name: changes.pop(name) for name in ("initial_watermark", "rereads") if name in changes}
    lag = changes.pop("table_lag", 0)
    return PlannerRequest(
        table=IncrementalTable(name="shop.orders", column="at", kind=kind, lag_seconds=lag, **table),
        slicing=policy or SlicingPolicy(),
        load_date=TODAY,
        **changes,
    )


def facts(probe: Rows | None = None, *, now: datetime = NOON, **reach: Any) -> SourceFacts:
    return SourceFacts(capabilities=Capabilities(literal=repr), reach=Reach(now=now, **reach), probe=probe)
