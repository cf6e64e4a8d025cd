"""`lakehead audit` on real files: what is told, its exit codes, and that nothing changes."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from lakehead.accept.acceptance import Accepted, Acceptor, Submission
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds
from lakehead.maintain.acceptance_audit_report import AuditReport
from lakehead.run.audit_command import TOLD_EVERY, told_now_and_then
from lakehead.storage.open_store import open_store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.frame import decode_frame
from lakehead.wire.index_records import AcceptedByBlob, AcceptedByTime
from tests.accepted import samples
from tests.unit.accept.support import FixedClock
from tests.unit.run.queue_support import Done

Lakehead = Callable[..., Done]


@pytest.fixture
def config(tmp_path: Path, lakehead: Lakehead) -> Path:
    """The configuration of an authority."""
    return initialised(tmp_path, lakehead)


def initialised(folder: Path, lakehead: Lakehead, **more: object) -> Path:
    path = folder / "gateway.json"
    gateway = {"store": f"file://{folder}/lake", "ingest_listener": {"port": 0}}
    path.write_text(json.dumps({"gateway": gateway, **more}))
    assert lakehead("gateway", "init", path).code == 0
    return path


def accepted(folder: Path, *frames: bytes) -> list[IdentityManifest]:
    """Accept frames as a gateway does, with their index entries."""
    store = open_store(f"file://{folder}/lake")
    acceptor = Acceptor(store=store, clock=SystemClock(), ids=RandomIds(), random=Random(1), collector_id="gateway-1")

    async def accept() -> list[IdentityManifest]:
        found = []
        for frame in frames:
            answer = await acceptor.accept(Submission.of(frame, decode_frame(frame)))
            assert isinstance(answer, Accepted)
            for entry in (AcceptedByTime.of(answer.manifest), AcceptedByBlob.of(answer.manifest)):
                await store.create(entry.key, entry.encode())
            found.append(answer.manifest)
        return found

    return asyncio.run(accept())


def stored(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        file: (file.stat().st_mtime_ns, file.read_bytes()) for file in (folder / "lake").rglob("*") if file.is_file()
    }


def test_all_is_well_and_what_is_not_compared_is_said(tmp_path: Path, config: Path, lakehead: Lakehead) -> None:
    accepted(tmp_path, samples(0, 9), samples(10, 19))

    done = lakehead("audit", config, "--deep", "--grace", "0")

    assert done.code == 0, done
    assert "2 accepted batches" in done.out
    assert "all is well" in done.out
    assert "not checked: Whether batches have landed: no pipeline of the configuration lands those of" in done.out
    assert "not checked: Delete markers and older versions below accepted/v1/" in done.out


def test_a_fault_is_told_with_exit_code_1_for_people_and_programs(
    tmp_path: Path, config: Path, lakehead: Lakehead
) -> None:
    first, second = accepted(tmp_path, samples(0, 9), samples(20, 29))
    (tmp_path / "lake" / first.raw_blob_key).unlink()
    (tmp_path / "lake" / AcceptedByTime.of(second).key).unlink()

    shown, printed = lakehead("audit", config, "--grace", "0"), lakehead("audit", config, "--grace", "0", "--json")

    assert (shown.code, printed.code) == (1, 1)
    assert "PROBLEM blob_missing: 1. Frames that are gone. Send them again" in shown.out
    assert first.raw_blob_key in shown.out
    assert "note gap: 1." in shown.out
    assert "2 problems" in shown.out
    document = json.loads(printed.out)
    assert (document["ok"], document["accepted"]) == (False, 2)
    assert document["counts"] == {
        "not_in_accepted_by_time": 1,
        "blob_missing": 1,
        "dangling_index_entry": 1,
        "gap": 1,
    }


def test_nothing_is_written_to_the_store(tmp_path: Path, config: Path, lakehead: Lakehead) -> None:
    [manifest] = accepted(tmp_path, samples(0, 9))
    (tmp_path / "lake" / AcceptedByTime.of(manifest).key).unlink()
    before = stored(tmp_path)

    assert lakehead("audit", config, "--deep", "--grace", "0").code == 1

    assert stored(tmp_path) == before


def test_only_some_agents_are_looked_at(tmp_path: Path, config: Path, lakehead: Lakehead) -> None:
    accepted(tmp_path, samples(0, 9))

    there = json.loads(lakehead("audit", config, "--agent", "agent/a", "--json").out)
    other = json.loads(lakehead("audit", config, "--agent", "agent-b", "--agent", "agent-c", "--json").out)

    assert (there["accepted"], other["accepted"], other["agents"]) == (1, 0, ["agent-b", "agent-c"])


@pytest.mark.parametrize("wrong", ["no authority", "no gateway", "no such agent"])
def test_a_wrong_configuration_is_exit_code_2(wrong: str, tmp_path: Path, lakehead: Lakehead) -> None:
    path = tmp_path / "wrong.json"
    gateway = {"gateway": {"store": f"file://{tmp_path}/nowhere"}} if wrong == "no authority" else {}
    path.write_text(json.dumps(gateway))
    if wrong == "no such agent":
        path = initialised(tmp_path, lakehead)

    assert lakehead("audit", path, "--agent", "a\nb" if wrong == "no such agent" else "a").code == 2


def test_landings_are_compared_if_pipelines_land_what_is_accepted(tmp_path: Path, lakehead: Lakehead) -> None:
    table = {"table": "metrics.samples", "format": "frames", "kind": "samples"}
    queue = {"type": "manifest", "store": f"file://{tmp_path}/lake", "manifest_path": "landing-queue/manifest.json"}
    pipeline: dict[str, object] = {"queue": queue, "messages": "accepted", "tables": [table]}
    config = initialised(
        tmp_path,
        lakehead,
        pipelines={
            "metrics": pipeline,
            "second": {**pipeline, "tables": [{**table, "table": "metrics.more"}]},
            "elsewhere": {**pipeline, "queue": {**queue, "store": f"file://{tmp_path}/other"}},
        },
        spark={"lakehouse": f"{tmp_path}/lakehouse"},
        runtime={"state": {"url": f"sqlite:///{tmp_path}/state.db"}},
    )
    [manifest] = accepted(tmp_path, samples(0, 9))

    done = lakehead("audit", config, "--deep", "--grace", "0", "--json")

    assert done.code == 1, done
    document = json.loads(done.out)
    assert document["counts"] == {"not_landed": 1}, "the table does not exist, so nothing has landed"
    assert document["findings"][0]["what"] == keys.accepted(manifest.identity)
    assert "The table metrics.more: samples are compared with metrics.samples." in document["not_checked"]
    assert json.loads(lakehead("audit", config, "--json").out)["counts"] == {}, "it is young"


def test_progress_is_told_every_few_seconds_and_not_more_often(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FixedClock()
    tell, report = told_now_and_then(clock), AuditReport(begun_at_unix_ns=0, accepted=12_000)

    for _ in range(20):
        clock.seconds += TOLD_EVERY / 4
        tell("accepted batches", report)

    told = capsys.readouterr().err.splitlines()
    assert len(told) == 5
    assert "12,000 accepted batches" in told[0]


def test_help_has_an_example(lakehead: Lakehead) -> None:
    assert "Example: lakehead audit" in lakehead("audit", "--help").out
