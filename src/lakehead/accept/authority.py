"""The authority record: which bucket and prefix is the acceptance authority, in which mode, with which open spools."""

from dataclasses import dataclass, field

import msgspec

from lakehead.accept.audit import AuditTrail
from lakehead.accept.record_file import RecordFile
from lakehead.clock import Clock
from lakehead.errors import Misconfigured, Unavailable
from lakehead.ids import Ids, Random
from lakehead.retry import Backoff
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.authority_records import AcceptanceMode, AuthorityRecord, OpenSpool


class NoAuthority(Misconfigured):
    """Run `lakehead gateway init`, or correct the bucket or prefix: no authority was ever set up there."""


class AnotherAuthority(Misconfigured):
    """Correct the settings: the record is of another bucket or prefix, or of another mode."""


class SpoolsOpen(Misconfigured):
    """Drain the gateways that are named first: they may hold batches that are not in the store yet."""


class SpoolClosed(Unavailable):
    """Open the spool again: it was open when the gateway looked, and somebody has closed it since."""


class NoSuchSpool(Misconfigured):
    """Correct the id of the spool: none that is open has it."""


@dataclass(frozen=True, slots=True)
class Initialised:
    """The authority record, and whether this call has created it."""

    record: AuthorityRecord
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """The authority that a bucket and prefix are, or shall be. Every method may raise `Unavailable` and `Unreadable`,
    those that change the record also `OutcomeUnknown`: then repeating it is safe.
    """

    store: Store
    """Of exactly this bucket and prefix."""

    clock: Clock
    ids: Ids
    random: Random
    bucket: str
    prefix: str
    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=10, first_seconds=0.1, cap_seconds=2.0))

    async def init(self, mode: AcceptanceMode, *, by: str = "unknown") -> Initialised:
        """Create the authority record, unless it exists for the same bucket, prefix and mode.

        Raises `AnotherAuthority` if it exists for another.
        """
        authority_id = self.ids.uuid()

        def create(found: AuthorityRecord | None) -> AuthorityRecord:
            if found is not None:
                return self._checked(found, mode)
            return AuthorityRecord(
                authority_id=authority_id,
                bucket=self.bucket,
                prefix=self._prefix,
                mode=mode,
                epoch=1,
                version=1,
            )

        before = await self._file.read()
        after = create(before)
        if before is None:
            after.encode_checked()  # refused before there is a trace of it
            await self._audit.append("init", by=by, subject=keys.AUTHORITY, after=after)
        record = await self._file.update(create)
        return Initialised(record, is_new=record.authority_id == authority_id)

    async def check(self, mode: AcceptanceMode) -> AuthorityRecord:
        """Return the record that a gateway of this mode starts with. Its id goes into the answers to agents.

        Raises `NoAuthority` and `AnotherAuthority`.
        """
        return self._checked(await self._file.read(), mode)

    async def read(self) -> AuthorityRecord:
        """Return the record, whatever its mode. Raises `NoAuthority`, and `AnotherAuthority` for another place."""
        return self._of_this_place(await self._file.read())

    async def open_spool(
        self, spool_id: str, *, collector_id: str, address: str = "", was_open: bool = False
    ) -> AuthorityRecord:
        """Record that a gateway's spool may hold accepted batches from now on, before it accepts the first.

        A spool that is open already, after a crash, stays open. If it `was_open` when the gateway looked, it must still
        be, else garbage collection has not asked it meanwhile: raises `SpoolClosed`. Raises `AnotherAuthority` if the
        mode is not `local_spool` any more, or another gateway has the spool open: then it may be a copy of that one's
        disk. Also if the gateway has another spool open: then its disk may not be mounted, with batches that only that
        one knows.
        """

        def open_it(found: AuthorityRecord | None) -> AuthorityRecord:
            record = self._checked(found, "local_spool")
            there = next((each for each in record.open_spools if each.spool_id == spool_id), None)
            if there is None and was_open:
                raise SpoolClosed(
                    f"The spool {spool_id} was closed by somebody while the gateway {collector_id} opened it. Start "
                    "the gateway again."
                )
            if there is None:
                if other := next((each for each in record.open_spools if each.collector_id == collector_id), None):
                    raise AnotherAuthority(
                        f"The gateway {collector_id} has the spool {other.spool_id} open, and its folder holds another "
                        "one or none. Mount its disk, or correct ingest.spool_folder; if this is another gateway, give "
                        "it its own collector_id; if the disk is gone for good, close its spool: `lakehead gateway "
                        f"drain CONFIG --lost {other.spool_id}`."
                    )
                opened = OpenSpool(
                    spool_id=spool_id,
                    collector_id=collector_id,
                    address=address,
                    opened_at_unix_ns=self.clock.now_ns(),
                )
                return msgspec.structs.replace(record, open_spools=(*record.open_spools, opened))
            if there.collector_id != collector_id:
                raise AnotherAuthority(
                    f"The spool {spool_id} is open at the gateway {there.collector_id}, not at {collector_id}. If this "
                    "is a copy of that gateway's disk, start with an empty spool; if the gateway was renamed, start it "
                    "under its old name and let it empty its spool first."
                )
            # Written also if nothing changes: the close of an earlier process that comes late finds another version.
            moved = msgspec.structs.replace(there, address=address)
            return msgspec.structs.replace(
                record, open_spools=tuple(moved if each is there else each for each in record.open_spools)
            )

        return await self._file.update(open_it)

    async def close_spool(self, spool_id: str, *, by: str) -> AuthorityRecord:
        """Record that a spool is empty and accepts nothing more. It is no error if it is not open.

        Only who has the spool open knows that: what a closed one still held would be neither found nor waited for.
        """
        before = await self.read()
        if all(each.spool_id != spool_id for each in before.open_spools):
            return before
        await self._audit.append("close_spool", by=by, subject=keys.AUTHORITY, because_of=spool_id, before=before)
        return await self._close_spool(spool_id)

    async def _close_spool(self, spool_id: str) -> AuthorityRecord:
        def close(found: AuthorityRecord | None) -> AuthorityRecord:
            record = self._of_this_place(found)
            left = tuple(each for each in record.open_spools if each.spool_id != spool_id)
            return record if len(left) == len(record.open_spools) else msgspec.structs.replace(record, open_spools=left)

        return await self._file.update(close)

    async def give_up_spool(self, spool_id: str, *, by: str) -> OpenSpool:
        """Close a spool whose disk is gone for good, so that nobody waits for it. What it held is lost.

        Returns what the record said of it. Raises `NoSuchSpool` if it is not open.
        """
        record = await self.read()
        there = next((each for each in record.open_spools if each.spool_id == spool_id), None)
        if there is None:
            names = ", ".join(f"{each.spool_id} of {each.collector_id}" for each in record.open_spools[:10]) or "none"
            raise NoSuchSpool(f"No spool {spool_id[:80]!r} is open. Correct the id: open are {names}.")
        await self._audit.append("give_up_spool", by=by, subject=keys.AUTHORITY, because_of=spool_id, before=record)
        await self._close_spool(spool_id)
        return there

    async def set_mode(self, mode: AcceptanceMode, *, by: str) -> AuthorityRecord:
        """Change the mode, and raise the epoch. It is no error if it is the mode already. Raises `SpoolsOpen`."""

        def change(found: AuthorityRecord | None) -> AuthorityRecord:
            record = self._of_this_place(found)
            if record.mode == mode:
                return record
            if record.open_spools:
                names = ", ".join(f"{each.spool_id} of {each.collector_id}" for each in record.open_spools[:10])
                raise SpoolsOpen(
                    f"The mode stays {record.mode}: {len(record.open_spools)} spools are open ({names}) and may hold "
                    "batches that are not in the store yet. Let these gateways empty and close them, and try again."
                )
            return msgspec.structs.replace(record, mode=mode, epoch=record.epoch + 1)

        before = await self.read()
        after = change(before)
        if after is before:
            return before
        await self._audit.append("set_mode", by=by, subject=keys.AUTHORITY, before=before, after=after)
        return await self._file.update(change)

    def _checked(self, found: AuthorityRecord | None, mode: AcceptanceMode) -> AuthorityRecord:
        record = self._of_this_place(found)
        if record.mode != mode:
            raise AnotherAuthority(
                f"The gateways of {_place(self.bucket, self._prefix)} accept by {record.mode}, and this one is set to "
                f'{mode}. Set ingest.acceptance = "{record.mode}", or change the mode of all of them.'
            )
        return record

    def _of_this_place(self, found: AuthorityRecord | None) -> AuthorityRecord:
        here = _place(self.bucket, self._prefix)
        if found is None:
            raise NoAuthority(
                f"There is no acceptance authority in {here}: {keys.AUTHORITY} is missing. Correct the bucket or "
                "prefix, or, if batches shall be accepted there from now on, run `lakehead gateway init CONFIG` once."
            )
        if (found.bucket, found.prefix) != (self.bucket, self._prefix):
            raise AnotherAuthority(
                f"The authority record in {here} is of {_place(found.bucket, found.prefix)}: it was copied, or the "
                "settings name another place than the store. Correct the settings, or choose a prefix that holds "
                "nothing yet and run `lakehead gateway init CONFIG`."
            )
        return found

    @property
    def _prefix(self) -> str:
        return self.prefix.strip("/")

    @property
    def _file(self) -> RecordFile[AuthorityRecord]:
        return RecordFile(
            kind=AuthorityRecord,
            key=keys.AUTHORITY,
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            random=self.random,
            backoff=self.backoff,
        )

    @property
    def _audit(self) -> AuditTrail:
        return AuditTrail(store=self.store, clock=self.clock, ids=self.ids, random=self.random, backoff=self.backoff)


def _place(bucket: str, prefix: str) -> str:
    return f"the bucket {bucket!r} with the prefix {prefix!r}" if prefix else f"the bucket {bucket!r} without a prefix"
