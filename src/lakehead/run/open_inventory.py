"""Opens an S3 Inventory report where S3 has written it, or in a folder to which it was copied."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from lakehead.errors import Misconfigured
from lakehead.run.environment import store_settings
from lakehead.storage.open_store import open_store
from lakehead.wire.errors import Unreadable

if TYPE_CHECKING:
    from lakehead.maintain.inventory import InventoryReport
    from lakehead.run.gateway_wiring import GatewayWiring

MANIFEST_BYTES = 64 << 20


async def open_report(url: str, gateway: "GatewayWiring") -> "InventoryReport":
    """Open the report with this `manifest.json`, for the store of a gateway.

    Keys are told relative to the prefix of that store. Raises `Misconfigured` if there is no report, or it is one of
    another bucket, and `Unavailable`.
    """
    # Only with a report: slow to load.
    from lakehead.maintain.inventory import InventoryReport  # noqa: PLC0415 - see above
    from lakehead.wire.s3_inventory import decode_manifest  # noqa: PLC0415 - see above

    parts = urlsplit(url)
    path = unquote(parts.path).strip("/")
    if not parts.scheme or not path.endswith(".json"):
        raise Misconfigured(f"{url} is not the URL of a report's manifest.json, as S3 Inventory writes it.")
    root = f"{parts.scheme}://{parts.netloc}"
    if parts.scheme == "file":
        root, path = await asyncio.to_thread(_local_root, Path(f"/{path}"))
    where = store_settings(root, gateway.environment)
    store = open_store(root, where, clock=gateway.clock, ids=gateway.ids, random=gateway.random)
    found = await store.get(path, end=MANIFEST_BYTES)
    if found is None:
        raise Misconfigured(f"There is no report at {url}. Name its manifest.json.")
    try:
        manifest = decode_manifest(found.body)
    except Unreadable as error:
        raise Misconfigured(f"{url}: {error}") from error
    wanted = urlsplit(gateway.config.store)
    if wanted.scheme != "file" and manifest.source_bucket != wanted.netloc:
        raise Misconfigured(
            f"The report {url} is of the bucket {manifest.source_bucket}, and the gateway's store is {wanted.netloc}."
        )
    prefix = unquote(wanted.path).strip("/")
    return InventoryReport(store=store, manifest=manifest, prefix=f"{prefix}/" if prefix else "")


def _local_root(path: Path) -> tuple[str, str]:
    """The folder that stands for the bucket of a copied report, and the key of its manifest there.

    Keys of data files are those of the bucket: the folder is the one below which they are.
    """
    from lakehead.wire.s3_inventory import decode_manifest  # noqa: PLC0415 - slow to load

    try:
        files = decode_manifest(path.read_bytes()).files
    except (OSError, Unreadable):
        files = ()  # whoever reads it says what is wrong
    folder = next((each for each in path.parents if files and (each / files[0].key).exists()), path.parent)
    return f"file://{folder}", str(path.relative_to(folder))
