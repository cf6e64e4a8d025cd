"""Commit tokens: the same units, the same token, and no others. Chains: each landing names the one before it."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.landing import Landing, Snapshot, Unit, chained, token_of

units = st.lists(st.builds(Unit, st.text(max_size=8), st.integers(0, 3)), max_size=5, unique=True)


@given(units, st.randoms(use_true_random=False))
def test_the_order_of_units_does_not_matter(some: list[Unit], random: Random) -> None:
    shuffled = list(some)
    random.shuffle(shuffled)

    assert token_of("pipeline", "table", some) == token_of("pipeline", "table", shuffled)


@given(units, units)
def test_other_units_have_another_token(some: list[Unit], others: list[Unit]) -> None:
    assert (token_of("p", "t", some) == token_of("p", "t", others)) == (set(some) == set(others))


def test_pipeline_table_and_generation_are_part_of_it() -> None:
    tokens = {
        token_of("pipeline", "table", [Unit("a")]),
        token_of("pipelinetable", "", [Unit("a")]),
        token_of("other", "table", [Unit("a")]),
        token_of("pipeline", "other", [Unit("a")]),
        token_of("pipeline", "table", [Unit("a", generation=1)]),
    }

    assert len(tokens) == 5


def test_a_landing_that_was_cherry_picked_names_the_one_before_it_on_main() -> None:
    picked = Snapshot(5, 4, 5, Landing("c", ()), source=3)
    own = Snapshot(6, 5, 6, Landing("d", (), before=5))

    chain = chained([Snapshot(2, 1, 2), Snapshot(4, 2, 4, Landing("b", (), before=1)), picked, own], last=1)

    assert [one.landing.before for one in chain if one.landing] == [1, 4, 5]
    assert [one.landing.before for one in chained([picked], last=None) if one.landing] == [None]
