"""`lakehead gc`: delete raw blobs that were never accepted, and those of batches that landed long ago."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lakehead.errors import LakeheadError, Misconfigured
from lakehead.run.environment import ENVIRONMENT
from lakehead.run.gateway_command import ConfigFile, operator
from lakehead.run.log_output import log_to_stderr
from lakehead.run.metrics_server import MetricsPort, serve_metrics
from lakehead.run.queue_options import AsJson
from lakehead.run.queue_output import print_json, print_table, printable, utc_time
from lakehead.run.table_options import DryRun, parse_age

if TYPE_CHECKING:
    from lakehead.maintain.blob_references import BlobSource
    from lakehead.maintain.garbage_collection import GarbageCollection
    from lakehead.maintain.garbage_metrics import GarbageTotals
    from lakehead.maintain.garbage_report import BlobDecision, GarbageReport
    from lakehead.maintain.garbage_settings import RunOptions
    from lakehead.run.gc_wiring import GcWiring

TOLD_EVERY = 5.0
"""Seconds between two lines of progress."""


def gc(  # noqa: PLR0913 - typer's shape: one argument for each option
    file: ConfigFile,
    *,
    dry_run: DryRun = False,
    source: Annotated[
        Literal["scan", "index", "inventory"] | None,
        typer.Option(help="How blobs are found: all, those of the hours of the index, or those of a report."),
    ] = None,
    inventory: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The manifest.json of an S3 Inventory report.", show_default=False),
    ] = None,
    since: Annotated[
        timedelta | None,
        typer.Option(
            parser=parse_age, metavar="AGE", help="With the index: only the hours since then.", show_default="all"
        ),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Audit what no reconciler has audited: reads all identity manifests.")
    ] = False,
    every: Annotated[
        timedelta | None,
        typer.Option(parser=parse_age, metavar="AGE", help="Stay, and run it this often: 6h, 1d.", show_default="once"),
    ] = None,
    metrics_port: MetricsPort = None,
    as_json: AsJson = False,
) -> None:
    """Delete raw blobs that were never accepted; with raw_blobs.retention_days also those of landed batches.

    A blob goes only if it is older than the retry horizon by the store's clock, nothing refers to it, an audit says so,
    and its identity became void, so that nothing can be accepted with it. Everything else is kept and told with the
    reason. Gateways and other collectors may run meanwhile. Exit codes: 0 done, 1 something did not answer: run it
    again, 2 the configuration is wrong.

    Example: lakehead gc conf/gateway.toml --dry-run

    Example: lakehead gc conf/gateway.toml --source index --since 30d --every 6h --metrics-port 9110
    """
    # Imported here: slow to load, and other commands should not wait for it.
    from lakehead.run.config.config_file import read_config  # noqa: PLC0415 - see above
    from lakehead.run.gc_wiring import GcWiring  # noqa: PLC0415 - see above

    chosen = source or ("inventory" if inventory else "scan")
    if (inventory is not None) != (chosen == "inventory"):
        raise Misconfigured("--inventory and --source inventory need each other: name the manifest.json of a report.")
    if since is not None and chosen != "index":
        raise Misconfigured("--since is for --source index.")
    if metrics_port is not None and every is None:
        raise Misconfigured("--metrics-port is for a collector that stays: use it with --every.")
    wiring = GcWiring(read_config(file), ENVIRONMENT)
    job = _Job(
        wiring,
        lambda: wiring.source(chosen, inventory=inventory, since=since),
        is_dry_run=dry_run,
        makes_audit=audit,
        as_json=as_json,
    )
    if every is None:
        report = asyncio.run(job.once())
        raise typer.Exit(1 if report.has_failures or not report.is_complete else 0)
    with log_to_stderr():
        asyncio.run(job.stay(every, metrics_port))


@dataclass
class _Job:
    """What the command was asked for."""

    wiring: "GcWiring"
    source: "Callable[[], Awaitable[BlobSource]]"
    is_dry_run: bool
    makes_audit: bool
    as_json: bool
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    _told_at: float = 0.0

    async def once(self) -> "GarbageReport":
        """Run it once, and print the report."""
        with self._stopping("what was begun is done first"):
            async with self.wiring.collection() as collection:
                return await self._run(collection)

    async def stay(self, every: timedelta, metrics_port: int | None) -> None:
        """Run it until it is stopped. A run that fails because something does not answer is made again later.

        Each opens everything anew: a table may have been created since, or dropped and made again, and what landed in
        the one before is no reason to delete a frame.
        """
        from lakehead.maintain.garbage_metrics import GarbageTotals  # noqa: PLC0415 - only this form needs it

        totals = GarbageTotals()
        with self._stopping("what was begun is done first"), _metrics(totals, metrics_port):
            while not self.stop.is_set():
                try:
                    async with self.wiring.collection() as collection:
                        totals.add(await self._run(collection))
                except LakeheadError as error:
                    if isinstance(error, Misconfigured):
                        raise
                    totals.add(None)
                    typer.echo(f"lakehead: {error}", err=True)
                try:
                    async with asyncio.timeout(every.total_seconds()):
                        await self.stop.wait()
                except TimeoutError:
                    continue

    async def _run(self, collection: "GarbageCollection") -> "GarbageReport":
        deleted: list[BlobDecision] = []
        report = await collection.run(await self.source(), self._options(deleted))
        if self.as_json:
            print_json(report_fields(report, deleted))
        else:
            print_report(report, self.wiring.gateway.config.store)
        return report

    def _options(self, deleted: "list[BlobDecision]") -> "RunOptions":
        from lakehead.maintain.garbage_settings import RunOptions  # noqa: PLC0415 - loaded by now

        def decided(decision: "BlobDecision") -> None:
            if not decision.outcome.is_deleted:
                return
            if self.as_json:
                deleted.append(decision)
            elif self.is_dry_run:
                typer.echo(f"{decision.key}  {decision.outcome}  {printable(decision.note)}")

        return RunOptions(
            by=operator(),
            is_dry_run=self.is_dry_run,
            makes_audit=self.makes_audit,
            decided=decided,
            looked=self._tell,
            is_stopped=self.stop.is_set,
        )

    def _tell(self, what: str, count: int) -> None:
        """Tell how far it is, on standard error and not too often."""
        now = self.wiring.gateway.clock.monotonic()
        if not self._told_at:
            self._told_at = now
        if now - self._told_at >= TOLD_EVERY:
            self._told_at = now
            typer.echo(f"… {count:,} {what}", err=True)

    @contextmanager
    def _stopping(self, what: str) -> Iterator[None]:
        from lakehead.run.stop_signals import stop_signals  # noqa: PLC0415 - only this command needs it

        def ended_by(who: str) -> None:
            typer.echo(f"Stopped by {who}: {what}.", err=True)
            self.stop.set()

        with stop_signals(ended_by):
            yield


def _metrics(totals: "GarbageTotals", port: int | None) -> AbstractContextManager[object]:
    if port is None:
        return nullcontext()
    from lakehead.maintain.garbage_metrics import GarbageMetrics  # noqa: PLC0415 - only this form needs it

    return serve_metrics(GarbageMetrics(totals), port)


def print_report(report: "GarbageReport", store: str) -> None:
    """Print a report for people."""
    from lakehead.maintain.garbage_report import MEANINGS  # noqa: PLC0415 - loaded by now

    rows = [
        (
            "deleted" if outcome.is_deleted else "kept",
            outcome.value,
            f"{tally.count:,}",
            f"{tally.bytes:,}",
            MEANINGS[outcome],
        )
        for outcome, tally in sorted(report.tallies.items(), key=lambda each: (not each[0].is_deleted, each[0].value))
    ]
    print_table(("BLOBS", "REASON", "COUNT", "BYTES", "MEANING"), rows)
    for outcome, tally in report.tallies.items():
        for each in tally.examples if outcome.needs_attention else ():
            typer.echo(f"  {outcome}: {printable(each.key)} {printable(each.note)}".rstrip())
    done = "would be deleted" if report.is_dry_run else "deleted"
    typer.echo(
        f"{printable(store)}: {report.deleted:,} of {report.seen:,} blobs {done}; {report.requests:,} requests, "
        f"{report.requests_per_blob:.2f} for each blob"
    )
    if not report.is_complete:
        typer.echo("It was stopped before everything was looked at. Run it again.")


def report_fields(report: "GarbageReport", deleted: "list[BlobDecision]") -> dict[str, object]:
    """A report for programs."""
    from lakehead.maintain.garbage_report import MEANINGS  # noqa: PLC0415 - loaded by now

    through = report.audited_through_ns
    return {
        "source": report.source,
        "dry_run": report.is_dry_run,
        "complete": report.is_complete,
        "store_time": utc_time(report.store_now_ns // 1_000_000),
        "audited_through": None if through is None else utc_time(through // 1_000_000),
        "seen": report.seen,
        "deleted": report.deleted,
        "requests": report.requests,
        "requests_per_blob": round(report.requests_per_blob, 3),
        "outcomes": {
            outcome.value: {
                "blobs": tally.count,
                "bytes": tally.bytes,
                "deleted": outcome.is_deleted,
                "meaning": MEANINGS[outcome],
                "examples": [{"key": each.key, "note": each.note} for each in tally.examples],
            }
            for outcome, tally in sorted(report.tallies.items())
        },
        "deleted_blobs": [
            {"key": each.key, "bytes": each.size, "reason": each.outcome.value, "note": each.note} for each in deleted
        ],
    }
