"""What a pipeline is made of: a watched folder tells the state which files are gone."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.run.config.config_file import read_config
from lakehead.run.consume_wiring import ConsumeWiring, PipelineDeps, pipeline_settings


def test_the_state_of_a_folder_pipeline_forgets_the_files_that_its_queue_no_longer_lists(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "there.csv").write_text("a\n1\n")
    table = {"table": "raw.inbox", "format": "csv"}
    inbox = {"queue": {"type": "folder", "url": str(tmp_path / "in")}, "tables": [table]}
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps(
            {
                "spark": {"lakehouse": str(tmp_path / "lakehouse")},
                "runtime": {"state": {"url": f"sqlite:///{tmp_path}/state.db"}},
                "pipelines": {"inbox": inbox},
            }
        )
    )
    config = read_config(file)
    wiring, clock, ids, random = ConsumeWiring(config, {}), SystemClock(), RandomIds(), system_random()
    pipeline, nothing = config.pipelines["inbox"], cast(Any, None)  # nothing is read or landed

    async def listing_of(deps: PipelineDeps) -> tuple[str, frozenset[str]]:
        async with AsyncExitStack() as opened:
            queue = await wiring.open_queue(pipeline, clock, ids, random)
            opened.push_async_callback(queue.close)
            coordinator = wiring.coordinator(pipeline_settings("inbox", pipeline), pipeline, queue, deps, opened)
            listing: Any = queue
            assert cast(Any, coordinator)._pipeline.shared._listing is listing
            there, gone = (tmp_path / "in" / "there.csv").as_uri(), (tmp_path / "in" / "gone.csv").as_uri()
            return listing.folder, await listing.not_listed([there, gone])

    with wiring.open_state(clock, ids) as state:
        deps = PipelineDeps(
            state=state,
            sessions=nothing,
            run="run",
            clock=clock,
            ids=ids,
            random=random,
            stop=nothing,
            waiting=nothing,
        )
        folder, gone = asyncio.run(listing_of(deps))

    assert folder == (tmp_path / "in").as_uri() + "/"
    assert gone == {(tmp_path / "in" / "gone.csv").as_uri()}
