"""What operators decide about conflicts. Each decision names the hash of the submitted frame, and leaves a trace.

No decision changes what was accepted, nor deletes a frame.
"""

from dataclasses import dataclass, field
from typing import Literal

from lakehead.accept.audit import AuditTrail
from lakehead.accept.conflicts import Conflicts, ListedConflict, NoSuchConflict
from lakehead.accept.record_file import R, RecordFile, read_record
from lakehead.errors import Misconfigured
from lakehead.ids import Random
from lakehead.retry import Backoff
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import ConflictResolution, QuarantinedIdentity, QuarantineManifest
from lakehead.wire.errors import Unreadable


class NotQuarantined(Misconfigured):
    """Correct the identity: this boot of the agent never was in quarantine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictDecisions:
    """Decides about the conflicts of one authority. Every method may raise `NoSuchConflict`, `InvalidRecord`,
    `Unavailable`, `Unreadable` and `OutcomeUnknown`; repeating it is safe, and leaves another trace.
    """

    conflicts: Conflicts
    random: Random
    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=10, first_seconds=0.1, cap_seconds=2.0))

    async def accept_existing(
        self, identity: BatchIdentity, submitted_sha256: str, *, by: str, note: str = ""
    ) -> ConflictResolution:
        """Decide that the accepted batch counts, and that the agent may drop the submitted frame.

        The accepted batch must be there: else nothing may be dropped in its favour. An overlap is no such conflict,
        because its agent has dropped it already.
        """
        listed = await self.conflicts.show(identity, submitted_sha256)
        manifest = _readable(listed)
        accepted = await read_record(IdentityManifest, manifest.accepted_manifest_key, self.conflicts.store)
        if accepted is None or accepted.frame_sha256 != manifest.accepted_frame_sha256:
            raise Unreadable(
                f"{manifest.accepted_manifest_key} does not say that {manifest.accepted_frame_sha256} was accepted, as "
                f"{listed.key} does. Nothing was decided: find out who has changed the bucket."
            )
        return await self._resolve(listed, self._decision(manifest, "accept_existing", by, note))

    async def quarantine_identity(
        self, identity: BatchIdentity, submitted_sha256: str, *, by: str, note: str = ""
    ) -> QuarantinedIdentity:
        """Accept nothing more under the boot of the agent, until it is released. What was accepted lands.

        Gateways know within 30 s. If this fails between its two writes, the boot is in quarantine, and the conflict
        does not say so yet.
        """
        listed = await self.conflicts.show(identity, submitted_sha256)
        record = await self._set_quarantine(listed, "quarantined", by, note)
        if isinstance(listed.manifest, QuarantineManifest):
            await self._resolve(listed, self._decision(listed.manifest, "quarantine_identity", by, note))
        return record

    async def release(
        self, identity: BatchIdentity, submitted_sha256: str, *, by: str, note: str = ""
    ) -> QuarantinedIdentity:
        """Accept batches under the boot of the agent again. Gateways know within 30 s. Raises `NotQuarantined`.

        The conflict stays, with its last decision: the agent may not drop the frame because of it.
        """
        listed = await self.conflicts.show(identity, submitted_sha256)
        if await self.conflicts.quarantine_of(identity.agent_id, identity.boot_id) is None:
            raise NotQuarantined(
                f"The boot {identity.boot_id!r} of the agent {identity.agent_id!r} was never in quarantine. "
                "Correct the identity."
            )
        return await self._set_quarantine(listed, "released", by, note)

    async def _set_quarantine(
        self, listed: ListedConflict, state: Literal["quarantined", "released"], by: str, note: str
    ) -> QuarantinedIdentity:
        agent_id, boot_id = listed.identity.agent_id, listed.identity.boot_id
        wanted = QuarantinedIdentity(
            agent_id=agent_id,
            boot_id=boot_id,
            state=state,
            reason=note,
            changed_at_unix_ns=self.conflicts.clock.now_ns(),
            changed_by=by,
            version=1,
        )
        before = await self.conflicts.quarantine_of(agent_id, boot_id)
        action = "quarantine_identity" if state == "quarantined" else "release"
        await self._audit.append(action, by=by, subject=wanted.key, because_of=listed.key, before=before, after=wanted)
        return await self._file(QuarantinedIdentity, wanted.key).update(
            lambda found: found if found is not None and found.state == state else wanted
        )

    async def _resolve(self, listed: ListedConflict, decision: ConflictResolution) -> ConflictResolution:
        await self._audit.append(
            decision.resolution,
            by=decision.resolved_by,
            subject=decision.key,
            because_of=listed.key,
            before=listed.resolution,
            after=decision,
        )
        return await self._file(ConflictResolution, decision.key).update(
            lambda found: found if found is not None and found.resolution == decision.resolution else decision
        )

    def _decision(
        self,
        manifest: QuarantineManifest,
        resolution: Literal["accept_existing", "quarantine_identity"],
        by: str,
        note: str,
    ) -> ConflictResolution:
        return ConflictResolution(
            agent_id=manifest.agent_id,
            boot_id=manifest.boot_id,
            seq_start=manifest.seq_start,
            seq_end=manifest.seq_end,
            submitted_frame_sha256=manifest.submitted_frame_sha256,
            accepted_frame_sha256=manifest.accepted_frame_sha256,
            resolution=resolution,
            resolved_at_unix_ns=self.conflicts.clock.now_ns(),
            resolved_by=by,
            note=note,
            version=1,
        )

    def _file(self, kind: type[R], key: str) -> RecordFile[R]:
        at = self.conflicts
        return RecordFile(
            kind=kind,
            key=key,
            store=at.store,
            clock=at.clock,
            ids=at.ids,
            random=self.random,
            backoff=self.backoff,
        )

    @property
    def _audit(self) -> AuditTrail:
        at = self.conflicts
        return AuditTrail(store=at.store, clock=at.clock, ids=at.ids, random=self.random, backoff=self.backoff)


def _readable(listed: ListedConflict) -> QuarantineManifest:
    if isinstance(listed.manifest, QuarantineManifest):
        return listed.manifest
    if listed.manifest is None:
        raise Unreadable(f"Nothing was decided about {listed.key}: {listed.problem}")
    raise NoSuchConflict(
        f"{listed.key} is an overlap of two accepted batches: its agent has nothing to drop. Quarantine the identity "
        "if two machines share it, or leave it."
    )
