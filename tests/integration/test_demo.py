"""The demo's queue, folder, agent and gateways are real processes: what it shows is true."""

import json
from pathlib import Path

import pytest

from lakehead.run.demo import _config
from lakehead.run.demo_consume import CLICKS, FILE_ROWS, FILES, show_consuming
from lakehead.run.demo_path import LOG_RECORDS, SAMPLES, show_accepting

VISITS = FILES * FILE_ROWS


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_what_the_demo_consumes_is_there_once_though_it_kills_a_consumer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.json").write_text(json.dumps(_config(tmp_path)), encoding="utf-8")

    show_consuming(tmp_path)

    shown = capfd.readouterr().out
    before, killed, after = shown.partition("   killed\n")
    assert killed, shown
    assert "landed" in before
    words = [line.split() for line in after.splitlines()]
    assert ["web.clicks", f"{CLICKS:,}", f"{CLICKS:,}"] in words, shown
    assert ["web.visits", f"{VISITS:,}", f"{VISITS:,}"] in words, shown
    assert "broken.json" in after.partition("dead letter, with its reason")[2], shown


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_what_the_demo_sends_is_there_once_though_it_kills_a_gateway(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    show_accepting(tmp_path)

    shown = capfd.readouterr().out
    assert "gateway 1: killed" in shown
    words = [line.split() for line in shown.splitlines()]
    assert ["telemetry.samples", *[f"{SAMPLES:,}"] * 3] in words, shown
    assert ["telemetry.logs", *[f"{LOG_RECORDS:,}"] * 3] in words, shown
    assert "all is well" in shown
