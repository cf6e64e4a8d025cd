"""What operators decide names one submitted frame, leaves a trace before it is done, and changes nothing accepted."""

from random import Random

import pytest

from lakehead.accept.conflict_decisions import ConflictDecisions, NotQuarantined
from lakehead.accept.conflicts import NoSuchConflict
from lakehead.errors import LakeheadError, OutcomeUnknown, Unavailable
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.errors import InvalidRecord, Unreadable
from tests.support.async_tests import async_test
from tests.unit.accept.support import (
    APPLIED,
    DOWN,
    IDENTITY,
    NO_PAUSES,
    NOT_APPLIED,
    ScriptedStore,
    audit_trail,
    manifest_of,
    submitted,
    void_of,
)
from tests.unit.accept.test_conflicts import ACCEPTED, conflict, conflicts, overlap

BOOT = (IDENTITY.agent_id, IDENTITY.boot_id)


def decisions(store: ScriptedStore) -> ConflictDecisions:
    return ConflictDecisions(conflicts=conflicts(store), random=Random(1), backoff=NO_PAUSES)


async def contents(store: ScriptedStore, *folders: str) -> dict[str, bytes]:
    found = {}
    for folder in folders:
        for key in await store.keys(folder):
            there = await store.get(key)
            assert there is not None
            found[key] = there.body
    return found


@async_test
async def test_accepting_the_existing_batch_decides_about_one_submitted_frame_alone() -> None:
    store = ScriptedStore()
    second, third = await conflict(store, IDENTITY, b"second"), await conflict(store, IDENTITY, b"third")
    before = await contents(store, "accepted", "quarantine", "raw-blobs")

    decision = await decisions(store).accept_existing(IDENTITY, second, by="ann", note="a cloned disk")

    assert decision == await conflicts(store).resolution(IDENTITY, second)
    assert (decision.resolution, decision.resolved_by, decision.note) == ("accept_existing", "ann", "a cloned disk")
    assert decision.accepted_frame_sha256 == submitted(ACCEPTED).sha256
    assert await conflicts(store).resolution(IDENTITY, third) is None, "the third frame must not be dropped"
    assert await contents(store, "accepted", "quarantine", "raw-blobs") == before


@async_test
async def test_a_decision_is_in_the_audit_trail_with_what_was_before() -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)

    await decisions(store).accept_existing(IDENTITY, digest, by="ann", note="why")

    [entry] = await audit_trail(store)
    assert (entry.by, entry.action, entry.subject) == ("ann", "accept_existing", keys.resolution(IDENTITY, digest))
    assert entry.because_of == keys.identity_conflict(IDENTITY, digest)
    assert entry.before is None
    assert entry.after is not None
    assert (entry.after["submitted_frame_sha256"], entry.after["note"]) == (digest, "why")


@async_test
async def test_quarantine_and_release_of_a_boot_name_the_conflict_and_leave_their_traces() -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)

    put = await decisions(store).quarantine_identity(IDENTITY, digest, by="ann", note="two machines")
    assert (put.state, put.changed_by, put.reason, put.version) == ("quarantined", "ann", "two machines", 1)
    assert put == await conflicts(store).quarantine_of(*BOOT)
    resolution = await conflicts(store).resolution(IDENTITY, digest)
    assert resolution is not None
    assert resolution.resolution == "quarantine_identity"

    released = await decisions(store).release(IDENTITY, digest, by="bob")
    assert (released.state, released.changed_by, released.version) == ("released", "bob", 2)
    assert await conflicts(store).resolution(IDENTITY, digest) == resolution, "the frame is still not to be dropped"

    trail = await audit_trail(store)
    assert sorted((each.by, each.action, each.subject.split("/")[0]) for each in trail) == [
        ("ann", "quarantine_identity", "quarantined-identities"),
        ("ann", "quarantine_identity", "resolutions"),
        ("bob", "release", "quarantined-identities"),
    ]
    assert {each.because_of for each in trail} == {keys.identity_conflict(IDENTITY, digest)}
    [release] = [each for each in trail if each.action == "release"]
    assert ((release.before or {})["state"], (release.after or {})["state"]) == ("quarantined", "released")


@async_test
async def test_a_decision_can_be_changed() -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)
    await decisions(store).quarantine_identity(IDENTITY, digest, by="ann")

    changed = await decisions(store).accept_existing(IDENTITY, digest, by="bob")

    assert (changed.resolution, changed.resolved_by, changed.version) == ("accept_existing", "bob", 2)
    assert (await conflicts(store).resolution(IDENTITY, digest)) == changed


@async_test
async def test_deciding_the_same_again_changes_nothing() -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)
    first = await decisions(store).accept_existing(IDENTITY, digest, by="ann")
    quarantined = await decisions(store).quarantine_identity(IDENTITY, await conflict(store, IDENTITY, b"x"), by="ann")

    assert await decisions(store).accept_existing(IDENTITY, digest, by="bob") == first
    assert await decisions(store).quarantine_identity(IDENTITY, digest, by="bob") == quarantined
    await decisions(store).release(IDENTITY, digest, by="ann")
    released = await conflicts(store).quarantine_of(*BOOT)
    assert await decisions(store).release(IDENTITY, digest, by="bob") == released


@async_test
async def test_a_frame_that_was_never_in_conflict_cannot_be_decided_about() -> None:
    store = ScriptedStore()
    await conflict(store, IDENTITY)
    never = submitted(b"never").sha256

    for decision in (
        decisions(store).accept_existing(IDENTITY, never, by="ann"),
        decisions(store).quarantine_identity(IDENTITY, never, by="ann"),
        decisions(store).release(IDENTITY, never, by="ann"),
    ):
        with pytest.raises(NoSuchConflict):
            await decision

    assert await contents(store, "audit", "resolutions", "quarantined-identities") == {}


@async_test
async def test_a_boot_that_never_was_in_quarantine_is_not_released() -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)

    with pytest.raises(NotQuarantined, match="never in quarantine"):
        await decisions(store).release(IDENTITY, digest, by="ann")

    assert await audit_trail(store) == []


@pytest.mark.parametrize("there", ["nothing", "another hash", "void"])
@async_test
async def test_nothing_is_dropped_in_favour_of_a_batch_that_is_not_there(there: str) -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)
    key = keys.accepted(IDENTITY)
    if there == "nothing":
        await store.delete(key)
    elif there == "another hash":
        await store.put(key, manifest_of(submitted(b"swapped")).encode())
    else:
        await store.put(key, void_of(submitted()).encode())

    with pytest.raises(Unreadable):
        await decisions(store).accept_existing(IDENTITY, digest, by="ann")

    assert await contents(store, "audit", "resolutions") == {}


@async_test
async def test_an_overlap_has_nothing_to_drop_but_its_boot_can_be_quarantined() -> None:
    store = ScriptedStore()
    manifest = await overlap(store, IDENTITY)

    with pytest.raises(NoSuchConflict, match="overlap of two accepted batches"):
        await decisions(store).accept_existing(IDENTITY, manifest.frame_sha256, by="ann")

    assert (
        await decisions(store).quarantine_identity(IDENTITY, manifest.frame_sha256, by="ann")
    ).state == "quarantined"
    assert await contents(store, "resolutions") == {}


@async_test
async def test_a_damaged_conflict_is_not_resolved_but_its_boot_can_be_quarantined_and_released() -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)
    await store.put(keys.identity_conflict(IDENTITY, digest), b"{")

    with pytest.raises(Unreadable, match="Nothing was decided"):
        await decisions(store).accept_existing(IDENTITY, digest, by="ann")
    assert (await decisions(store).quarantine_identity(IDENTITY, digest, by="ann")).state == "quarantined"
    assert (await decisions(store).release(IDENTITY, digest, by="ann")).state == "released"
    assert await contents(store, "resolutions") == {}


@pytest.mark.parametrize("fault", [DOWN, NOT_APPLIED])
@async_test
async def test_no_decision_takes_effect_without_its_audit_entry(fault: str) -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)

    for decide in (decisions(store).accept_existing, decisions(store).quarantine_identity):
        store.next("audit", *[fault] * 3)
        with pytest.raises(Unavailable):
            await decide(IDENTITY, digest, by="ann")

    assert await contents(store, "resolutions", "quarantined-identities") == {}


@async_test
async def test_the_audit_entry_comes_before_each_write() -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)
    store.created.clear()

    await decisions(store).quarantine_identity(IDENTITY, digest, by="ann")

    assert [key.split("/")[0] for key in store.created] == ["audit", "quarantined-identities", "audit", "resolutions"]


@pytest.mark.parametrize("folder", ["resolutions", "quarantined-identities"])
@pytest.mark.parametrize("faults", [[DOWN], [NOT_APPLIED] * 3])
@async_test
async def test_a_decision_that_failed_halfway_can_be_made_again(folder: str, faults: list[str]) -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)
    store.next(folder, *faults)

    with pytest.raises(LakeheadError) as caught:
        await decisions(store).quarantine_identity(IDENTITY, digest, by="ann")
    assert isinstance(caught.value, Unavailable if faults == [DOWN] else OutcomeUnknown)
    assert await audit_trail(store), "a trace may be left of what failed"

    await decisions(store).quarantine_identity(IDENTITY, digest, by="ann")
    resolution = await conflicts(store).resolution(IDENTITY, digest)
    quarantine = await conflicts(store).quarantine_of(*BOOT)
    assert (resolution and resolution.resolution, quarantine and quarantine.state) == (
        "quarantine_identity",
        "quarantined",
    )


@async_test
async def test_a_decision_in_doubt_is_made_once() -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)
    store.next("resolutions", APPLIED)
    store.next("audit", APPLIED)

    decision = await decisions(store).accept_existing(IDENTITY, digest, by="ann")

    assert decision.version == 1
    assert len(await audit_trail(store)) == 1


@async_test
async def test_names_and_notes_that_cannot_be_stored_are_refused_before_anything_is() -> None:
    store = ScriptedStore()
    digest = await conflict(store, IDENTITY)

    for by, note in (("", ""), ("x" * 2000, ""), ("ann", "x" * 70_000), ("ann", "\ud800")):
        with pytest.raises(InvalidRecord):
            await decisions(store).accept_existing(IDENTITY, digest, by=by, note=note)

    assert await contents(store, "audit", "resolutions") == {}
