"""A client of a gateway for tests and scripts: it frames records and sends them, and keeps nothing on disk."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httpx
import pyarrow as pa

from lakehead.agent.errors import BatchInDoubt, GatewayUnavailable
from lakehead.agent.framed_batch import FramedBatch, Receipt
from lakehead.agent.gateway_connection import HttpConnection, checked_token, send_once
from lakehead.agent.plain_records import KINDS, PlainRecord, RecordKind, record_batch
from lakehead.agent.tls_files import TlsFiles
from lakehead.clock import Clock, SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import Ids, Random, RandomIds, system_random
from lakehead.retry import TimedBackoff
from lakehead.wire.batch_identity import BatchIdentity, check_id
from lakehead.wire.frame import encode_frame
from lakehead.wire.record_schemas import FrameKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """How batches are sent."""

    attempt_seconds: float = 30.0
    """How long one attempt may take, from connecting to the last byte of the answer."""

    retry: TimedBackoff = field(
        default_factory=lambda: TimedBackoff(seconds=120.0, first_seconds=0.2, cap_seconds=10.0)
    )
    """For how long a batch is sent again while the gateway cannot take it, and the pauses. A Retry-After is added."""

    ca_file: str | None = None
    """A PEM file of the authorities that the gateway's certificate may be of. None: those of the system."""

    compress: bool = True
    """Whether frames are compressed."""

    authority: str = ""
    """The acceptance authority whose receipts count, as an earlier receipt names it; that of another one is an
    `UnexpectedAnswer`. Empty: that of the first receipt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDeps:
    """What a client takes from its surroundings."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=RandomIds)
    random: Random = field(default_factory=system_random)
    transport: httpx.AsyncBaseTransport | None = None
    """None: HTTP over the network. Proxies and passwords of the environment are not used."""


class Gateway:
    """Sends samples, or log records, of one boot of one agent. Use it in an `async with` block.

    Each record gets the next sequence number. Several tasks may send at once. There is no spool: a batch whose `send`
    has not returned is yours to send again, and lost with the process. Raises `Misconfigured` and `InvalidIdentity`
    for arguments that cannot be right.
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
        """`url` is that of the ingest listener, as https://gateway:8443. `boot_id` is a new one unless it is given.

        Give the boot id and the next sequence number of an earlier client to continue it.
        """
        self._deps = deps or SendDeps()
        self._settings = settings or SendSettings()
        self._kind = _frame_kind(kind)
        self.agent_id = agent_id
        self.boot_id = self._deps.ids.uuid() if boot_id is None else boot_id
        self.next_sequence = next_sequence
        """The sequence number of the next record."""

        self.authority = self._settings.authority
        """The acceptance authority whose receipts count; empty before the first receipt."""

        check_id("agent_id", self.agent_id)
        check_id("boot_id", self.boot_id)
        self._token = checked_token(token)
        self._connection = HttpConnection(
            url,
            attempt_seconds=self._settings.attempt_seconds,
            tls=TlsFiles(ca_file=self._settings.ca_file),
            transport=self._deps.transport,
        )

    async def send(self, records: Sequence[PlainRecord] | pa.RecordBatch | pa.Table) -> Receipt:
        """Frame records as one batch, and return when a gateway has accepted it.

        The forms of records are those of `record_batch`; Arrow must have the schema of its kind. Raises what `frame`
        and `send_batch` do.
        """
        return await self.send_batch(self.frame(records))

    def frame(self, records: Sequence[PlainRecord] | pa.RecordBatch | pa.Table) -> FramedBatch:
        """Give records the next sequence numbers, and frame them. Nothing is sent.

        Raises `BadRecord` for a plain record, `BadFrame` for Arrow that is not of the kind, `InvalidIdentity` after the
        last sequence number, and `Misconfigured` if there are no records. No sequence number is used then.
        """
        if not len(records):
            raise Misconfigured("There are no records to send. Send at least one.")
        if not isinstance(records, pa.RecordBatch | pa.Table):
            records = record_batch(self._kind, records)
        start = self.next_sequence
        identity = BatchIdentity(self.agent_id, self.boot_id, start, start + len(records) - 1)
        body = encode_frame(identity, self._kind, records, compress=self._settings.compress)
        self.next_sequence = identity.seq_end + 1
        return FramedBatch(identity, body)

    async def send_batch(self, batch: FramedBatch) -> Receipt:
        """Send a batch, the same bytes again while the gateway cannot take it, and return the receipt.

        Raises a `BatchRefused` if it is refused, `GatewayUnavailable` if no gateway took it in time, and `BatchInDoubt`
        if nobody can tell. Sending the batch again is safe after all of them.
        """
        ends = self._deps.clock.monotonic() + self._settings.retry.seconds
        pauses = self._settings.retry.pauses(self._deps.random, self._deps.clock)
        in_doubt = False
        while True:
            outcome = await send_once(
                self._connection,
                batch,
                token=self._token,
                in_doubt=in_doubt,
                clock=self._deps.clock,
                authority=self.authority,
            )
            if isinstance(outcome, Receipt):
                self.authority = outcome.authority
                return outcome
            in_doubt = in_doubt or outcome.in_doubt
            pause = next(pauses, 0.0) + outcome.after_seconds
            if self._deps.clock.monotonic() + pause >= ends:
                raise self._gave_up(batch, outcome.reason, in_doubt=in_doubt)
            await self._deps.clock.sleep(pause)

    async def close(self) -> None:
        """Close the connections. It can be called again."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _gave_up(self, batch: FramedBatch, reason: str, *, in_doubt: bool) -> GatewayUnavailable | BatchInDoubt:
        where = f"The gateway at {self._connection.name}"
        for_long = f"within {self._settings.retry.seconds:g} s"
        if in_doubt:
            return BatchInDoubt(
                batch,
                f"{where} did not confirm the batch {for_long}, and it may have been accepted: {reason} Send the same "
                "batch again.",
            )
        return GatewayUnavailable(
            batch, f"{where} did not take the batch {for_long}: {reason} Send the same batch again later."
        )


def _frame_kind(kind: RecordKind) -> FrameKind:
    if kind not in KINDS:
        raise Misconfigured(f"The kind of records is {kind!r}. It must be one of {', '.join(KINDS)}.")
    return KINDS[kind]
