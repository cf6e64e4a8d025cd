"""Converts plans and slices to the records of the state and back, so that a stored plan is resumed unchanged."""

from lakehead.errors import Misconfigured
from lakehead.extract.planning.planner import Plan
from lakehead.extract.planning.windows import Bound, Slice, Window
from lakehead.state.model import JsonObject, SlicePlan, StoredSlice, Value
from lakehead.state.values import from_text, to_text


def to_state(plan: Plan, *, plan_id: str, table: str, generation: int) -> SlicePlan:
    """The plan as a record of the state, under the table's uuid, with the planner's reasons as its detail."""
    return SlicePlan(
        id=plan_id,
        table=table,
        generation=generation,
        detail=plan.metadata.as_payload(),
        slices=tuple(StoredSlice(unit=each.unit, bounds=_bounds(each)) for each in plan.slices),
    )


def from_state(stored: StoredSlice) -> Slice:
    """The stored slice. Raises `Misconfigured` if it is incomplete or was written by a newer Lakehead."""
    try:
        return _read(stored.bounds)
    except (ArithmeticError, ValueError):
        raise Misconfigured(
            f"This Lakehead cannot read the slice {stored.unit!r} of the stored plan. Run the version that wrote it, "
            "or discard the plan."
        ) from None


def _bounds(each: Slice) -> JsonObject:
    return {
        "after": None if each.after is None else list(to_text(each.after)),
        "lower": None if each.window.lower is None else _bound(each.window.lower),
        "upper": _bound(each.window.upper),
        "estimated_rows": each.estimated_rows,
    }


def _bound(bound: Bound) -> JsonObject:
    return {"value": list(to_text(bound.value)), "included": bound.included}


def _read(bounds: JsonObject) -> Slice:
    match bounds:
        case {"after": after, "lower": lower, "upper": upper, "estimated_rows": int() | None as rows}:
            return Slice(
                window=Window(None if lower is None else _read_bound(lower), _read_bound(upper)),
                after=None if after is None else _read_value(after),
                estimated_rows=rows,
            )
        case _:
            raise ValueError


def _read_bound(stored: object) -> Bound:
    match stored:
        case {"value": value, "included": bool(included)}:
            return Bound(_read_value(value), included)
        case _:
            raise ValueError


def _read_value(stored: object) -> Value:
    match stored:
        case [str(kind), str(text)]:
            return from_text(kind, text)
        case _:
            raise ValueError
