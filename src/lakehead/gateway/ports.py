"""What a gateway asks of the acceptance behind it: small protocols, so that each can be replaced by itself."""

from collections.abc import Sequence
from typing import Literal, Protocol

from lakehead.accept.acceptance import Answer, Conflict, Submission
from lakehead.wire.acceptance_records import IdentityManifest
from lakehead.wire.authority_records import Role
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.conflict_records import ConflictResolution
from lakehead.wire.stored_record import StoredRecord

ConflictKind = Literal["identity_conflict", "overlap"]


class AgentTokens(Protocol):
    """Whose token it is, from a copy in memory: no call touches the store."""

    def agent_of(self, token: str) -> str | None:
        """Return whose token it is; None if it is no agent's. Raises `Unavailable` if the copy is too old."""
        ...


class RoleTokens(Protocol):
    """What a token may do on the private listener, from a copy in memory: no call touches the store."""

    def role_of(self, token: str) -> Role | None:
        """Return the role of a token; None if it has none. Raises `Unavailable` if the copy is too old."""
        ...


class QuarantinedBoots(Protocol):
    """Which boots of agents are in quarantine, from a copy in memory: no call touches the store."""

    def is_quarantined(self, agent_id: str, boot_id: str) -> bool:
        """Return whether a boot of an agent is in quarantine. Raises `Unavailable` if the copy is too old."""
        ...


class CopyInMemory(Protocol):
    """Something in the store that a gateway must know about, from a copy in memory: no call touches the store."""

    def check(self) -> None:
        """Raise `Unavailable` if nothing may be accepted by what the copy says, or if it is too old."""
        ...


class BatchAcceptor(Protocol):
    """Accepts batches, as `lakehead.accept.acceptance.Acceptor` does."""

    async def accept(self, submission: Submission) -> Answer:
        """Accept a batch, unless its identity is taken. Raises `Unavailable` and `OutcomeUnknown`."""
        ...


class ConflictRecorder(Protocol):
    """What is done about a conflict while its request waits."""

    async def record(self, conflict: Conflict) -> None:
        """Store a conflict's quarantine manifest. Raises `Unavailable` and `OutcomeUnknown`."""
        ...

    async def resolution(self, identity: BatchIdentity, submitted_sha256: str) -> ConflictResolution | None:
        """Return what was decided about one submitted frame; None if nothing was.

        Raises `Unavailable` and `Unreadable`.
        """
        ...


class SideEffects(Protocol):
    """What follows an acceptance, as `lakehead.accept.after_acceptance.AfterAcceptance` does it."""

    def start(self, manifest: IdentityManifest) -> None:
        """Begin it in the background. Never waits, never raises."""
        ...

    async def close(self, *, within: float) -> None:
        """Let what was begun end, for at most so many seconds."""
        ...


class ListedConflict(Protocol):
    """A conflict or an overlap, with what was decided about it."""

    @property
    def key(self) -> str:
        """The key of its quarantine manifest."""
        ...

    @property
    def kind(self) -> ConflictKind:
        """Whether the frame was refused, or accepted and not landed."""
        ...

    @property
    def identity(self) -> BatchIdentity:
        """Under which identity the frame came."""
        ...

    @property
    def submitted_sha256(self) -> str:
        """The hash of the frame that is in quarantine."""
        ...

    @property
    def manifest(self) -> StoredRecord | None:
        """Its quarantine manifest; None if it cannot be read."""
        ...

    @property
    def resolution(self) -> ConflictResolution | None:
        """None if nothing was decided, or what was cannot be read."""
        ...

    @property
    def problem(self) -> str:
        """Why the manifest or the resolution cannot be read; empty if they can."""
        ...


class ConflictPage(Protocol):
    """Some conflicts, in the order of their keys."""

    @property
    def conflicts(self) -> Sequence[ListedConflict]:
        """The conflicts of this page."""
        ...

    @property
    def next_after(self) -> str | None:
        """What to list after to get the next page; None if this is the last."""
        ...


class ConflictReader(Protocol):
    """Shows conflicts to operators. Every method may raise `Unavailable`."""

    async def list(
        self, *, agent_id: str | None = None, kind: ConflictKind | None = None, after: str = "", limit: int = 100
    ) -> ConflictPage:
        """List conflicts and overlaps. `after` is the `next_after` of the page before, or a key of a conflict."""
        ...

    async def show(self, identity: BatchIdentity, submitted_sha256: str) -> ListedConflict:
        """Return one. Raises an error that `PrivateListener.refusals` names if there is none."""
        ...


class ConflictDecisions(Protocol):
    """Decides about conflicts. Every method may raise what `ConflictReader.show` raises, and `OutcomeUnknown`."""

    async def accept_existing(
        self, identity: BatchIdentity, submitted_sha256: str, *, by: str, note: str = ""
    ) -> StoredRecord:
        """Decide that the accepted batch counts, and that the agent may drop the submitted frame."""
        ...

    async def quarantine_identity(
        self, identity: BatchIdentity, submitted_sha256: str, *, by: str, note: str = ""
    ) -> StoredRecord:
        """Accept nothing more under the boot of the agent, until it is released."""
        ...

    async def release(self, identity: BatchIdentity, submitted_sha256: str, *, by: str, note: str = "") -> StoredRecord:
        """Accept batches under the boot of the agent again."""
        ...


class ReconcilerHeartbeats(Protocol):
    """The signs of life of the reconciler."""

    async def age_seconds(self) -> float | None:
        """Return how old the last one is, negative if it is of the future; None if there was never one.

        Raises `Unavailable`.
        """
        ...
