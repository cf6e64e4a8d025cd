"""The receivers over a real spool: what was answered is on disk, once, also over a restart."""

import asyncio
from pathlib import Path

import httpx
import pytest

from lakehead.wire.record_schemas import FrameKind
from tests.support.async_tests import async_test
from tests.unit.agent.receive.app_support import JSON_LOGS, NDJSON, WRITE, WRITE_V2, snappy
from tests.unit.agent.receive.spool_support import spool_receivers
from tests.unit.agent.receive.write_requests import MS, UP, v2

LINES = {"Content-Type": NDJSON}
LINE = b'{"time": %d, "body": "hello"}\n'


@pytest.mark.slow
@async_test
async def test_a_request_that_comes_again_after_a_restart_is_not_kept_again(tmp_path: Path) -> None:
    body, keyed = LINE % 1, {**LINES, "Idempotency-Key": "k"}
    request = snappy(v2((UP, [(MS, 1)]), ({"job": "nameless"}, [(MS, 2)])))
    answers = []
    for _ in range(2):
        async with spool_receivers(tmp_path / "spool") as at, httpx.AsyncClient(base_url=at.url) as http:
            for _ in range(2):
                answers.append((await http.post(JSON_LOGS, content=body, headers=LINES)).json()["duplicate"])
                answers.append(
                    (await http.post(JSON_LOGS, content=b'{"body": "x"}', headers=keyed)).json()["duplicate"]
                )
                write = await http.post(WRITE, content=request, headers=WRITE_V2)
                assert (write.status_code, write.headers["X-Prometheus-Remote-Write-Samples-Written"]) == (400, "1")
            reused = await http.post(JSON_LOGS, content=b'{"body": "y"}', headers=keyed)
            assert reused.status_code == 422
            logs, samples = await at.records(FrameKind.LOGS), await at.records(FrameKind.SAMPLES)

    assert answers == [False, False] + [True] * 6
    assert (logs["body"].to_pylist(), samples["value"].to_pylist()) == (["hello", "x"], [1])


@pytest.mark.slow
@async_test
async def test_requests_at_once_are_all_on_disk_and_the_same_one_once(tmp_path: Path) -> None:
    async with spool_receivers(tmp_path / "spool") as at, httpx.AsyncClient(base_url=at.url) as http:
        bodies = [LINE % number for number in range(20)] * 3
        answers = await asyncio.gather(*(http.post(JSON_LOGS, content=body, headers=LINES) for body in bodies))
        kept = await at.records(FrameKind.LOGS)

    assert {answer.status_code for answer in answers} == {200}
    assert sum(answer.json()["duplicate"] for answer in answers) == 40
    assert sorted(kept["time"].cast("int64").to_pylist()) == list(range(20))


@pytest.mark.slow
@async_test
async def test_a_full_spool_is_503_and_what_it_has_taken_stays(tmp_path: Path) -> None:
    line = b'{"time": 1, "body": "%s"}\n' % (b"x" * 10_000)
    async with (
        spool_receivers(tmp_path / "spool", spool_bytes=100_000) as at,
        httpx.AsyncClient(base_url=at.url) as http,
    ):
        statuses = []
        for number in range(30):
            answer = await http.post(
                JSON_LOGS, content=line.replace(b'"time": 1', b'"time": %d' % number), headers=LINES
            )
            statuses.append(answer.status_code)
        taken = statuses.count(200)
        assert answer.headers["retry-after"] == "5"
        kept = await at.records(FrameKind.LOGS)

    assert statuses == [200] * taken + [503] * (30 - taken)
    assert 0 < taken < 30
    assert kept["time"].cast("int64").to_pylist() == list(range(taken))
