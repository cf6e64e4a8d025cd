"""The S3 adapter over real HTTP to a real server, with a proxy between them that injects what networks do."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import chain, repeat

import pytest

from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.port import Created, Exists, Replaced, Stale, Store
from tests.contract.remote_support import (
    ATTEMPTS,
    BEFORE,
    HURRIED,
    KEY,
    MANY,
    NEWER,
    OURS,
    THEIRS,
    create_and_replace,
    nobodys,
    of_any,
    patience,
    proxied_key,
)
from tests.faults.proxy import Fault, Weather
from tests.servers.seaweed import Seaweed
from tests.support.async_tests import async_test
from tests.support.effort import effort

# --- one fault


@create_and_replace
@of_any(Fault.CONFLICT, Fault.PRECONDITION, Fault.UNAVAILABLE, Fault.TIMEOUT)
@async_test
async def test_a_write_that_never_reached_the_server_is_tried_again(
    seaweed: Seaweed, operation: str, fault: Fault
) -> None:
    async with proxied_key(seaweed, operation) as target:
        target.proxy.script("PUT", [fault])
        await target.assert_succeeded(await target.write())
        assert target.proxy.seen["PUT"] >= 2


@create_and_replace
@of_any(Fault.PRECONDITION_APPLIED, Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT_APPLIED, Fault.RESET_APPLIED)
@async_test
async def test_a_write_that_was_applied_without_our_being_told_is_our_success(
    seaweed: Seaweed, operation: str, fault: Fault
) -> None:
    async with proxied_key(seaweed, operation) as target:
        target.proxy.script("PUT", [fault])
        await target.assert_succeeded(await target.write())


@create_and_replace
@async_test
async def test_a_look_that_fails_does_not_spoil_the_success(seaweed: Seaweed, operation: str) -> None:
    async with proxied_key(seaweed, operation) as target:
        target.proxy.script("PUT", [Fault.UNAVAILABLE_APPLIED])
        target.proxy.script("HEAD", [Fault.UNAVAILABLE])
        await target.assert_succeeded(await target.write())


@create_and_replace
@of_any(Fault.PRECONDITION_APPLIED, Fault.UNAVAILABLE_APPLIED)
@async_test
async def test_looks_that_fail_for_a_while_do_not_spoil_the_success(
    seaweed: Seaweed, operation: str, fault: Fault
) -> None:
    async with proxied_key(seaweed, operation) as target:
        target.proxy.script("PUT", [fault])
        target.proxy.script("HEAD", [Fault.UNAVAILABLE] * 3)
        await target.assert_succeeded(await target.write())


@create_and_replace
@async_test
async def test_a_refusal_that_nobody_could_look_into_is_not_told_as_unchanged(seaweed: Seaweed, operation: str) -> None:
    async with proxied_key(seaweed, operation, attempts=ATTEMPTS) as target:
        target.proxy.script("PUT", [Fault.PRECONDITION_APPLIED])
        target.proxy.script("HEAD", repeat(Fault.UNAVAILABLE))
        with pytest.raises(OutcomeUnknown):
            await target.write()
        assert (await target.there()).body == OURS


@create_and_replace
@async_test
async def test_a_refusal_that_a_look_shows_to_have_changed_nothing_leaves_no_doubt(
    seaweed: Seaweed, operation: str
) -> None:
    async with proxied_key(seaweed, operation, attempts=ATTEMPTS) as target:
        target.proxy.script("PUT", repeat(Fault.CONFLICT))
        target.proxy.script("HEAD", [Fault.UNAVAILABLE])
        with pytest.raises(Unavailable):
            await target.write()


@create_and_replace
@async_test
async def test_whose_write_was_refused_though_applied_and_replaced_since_is_told_of_the_newer_one(
    seaweed: Seaweed, operation: str
) -> None:
    async with proxied_key(seaweed, operation) as target:
        target.proxy.script("PUT", [Fault.PRECONDITION_APPLIED])
        target.proxy.before("HEAD", target.they_write)
        outcome = await target.write()
        # The one wrong no that the port admits: whoever must be sure looks for a mark of its own in the body.
        assert outcome == (Exists if operation == "create" else Stale)((await target.there()).meta.version)
        assert (await target.there()).body == THEIRS


# --- a write that lands when nobody expects it any more


@create_and_replace
@async_test
async def test_a_write_that_lands_just_before_we_look_is_our_success(seaweed: Seaweed, operation: str) -> None:
    async with proxied_key(seaweed, operation) as target:
        target.proxy.script("PUT", [Fault.TIMEOUT_APPLIED_LATER])
        target.proxy.before("HEAD", target.proxy.release)
        await target.assert_succeeded(await target.write())


@create_and_replace
@async_test
async def test_a_write_that_lands_just_before_it_is_tried_again_is_our_success(
    seaweed: Seaweed, operation: str
) -> None:
    async with proxied_key(seaweed, operation) as target:

        async def land_at_the_second_try() -> None:
            target.proxy.before("PUT", target.proxy.release)

        target.proxy.script("PUT", [Fault.TIMEOUT_APPLIED_LATER])
        target.proxy.before("PUT", land_at_the_second_try)
        await target.assert_succeeded(await target.write())
        assert target.proxy.answers["PUT", 412] >= 1


@create_and_replace
@async_test
async def test_a_write_that_lands_after_our_success_changes_nothing(seaweed: Seaweed, operation: str) -> None:
    async with proxied_key(seaweed, operation) as target:
        target.proxy.script("PUT", [Fault.TIMEOUT_APPLIED_LATER])
        await target.assert_succeeded(outcome := await target.write())
        assert isinstance(outcome, Created | Replaced)
        newer = await target.theirs.replace(KEY, NEWER, outcome.version)
        assert isinstance(newer, Replaced)
        assert await target.proxy.release() == [412]
        there = await target.there()
        assert (there.body, there.meta.version) == (NEWER, newer.version)


@create_and_replace
@async_test
async def test_of_two_tries_that_land_after_we_gave_up_one_is_stored(seaweed: Seaweed, operation: str) -> None:
    async with proxied_key(seaweed, operation, attempts=ATTEMPTS) as target:
        target.proxy.script("PUT", repeat(Fault.TIMEOUT_APPLIED_LATER))
        with pytest.raises(OutcomeUnknown):
            await target.write()
        await target.proxy.until_seen("PUT", ATTEMPTS)
        assert await target.proxy.release() == [200, 412]
        assert (await target.there()).body == OURS


# --- every try fails


@create_and_replace
@of_any(Fault.UNAVAILABLE, Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT, Fault.TIMEOUT_APPLIED, Fault.RESET_APPLIED)
@async_test
async def test_a_write_that_may_have_been_applied_is_unknown_when_nobody_can_tell(
    seaweed: Seaweed, operation: str, fault: Fault
) -> None:
    async with proxied_key(seaweed, operation, attempts=ATTEMPTS) as target:
        target.proxy.script("PUT", repeat(fault))
        target.proxy.script("HEAD", repeat(Fault.UNAVAILABLE))
        with pytest.raises(OutcomeUnknown, match=KEY):
            await target.write()
        await target.proxy.until_seen("PUT", ATTEMPTS)
        assert target.proxy.seen["PUT"] == ATTEMPTS


@create_and_replace
@of_any(Fault.CONFLICT, Fault.PRECONDITION)
@async_test
async def test_one_doubtful_try_makes_the_outcome_unknown_whatever_the_others_were_told(
    seaweed: Seaweed, operation: str, fault: Fault
) -> None:
    async with proxied_key(seaweed, operation, attempts=ATTEMPTS) as target:
        target.proxy.script("PUT", chain([Fault.UNAVAILABLE], repeat(fault)))
        with pytest.raises(OutcomeUnknown, match=KEY):
            await target.write()
        assert target.proxy.seen["PUT"] == ATTEMPTS


@create_and_replace
@of_any(Fault.CONFLICT, Fault.PRECONDITION)
@async_test
async def test_a_write_that_is_refused_each_time_with_nothing_changed_is_unavailable(
    seaweed: Seaweed, operation: str, fault: Fault
) -> None:
    async with proxied_key(seaweed, operation, attempts=ATTEMPTS) as target:
        target.proxy.script("PUT", repeat(fault))
        with pytest.raises(Unavailable, match=KEY):
            await target.write()
        assert target.proxy.seen["PUT"] == ATTEMPTS
        assert target.proxy.answers["PUT", 200] == 0


@create_and_replace
@async_test
async def test_a_write_to_a_server_that_nobody_runs_is_unavailable(seaweed: Seaweed, operation: str) -> None:
    async with proxied_key(seaweed, operation) as target:
        with pytest.raises(Unavailable, match="could not connect"):
            await replace(target, ours=nobodys(seaweed)).write()


# --- somebody else


@create_and_replace
@of_any(Fault.UNAVAILABLE, Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT, Fault.TIMEOUT_APPLIED, Fault.RESET_APPLIED)
@async_test
async def test_a_doubtful_write_over_which_somebody_else_wrote_is_unknown(
    seaweed: Seaweed, operation: str, fault: Fault
) -> None:
    async with proxied_key(seaweed, operation) as target:
        target.proxy.script("PUT", [fault])
        target.proxy.before("HEAD", target.they_write)
        with pytest.raises(OutcomeUnknown, match=KEY):
            await target.write()
        assert (await target.there()).body == THEIRS


@async_test
async def test_a_doubtful_replacement_after_which_somebody_else_deleted_is_unknown(seaweed: Seaweed) -> None:
    async with proxied_key(seaweed, "replace") as target:
        target.proxy.script("PUT", [Fault.UNAVAILABLE_APPLIED])
        target.proxy.before("HEAD", lambda: target.theirs.delete(KEY))
        with pytest.raises(OutcomeUnknown, match=KEY):
            await target.write()
        assert await target.theirs.get(KEY) is None


@create_and_replace
@pytest.mark.parametrize("faults", [[], [Fault.CONFLICT], [Fault.PRECONDITION]], ids=["clean", "409", "412"])
@async_test
async def test_a_refusal_that_is_somebody_elses_doing_names_their_version(
    seaweed: Seaweed, operation: str, faults: list[Fault]
) -> None:
    async with proxied_key(seaweed, operation) as target:
        theirs = await target.they_write()
        target.proxy.script("PUT", faults)
        assert await target.write() == (Exists if operation == "create" else Stale)(theirs)
        assert target.proxy.seen["PUT"] == 1
        assert (await target.there()).body == THEIRS


@pytest.mark.parametrize("faults", [[], [Fault.CONFLICT], [Fault.PRECONDITION]], ids=["clean", "409", "412"])
@async_test
async def test_a_replacement_of_what_somebody_else_deleted_is_stale(seaweed: Seaweed, faults: list[Fault]) -> None:
    async with proxied_key(seaweed, "replace") as target:
        await target.theirs.delete(KEY)
        target.proxy.script("PUT", faults)
        assert await target.write() == Stale(None)
        assert await target.theirs.get(KEY) is None


# --- reads, and writes without a precondition


async def get(store: Store) -> object:
    found = await store.get(KEY)
    return found and found.body


async def head(store: Store) -> object:
    found = await store.head(KEY)
    return found and found.size


async def listing(store: Store) -> object:
    return [found.key async for page in store.list() for found in page]


Read = Callable[[Store], Coroutine[object, object, object]]
every_read = pytest.mark.parametrize(
    ("method", "read", "expected"), [("GET", get, BEFORE), ("HEAD", head, len(BEFORE)), ("GET", listing, [KEY])]
)


@every_read
@of_any(Fault.UNAVAILABLE, Fault.TIMEOUT, Fault.RESET_APPLIED)
@async_test
async def test_a_read_that_fails_at_first_is_tried_again(
    seaweed: Seaweed, method: str, read: Read, expected: object, fault: Fault
) -> None:
    async with proxied_key(seaweed, within=patience(fault), attempts=MANY) as target:
        target.proxy.script(method, [fault])
        assert await read(target.ours) == expected
        assert target.proxy.seen[method] >= 2


@every_read
@of_any(Fault.UNAVAILABLE, Fault.TIMEOUT, Fault.RESET_APPLIED)
@async_test
async def test_a_read_that_fails_each_time_is_unavailable(
    seaweed: Seaweed, method: str, read: Read, expected: object, fault: Fault
) -> None:
    async with proxied_key(seaweed, within=patience(fault), attempts=ATTEMPTS) as target:
        assert await read(target.theirs) == expected
        target.proxy.script(method, repeat(fault))
        with pytest.raises(Unavailable):
            await read(target.ours)
        await target.proxy.until_seen(method, ATTEMPTS)
        assert target.proxy.seen[method] == ATTEMPTS


@pytest.mark.parametrize("read", [get, head, listing])
@async_test
async def test_a_read_from_a_server_that_nobody_runs_is_unavailable(seaweed: Seaweed, read: Read) -> None:
    with pytest.raises(Unavailable, match="could not connect"):
        await read(nobodys(seaweed))


@of_any(Fault.UNAVAILABLE, Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT, Fault.TIMEOUT_APPLIED, Fault.RESET_APPLIED)
@async_test
async def test_a_put_that_fails_at_first_is_tried_again(seaweed: Seaweed, fault: Fault) -> None:
    async with proxied_key(seaweed, within=patience(fault), attempts=MANY) as target:
        target.proxy.script("PUT", [fault])
        version = await target.ours.put(KEY, OURS)
        there = await target.there()
        assert (there.body, there.meta.version) == (OURS, version)


@of_any(Fault.UNAVAILABLE, Fault.UNAVAILABLE_APPLIED, Fault.RESET_APPLIED)
@async_test
async def test_a_delete_that_fails_at_first_is_tried_again(seaweed: Seaweed, fault: Fault) -> None:
    async with proxied_key(seaweed, within=patience(fault), attempts=MANY) as target:
        target.proxy.script("POST", [fault])
        await target.ours.delete(KEY)
        assert await target.theirs.get(KEY) is None


# --- everything at once

TASKS, INCREMENTS, CHANCE = 8, effort(5, soak=10), 0.05
SENT_TWICE = frozenset({Fault.PRECONDITION_APPLIED})
"""What makes a refusal untrue if somebody else replaces our write before we look: then only the body can tell."""


async def increment(store: Store, mine: list[int], *, refusals_are_true: bool) -> None:
    """Add our entry to the counter, once, whatever happens on the way."""
    in_doubt = not refusals_are_true
    for _ in range(200):
        try:
            there = await store.get(KEY)
            assert there is not None
            counter = json.loads(there.body)
            if mine in counter["entries"]:
                assert in_doubt, f"{mine} was stored, and we were told that it was not"
                return
            body = json.dumps({"count": counter["count"] + 1, "entries": [*counter["entries"], mine]}).encode()
            if isinstance(await store.replace(KEY, body, there.meta.version), Replaced):
                return
        except Unavailable:
            pass
        except OutcomeUnknown:
            in_doubt = True
    raise AssertionError(f"{mine} was not stored in 200 rounds")


@pytest.mark.parametrize(("seed", "left_out"), [(1, frozenset()), (2, SENT_TWICE)], ids=["all_faults", "true_refusals"])
@async_test
async def test_in_a_storm_every_increment_is_counted_once(
    seaweed: Seaweed, seed: int, left_out: frozenset[Fault]
) -> None:
    weather = Weather(seed=seed, chances={fault: CHANCE for fault in Fault if fault not in left_out})

    async def task(store: Store, number: int) -> None:
        for n in range(INCREMENTS):
            await increment(store, [number, n], refusals_are_true=bool(left_out))

    async with proxied_key(seaweed, within=HURRIED, weather=weather) as target:
        await target.theirs.put(KEY, json.dumps({"count": 0, "entries": []}).encode())
        target.proxy.script("PUT", weather.chances)  # each fault once for certain, and then by chance
        async with asyncio.TaskGroup() as tasks:
            for number in range(TASKS):
                tasks.create_task(task(target.ours, number))
        assert target.proxy.faults.keys() == weather.chances.keys()
        assert 200 not in await target.proxy.release()
        counter = json.loads((await target.there()).body)
        assert counter["count"] == TASKS * INCREMENTS
        assert sorted(counter["entries"]) == [[t, n] for t in range(TASKS) for n in range(INCREMENTS)]
