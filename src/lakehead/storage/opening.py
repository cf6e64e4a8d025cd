"""From a URL to a store."""

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from lakehead.clock import Clock, SystemClock
from lakehead.errors import Misconfigured
from lakehead.ids import Ids, Random, RandomIds, system_random
from lakehead.storage.connect import Bucket, StoreSettings, connect
from lakehead.storage.keys import InvalidKey, check_prefix
from lakehead.storage.local import LocalStore
from lakehead.storage.memory import MemoryStore
from lakehead.storage.port import Store
from lakehead.storage.remote import RemoteStore

FORMS = "file:///folder, memory://name, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"

_in_memory: dict[str, MemoryStore] = {}
"""The stores of this process, by name."""


def open_store(
    url: str,
    settings: StoreSettings | None = None,
    *,
    clock: Clock | None = None,
    ids: Ids | None = None,
    random: Random | None = None,
) -> Store:
    """The store that a URL names. Nothing is sent or written yet; `probe` tells whether the store can be used.

    `file:///folder` is a folder of this machine, made with the first object. `memory://` and `memory://name` are stores
    of this process, one for each name: whoever opens one, in any thread, sees the same objects until the process ends.
    Their times are by the clock of whoever opened them first.
    `s3://bucket/prefix`, `gs://bucket/prefix` and `az://container/prefix` take `?endpoint=…` and `&region=…`.
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
                raise Misconfigured(f"The store URL {url!r} names no folder. Write file:///path/to/folder.")
            return LocalStore(Path(unquote(parts.path)), clock=clock, ids=ids, random=random)
        case "s3" | "gs" | "az":
            return _remote(url, parts, settings, clock, ids, random)
        case _:
            raise Misconfigured(f"The store URL {url!r} has an unknown scheme. Write {FORMS}.")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        password = parts.password or parts.username
    except ValueError as error:
        raise Misconfigured(f"The store URL {url!r} cannot be read ({error}). Write {FORMS}.") from None
    if password:
        raise Misconfigured("The store URL holds credentials. Give them as settings, so that they stay out of logs.")
    if parts.fragment:
        raise Misconfigured(f"The store URL {url!r} has a '#' in it, which starts a part that is never sent.")
    return parts


def _forbid(url: str, parts: SplitResult, *, host: bool = False, path: bool = False) -> None:
    if parts.query:
        raise Misconfigured(f"The store URL {url!r} takes no settings after '?'.")
    if host and parts.netloc:
        raise Misconfigured(
            f"The store URL {url!r} names a host, {parts.netloc!r}, and takes none. "
            f"Write file:///{parts.netloc}{parts.path}."
        )
    if path and parts.path.strip("/"):
        raise Misconfigured(f"The store URL {url!r} takes no path. Write {parts.scheme}://name.")


def _remote(
    url: str, parts: SplitResult, settings: StoreSettings, clock: Clock, ids: Ids, random: Random
) -> RemoteStore:
    prefix = unquote(parts.path).strip("/")
    if not parts.netloc:
        raise Misconfigured(f"The store URL {url!r} names no bucket. Write {parts.scheme}://bucket/prefix.")
    try:
        check_prefix(prefix)
    except InvalidKey as error:
        raise Misconfigured(f"The store URL {url!r} cannot be used. {error}") from None
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(query.keys() - {"endpoint", "region"}):
        raise Misconfigured(
            f"The store URL {url!r} has the unknown setting {unknown[0]!r}. It takes endpoint and region."
        )
    settings = replace(
        settings,
        endpoint=query.get("endpoint", settings.endpoint).rstrip("/"),
        region=query.get("region", settings.region),
    )
    if settings.endpoint and not re.match(r"https?://[^/]", settings.endpoint):
        raise Misconfigured(
            f"The endpoint {settings.endpoint!r} is no address. Write http://host:port or https://host."
        )
    bucket = Bucket(parts.scheme, parts.netloc, prefix)
    return RemoteStore(
        name=f"{bucket.scheme}://{bucket.name}",
        once=connect(bucket, settings, retries=0),
        retrying=connect(bucket, settings, retries=settings.backoff.attempts - 1),
        versioned_by="version" if bucket.scheme == "gs" else "e_tag",
        backoff=settings.backoff,
        clock=clock,
        ids=ids,
        random=random,
    )
