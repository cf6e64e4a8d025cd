"""`lakehead send`: send a file of JSON lines to a gateway."""

import asyncio
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lakehead.clock import Clock, SystemClock
from lakehead.errors import Misconfigured
from lakehead.run.environment import gateway_token
from lakehead.run.observe.event_text import counted
from lakehead.run.queue_output import printable

if TYPE_CHECKING:
    from lakehead.agent.gateway_client import Gateway
    from lakehead.agent.ndjson_file import CheckedFile, NdjsonFile

PROGRESS_SECONDS = 5.0


class KindOption(StrEnum):
    """What the records of a file are."""

    SAMPLES = "samples"
    LOGS = "logs"


def send(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="One JSON object in each line.", show_default=False)],
    *,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="The gateway, as https://gateway:8443.")],
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="The agent whose token it is.")],
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file with the token. Default: LAKEHEAD_TOKEN has it.")
    ] = None,
    boot: Annotated[
        str | None, typer.Option(metavar="ID", help="The boot id. Default: derived from the content of the file.")
    ] = None,
    kind: Annotated[KindOption, typer.Option(help="What the records are.")] = KindOption.SAMPLES,
    batch: Annotated[int, typer.Option(min=1, max=1_000_000, help="The records of a batch.")] = 1000,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="PEM", help="The authorities of the gateway's certificate.")
    ] = None,
) -> None:
    """Send a file of samples or log records to a gateway.

    A sample has time (ISO text with an offset, or nanoseconds since the Unix epoch), metric, labels and value; a log
    record time, body, attributes and more: docs/sending.md. The whole file is checked first: if a line is wrong,
    nothing is sent.

    Run it again if it fails: the same file with the same options is sent in the same batches with the same identities,
    and what was accepted before is a duplicate and lands once. Another --boot makes the same records new ones.

    Exit codes: 0 all is accepted, 1 something may not be, 2 the file, the token or another option is wrong.

    Example: lakehead send samples.ndjson --to http://127.0.0.1:8080 --agent laptop --token-file token
    """
    # Imported here: HTTP and Arrow are slow to load, and other commands should not wait for them.
    from lakehead.agent.gateway_client import Gateway, SendSettings  # noqa: PLC0415 - see above
    from lakehead.agent.ndjson_file import NdjsonFile  # noqa: PLC0415 - see above
    from lakehead.agent.plain_records import KINDS  # noqa: PLC0415 - see above

    token = _token(token_file)
    try:
        opened = file.open("rb")
    except OSError as error:
        raise Misconfigured(f"{file} cannot be read ({error.strerror}).") from None
    with opened:
        records = NdjsonFile(file=opened, name=str(file), kind=KINDS[kind.value], batch_records=batch)
        checked = records.check()
        boot = boot or f"{kind.value}-{checked.content_id or 'of-an-empty-file'}"
        gateway = Gateway(
            to,
            token=token,
            agent_id=agent,
            kind=kind.value,
            boot_id=boot,
            settings=SendSettings(ca_file=None if ca_file is None else str(ca_file)),
        )
        progress = _Progress(checked.records, SystemClock(), lambda line: typer.echo(line, err=True))
        duplicates = asyncio.run(_send_all(records, checked, gateway, progress))
    typer.echo(
        f"{counted(checked.records, 'record')} accepted in {counted(len(checked.after_batches), 'batch', 'batches')}, "
        f"{counted(duplicates, 'duplicate')} (agent {printable(agent)}, boot {printable(boot)})"
    )


async def _send_all(records: "NdjsonFile", checked: "CheckedFile", gateway: "Gateway", progress: "_Progress") -> int:
    """Send all batches, one after the other, and return how many were accepted before."""
    from lakehead.agent.errors import NotSent  # noqa: PLC0415 - see `send`

    duplicates = 0
    async with gateway:
        try:
            for batch in records.batches(checked):
                receipt = await gateway.send(batch)
                duplicates += receipt.duplicate
                progress.accepted(batch.num_rows)
        except (NotSent, asyncio.CancelledError):  # the latter by Ctrl-C
            progress.tell()
            raise
    return duplicates


class _Progress:
    """Tells every few seconds how many records are accepted."""

    def __init__(self, records: int, clock: Clock, tell: Callable[[str], None]) -> None:
        self._records, self._clock, self._tell = records, clock, tell
        self._accepted = 0
        self._told_at = clock.monotonic()

    def accepted(self, records: int) -> None:
        """Count records, and tell if that was long ago."""
        self._accepted += records
        if self._clock.monotonic() - self._told_at >= PROGRESS_SECONDS:
            self.tell()

    def tell(self) -> None:
        """Tell now."""
        self._told_at = self._clock.monotonic()
        share = self._accepted * 100 // self._records
        self._tell(f"{self._accepted:,} of {counted(self._records, 'record')} accepted ({share} %)")


def _token(file: Path | None) -> str:
    if file is None:
        if token := gateway_token():
            return token.strip()
        raise Misconfigured("There is no token. Name a file that has it by --token-file, or set LAKEHEAD_TOKEN.")
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"The token in {file} cannot be read ({error}).") from None
