"""The client of a gateway for programs without asyncio."""

from collections.abc import Sequence

import pyarrow as pa

from lakehead.agent.framed_batch import FramedBatch, Receipt
from lakehead.agent.gateway_client import Gateway, SendDeps, SendSettings
from lakehead.agent.plain_records import PlainRecord, RecordKind
from lakehead.buffer.blocking_calls import BlockingCalls


class BlockingGateway(BlockingCalls[Gateway]):
    """A `Gateway` with blocking calls. Use it in a `with` block.

    Several threads may use it at once. After a fork, make a new one.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str,
        agent_id: str,
        kind: RecordKind = "samples",
        boot_id: str | None = None,
        next_sequence: int = 0,
        settings: SendSettings | None = None,
        deps: SendDeps | None = None,
    ) -> None:
        gateway = Gateway(
            url,
            token=token,
            agent_id=agent_id,
            kind=kind,
            boot_id=boot_id,
            next_sequence=next_sequence,
            settings=settings,
            deps=deps,
        )
        super().__init__(gateway, "lakehead-gateway-client")

    @property
    def boot_id(self) -> str:
        """The boot that it sends under."""
        return self._wrapped.boot_id

    @property
    def next_sequence(self) -> int:
        """The sequence number of the next record."""
        return self._wrapped.next_sequence

    @property
    def authority(self) -> str:
        """The acceptance authority whose receipts count; empty before the first receipt."""
        return self._wrapped.authority

    def send(self, records: Sequence[PlainRecord] | pa.RecordBatch | pa.Table) -> Receipt:
        """Frame records as one batch, and return when a gateway has accepted it. Raises what `Gateway.send` does."""
        return self._loop.call(self._wrapped.send(records))

    def frame(self, records: Sequence[PlainRecord] | pa.RecordBatch | pa.Table) -> FramedBatch:
        """Give records the next sequence numbers, and frame them. Raises what `Gateway.frame` does."""
        return self._loop.call(self._frame(records))  # on the loop, so that two threads do not take the same numbers

    def send_batch(self, batch: FramedBatch) -> Receipt:
        """Send a batch, and return the receipt. Raises what `Gateway.send_batch` does."""
        return self._loop.call(self._wrapped.send_batch(batch))

    async def _frame(self, records: Sequence[PlainRecord] | pa.RecordBatch | pa.Table) -> FramedBatch:
        return self._wrapped.frame(records)
