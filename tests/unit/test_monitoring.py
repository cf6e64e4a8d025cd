"""The alert rules and the dashboard are valid, name metrics that exist, and alerts fire when they should."""

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.core import CounterMetricFamily

from lakehead.accept.counts import AcceptCounts
from lakehead.accept.spool_uploads import SpoolCounts
from lakehead.agent import metrics as agent
from lakehead.consume import metrics as consume
from lakehead.gateway.metrics import GatewayMetrics
from lakehead.maintain.garbage_metrics import GarbageMetrics, GarbageTotals
from lakehead.maintain.garbage_report import GarbageReport
from lakehead.maintain.reconciler_metrics import ReconcilerMetrics
from tests.servers.prometheus import program
from tests.unit.maintain.reconcile_support import Authority

ROOT = Path(__file__).parents[2]
RULES = ROOT / "examples" / "monitoring" / "alerts.yml"
DASHBOARD = ROOT / "examples" / "monitoring" / "dashboard.json"
PAGE = ROOT / "docs" / "operations.md"
PAGES = [PAGE, *(ROOT / "docs" / name for name in ("reconciler.md", "garbage-collection.md", "gateway.md"))]

_METRIC = re.compile(r"\blakehead_[a-z0-9_]+\b")


def promtool(*arguments: str | Path, stdin: str | None = None) -> str:
    """Run Prometheus's own tool. Returns what it says."""
    try:
        tool = program().with_name("promtool")
    except FileNotFoundError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))  # on a laptop; CI unpacks it, and fails without
    ran = subprocess.run([tool, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def existing() -> set[str]:
    """Every metric that there is, by the names that queries use."""
    gateway = GatewayMetrics()
    nothing: Any = SimpleNamespace(
        findings=(), requests=0, bytes_held=0, count=0, total_bytes=0, oldest_seconds=0, aside=()
    )
    gateway.watch(nothing)
    gateway.watch_bucket(nothing)
    gateway.watch_spool(nothing, SpoolCounts())
    gateway.watch_side_effects(AcceptCounts())
    gateway.watch_connections({})
    collected = GarbageTotals()
    collected.add(GarbageReport("scan", is_dry_run=False))
    collectors = (gateway.registry, ReconcilerMetrics(Authority().reconciler()), GarbageMetrics(collected))
    names = set()
    for family in (family for each in collectors for family in each.collect()):
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
        names |= {family.name + end for end in ends}
    names |= {f"{agent.PREFIX}{name}_total" for name in (*agent.COUNTS, "requests", "received_records")}
    names |= {agent.PREFIX + name for name in agent.STATUS}
    names |= {f"{consume.PREFIX}{name}_total" for name in consume.COUNTERS}
    names |= {consume.PREFIX + name for name in consume.GAUGES}
    assert CounterMetricFamily(f"{consume.PREFIX}x", "").type == "counter"
    return names


def named_in_rules() -> set[str]:
    return set(_METRIC.findall(RULES.read_text()))


def panels() -> Sequence[Mapping[str, Any]]:
    found = cast("Sequence[Mapping[str, Any]]", json.loads(DASHBOARD.read_text())["panels"])
    return [panel for panel in found if panel["type"] != "row"]


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_every_metric_that_is_named_exists() -> None:
    named = named_in_rules() | set(_METRIC.findall(" ".join(queries())))

    assert named - existing() == set()


def test_every_metric_that_the_pages_name_exists() -> None:
    named = {name for page in PAGES for name in _METRIC.findall(page.read_text())}
    named -= {"lakehead_gateway_"}  # how all of them begin

    assert len(named) > 10
    assert named - existing() == set()


def test_the_dashboard_has_a_panel_for_every_metric_of_an_alert() -> None:
    shown = set(_METRIC.findall(" ".join(queries())))

    # A histogram is one metric, whatever is asked of it.
    assert named_in_rules() - shown == set()
    ids = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["title"]
        assert panel["description"]
        assert panel["targets"]
    corners = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(corners) == len(set(corners)), "no panel lies on another"


def test_every_alert_is_explained_in_the_page_for_operators() -> None:
    text = RULES.read_text()
    alerts = re.findall(r"- alert: (\w+)", text)
    anchors = re.findall(r"runbook: docs/operations\.md#(\w+)", text)
    headings = {heading.lower() for heading in re.findall(r"^### (\w+)$", PAGE.read_text(), re.MULTILINE)}

    assert len(anchors) == len(alerts)
    assert set(anchors) <= headings
    assert [alert for alert in alerts if alert not in PAGE.read_text()] == []


def test_prometheus_takes_the_rules_and_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    recorded = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries())]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}))  # JSON is YAML

    assert "SUCCESS" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("check", "rules", file)


QUIET = {
    'up{job="lakehead-gateway", instance="g1"}': "1x120",
    'lakehead_gateway_requests_total{listener="ingest", status="200", code=""}': "0+600x120",
    'lakehead_gateway_unavailable_total{code="overloaded"}': "0+6x120",
    'lakehead_gateway_bucket_findings{check="policy", severity="danger"}': "0x120",
    'lakehead_gateway_accept_seconds_bucket{outcome="accepted", le="0.1"}': "0+100x120",
    'lakehead_gateway_accept_seconds_bucket{outcome="accepted", le="+Inf"}': "0+100x120",
    'lakehead_agent_paused{instance="a1"}': "0x120",
    'lakehead_consume_dead_letters_total{pipeline="metrics"}': "3x120",
    'lakehead_consume_received_total{pipeline="metrics"}': "0+10x120",
    'lakehead_consume_landed_total{pipeline="metrics"}': "0+10x120",
    'lakehead_consume_failed_total{pipeline="metrics"}': "0+1x120",
    "lakehead_reconciler_lag_seconds": "60+60x120",
    "lakehead_reconciler_last_pass_age_seconds": "30x120",
    'lakehead_reconciler_open_repairs{problem="missing"}': "0x120",
    'lakehead_reconciler_open_repairs{problem="corrupt"}': "0x120",
    "lakehead_reconciler_audit_age_seconds": "86400x120",
    'lakehead_reconciler_problems_total{kind="out_of_reach"}': "3x120",
    'lakehead_reconciler_problems_total{kind="failed"}': "0+1x120",
    "lakehead_gc_failed_runs_total": "0x120",
    'lakehead_gc_kept_blobs{reason="not_audited"}': "0x60 2x60",
    'lakehead_gc_deleted_blobs_total{reason="orphan"}': "7x120",
}
"""Values of every minute while all is well."""

LOUD: Mapping[str, tuple[Mapping[str, str | None], str]] = {
    "a gateway is down": ({'up{job="lakehead-gateway", instance="g1"}': "0x120"}, "LakeheadGatewayDown"),
    "many 503": ({'lakehead_gateway_unavailable_total{code="overloaded"}': "0+60x120"}, "LakeheadGatewaysRefuse"),
    "a slow store": (
        {'lakehead_gateway_accept_seconds_bucket{outcome="accepted", le="0.1"}': "0+90x120"}
        | {'lakehead_gateway_accept_seconds_bucket{outcome="accepted", le="5"}': "0+100x120"},
        "LakeheadStoreSlow",
    ),
    "a weak policy": (
        {'lakehead_gateway_bucket_findings{check="policy", severity="danger"}': "1x120"},
        "LakeheadBucketInDanger",
    ),
    "a paused agent": ({'lakehead_agent_paused{instance="a1"}': "1x120"}, "LakeheadAgentPaused"),
    "a dead letter": (
        {'lakehead_consume_dead_letters_total{pipeline="metrics"}': "3x30 4x90"},
        "LakeheadDeadLetters",
    ),
    "nothing lands": ({'lakehead_consume_landed_total{pipeline="metrics"}': "7x120"}, "LakeheadNothingLands"),
    "a late reconciler": ({"lakehead_reconciler_lag_seconds": "7260x120"}, "LakeheadReconcilerLags"),
    "no reconciler": ({"lakehead_reconciler_lag_seconds": None}, "LakeheadReconcilerLags"),
    "a reconciler that hangs": ({"lakehead_reconciler_last_pass_age_seconds": "1860x120"}, "LakeheadReconcilerLags"),
    "a missing frame": ({'lakehead_reconciler_open_repairs{problem="missing"}': "2x120"}, "LakeheadFramesMissing"),
    "an archived frame": (
        {'lakehead_reconciler_problems_total{kind="out_of_reach"}': "0x30 1x90"},
        "LakeheadFramesOutOfReach",
    ),
    "an old audit": ({"lakehead_reconciler_audit_age_seconds": "345600x120"}, "LakeheadAuditOld"),
    "failing garbage collection": ({"lakehead_gc_failed_runs_total": "0+1x120"}, "LakeheadGcRefuses"),
    "orphans without an audit": ({'lakehead_gc_kept_blobs{reason="not_audited"}': "2x120"}, "LakeheadGcRefuses"),
}


@pytest.mark.slow
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    cases: list[tuple[str, Mapping[str, str | None], list[str]]] = [("all is well", {}, [])]
    cases += [(name, values, [alert]) for name, (values, alert) in LOUD.items()]
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [
                {"series": series, "values": values} for series, values in ({**QUIET, **other}).items() if values
            ],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "75m",
                    "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts],
                }
            ],
        }
        for name, other, alerts in cases
    ]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))

    assert "SUCCESS" in promtool("test", "rules", file)
