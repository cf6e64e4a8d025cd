"""A consumer that is killed around the quarantine of an overlapping batch: what does not land is named before."""

from pathlib import Path

import pytest

from tests.accepted import SAMPLES, Gateway, consumer_of, samples
from tests.chaos.consume_child import consuming
from tests.lakehouse import Lakehouse
from tests.support.effort import effort
from tests.support.spark import Borrowed, shared_session

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # the very first start fetches jars

BEFORE = effort(("after quarantine",), soak=("before quarantine", "after quarantine", f"before publish {SAMPLES}"))
"""Where consumer after consumer dies before the rest of the batch has landed."""

AFTER = effort(
    (f"after publish {SAMPLES}",),
    soak=(f"after publish {SAMPLES}", "after settle", "before acknowledge", "after acknowledge"),
)


@pytest.fixture(scope="module")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Borrowed:
    return Borrowed.of(shared_session(Lakehouse.settings(tmp_path_factory.mktemp("spark"))))


def test_a_batch_is_in_quarantine_before_its_rest_lands_and_once_whenever_consumers_die(
    tmp_path: Path, jvm: Borrowed
) -> None:
    (tmp_path / "store").mkdir()
    gateway = Gateway(tmp_path / "store")
    consumer = consumer_of(tmp_path, gateway, max_tries=100)
    short, long = gateway.accept(samples(10, 20), samples(10, 25, other=range(15, 26)))
    gateway.enqueue([short])
    with consuming(consumer, jvm, until_empty=True) as first:
        first.done()
    gateway.enqueue([long])

    for moment in BEFORE:
        with consuming(consumer, jvm, die_at=moment) as doomed:
            doomed.dead()
        assert consumer.rows(SAMPLES).num_rows == 11, f"{moment}: landed too early"
    seen = gateway.overlaps()
    assert seen.keys() == {long.key}

    for moment in AFTER:
        with consuming(consumer, jvm, die_at=moment) as doomed:
            doomed.dead()
        assert gateway.overlaps() == seen
    with consuming(consumer, jvm, until_empty=True) as last:
        last.done()

    found = consumer.rows(SAMPLES).sort_by("seq")
    assert found["seq"].to_pylist() == list(range(10, 26))
    assert found["value"].to_pylist() == [n if n <= 20 else -n for n in range(10, 26)]
    assert gateway.overlaps() == seen
    assert seen[long.key].ranges == ((15, 20),)
    assert gateway.is_kept(long)
