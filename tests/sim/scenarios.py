"""All scenarios by name: those that hold with every seed, and those that are broken on purpose and must be caught."""

from lakehead.errors import Misconfigured
from lakehead.lake.ports import HistoryBroken
from tests.sim.accept_scenarios import ACCEPT_BROKEN, ACCEPT_SOUND
from tests.sim.agent_scenarios import AGENT_BROKEN, AGENT_SOUND
from tests.sim.buffer_cancelled import CANCELLED_SOUND
from tests.sim.buffer_partitions import PARTITIONS_BROKEN, PARTITIONS_SOUND
from tests.sim.buffer_pipelines import PIPELINES
from tests.sim.buffer_prefix import PREFIX_SOUND
from tests.sim.buffer_quarantine import QUARANTINE_BROKEN, QUARANTINE_SOUND
from tests.sim.buffer_scenarios import BUFFER_BROKEN, BUFFER_SOUND
from tests.sim.consume_backfill import BACKFILL_BROKEN, BACKFILL_SOUND
from tests.sim.consume_overlaps import OVERLAPS_BROKEN, OVERLAPS_SOUND
from tests.sim.consume_scenarios import CONSUME_BROKEN, CONSUME_SOUND
from tests.sim.consume_tables import TABLES_BROKEN, TABLES_SOUND
from tests.sim.garbage_scenarios import GARBAGE_BROKEN, GARBAGE_SOUND
from tests.sim.landing_scenarios import LANDING_BROKEN, LANDING_SOUND
from tests.sim.path_scenarios import PATH_BROKEN, PATH_SOUND
from tests.sim.queue_scenarios import QUEUES_SOUND
from tests.sim.spool_scenarios import SPOOL_BROKEN, SPOOL_SOUND
from tests.sim.storage_scenarios import STORAGE_BROKEN, STORAGE_SOUND
from tests.support.simulation import Scenario, Violation

SOUND: dict[str, Scenario] = {
    **STORAGE_SOUND,
    **LANDING_SOUND,
    **CONSUME_SOUND,
    **TABLES_SOUND,
    **BACKFILL_SOUND,
    **OVERLAPS_SOUND,
    **BUFFER_SOUND,
    **PIPELINES,
    **PARTITIONS_SOUND,
    **PREFIX_SOUND,
    **QUARANTINE_SOUND,
    **CANCELLED_SOUND,
    **QUEUES_SOUND,
    **ACCEPT_SOUND,
    **SPOOL_SOUND,
    **GARBAGE_SOUND,
    **AGENT_SOUND,
    **PATH_SOUND,
}
BROKEN: dict[str, Scenario] = {
    **STORAGE_BROKEN,
    **LANDING_BROKEN,
    **CONSUME_BROKEN,
    **TABLES_BROKEN,
    **BACKFILL_BROKEN,
    **OVERLAPS_BROKEN,
    **BUFFER_BROKEN,
    **PARTITIONS_BROKEN,
    **QUARANTINE_BROKEN,
    **ACCEPT_BROKEN,
    **SPOOL_BROKEN,
    **GARBAGE_BROKEN,
    **AGENT_BROKEN,
    **PATH_BROKEN,
}
KNOWN: dict[str, Scenario] = {**SOUND, **BROKEN}

CAUGHT_WITH = (Violation, Misconfigured, HistoryBroken)
"""What a broken scenario raises: a violated invariant, a probe that refuses the store, or a broken history."""
