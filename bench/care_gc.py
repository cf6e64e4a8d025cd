"""The part of the benchmark of care that is about garbage collection: how many requests it makes."""

import asyncio

from bench.care_authority import Authority
from bench.kept_results import KeptResults
from lakehead.maintain.garbage_report import BlobOutcome, GarbageReport

ORPHANS = 0.01
"""The share of frames that were never accepted."""

CLOCK_SECONDS = 2.1
"""Times of S3 are whole seconds: an audit that begins so much later is after all that was stored."""


async def requests(authority: Authority, results: KeptResults) -> None:
    """Requests for each blob by a full scan and by the index of hours, just after an audit, with few orphans."""
    accepted = len(authority.frame_keys)
    orphans = max(1, int(accepted * ORPHANS))
    for source in ("scan", "index"):
        await authority.add_orphans(orphans)
        await asyncio.sleep(CLOCK_SECONDS)
        async with authority.reconciling.opened() as reconciler:
            await reconciler.cold_scan()
            if reconciler.audit is None:
                raise RuntimeError("The cold scan is no audit.")
        found, without = await _collected(authority, source), await _collected(authority, source)
        deleted, kept = found.count(BlobOutcome.ORPHAN), found.count(BlobOutcome.ACCEPTED)
        if (deleted, kept, without.deleted) != (orphans, accepted, 0):
            raise RuntimeError(f"Of {orphans:,} orphans and {accepted:,} accepted frames, it decided {found.tallies}")
        each = (found.requests - without.requests) / deleted
        results.tell(
            f"gc by {source}: {found.requests:,} requests for {found.seen:,} blobs, {deleted / found.seen:.1%} of them "
            f"orphans; {each:.1f} requests more for each orphan that it deletes, {without.requests:,} in all when "
            "there is none"
        )
        results.judge(f"gc.requests_per_blob.{source}", found.requests_per_blob, "<=", 3)


async def _collected(authority: Authority, source: str) -> GarbageReport:
    wiring = authority.collecting
    async with wiring.collection() as collection:
        return await collection.run(await wiring.source(source))
