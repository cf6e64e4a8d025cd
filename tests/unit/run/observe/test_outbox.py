"""The log's outboxes: files that are rotated, and objects of a store that may be away."""

import json
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from lakehead.clock import SystemClock
from lakehead.errors import Misconfigured, Unavailable
from lakehead.run.config.runtime_config import LoggingConfig
from lakehead.run.log_sinks import open_log
from lakehead.run.observe import outbox
from lakehead.run.observe.metadata_gateway import MetadataGatewaySubscriber, SentRecords
from lakehead.run.observe.outbox import CalledParts, ObjectOutbox
from lakehead.run.observe.outputs import RotatedFile
from lakehead.telemetry.background_sender import NotSent
from tests.unit.run.observe.fake_run import FakeRun


def test_a_full_file_is_renamed_and_the_oldest_are_removed(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "log", 20, keep_files=2)
    for number in range(8):
        file.write(f"line {number}....\n")
    file.close()

    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {"log": "line 7....\n", "log.1": "line 6....\n", "log.2": "line 5....\n"}


def test_two_runs_that_share_a_file_rotate_it_without_losing_a_line(tmp_path: Path) -> None:
    one, other = (RotatedFile(tmp_path / "log", 40, keep_files=60) for _ in range(2))
    for number in range(3):
        one.write(f"one   {number:3} ....\n")
    other.write("other   0 ....\n")  # the file that it has opened is log.1 by now

    assert (tmp_path / "log").read_text() == "one     2 ....\nother   0 ....\n"

    def write(file: RotatedFile, name: str) -> None:
        for number in range(4, 40):
            file.write(f"{name:5} {number:3} ....\n")

    with ThreadPoolExecutor(2) as pool:
        wait([pool.submit(write, one, "one"), pool.submit(write, other, "other")])
    for file in (one, other):
        file.close()
    lines = [line for path in tmp_path.iterdir() for line in path.read_text().splitlines() if line]
    assert len(lines) == len(set(lines)) == 4 + 2 * 36


def test_lines_become_numbered_objects_and_wait_for_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "PART_BYTES", 10)
    stored: dict[str, bytes] = {}
    away = True

    def put(name: str, body: bytes) -> None:
        if away:
            raise Unavailable("The store is away.")
        stored[name] = body

    box = ObjectOutbox("s3://bucket/logs", CalledParts(put), SystemClock(), prefix="run")
    for line in ("aaaa\n", "bbbb\n", "cccc\n"):
        box.write(line)  # raises nothing: the lines wait
    away = False
    box.close()

    assert stored == {"run-00001.jsonl": b"aaaa\nbbbb\ncccc\n"}


def test_what_cannot_be_stored_at_the_end_is_told() -> None:
    def put(*_: object) -> None:
        raise Unavailable("The store is away.")

    box = ObjectOutbox("s3://bucket/logs", CalledParts(put), SystemClock(), prefix="run")
    box.write("a\n")
    with pytest.raises(OSError, match=r"The store is away\.; 1 lines are lost"):
        box.close()


def test_hdfs_without_a_client_says_what_to_install() -> None:
    settings = LoggingConfig.model_validate({"sink": "hdfs://127.0.0.1:1/logs"})
    with pytest.raises(Misconfigured, match="Install a Hadoop client"):
        open_log(settings, "run", SystemClock(), {})


def test_a_metadata_gateway_that_is_away_is_only_counted() -> None:
    def send(body: bytes) -> None:
        assert json.loads(body)["kind"].startswith("ingestion_")
        raise NotSent("it cannot be reached")

    gateway = SentRecords(send)
    run = FakeRun(MetadataGatewaySubscriber(gateway, volume=True, runtime=True))
    gateway._sender._pause = lambda *_: None
    run.start(2)
    for table in ("a", "b"):
        run.begin(table)
        run.finish(table, 1)
    gateway.close()

    assert gateway.lost is not None
    assert (gateway.lost.count, gateway.lost.reason) == (4, "it cannot be reached")
