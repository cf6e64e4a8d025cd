"""The audit that garbage collection makes itself, if asked: which of some frames accepted or quarantined batches name.

Reverse references are derived, and may be missing. This reads all identity manifests, and the keys of all quarantine
manifests, instead. It writes nothing: missing references are the reconciler's.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from lakehead.accept.accepted_scan import read_identities, scan_identities
from lakehead.maintain.blob_pages import closing
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.acceptance_records import IdentityManifest


@dataclass(frozen=True, slots=True)
class AuditedFrames:
    """What the audit has found."""

    accepted: frozenset[str]
    """Hashes of those that an identity manifest names."""

    quarantined: frozenset[str]
    """Hashes of those that a quarantine manifest names."""

    problem: str = ""
    """Why it is not complete, so that nothing may be deleted by it; empty if it is."""


async def audit_frames(
    hashes: Collection[str], store: Store, *, looked: Callable[[int], None] = lambda _: None
) -> AuditedFrames:
    """Look for frames in everything that was accepted or put in quarantine. Memory does not grow with what there is.

    `looked` is called with how many manifests were read now and then. Raises `Unavailable`.
    """
    accepted, quarantined, problem, read = set[str](), set[str](), "", 0
    async with closing(scan_identities(store)) as pages:
        async for page in pages:
            for each in await read_identities(page, store):
                if isinstance(each.record, IdentityManifest):
                    if each.record.frame_sha256 in hashes:
                        accepted.add(each.record.frame_sha256)
                elif each.record is None:
                    problem = problem or each.problem or f"{keys.accepted(each.identity)} is gone."
            read += len(page)
            looked(read)
    for folder, parse in (
        (keys.IDENTITY_CONFLICTS, keys.parse_identity_conflict),
        (keys.OVERLAPS, keys.parse_overlap),
    ):
        async with closing(store.list(folder)) as listed:
            async for objects in listed:
                found = (parsed[1] for each in objects if (parsed := parse(each.key)) is not None)
                quarantined.update(sha256 for sha256 in found if sha256 in hashes)
    return AuditedFrames(frozenset(accepted), frozenset(quarantined), problem)
