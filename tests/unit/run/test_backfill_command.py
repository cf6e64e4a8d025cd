"""`lakehead consume backfill`: its arguments, and when it says that it is not complete."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakehead.consume.counts import ConsumeCounts
from lakehead.run.consume_pipelines import _incomplete, _stopped_early
from lakehead.run.consume_wiring import Backfill
from lakehead.run.stopping import StopSignal
from tests.unit.run.queue_support import Done


def ended(*, dead_letters: int = 0) -> Any:
    counts = ConsumeCounts(dead_letters=dead_letters)
    return cast("Any", SimpleNamespace(coordinator=SimpleNamespace(counts=counts)))


def test_a_backfill_or_pipeline_that_was_stopped_early_says_by_whom_and_what_to_do() -> None:
    stop, backfill = StopSignal(), Backfill(url="s3://bucket/in", modified_after=None)
    again = "Run it again: what has landed is not landed twice."
    assert _stopped_early("clicks", stop, None) == f"Pipeline clicks was stopped before its queue was empty. {again}"
    stop.set("SIGTERM")
    assert _stopped_early("clicks", stop, backfill) == f"The backfill was stopped by SIGTERM before its end. {again}"


def test_a_backfill_that_gave_files_up_says_what_to_do() -> None:
    config = Path("my events.toml")
    see = "See why: lakehead dead-letters list 'my events.toml'"
    assert _incomplete(ended(), config) is None
    assert _incomplete(ended(dead_letters=1), config) == f"1 file could not be landed. {see}"
    assert _incomplete(ended(dead_letters=2), config) == f"2 files could not be landed. {see}"


@pytest.mark.parametrize(
    ("identity", "name", "message"),
    [
        ("uri", "none", "The configuration has no pipeline none. It has: events."),
        ("uri_and_version", "events", "A backfill needs identity uri or uri_and_etag."),
    ],
)
def test_what_cannot_be_listed_is_refused_before_spark_starts(
    lakehead: Callable[..., Done], tmp_path: Path, identity: str, name: str, message: str
) -> None:
    events = {
        "queue": {"type": "sqs", "queue": "events"},
        "tables": [{"table": "a.b", "format": "csv"}],
        "identity": identity,
    }
    path = tmp_path / "events.json"
    path.write_text(json.dumps({"pipelines": {"events": events}}))

    done = lakehead("consume", "backfill", path, "--pipeline", name, "--prefix", "s3://bucket/in")

    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_a_backfill_of_accepted_batches_is_refused(lakehead: Callable[..., Done], tmp_path: Path) -> None:
    """It would land frames that nobody accepted, and records twice."""
    events = {
        "queue": {"type": "manifest", "store": "s3://bucket"},
        "messages": "accepted",
        "tables": [{"table": "a.b", "format": "frames", "kind": "logs"}],
    }
    path = tmp_path / "events.json"
    path.write_text(json.dumps({"pipelines": {"events": events}}))

    done = lakehead("consume", "backfill", path, "--pipeline", "events", "--prefix", "s3://bucket/raw-blobs/v1")

    assert (done.code, done.out) == (2, "")
    assert "a listing of frames does not tell which of them were accepted" in done.err
