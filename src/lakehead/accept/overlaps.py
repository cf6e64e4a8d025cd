"""Overlaps: accepted batches with common sequence numbers, and the record of one that contradicts what landed."""

from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import cast

from lakehead.accept.record_file import RecordFile
from lakehead.clock import Clock
from lakehead.ids import Ids, Random
from lakehead.retry import Backoff
from lakehead.storage.port import ListedObject, Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest, decode_at_identity
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import OverlapManifest, OverlappedBatch
from lakehead.wire.errors import Unreadable
from lakehead.wire.index_records import QuarantineByBlob
from lakehead.wire.spans import Spans, merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlaps:
    """The overlaps of one acceptance authority. Every method may raise `Unavailable` and `Misconfigured`."""

    store: Store
    clock: Clock
    ids: Ids
    random: Random
    observed_by: str
    """Who compares, for people."""

    most_records: int
    """No batch has more records: it bounds how far before a sequence number those begin that have it."""

    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=10, first_seconds=0.1, cap_seconds=2.0))

    async def accepted_in(
        self, agent_id: str, boot_id: str, spans: Spans, *, go_on: Callable[[], object] = lambda: None
    ) -> Sequence[BatchIdentity]:
        """Return the identities of a boot with some of these sequence numbers: accepted, or void.

        What lies between them is listed too, and not kept. That may take long: `go_on` is called now and then, and what
        it raises ends it.
        """
        folder, wanted = keys.accepted_folder(agent_id, boot_id), merged(spans)
        starts, ends = zip(*wanted, strict=True)
        first = max(0, starts[0] - self.most_records)
        found: list[BatchIdentity] = []
        listing = self.store.list(folder, start_after=f"{folder}/{first:020}")
        async with aclosing(cast("AsyncGenerator[Sequence[ListedObject], None]", listing)) as pages:
            async for page in pages:
                go_on()
                identities = [identity for each in page if (identity := keys.parse_accepted(each.key))]
                for each in identities:
                    after = bisect_right(ends, each.seq_start)  # the first span that ends after it begins
                    if after < len(starts) and starts[after] <= each.seq_end:
                        found.append(each)
                if identities and identities[-1].seq_start >= ends[-1]:
                    break
        return found

    async def accepted(self, identity: BatchIdentity) -> IdentityManifest | None:
        """Return the identity manifest of a batch; None if it is void. Raises `Unreadable`."""
        key = keys.accepted(identity)
        found = await self.store.get(key, end=IdentityManifest.MAX_BYTES + 1)
        if found is None:
            raise Unreadable(f"The object {key} does not exist any more. Bring it back from a backup.")
        record = decode_at_identity(found.body, identity)
        return record if isinstance(record, IdentityManifest) else None

    async def record(
        self, identity: BatchIdentity, frame_sha256: str, others: Iterable[OverlappedBatch], *, table: str
    ) -> OverlapManifest:
        """Put a batch in quarantine: store the record of its overlap, and the reverse reference of its frame.

        What is recorded already stays. On return both are durable. Raises `OutcomeUnknown` too, and `Unreadable` if the
        stored record is damaged; repeating it is safe.
        """
        found = OverlapManifest.of(
            identity,
            frame_sha256,
            others,
            table=table,
            observed_at_unix_ns=self.clock.now_ns(),
            observed_by=self.observed_by,
        )
        file = RecordFile(
            kind=OverlapManifest,
            key=found.key,
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            random=self.random,
            backoff=self.backoff,
        )
        stored = await file.update(lambda before: found if before is None else before.with_more(found))
        reference = QuarantineByBlob.of(stored)
        await self.store.create(reference.key, reference.encode())
        return stored
