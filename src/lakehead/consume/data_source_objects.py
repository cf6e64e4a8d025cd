"""Which objects `spark.read.format("lakehead")` reads, and in which tasks."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lakehead.consume.decode.decode import count_rows, split_object
from lakehead.consume.decode.frames import SUFFIX as FRAME_SUFFIX
from lakehead.consume.decode.rows import FormatName, ObjectFormat, ObjectPart, ObjectRefused
from lakehead.consume.object_reader import ObjectReader
from lakehead.consume.queues.listed_files import is_temporary, pages_after
from lakehead.consume.uris import normalise, normalise_prefix, split_uri
from lakehead.errors import Misconfigured
from lakehead.storage.connect import StoreSettings
from lakehead.storage.open_store import open_store

TASK_BYTES = 32 * 2**20
"""Bytes of objects that one task reads. Larger objects are split, if their format allows it."""

BATCH_SUFFIX = ".batch"
"""How an `Ingestor` names its batches. Its manifests may be in the same folder."""

_SUFFIXES = {FormatName.KEY_VALUE: BATCH_SUFFIX, FormatName.FRAMES: FRAME_SUFFIX}

OPENING_BYTES = 256 * 2**10
"""What opening an object costs, as bytes, so that many tiny objects are not all in one task."""


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object of a folder or prefix."""

    uri: str
    size: int


@dataclass(frozen=True, slots=True)
class ObjectPiece:
    """An object, or a part of one, for a task to read."""

    uri: str
    part: ObjectPart | None = None
    first_row: int = 0


def find_objects(urls: Sequence[str], form: ObjectFormat, stores: Mapping[str, StoreSettings]) -> list[FoundObject]:
    """Return objects, and those of folders and prefixes without hidden and temporary ones, in the order of their URIs.

    Of a folder of key-value batches only the batches are taken, and of frames only the frames. Raises `Misconfigured`
    if a URL leads to nothing.
    """
    suffix = _SUFFIXES.get(form.name, "")
    found = {each.uri: each for url in urls for each in _objects(url, suffix, stores)}
    return [found[uri] for uri in sorted(found)]


def partitions_of(
    objects: Sequence[FoundObject], form: ObjectFormat, reader: ObjectReader, task_bytes: int = TASK_BYTES
) -> list[list[ObjectPiece]]:
    """Divide objects over tasks, in order. The lines of an NDJSON object that is split are counted here."""
    groups: list[list[ObjectPiece]] = []
    size = task_bytes
    for each in objects:
        if each.size > task_bytes:
            groups += [[piece] for piece in _pieces(each, form, reader, task_bytes)]
            size = task_bytes
            continue
        if size + each.size > task_bytes:
            groups.append([])
            size = 0
        groups[-1].append(ObjectPiece(each.uri))
        size += each.size + OPENING_BYTES
    return groups


def _pieces(each: FoundObject, form: ObjectFormat, reader: ObjectReader, task_bytes: int) -> Iterator[ObjectPiece]:
    source, size, _ = reader.open(each.uri)
    with source:
        try:
            parts = split_object(source, form, size, task_bytes)
            first_row = 0
            for number, part in enumerate(parts, 1):
                yield ObjectPiece(each.uri, part if len(parts) > 1 else None, first_row)
                first_row += count_rows(source, form, part) if number < len(parts) else 0
        except ObjectRefused as error:
            raise ObjectRefused(f"{each.uri}: {error}") from None


def _objects(url: str, suffix: str, stores: Mapping[str, StoreSettings]) -> list[FoundObject]:
    url = url if "://" in url else str(Path(url.removeprefix("file:")).expanduser().absolute())
    prefix = normalise_prefix(url)
    scheme, _, key = split_uri(prefix)
    if scheme == "file":
        found = _files(Path(f"/{key}"), suffix)
    else:
        found = asyncio.run(_listed(prefix, suffix, stores.get(scheme)))
    if not found:
        raise Misconfigured(f"There is nothing to read at {url}. Check the path.")
    return found


def _files(path: Path, suffix: str) -> list[FoundObject]:
    if path.is_file():
        return [FoundObject(normalise(path.as_uri()), path.stat().st_size)]
    below = path.rglob(f"*{suffix}")
    files = [each for each in below if not is_temporary(str(each.relative_to(path))) and each.is_file()]
    return [FoundObject(normalise(each.as_uri()), each.stat().st_size) for each in files]


async def _listed(prefix: str, suffix: str, settings: StoreSettings | None) -> list[FoundObject]:
    """List a folder of a bucket; if it has no objects, the URL names one."""
    folder = prefix.rstrip("/") + "/"
    store, found = open_store(folder, settings), list[FoundObject]()
    async for page in pages_after(store, ""):
        named = [each for each in page if each.key.endswith(suffix) and not is_temporary(each.key)]
        found += [FoundObject(folder + each.key, each.size) for each in named]
    if found or prefix.endswith("/"):
        return found
    parent, _, name = prefix.rpartition("/")
    if found_one := await open_store(parent, settings).head(name):
        return [FoundObject(prefix, found_one.size)]
    return []
