"""How a comparison of tables with their sources is shown."""

import pytest

from lakehead.extract.recon import differences_of, exact_sum, total_of
from lakehead.extract.recon_report import Difference, KeyDifference, NumberDifference, Outcome, ReconReport
from lakehead.run.recon_command import print_reports
from lakehead.source.bucket_queries import KeyHash, bucket_of


def test_a_report_shows_keys_by_bucket_what_was_not_compared_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    report = ReconReport(
        table="shop.orders",
        outcome=Outcome.DIFFERENT,
        point="at up to 10",
        source_rows=3_000_000,
        target_rows=2_999_999,
        pending=7,
        buckets=20,
        not_opened=4,
        differences={Difference.MISSING: 2},
        keys=(KeyDifference(Difference.MISSING, 12, "4:a[b]"),),
        numbers=(NumberDifference("n", "sum", "1", None),),
        skipped={"f": "floats are not exact"},
        notes=("Load it again.",),
    )

    print_reports([report])

    shown = capsys.readouterr().out
    for text in (
        "3,000,000",
        "2 missing",
        "compared at up to 10",
        "7 rows were written in the source after that",
        "missing: key 4:a[b] (bucket 12)",
        "and 1 more keys",
        "4 more buckets differ",
        "sum of n: source 1, target None",
        "column f was not compared: floats are not exact",
        "Load it again.",
    ):
        assert text in shown


def test_keys_are_missing_extra_doubled_fewer_or_changed() -> None:
    one, two, other = KeyHash(1, "a"), KeyHash(2, "a"), KeyHash(1, "b")
    source = {(0, "same"): one, (0, "lost"): one, (1, "doubled"): one, (1, "fewer"): two, (1, "changed"): one}
    target = {(0, "same"): one, (0, "extra"): one, (1, "doubled"): two, (1, "fewer"): one, (1, "changed"): other}

    found = {each.key: each.kind for each in differences_of(source, target)}

    assert found == {
        "lost": Difference.MISSING,
        "extra": Difference.EXTRA,
        "doubled": Difference.DOUBLED,
        "fewer": Difference.FEWER,
        "changed": Difference.CHANGED,
    }


def test_buckets_add_up_without_rounding() -> None:
    large = bucket_of((1, 5, "9" * 38, "1", "2"))
    small = bucket_of((2, 6, "0.0000000001", None, "3"))

    total = total_of([large, small], 1)

    assert total.rows == 3
    assert [str(number) for number in total.numbers[0]] == [f"{'9' * 38}.0000000001", "1", "3"]
    assert exact_sum([]) is None
