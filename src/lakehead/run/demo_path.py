"""The third part of the demo: an agent and two gateways, one of which is killed while samples are sent."""

import json
import socket
from pathlib import Path

from lakehead.clock import SystemClock
from lakehead.run.demo_commands import lakehead, lakehead_output, say, serving, show_table
from lakehead.spark.settings import EMBEDDED, embedded_catalog

SAMPLES = 2_000
LOG_RECORDS = 400
REQUESTS = 40
"""Each has a part of them."""

CONFIG, SECOND = "telemetry.json", "gateway-2.json"


def show_accepting(folder: Path) -> None:
    """Send samples and log records through an agent and two gateways, kill one, land all of it, and compare."""
    say(
        f"\n8. An agent takes {SAMPLES:,} samples and {LOG_RECORDS:,} log records. Two gateways accept its batches in\n"
        "   one object store. One of them is killed (kill -9) in the middle."
    )
    agent_port = _write_configs(folder)
    lakehead(folder, "gateway", "init", CONFIG)
    token = lakehead_output(folder, "gateway", "token", "add", CONFIG, "--agent", "laptop")
    (folder / "laptop.token").write_text(token, encoding="utf-8")
    with (
        serving(folder, "gateway-1.log", "gateway", CONFIG, until="accepts batches") as first,
        serving(folder, "gateway-2.log", "gateway", SECOND, until="accepts batches"),
        serving(folder, "agent.log", "agent", CONFIG, until="listens"),
    ):
        for number in range(REQUESTS):
            if number == REQUESTS // 2:
                first.kill()
                say("   gateway 1: killed")
            _send(agent_port, number)
        lakehead(folder, "agent", "flush", CONFIG)

    say(
        "\n9. A reconciler looks for what the killed gateway has left undone. Then all of it is landed, and an audit\n"
        "   compares what was accepted with what is in the tables."
    )
    lakehead(folder, "reconcile", CONFIG, "--once")
    lakehead(folder, "consume", CONFIG, "--until-empty")
    _show(folder)
    lakehead(folder, "audit", CONFIG, "--deep", "--grace", "0")


def _write_configs(folder: Path) -> int:
    """Write the configurations of both gateways, and return the agent's port."""
    first, second, agent = _free_ports(3)
    store = (folder.absolute() / "telemetry").as_uri()
    queue = {
        "type": "manifest",
        "store": store,
        "manifest_path": "landing-queue/manifest.json",
        "data_path_prefix": "landing-queue/data",
    }
    config = {
        "runtime": {
            "pipeline": "telemetry",
            "state": {"url": "sqlite:///telemetry.sqlite"},
            "logging": {"json": False, "sink": "events.jsonl"},
        },
        "gateway": _gateway(store, "gateway-1", first),
        "reconcile": {"grace_seconds": 0},
        "agent": {
            "agent_id": "laptop",
            "gateways": [f"http://127.0.0.1:{port}" for port in (first, second)],
            "token": {"file": "laptop.token"},
            "spool_folder": "agent-spool",
            "listener": {"port": agent},
            "batch_seconds": 0.1,
        },
        "pipelines": {
            "telemetry": {
                "queue": queue,
                "messages": "accepted",
                "tables": [
                    {"table": "telemetry.samples", "format": "frames", "kind": "samples"},
                    {"table": "telemetry.logs", "format": "frames", "kind": "logs"},
                ],
                "commit_timeout_seconds": 1,
            }
        },
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    gateway = {"gateway": _gateway(store, "gateway-2", second)}
    (folder / SECOND).write_text(json.dumps(gateway, indent=2) + "\n", encoding="utf-8")
    return agent


def _gateway(store: str, name: str, port: int) -> dict[str, object]:
    listeners = {"ingest_listener": {"port": port}, "private_listener": {"port": 0}}
    return {"store": store, "collector_id": name, **listeners}


def _free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses now."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(each.getsockname()[1]) for each in found]
    finally:
        for each in found:
            each.close()


def _send(port: int, number: int) -> None:
    """Send a part of the samples and of the log records to the agent, as a program does."""
    import httpx  # noqa: PLC0415 - slow to load, and other commands should not wait for it

    now = SystemClock().now_ns()
    samples = [
        {"time": now + each, "metric": "requests_total", "labels": {"path": f"/p/{each % 7}"}, "value": each}
        for each in range(SAMPLES // REQUESTS)
    ]
    logs = [
        {"time": now + each, "body": f"line {number}.{each}", "severity_number": 9}
        for each in range(LOG_RECORDS // REQUESTS)
    ]
    for kind, records in (("samples", samples), ("logs", logs)):
        body = "\n".join(map(json.dumps, records)).encode()
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": f"demo-{number}"}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/json/{kind}", content=body, headers=headers, timeout=60)
        answer.raise_for_status()


def _show(folder: Path) -> None:
    from lakehead.lake.catalog import open_catalog  # noqa: PLC0415 - slow to load

    catalog = open_catalog(EMBEDDED, embedded_catalog(folder / "lakehouse"))
    rows = []
    for name, given in (("telemetry.samples", SAMPLES), ("telemetry.logs", LOG_RECORDS)):
        found = catalog.load_table(name).scan(selected_fields=("agent", "boot", "seq")).to_arrow()
        different = found.group_by(["agent", "boot", "seq"]).aggregate([]).num_rows
        rows.append((name, f"{given:,}", f"{found.num_rows:,}", f"{different:,}"))
    say("   What was given to the agent, and the rows in the tables:")
    show_table(("table", "given", "rows", "different"), rows)
    catalog.close()
