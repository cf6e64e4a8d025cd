"""Opens the tables of a configuration's pipelines for the commands about them: no Spark is started."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lakehead.consume.queue import SendingQueue
from lakehead.errors import Misconfigured
from lakehead.run.consumed_tables import AcceptedStore, ConsumedTables
from lakehead.run.environment import ENVIRONMENT, store_settings
from lakehead.run.gateway_command import operator
from lakehead.run.select_pipelines import select_pipelines

if TYPE_CHECKING:
    from lakehead.accept.discarded_batches import DiscardedBatches
    from lakehead.run.config.consume_config import ConsumeConfig
    from lakehead.run.consume_wiring import ConsumeWiring


@contextmanager
def open_consumed_tables(config_file: Path, pipeline: str | None) -> Iterator[ConsumedTables]:
    """Open the state, the ledger's store and the tables of one pipeline, or of all; and the queue if it is only one.

    Tables that do not exist yet are left out. Raises `Misconfigured` for a configuration that is wrong or has no such
    pipeline, and `CannotOpen` for a catalog that cannot be opened.
    """
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.clock import SystemClock  # noqa: PLC0415 - see above
    from lakehead.ids import RandomIds  # noqa: PLC0415 - see above
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.consume_wiring import ConsumeWiring  # noqa: PLC0415 - see above

    config = read_config(config_file)
    names = select_pipelines(config, None if pipeline is None else [pipeline])
    wiring = ConsumeWiring(config, ENVIRONMENT)
    wiring.check()
    pipelines = [config.pipelines[name] for name in names]
    with wiring.open_state(SystemClock(), RandomIds()) as state:
        yield ConsumedTables(
            state=state,
            store=wiring.open_ledger().store,
            tables=_uuids(wiring, pipelines),
            queue=_queue_of(wiring, config.pipelines[names[0]]) if len(names) == 1 else None,
            pipelines=tuple(names),
            accepted=_accepted(wiring, pipelines),
        )


def _accepted(wiring: "ConsumeWiring", pipelines: "Sequence[ConsumeConfig]") -> tuple[AcceptedStore, ...]:
    """The stores of accepted batches that the pipelines land, opened when something is looked up or written there."""
    from lakehead.run.accepted_tables import accepted_store  # noqa: PLC0415 - loaded by now

    urls = [url for pipeline in pipelines if (url := accepted_store(pipeline)) is not None]
    return tuple(AcceptedStore(url, partial(_discarded, wiring, url)) for url in dict.fromkeys(urls))


def _discarded(wiring: "ConsumeWiring", url: str) -> "DiscardedBatches":
    from lakehead.accept.discarded_batches import DiscardedBatches  # noqa: PLC0415 - loaded by now
    from lakehead.clock import SystemClock  # noqa: PLC0415 - loaded by now
    from lakehead.ids import RandomIds, system_random  # noqa: PLC0415 - loaded by now
    from lakehead.storage.open_store import open_store  # noqa: PLC0415 - loaded by now

    clock, ids, random = SystemClock(), RandomIds(), system_random()
    store = open_store(url, store_settings(url, wiring.environment), clock=clock, ids=ids, random=random)
    return DiscardedBatches(store=store, clock=clock, ids=ids, random=random, by=operator())


def _uuids(wiring: "ConsumeWiring", pipelines: "Sequence[ConsumeConfig]") -> dict[str, str]:
    """The uuids of the pipelines' tables that exist, by name; with the catalog's if two catalogs have the same name."""
    from lakehead.run.accepted_tables import PipelineTable, table_uuids  # noqa: PLC0415 - loaded by now

    tables = {PipelineTable(wiring.catalog_of(each), route.table): None for each in pipelines for route in each.tables}
    found: dict[str, str] = {}
    for table, uuid in table_uuids(wiring, tables).items():
        if uuid is not None:  # else nothing was landed in it or given up for it
            found[f"{table.catalog}.{table.name}" if table.name in found else table.name] = uuid
    return found


def _queue_of(wiring: "ConsumeWiring", config: "ConsumeConfig") -> SendingQueue | None:
    """The queue of a pipeline; None if it has no messages that could be sent."""
    return None if config.queue.type in ("folder", "files") else _OpenedToSend(wiring, config)


class _OpenedToSend:
    """Opens the queue of a pipeline when something is sent: most commands send nothing."""

    def __init__(self, wiring: "ConsumeWiring", config: "ConsumeConfig") -> None:
        self._wiring = wiring
        self._config = config

    async def send(self, bodies: Sequence[bytes]) -> None:
        from lakehead.clock import SystemClock  # noqa: PLC0415 - loaded by now
        from lakehead.ids import RandomIds, system_random  # noqa: PLC0415 - loaded by now

        queue = await self._wiring.open_queue(self._config, SystemClock(), RandomIds(), system_random())
        try:
            if not isinstance(queue, SendingQueue):
                raise Misconfigured(f"The queue {queue.name} cannot be sent to.")
            await queue.send(bodies)
        finally:
            await queue.close()
