"""What is done with objects that have landed: they are deleted, moved to another folder, or tagged.

The order is: the landing is settled, the action is done, its message is acknowledged. After a crash in between, the
message comes again, its unit is found to have landed, and the action is done again if it is still to be done. Units
have the ETag in their ids, so it is known which content has landed, and an object that has another one by now is left
alone. It is looked up right before the action; stores cannot delete on a condition, so a content that replaces the
landed one within those milliseconds is lost (a file that is moved on one disk is put back). Tags are added to the
version that was looked up, in a bucket that keeps versions.
"""

import asyncio
import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from filecmp import cmp
from os.path import samestat
from pathlib import Path
from typing import BinaryIO, Literal

import obstore

from lakehead.consume.object_clients import ObjectClients, ObjectHead, file_etag
from lakehead.consume.objects import ObjectRef
from lakehead.consume.ports import ActionReport
from lakehead.consume.queues.daemon_pool import DaemonPool
from lakehead.consume.s3_tags import S3Tags
from lakehead.consume.uris import ObjectAddress, normalise_prefix, parse_uri, split_uri
from lakehead.consume.web_urls import InvalidUri
from lakehead.errors import LakeheadError
from lakehead.state.model import ShardState
from lakehead.state.state import State
from lakehead.storage.obstore_errors import ObstoreErrors

LOG = logging.getLogger(__name__)

AT_ONCE = 32
"""Objects that are deleted, moved or tagged concurrently."""

TAGGED_AT_ONCE = 8
"""Requests for tags at a time: each blocks a thread."""


class AfterLanding:
    """Deletes, moves or tags the objects of one pipeline's landed units. What fails is logged, and left as it is."""

    def __init__(
        self,
        action: Literal["delete", "move", "tag"],
        state: State,
        clients: ObjectClients,
        move_to: str = "",
        tags: S3Tags | None = None,
    ) -> None:
        """`move_to` is the folder that objects are moved to, each under its whole key; `tags` adds tags to them."""
        self._action = action
        self._state = state
        self._clients = clients
        self._target = split_uri(_folder(move_to)) if action == "move" else None
        self._tags = tags
        self._tagging = DaemonPool(TAGGED_AT_ONCE, "s3-tags")

    async def act(self, table: str, units: Collection[str]) -> ActionReport:
        """Delete, move or tag the objects of those units of a table, named by its uuid, that have landed.

        Objects of units that were given up are left alone, and so are those that changed or are gone.
        """
        shards = await asyncio.to_thread(self._state.shards.read, table, units)
        landed = [each.unit for each in shards if each.state is ShardState.COMPLETED and each.snapshot is not None]
        limit = asyncio.Semaphore(AT_ONCE)
        outcomes = await asyncio.gather(*(self._act_on(unit, limit) for unit in landed))
        return ActionReport(done=outcomes.count(True), failed=outcomes.count(False))

    async def _act_on(self, unit: str, limit: asyncio.Semaphore) -> bool | None:
        """Return whether an object was deleted, moved or tagged; None if there was nothing to do."""
        with suppress(InvalidUri):  # content that came in its message
            ref = parse_uri(unit)
            if ref.etag is None:
                return None
            async with limit:
                try:
                    return await self._change(ref)
                except (LakeheadError, OSError) as error:
                    LOG.warning("%s has landed, and its %s failed: %s", ref.uri, self._action, error)
                    return False
        return None

    async def _change(self, ref: ObjectRef) -> bool | None:
        head = await self._clients.head(ref.uri)
        if head is None or head.etag != ref.etag:
            return None
        place = split_uri(ref.uri)
        if self._tags is not None:
            return await self._tag(self._tags, place, head.version)
        if self._target is not None:
            if place.scheme == "file" == self._target.scheme:
                return await asyncio.to_thread(_move_file, place, self._target, head.etag) or None
            await self._copy(place, self._target, head)
            if not await self._is_unchanged(ref):  # then another content may have been copied
                return None
        await self._delete(place)
        return True

    async def _is_unchanged(self, ref: ObjectRef) -> bool:
        head = await self._clients.head(ref.uri)
        return head is not None and head.etag == ref.etag

    async def _tag(self, tags: S3Tags, place: ObjectAddress, version: str | None) -> bool | None:
        if place.scheme != "s3":
            raise OSError("only objects of S3 have tags")
        call = self._tagging.submit(lambda: tags.add(place.bucket, place.key, version))
        return await asyncio.wrap_future(call) or None

    async def _delete(self, place: ObjectAddress) -> None:
        if place.scheme == "file":
            await asyncio.to_thread(Path(f"/{place.key}").unlink, missing_ok=True)
            return
        with _errors(place).translated():
            await obstore.delete_async(self._clients.of(place.scheme, place.bucket), place.key)

    async def _copy(self, place: ObjectAddress, target: ObjectAddress, head: ObjectHead) -> None:
        """Copy an object: by the store itself within a bucket, else through this process, some MiB at a time.

        Nothing is overwritten: if another object has its name there, its own gets its ETag at the end.
        """
        if "file" in (place.scheme, target.scheme):
            raise OSError("a file can only be moved to a folder of this machine, and an object only to a bucket")
        source, key = self._clients.of(place.scheme, place.bucket), f"{target.key}{place.key}"
        there = await self._clients.head(f"{target.scheme}://{target.bucket}/{key}")
        if there is not None and there[:2] == head[:2]:
            return  # it was copied before a crash
        key = key if there is None else f"{key}.{head.etag}"
        with _errors(place).translated():
            if place[:2] == target[:2]:
                await obstore.copy_async(source, place.key, key)
                return
            found = await obstore.get_async(source, place.key)
            with _errors(target).translated():
                await obstore.put_async(self._clients.of(target.scheme, target.bucket), key, found.stream())


def _folder(url: str) -> str:
    folder = normalise_prefix(url)
    return folder if folder.endswith("/") else f"{folder}/"


def _errors(place: ObjectAddress) -> ObstoreErrors:
    return ObstoreErrors(f"{place.scheme}://{place.bucket}")


def _move_file(place: ObjectAddress, target: ObjectAddress, etag: str) -> bool:
    """Move a file, also to another disk. Readers of the target see it whole or not at all.

    Nothing is overwritten: if another file has its name there, its own gets its ETag at the end. False if the file
    changed before it was moved or while it was copied, or another process moves it: then it stays.
    """
    source, named = Path(f"/{place.key}"), Path(f"/{target.key}") / place.key
    if source.is_symlink():
        raise OSError("it is a symbolic link, which may lead nowhere from another folder")
    named.parent.mkdir(parents=True, exist_ok=True)
    end = _free_name(named, etag)
    try:
        source.replace(end)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return _move_to_another_disk(source, named, etag)
    if file_etag(end.stat()) == etag:
        return True
    if not source.exists():  # else a third content has come, which replaces this one anyway
        end.rename(source)
    return False


def _free_name(named: Path, etag: str) -> Path:
    return named.with_name(f"{named.name}.{etag}") if named.exists() else named


def _move_to_another_disk(source: Path, named: Path, etag: str) -> bool:
    """Copy a file and remove it; only remove it if it was copied before a crash.

    A copy takes long, so the file's message may come again meanwhile, to another process too. Whoever copies holds a
    lock, and others leave the file alone.
    """
    partial = named.with_name(f".{named.name}.part")
    with partial.open("ab") as copy:
        try:
            fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        try:
            if not _is_at(copy, partial):  # whoever had the lock before has renamed or removed it
                return False
            is_moved = _copy_and_remove(source, named, etag, copy, partial)
            if _is_at(copy, partial):
                partial.unlink()
            return is_moved
        finally:
            fcntl.flock(copy, fcntl.LOCK_UN)  # closing it is not enough: a process forked meanwhile has it open too


def _copy_and_remove(source: Path, named: Path, etag: str, copy: BinaryIO, partial: Path) -> bool:
    if not _has_etag(source, etag):
        return False
    end = _free_name(named, etag)
    if not any(each.is_file() and cmp(source, each, shallow=False) for each in (named, end)):
        copy.truncate(0)  # what a process has left that died
        with source.open("rb") as opened:
            shutil.copyfileobj(opened, copy)
        copy.flush()
        shutil.copystat(source, partial)
        os.fsync(copy.fileno())
        if not _has_etag(source, etag):
            return False
        partial.replace(end)
    elif not _has_etag(source, etag):
        return False
    source.unlink()
    return True


def _is_at(opened: BinaryIO, path: Path) -> bool:
    try:
        return samestat(os.fstat(opened.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _has_etag(path: Path, etag: str) -> bool:
    try:
        return file_etag(path.stat()) == etag
    except FileNotFoundError:
        return False
