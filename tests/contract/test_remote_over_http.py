"""The S3 adapter over real HTTP to a real server, with a proxy between them that injects what networks do."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import chain, repeat

import pytest

from lakehead.errors import OutcomeUnknown, Unavailable
from lakehead.storage.port import Created, Exists, Replaced, Stale, Store
from tests.contract.scene import (
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
    run,
    scene,
)
from tests.faults.proxy import Fault, Weather
from tests.servers.seaweed import Seaweed
from tests.support.effort import effort

# --- one fault


@create_and_replace
@of_any(Fault.CONFLICT, Fault.PRECONDITION, Fault.UNAVAILABLE, Fault.TIMEOUT)
def test_a_write_that_never_reached_the_server_is_tried_again(seaweed: Seaweed, deed: str, fault: Fault) -> None:
    async def story() -> None:
        async with scene(seaweed, deed) as on:
            on.proxy.script("PUT", [fault])
            await on.assert_succeeded(await on.write())
            assert on.proxy.seen["PUT"] >= 2

    run(story())


@create_and_replace
@of_any(Fault.PRECONDITION_APPLIED, Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT_APPLIED, Fault.RESET_APPLIED)
def test_a_write_that_was_applied_without_our_being_told_is_our_success(
    seaweed: Seaweed, deed: str, fault: Fault
) -> None:
    async def story() -> None:
        async with scene(seaweed, deed) as on:
            on.proxy.script("PUT", [fault])
            await on.assert_succeeded(await on.write())

    run(story())


@create_and_replace
def test_a_look_that_fails_does_not_spoil_the_success(seaweed: Seaweed, deed: str) -> None:
    async def story() -> None:
        async with scene(seaweed, deed) as on:
            on.proxy.script("PUT", [Fault.UNAVAILABLE_APPLIED])
            on.proxy.script("HEAD", [Fault.UNAVAILABLE])
            await on.assert_succeeded(await on.write())

    run(story())


@create_and_replace
@of_any(Fault.PRECONDITION_APPLIED, Fault.UNAVAILABLE_APPLIED)
def test_looks_that_fail_for_a_while_do_not_spoil_the_success(seaweed: Seaweed, deed: str, fault: Fault) -> None:
    async def story() -> None:
        async with scene(seaweed, deed) as on:
            on.proxy.script("PUT", [fault])
            on.proxy.script("HEAD", [Fault.UNAVAILABLE] * 3)
            await on.assert_succeeded(await on.write())

    run(story())


@create_and_replace
def test_a_refusal_that_nobody_could_look_into_is_not_told_as_unchanged(seaweed: Seaweed, deed: str) -> None:
    async def story() -> None:
        async with scene(seaweed, deed, attempts=ATTEMPTS) as on:
            on.proxy.script("PUT", [Fault.PRECONDITION_APPLIED])
            on.proxy.script("HEAD", repeat(Fault.UNAVAILABLE))
            with pytest.raises(OutcomeUnknown):
                await on.write()
            assert (await on.there()).body == OURS

    run(story())


@create_and_replace
def test_a_refusal_that_a_look_shows_to_have_changed_nothing_leaves_no_doubt(seaweed: Seaweed, deed: str) -> None:
    async def story() -> None:
        async with scene(seaweed, deed, attempts=ATTEMPTS) as on:
            on.proxy.script("PUT", repeat(Fault.CONFLICT))
            on.proxy.script("HEAD", [Fault.UNAVAILABLE])
            with pytest.raises(Unavailable):
                await on.write()

    run(story())


@create_and_replace
def test_whose_write_was_refused_though_applied_and_replaced_since_is_told_of_the_newer_one(
    seaweed: Seaweed, deed: str
) -> None:
    async def story() -> None:
        async with scene(seaweed, deed) as on:
            on.proxy.script("PUT", [Fault.PRECONDITION_APPLIED])
            on.proxy.before("HEAD", on.they_write)
            outcome = await on.write()
            # The one wrong no that the port admits: whoever must be sure looks for a mark of its own in the body.
            assert outcome == (Exists if deed == "create" else Stale)((await on.there()).meta.version)
            assert (await on.there()).body == THEIRS

    run(story())


# --- a write that lands when nobody expects it any more


@create_and_replace
def test_a_write_that_lands_just_before_we_look_is_our_success(seaweed: Seaweed, deed: str) -> None:
    async def story() -> None:
        async with scene(seaweed, deed) as on:
            on.proxy.script("PUT", [Fault.TIMEOUT_LANDS_LATER])
            on.proxy.before("HEAD", on.proxy.release)
            await on.assert_succeeded(await on.write())

    run(story())


@create_and_replace
def test_a_write_that_lands_just_before_it_is_tried_again_is_our_success(seaweed: Seaweed, deed: str) -> None:
    async def story() -> None:
        async with scene(seaweed, deed) as on:

            async def land_at_the_second_try() -> None:
                on.proxy.before("PUT", on.proxy.release)

            on.proxy.script("PUT", [Fault.TIMEOUT_LANDS_LATER])
            on.proxy.before("PUT", land_at_the_second_try)
            await on.assert_succeeded(await on.write())
            assert on.proxy.answers["PUT", 412] >= 1

    run(story())


@create_and_replace
def test_a_write_that_lands_after_our_success_changes_nothing(seaweed: Seaweed, deed: str) -> None:
    async def story() -> None:
        async with scene(seaweed, deed) as on:
            on.proxy.script("PUT", [Fault.TIMEOUT_LANDS_LATER])
            await on.assert_succeeded(outcome := await on.write())
            assert isinstance(outcome, Created | Replaced)
            newer = await on.theirs.replace(KEY, NEWER, outcome.version)
            assert isinstance(newer, Replaced)
            assert await on.proxy.release() == [412]
            there = await on.there()
            assert (there.body, there.meta.version) == (NEWER, newer.version)

    run(story())


@create_and_replace
def test_of_two_tries_that_land_after_we_gave_up_one_is_stored(seaweed: Seaweed, deed: str) -> None:
    async def story() -> None:
        async with scene(seaweed, deed, attempts=ATTEMPTS) as on:
            on.proxy.script("PUT", repeat(Fault.TIMEOUT_LANDS_LATER))
            with pytest.raises(OutcomeUnknown):
                await on.write()
            await on.proxy.until_seen("PUT", ATTEMPTS)
            assert await on.proxy.release() == [200, 412]
            assert (await on.there()).body == OURS

    run(story())


# --- every try fails


@create_and_replace
@of_any(Fault.UNAVAILABLE, Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT, Fault.TIMEOUT_APPLIED, Fault.RESET_APPLIED)
def test_a_write_that_may_have_been_applied_is_unknown_when_nobody_can_tell(
    seaweed: Seaweed, deed: str, fault: Fault
) -> None:
    async def story() -> None:
        async with scene(seaweed, deed, attempts=ATTEMPTS) as on:
            on.proxy.script("PUT", repeat(fault))
            on.proxy.script("HEAD", repeat(Fault.UNAVAILABLE))
            with pytest.raises(OutcomeUnknown, match=KEY):
                await on.write()
            await on.proxy.until_seen("PUT", ATTEMPTS)
            assert on.proxy.seen["PUT"] == ATTEMPTS

    run(story())


@create_and_replace
@of_any(Fault.CONFLICT, Fault.PRECONDITION)
def test_one_doubtful_try_makes_the_outcome_unknown_whatever_the_others_were_told(
    seaweed: Seaweed, deed: str, fault: Fault
) -> None:
    async def story() -> None:
        async with scene(seaweed, deed, attempts=ATTEMPTS) as on:
            on.proxy.script("PUT", chain([Fault.UNAVAILABLE], repeat(fault)))
            with pytest.raises(OutcomeUnknown, match=KEY):
                await on.write()
            assert on.proxy.seen["PUT"] == ATTEMPTS

    run(story())


@create_and_replace
@of_any(Fault.CONFLICT, Fault.PRECONDITION)
def test_a_write_that_is_refused_each_time_with_nothing_changed_is_unavailable(
    seaweed: Seaweed, deed: str, fault: Fault
) -> None:
    async def story() -> None:
        async with scene(seaweed, deed, attempts=ATTEMPTS) as on:
            on.proxy.script("PUT", repeat(fault))
            with pytest.raises(Unavailable, match=KEY):
                await on.write()
            assert on.proxy.seen["PUT"] == ATTEMPTS
            assert on.proxy.answers["PUT", 200] == 0

    run(story())


@create_and_replace
def test_a_write_to_a_server_that_nobody_runs_is_unavailable(seaweed: Seaweed, deed: str) -> None:
    async def story() -> None:
        async with scene(seaweed, deed) as on:
            with pytest.raises(Unavailable, match="could not connect"):
                await replace(on, ours=nobodys(seaweed)).write()

    run(story())


# --- somebody else


@create_and_replace
@of_any(Fault.UNAVAILABLE, Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT, Fault.TIMEOUT_APPLIED, Fault.RESET_APPLIED)
def test_a_doubtful_write_over_which_somebody_else_wrote_is_unknown(seaweed: Seaweed, deed: str, fault: Fault) -> None:
    async def story() -> None:
        async with scene(seaweed, deed) as on:
            on.proxy.script("PUT", [fault])
            on.proxy.before("HEAD", on.they_write)
            with pytest.raises(OutcomeUnknown, match=KEY):
                await on.write()
            assert (await on.there()).body == THEIRS

    run(story())


def test_a_doubtful_replacement_after_which_somebody_else_deleted_is_unknown(seaweed: Seaweed) -> None:
    async def story() -> None:
        async with scene(seaweed, "replace") as on:
            on.proxy.script("PUT", [Fault.UNAVAILABLE_APPLIED])
            on.proxy.before("HEAD", lambda: on.theirs.delete(KEY))
            with pytest.raises(OutcomeUnknown, match=KEY):
                await on.write()
            assert await on.theirs.get(KEY) is None

    run(story())


@create_and_replace
@pytest.mark.parametrize("faults", [[], [Fault.CONFLICT], [Fault.PRECONDITION]], ids=["clean", "409", "412"])
def test_a_refusal_that_is_somebody_elses_doing_names_their_version(
    seaweed: Seaweed, deed: str, faults: list[Fault]
) -> None:
    async def story() -> None:
        async with scene(seaweed, deed) as on:
            theirs = await on.they_write()
            on.proxy.script("PUT", faults)
            assert await on.write() == (Exists if deed == "create" else Stale)(theirs)
            assert on.proxy.seen["PUT"] == 1
            assert (await on.there()).body == THEIRS

    run(story())


@pytest.mark.parametrize("faults", [[], [Fault.CONFLICT], [Fault.PRECONDITION]], ids=["clean", "409", "412"])
def test_a_replacement_of_what_somebody_else_deleted_is_stale(seaweed: Seaweed, faults: list[Fault]) -> None:
    async def story() -> None:
        async with scene(seaweed, "replace") as on:
            await on.theirs.delete(KEY)
            on.proxy.script("PUT", faults)
            assert await on.write() == Stale(None)
            assert await on.theirs.get(KEY) is None

    run(story())


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
def test_a_read_that_fails_at_first_is_tried_again(
    seaweed: Seaweed, method: str, read: Read, expected: object, fault: Fault
) -> None:
    async def story() -> None:
        async with scene(seaweed, within=patience(fault), attempts=MANY) as on:
            on.proxy.script(method, [fault])
            assert await read(on.ours) == expected
            assert on.proxy.seen[method] >= 2

    run(story())


@every_read
@of_any(Fault.UNAVAILABLE, Fault.TIMEOUT, Fault.RESET_APPLIED)
def test_a_read_that_fails_each_time_is_unavailable(
    seaweed: Seaweed, method: str, read: Read, expected: object, fault: Fault
) -> None:
    async def story() -> None:
        async with scene(seaweed, within=patience(fault), attempts=ATTEMPTS) as on:
            assert await read(on.theirs) == expected
            on.proxy.script(method, repeat(fault))
            with pytest.raises(Unavailable):
                await read(on.ours)
            await on.proxy.until_seen(method, ATTEMPTS)
            assert on.proxy.seen[method] == ATTEMPTS

    run(story())


@pytest.mark.parametrize("read", [get, head, listing])
def test_a_read_from_a_server_that_nobody_runs_is_unavailable(seaweed: Seaweed, read: Read) -> None:
    async def story() -> None:
        with pytest.raises(Unavailable, match="could not connect"):
            await read(nobodys(seaweed))

    run(story())


@of_any(Fault.UNAVAILABLE, Fault.UNAVAILABLE_APPLIED, Fault.TIMEOUT, Fault.TIMEOUT_APPLIED, Fault.RESET_APPLIED)
def test_a_put_that_fails_at_first_is_tried_again(seaweed: Seaweed, fault: Fault) -> None:
    async def story() -> None:
        async with scene(seaweed, within=patience(fault), attempts=MANY) as on:
            on.proxy.script("PUT", [fault])
            version = await on.ours.put(KEY, OURS)
            there = await on.there()
            assert (there.body, there.meta.version) == (OURS, version)

    run(story())


@of_any(Fault.UNAVAILABLE, Fault.UNAVAILABLE_APPLIED, Fault.RESET_APPLIED)
def test_a_delete_that_fails_at_first_is_tried_again(seaweed: Seaweed, fault: Fault) -> None:
    async def story() -> None:
        async with scene(seaweed, within=patience(fault), attempts=MANY) as on:
            on.proxy.script("POST", [fault])
            await on.ours.delete(KEY)
            assert await on.theirs.get(KEY) is None

    run(story())


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
def test_in_a_storm_every_increment_is_counted_once(seaweed: Seaweed, seed: int, left_out: frozenset[Fault]) -> None:
    weather = Weather(seed=seed, chances={fault: CHANCE for fault in Fault if fault not in left_out})

    async def task(store: Store, number: int) -> None:
        for n in range(INCREMENTS):
            await increment(store, [number, n], refusals_are_true=bool(left_out))

    async def story() -> None:
        async with scene(seaweed, within=HURRIED, weather=weather) as on:
            await on.theirs.put(KEY, json.dumps({"count": 0, "entries": []}).encode())
            on.proxy.script("PUT", weather.chances)  # each fault once for certain, and then by chance
            async with asyncio.TaskGroup() as tasks:
                for number in range(TASKS):
                    tasks.create_task(task(on.ours, number))
            assert on.proxy.faults.keys() == weather.chances.keys()
            assert 200 not in await on.proxy.release()
            counter = json.loads((await on.there()).body)
            assert counter["count"] == TASKS * INCREMENTS
            assert sorted(counter["entries"]) == [[t, n] for t in range(TASKS) for n in range(INCREMENTS)]

    run(story())
