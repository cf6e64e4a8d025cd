"""All processes from agents to tables: agents, gateways, consumers, a reconciler and a garbage collector.

The authority's store is on an S3 server behind proxies that fail, the lakehouse and the state on the local disk.
"""

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Protocol

from lakehead.lake.catalog import open_catalog
from lakehead.spark.settings import EMBEDDED, embedded_catalog
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import frame_sha256
from tests.accepted import LOGS, SAMPLES
from tests.chaos.agent_callers import Sky
from tests.chaos.consume_child import Consuming, Order
from tests.chaos.path_checker import ids_of
from tests.consumer import Consumer
from tests.faults.proxy import Fault, Weather, served
from tests.servers.ports import free_ports
from tests.servers.seaweed import Seaweed
from tests.support.agents import AgentProcess, agent_config
from tests.support.commands import lakehead_command
from tests.support.costs import Mechanism, add
from tests.support.gateways import GatewayAuthority, GatewayProcess, gateway_config, sample_frame
from tests.support.serving import ServingProcess
from tests.support.spark import Borrowed

AGENTS, GATEWAYS, CONSUMERS = 4, 2, 2
STORE_SECONDS, ATTEMPT_SECONDS = 5.0, 8.0
"""How long a gateway waits for one answer of the store, and an agent for one of a gateway."""

DAY = 86_400.0
HORIZON_SECONDS, RETENTION_SECONDS, ROLLBACK_SECONDS = 2.0, 3.0, 1.0
RECONCILE = {"grace_seconds": 1.0, "pass_seconds": 0.5, "cold_scan_hours": 1 / 3600}
SILENCE = timedelta(seconds=8)
"""How long a consumer may be silent before what it holds is another's: landings take longer than on a quiet disk."""

WAIT_SECONDS = 300.0
"""How long anything may take: it ends what hangs."""

FREQUENT = {
    Fault.UNAVAILABLE: 0.02,
    Fault.UNAVAILABLE_APPLIED: 0.02,
    Fault.RESET: 0.02,
    Fault.RESET_APPLIED: 0.02,
    Fault.CONFLICT: 0.01,
}
SILENT = {Fault.TIMEOUT_APPLIED: 0.002, Fault.TIMEOUT_APPLIED_LATER: 0.002}


ORPHAN = sample_frame(BatchIdentity("agent", "orphan", 0, 4))


class Victim(Protocol):
    """A process that may be killed, stopped and started again."""

    def start(self) -> object: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


def until(holds: Callable[[], bool], what: str) -> None:
    """Ask again and again: another process tells nobody when it is so far."""
    ends = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < ends, f"it does not come that {what}"
        time.sleep(0.05)  # how often is asked; nothing depends on it


@dataclass
class LandingConsumer(Consumer):
    """A pipeline that lands what gateways accept. Its configuration is also that of the reconciler and of `gc`."""

    sections: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, folder: Path, authority: GatewayAuthority, env: Mapping[str, str], **sections: Any
    ) -> "LandingConsumer":
        """The pipeline of an authority. `sections` are of the same configuration."""
        listeners = {"ingest_listener": {"port": 0}, "private_listener": {"port": 0}}
        return cls(
            folder,
            {
                "type": "manifest",
                "store": authority.url,
                "manifest_path": "landing-queue/manifest.json",
                "data_path_prefix": "landing-queue/data",
            },
            env,
            tables=(
                {"table": SAMPLES, "format": "frames", "kind": "samples"},
                {"table": LOGS, "format": "frames", "kind": "logs"},
            ),
            # A batch may be tried anew after each kill, and must not be given up for that.
            settings={
                "messages": "accepted",
                "commit_timeout_seconds": 0.3,
                "visibility_seconds": 10,
                "max_tries": 100,
            },
            sections={
                "gateway": {"store": authority.url, "store_seconds": STORE_SECONDS, **listeners},
                "reconcile": RECONCILE,
                **sections,
            },
        )

    def config(self) -> Path:
        """The configuration's file, which is written once: others may be reading it."""
        path = self.folder / "path.json"
        if not path.exists():
            pipelines = json.loads(super().config().read_text())
            path.write_text(json.dumps({**pipelines, **self.sections}))
        return path

    def config_with(self, name: str, **sections: Any) -> Path:
        """The same configuration with other sections, in a file of its own."""
        path = self.folder / name
        path.write_text(json.dumps({**json.loads(self.config().read_text()), **sections}))
        return path

    def ids(self) -> dict[str, list[str]]:
        """The ids of all rows of both tables."""
        return {table: self.ids_in(table) for table in (SAMPLES, LOGS)}

    def ids_in(self, table: str) -> list[str]:
        rows = self.rows(table)
        return ids_of(rows) if len(rows) else []


@dataclass
class ConsumerProcess:
    """A `lakehead consume` that may be killed and started again."""

    consumer: LandingConsumer
    jvm: Borrowed
    _running: Consuming | None = field(default=None, init=False)

    def start(self) -> object:
        patience = {"heartbeat_timeout": SILENCE, "shortest_lease": SILENCE}
        self._running = Consuming(self.consumer, self.jvm, Order(settings=patience))
        return self

    @property
    def running(self) -> Consuming:
        assert self._running is not None
        return self._running

    def kill(self) -> None:
        self.running.kill()
        self.close()

    def pause(self) -> None:
        self.running.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.running.signal(signal.SIGCONT)

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None


@dataclass
class ReconcilerProcess(ServingProcess):
    """A `lakehead reconcile`."""

    words: ClassVar = ("reconcile", "--json")

    def is_listening(self, said: str) -> bool:
        """Whether its first scan has ended. Before that it ends if the store fails, and its service manager acts."""
        return '"pass": ' in said


@dataclass
class CollectorProcess(ServingProcess):
    """A `lakehead gc` that stays. Each time that it is started, it has the next of its configurations."""

    words: ClassVar = ("gc", "--every", "1s")
    next_config: Path = Path()

    def start(self) -> "CollectorProcess":
        super().start()
        self.config, self.next_config = self.next_config, self.config
        return self

    @property
    def is_without_retention(self) -> bool:
        """Whether the configuration with which it runs deletes orphans alone."""
        return "raw_blobs" in json.loads(self.config.read_text())  # that of the next start

    def is_listening(self, said: str) -> bool:
        """Whether its first run has ended."""
        return " for each blob" in said or "lakehead: " in said


@dataclass
class PathDeployment:
    """All processes, and the proxies in front of the store."""

    authority: GatewayAuthority
    skies: tuple[Sky, Sky]
    """That of the gateways, and that of all others."""

    consumer: LandingConsumer
    agents: list[AgentProcess] = field(default_factory=list)
    gateways: list[GatewayProcess] = field(default_factory=list)
    consumers: list[ConsumerProcess] = field(default_factory=list)
    caretakers: list[ServingProcess] = field(default_factory=list)
    """The reconciler and the garbage collector."""

    kills: int = 0
    pauses: int = 0
    told: dict[str, int] = field(default_factory=dict)
    """What caretakers have said that they did."""

    @property
    def store(self) -> Store:
        """The store itself, past all proxies."""
        return self.authority.store()

    def start(self, process: Victim) -> None:
        """Start a process while nothing fails."""
        with self.calm():
            process.start()

    def kill(self, process: Victim) -> None:
        process.kill()
        self.kills += 1
        if not isinstance(process, ConsumerProcess):
            add(Mechanism.KILLS)
        self.note(process)

    @contextmanager
    def calm(self) -> Iterator[None]:
        """Let no request fail meanwhile."""
        for sky in self.skies:
            sky.starting += 1
        try:
            yield
        finally:
            for sky in self.skies:
                sky.starting -= 1

    def landings(self) -> int:
        """How many snapshots the tables have. It reads no rows: the proxies are in the process that asks."""
        if not self.consumer.lakehouse.exists():
            return 0
        with closing(open_catalog(EMBEDDED, embedded_catalog(self.consumer.lakehouse))) as catalog:
            tables = [catalog.load_table(each) for each in (SAMPLES, LOGS) if catalog.table_exists(each)]
            return sum(len(table.history()) for table in tables)

    def reconcile(self, *options: str) -> dict[str, Any]:
        """Reconcile once, in a process of its own. Returns its report."""
        done = lakehead_command(
            "reconcile", self.consumer.config(), "--once", "--json", *options, env=self.authority.env
        )
        assert done.returncode == 0, done.stdout + done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def audit(self) -> dict[str, Any]:
        """Audit everything, in a process of its own. Returns its report."""
        done = lakehead_command(
            "audit", self.consumer.config(), "--deep", "--grace", "0", "--json", env=self.authority.env
        )
        assert done.returncode == 0, done.stdout + done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def stop(self) -> None:
        """Let all that agents were given land, and stop everything in the order of its way."""
        for agent in self.agents:
            told = agent.flush()
            assert told["accepted"], told
            assert agent.terminate() == 0, agent.said
            assert set(agent.left().values()) == {0}, agent.left()
        for gateway in self.gateways:
            assert gateway.terminate() == 0, gateway.said
        until(self._is_drained, "all that was accepted has landed")
        until(self._is_collected, "an orphan is deleted, and a frame is retired")
        for consumer in self.consumers:
            consumer.running.stop()
        for each in self.caretakers:
            assert each.terminate() == 0, each.said
            self.note(each)

    def note(self, process: Victim) -> None:
        """Add up what a caretaker has said since it was started."""
        if isinstance(process, ReconcilerProcess):
            for line in process.said.splitlines():
                if line.startswith("{") and line.endswith("}"):
                    for kind, count in json.loads(line)["done"].items():
                        self.told[kind] = self.told.get(kind, 0) + count
        if isinstance(process, CollectorProcess):
            for line in process.said.splitlines():
                if line.startswith("deleted "):
                    kind, count = line.split()[1:3]
                    self.told[kind] = self.told.get(kind, 0) + int(count.replace(",", ""))

    def plant_orphan(self) -> None:
        """Store a frame that nobody accepts, as a gateway that dies leaves it."""
        asyncio.run(self.store.put(keys.raw_blob(frame_sha256(ORPHAN)), ORPHAN))

    def _is_collected(self) -> bool:
        """Whether garbage collection has deleted the orphan, and a frame that has landed. Else it is restarted."""

        async def looked() -> bool:
            store = self.store
            is_there = await store.head(keys.raw_blob(frame_sha256(ORPHAN))) is not None
            return not is_there and bool([each async for page in store.list(keys.RETIRED) for each in page])

        if asyncio.run(looked()):
            return True
        if self.collector.is_without_retention:
            self.kill(self.collector)
            self.start(self.collector)
        return False

    @property
    def collector(self) -> CollectorProcess:
        [found] = [each for each in self.caretakers if isinstance(each, CollectorProcess)]
        return found

    def _is_drained(self) -> bool:
        for each in self.consumers:
            assert each.running.is_alive, each.running.said[-3_000:]
        report = self.reconcile("--cold")
        return not report["waiting"] and not report["done"]


@contextmanager
def deployed(folder: Path, seaweed: Seaweed, jvm: Borrowed) -> Iterator[PathDeployment]:
    """All processes, started; they are gone afterwards, however the test ends."""
    skies = (
        Sky(seaweed.endpoint, Weather(seed=18, chances={**FREQUENT, **SILENT})),
        Sky(seaweed.endpoint, Weather(seed=19, chances=FREQUENT)),
    )
    with served(skies[0].handle) as for_gateways, served(skies[1].handle) as for_others, ExitStack() as opened:
        authority = GatewayAuthority(folder, seaweed)
        env = {**authority.env, "AWS_ENDPOINT_URL": for_others}
        horizon = {"retry_horizon_days": HORIZON_SECONDS / DAY}
        consumer = LandingConsumer.of(folder, authority, env, gc=horizon)
        made = PathDeployment(authority, skies, consumer)
        retention = {"retention_days": RETENTION_SECONDS / DAY, "rollback_days": ROLLBACK_SECONDS / DAY}
        with_retention = consumer.config_with("retention.json", raw_blobs=retention)
        made.caretakers += [
            ReconcilerProcess(consumer.config(), env, folder / "reconciler.log"),
            CollectorProcess(consumer.config(), env, folder / "gc.log", next_config=with_retention),
        ]
        ports = free_ports(GATEWAYS)
        for number, port in enumerate(ports):
            config = gateway_config(
                folder / f"gateway-{number}",
                authority.url,
                ingest={"requests_per_second": None},
                ingest_listener={"port": port},
                store_seconds=STORE_SECONDS,
            )
            of_gateway = {**authority.env, "AWS_ENDPOINT_URL": for_gateways}
            made.gateways.append(GatewayProcess(config, of_gateway, folder / f"gateway-{number}.log"))
        for number in range(AGENTS):
            config = agent_config(
                folder / f"agent-{number}",
                f"agent-{number}",
                authority.add_token(f"agent-{number}"),
                [f"http://127.0.0.1:{port}" for port in ports],
                batch_seconds=1.0,
                attempt_seconds=ATTEMPT_SECONDS,
            )
            made.agents.append(AgentProcess(config, {}, folder / f"agent-{number}.log"))
        made.consumers += [ConsumerProcess(consumer, jvm) for _ in range(CONSUMERS)]
        for each in (*made.agents, *made.gateways, *made.caretakers):
            opened.callback(each.kill)
        for one in made.consumers:
            opened.callback(one.close)
        processes: list[Victim] = [*made.caretakers, *made.gateways, *made.agents, *made.consumers]
        for process in processes:
            made.start(process)
        yield made
