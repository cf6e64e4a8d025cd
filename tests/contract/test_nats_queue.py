"""What the example of NATS does beyond what every queue promises."""

from pathlib import Path

import pytest

from examples.nats_queue import NatsQueue
from tests.servers.nats import NatsServer
from tests.support.queue_kinds import LONG, NatsKind


def test_a_fetch_whose_time_is_over_is_an_empty_answer_whichever_part_of_the_client_says_so(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = NatsKind(nats_server, tmp_path)

    async def test() -> None:
        queue = await queues.consumer()
        assert isinstance(queue, NatsQueue)

        async def fetch(*_: object, **__: object) -> None:
            raise TimeoutError  # not the client's own class of that name, as on a busy machine

        monkeypatch.setattr(queue._subscription, "fetch", fetch)
        try:
            assert await queue.receive(10, visibility=LONG, wait=queues.look) == []
        finally:
            await queues.close()

    queues.run(test())
