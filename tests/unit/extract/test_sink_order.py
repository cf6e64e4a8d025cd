"""A slice lands only where raw stands at its beginning, and readers are done when they see all that raw has."""

import pytest

from lakehead.extract.planning.windows import Bound, Slice, Window
from lakehead.extract.sink import TableProgress, check_order
from lakehead.lake.ports import Overtaken
from lakehead.state.model import Mark, Watermark


def raw(value: int, *, generation: int = 0, slice_: int = 1) -> Watermark:
    return Watermark(table="t", mark=Mark.LANDED, generation=generation, value=value, slice=slice_)


def part(after: int | None, upto: int) -> Slice:
    return Slice(window=Window(None, Bound(upto, included=True)), after=after)


@pytest.mark.parametrize(
    ("stands", "after", "generation"),
    [
        pytest.param(None, None, 0, id="the first slice of a table"),
        pytest.param(raw(5), 5, 0, id="the next slice"),
        pytest.param(raw(5), None, 1, id="the first slice of a reload"),
        pytest.param(raw(5, generation=1), 5, 1, id="the next slice of a reload"),
    ],
)
def test_a_slice_lands_where_it_begins(stands: Watermark | None, after: int | None, generation: int) -> None:
    check_order(stands, part(after, 9), generation, "t")


@pytest.mark.parametrize(
    ("stands", "after", "generation"),
    [
        pytest.param(raw(7), 5, 0, id="another plan has landed more"),
        pytest.param(raw(5), None, 0, id="another plan has begun"),
        pytest.param(raw(3), 5, 0, id="the slice before it is missing"),
        pytest.param(None, 5, 0, id="raw is gone"),
        pytest.param(raw(5, generation=1), 5, 0, id="it was loaded anew meanwhile"),
        pytest.param(raw(5, generation=1), None, 1, id="another reload has begun"),
        pytest.param(raw(5), 5, 1, id="a reload without its first slice"),
    ],
)
def test_a_slice_lands_nowhere_else(stands: Watermark | None, after: int | None, generation: int) -> None:
    with pytest.raises(Overtaken, match="Another run has loaded more of t since this slice was planned"):
        check_order(stands, part(after, 9), generation, "t")


@pytest.mark.parametrize(
    ("published", "complete"),
    [
        pytest.param(None, False, id="nothing is published"),
        pytest.param(raw(5, slice_=2), False, id="raw is further"),
        pytest.param(raw(5, slice_=3), True, id="all is published"),
        pytest.param(raw(5, slice_=4), True, id="raw was put back"),
        pytest.param(raw(5, generation=1, slice_=3), False, id="of another generation"),
    ],
)
def test_readers_see_all_that_raw_has(published: Watermark | None, *, complete: bool) -> None:
    assert TableProgress(raw(5, slice_=3), published).complete is complete
