"""Opening a store by its URL."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from lakehead.clock import Clock, SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import Ids, Random, RandomIds, system_random
from lakehead.storage.connect import Bucket, StoreSettings, connect
from lakehead.storage.local_store import LocalStore
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.object_keys import InvalidKey, check_prefix
from lakehead.storage.obstore_requests import ObstoreRequests
from lakehead.storage.port import Store
from lakehead.storage.reliable_writes import ReliableWrites
from lakehead.storage.remote_store import RemoteStore

URL_FORMS = "file:///folder, memory://name, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"

_in_memory: dict[str, MemoryStore] = {}
"""The in-memory stores of this process, by name."""


def open_store(
    url: str,
    settings: StoreSettings | None = None,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    random: Random | None = None,
) -> Store:
    """Open the store at a URL. Nothing is sent or written yet; `probe` checks whether the store can be used.

    `file:///folder` is a folder of this machine, created with the first object. `memory://` and `memory://name` are
    in-memory stores, one per name: every caller in this process, in any thread, gets the same objects. Modification
    times come from the clock of the first caller.
    `s3://bucket/prefix`, `gs://bucket/prefix` and `az://container/prefix` accept `?endpoint=…` and `&region=…`.
    Raises `Misconfigured` for any other URL.
    """
    settings = settings or StoreSettings()
    clock = clock or SystemClock()
    ids = ids or RandomIds()
    random = random or system_random()
    parts = _split(url)
    match parts.scheme:
        case "memory":
            _forbid(url, parts, path=True)
            return _in_memory.setdefault(parts.netloc, MemoryStore(clock=clock))
        case "file":
            _forbid(url, parts, host=True)
            if not parts.path.strip("/"):
                raise Misconfigured(f"The store URL {url!r} has no folder. Write file:///path/to/folder.")
            return LocalStore(Path(unquote(parts.path)), clock=clock, ids=ids, random=random)
        case "s3" | "gs" | "az":
            return _remote(url, settings, clock, ids, random)
        case _:
            raise Misconfigured(f"The store URL {url!r} has an unknown scheme. Write {URL_FORMS}.")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        password = parts.password or parts.username
    except ValueError as error:
        raise Misconfigured(f"The store URL {url!r} is invalid ({error}). Write {URL_FORMS}.") from None
    if password:
        raise Misconfigured("The store URL contains credentials. Pass them as settings, so that they stay out of logs.")
    if parts.fragment:
        raise Misconfigured(f"The store URL {url!r} contains a '#', which is not allowed. Remove it.")
    return parts


def _forbid(url: str, parts: SplitResult, *, host: bool = False, path: bool = False) -> None:
    if parts.query:
        raise Misconfigured(f"The store URL {url!r} takes no settings after '?'. Remove them.")
    if host and parts.netloc:
        raise Misconfigured(
            f"The store URL {url!r} has a host, {parts.netloc!r}, which is not allowed. "
            f"Write file:///{parts.netloc}{parts.path}."
        )
    if path and parts.path.strip("/"):
        raise Misconfigured(f"The store URL {url!r} takes no path. Write {parts.scheme}://name.")


def locate(url: str, settings: StoreSettings) -> tuple[Bucket, StoreSettings]:
    """Return the bucket of an `s3://`, `gs://` or `az://` URL, and the settings with what the URL says of them.

    Raises `Misconfigured` for an invalid one.
    """
    parts = _split(url)
    prefix = unquote(parts.path).strip("/")
    if not parts.netloc:
        raise Misconfigured(f"The store URL {url!r} has no bucket. Write {parts.scheme}://bucket/prefix.")
    try:
        check_prefix(prefix)
    except InvalidKey as error:
        raise Misconfigured(f"The store URL {url!r} is invalid. {error}") from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(query.keys() - {"endpoint", "region"}):
        raise Misconfigured(
            f"The store URL {url!r} has the unknown setting {unknown[0]!r}. Only endpoint and region are allowed."
        )
    settings = replace(
        settings,
        endpoint=query.get("endpoint", settings.endpoint).rstrip("/"),
        region=query.get("region", settings.region),
    )
    if settings.endpoint and not re.match(r"https?://[^/]", settings.endpoint):
        raise Misconfigured(
            f"The endpoint {settings.endpoint!r} is not a valid address. Write http://host:port or https://host."
        )
    return Bucket(parts.scheme, parts.netloc, prefix), settings


def _remote(url: str, settings: StoreSettings, clock: Clock, ids: Ids, random: Random) -> RemoteStore:
    bucket, settings = locate(url, settings)
    name = f"{bucket.scheme}://{bucket.name}"
    versioned_by: Literal["e_tag", "version"] = "version" if bucket.scheme == "gs" else "e_tag"
    retrying = connect(bucket, settings, retries=settings.backoff.attempts - 1)
    once = connect(bucket, settings, retries=0)
    return RemoteStore(
        reads=ObstoreRequests(retrying, name=name, versioned_by=versioned_by),
        writes=ReliableWrites(
            requests=ObstoreRequests(once, name=name, versioned_by=versioned_by),
            clock=clock,
            ids=ids,
            random=random,
            backoff=settings.backoff,
        ),
    )
