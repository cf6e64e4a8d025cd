"""Tokens: shown once, stored as hashes, two for each agent, revoked without a restart."""

import dataclasses
from random import Random

import pytest

from lakehead.accept.tokens import NoSuchToken, TokenCache, Tokens, TooManyTokens, new_token
from lakehead.errors import Misconfigured, OutcomeUnknown, Unavailable
from lakehead.ids import RandomIds, system_bytes
from lakehead.retry import Backoff
from lakehead.storage.memory_store import MemoryStore
from lakehead.wire.authority_records import TokenList, token_sha256
from lakehead.wire.errors import InvalidIdentity, InvalidRecord, Unreadable
from tests.support.async_tests import async_test
from tests.support.simulation import World
from tests.unit.accept.support import APPLIED, DOWN, NO_PAUSES, NOT_APPLIED, FixedClock, ScriptedStore, audit_trail

KEY = "tokens/v1/tokens.json"


def tokens(store: MemoryStore) -> Tokens:
    return Tokens(
        store=store,
        clock=FixedClock(),
        ids=RandomIds(),
        random=Random(1),
        random_bytes=system_bytes,
        backoff=NO_PAUSES,
    )


async def cache_of(store: MemoryStore, clock: FixedClock | None = None) -> TokenCache:
    cache = TokenCache(store, clock or FixedClock())
    await cache.refresh()
    return cache


def test_a_token_is_32_random_bytes_of_the_source_that_is_given() -> None:
    assert new_token(lambda size: b"\xff" * size) == "lh_" + "_" * 42 + "8"
    assert len({new_token(system_bytes) for _ in range(100)}) == 100
    with pytest.raises(ValueError, match="32 random bytes"):
        new_token(lambda _: b"short")


@async_test
async def test_a_token_is_shown_once_and_only_its_hash_is_stored() -> None:
    store = ScriptedStore()

    new = await tokens(store).add(by="ann", agent_id="agent-a")

    stored = await store.get(KEY)
    assert stored is not None
    assert new.token.encode() not in stored.body
    assert new.token not in repr(new)
    assert await tokens(store).list() == (new.entry,)
    assert new.entry.token_sha256 == token_sha256(new.token)
    assert (new.entry.agent_id, new.entry.role, new.entry.created_by) == ("agent-a", None, "ann")


@async_test
async def test_a_gateway_knows_the_agent_or_the_role_of_a_token_and_nothing_else() -> None:
    store = ScriptedStore()
    agent = await tokens(store).add(by="ann", agent_id="agent-a")
    role = await tokens(store).add(by="ann", role="operator")

    cache = await cache_of(store)

    assert (cache.agent_of(agent.token), cache.role_of(agent.token)) == ("agent-a", None)
    assert (cache.agent_of(role.token), cache.role_of(role.token)) == (None, "operator")
    for wrong in ("", "lh_", agent.token[:-1], agent.token + "x", agent.entry.token_sha256, "\ud800", "x" * 100_000):
        assert (cache.agent_of(wrong), cache.role_of(wrong)) == (None, None)


@async_test
async def test_an_agent_has_two_live_tokens_at_most_and_the_way_out_is_told() -> None:
    store = ScriptedStore()
    admin = tokens(store)
    first = await admin.add(by="ann", agent_id="agent-a")
    second = await admin.add(by="ann", agent_id="agent-a")

    with pytest.raises(TooManyTokens, match=r"Revoke one: `lakehead gateway token revoke CONFIG ID`"):
        await admin.add(by="ann", agent_id="agent-a")
    assert len(await audit_trail(store)) == 2, "what was refused at once left no trace"

    await admin.add(by="ann", agent_id="agent-b")
    await admin.revoke(first.entry.token_id, by="ann")
    third = await admin.add(by="ann", agent_id="agent-a")
    cache = await cache_of(store)
    assert [cache.agent_of(each.token) for each in (first, second, third)] == [None, "agent-a", "agent-a"]


@async_test
async def test_of_three_that_add_at_once_two_succeed() -> None:
    store = ScriptedStore()
    await tokens(store).add(by="bob", agent_id="other")
    store.meanwhile["tokens"] = [lambda: tokens(store).add(by="bob", agent_id="agent-a")] * 2

    with pytest.raises(TooManyTokens):
        await tokens(store).add(by="ann", agent_id="agent-a")

    assert [(each.agent_id, each.created_by) for each in await tokens(store).list()] == [
        ("other", "bob"),
        ("agent-a", "bob"),
        ("agent-a", "bob"),
    ]


@async_test
async def test_what_others_change_meanwhile_is_kept() -> None:
    store = ScriptedStore()
    old = await tokens(store).add(by="ann", agent_id="agent-a")
    store.meanwhile["tokens"] = [lambda: tokens(store).add(by="bob", agent_id="agent-b")]

    await tokens(store).revoke(old.entry.token_id, by="ann")

    assert [each.agent_id for each in await tokens(store).list()] == ["agent-b"]


@async_test
async def test_roles_may_have_any_number_of_tokens() -> None:
    store = ScriptedStore()
    for _ in range(5):
        await tokens(store).add(by="ann", role="viewer")
    assert len(await tokens(store).list()) == 5


@async_test
async def test_what_is_no_agent_and_no_role_gets_no_token() -> None:
    store = ScriptedStore()
    admin = tokens(store)

    with pytest.raises(Misconfigured, match="either for an agent or for a role"):
        await admin.add(by="ann")
    with pytest.raises(Misconfigured, match="either for an agent or for a role"):
        await admin.add(by="ann", agent_id="a", role="admin")
    with pytest.raises(InvalidIdentity):
        await admin.add(by="ann", agent_id="a\n")
    with pytest.raises(InvalidRecord):
        await admin.add(by="ann", role="root")  # type: ignore[arg-type]
    with pytest.raises(InvalidRecord):
        await admin.add(by="", agent_id="a")

    assert await store.keys("") == []


@async_test
async def test_only_a_live_token_can_be_revoked() -> None:
    store = ScriptedStore()
    added = await tokens(store).add(by="ann", agent_id="agent-a")

    assert await tokens(store).revoke(added.entry.token_id, by="bob") == added.entry
    with pytest.raises(NoSuchToken, match="token list"):
        await tokens(store).revoke(added.entry.token_id, by="bob")
    assert await tokens(store).list() == ()


@pytest.mark.parametrize("fault", [APPLIED, NOT_APPLIED])
@async_test
async def test_adding_and_revoking_in_doubt_are_done_once(fault: str) -> None:
    store = ScriptedStore()
    store.next("tokens", fault)
    added = await tokens(store).add(by="ann", agent_id="agent-a")
    assert await tokens(store).list() == (added.entry,)

    store.next("tokens", fault)
    assert await tokens(store).revoke(added.entry.token_id, by="ann") == added.entry
    assert await tokens(store).list() == ()


@async_test
async def test_a_token_that_was_added_in_doubt_is_there_once_when_others_have_changed_the_list_since() -> None:
    store = ScriptedStore()
    store.next("tokens", APPLIED)

    class WhileOthersWrite(FixedClock):
        async def sleep(self, seconds: float) -> None:
            assert seconds
            await tokens(store).add(by="bob", agent_id="agent-b")

    patient = Backoff(attempts=2, first_seconds=60, cap_seconds=60)
    admin = dataclasses.replace(tokens(store), clock=WhileOthersWrite(), backoff=patient)

    added = await admin.add(by="ann", agent_id="agent-a")

    assert [each.agent_id for each in await tokens(store).list()] == ["agent-a", "agent-b"]
    assert (await tokens(store).list())[0] == added.entry


@async_test
async def test_a_token_that_may_have_been_added_is_named_so_that_it_can_be_revoked() -> None:
    store = ScriptedStore()
    store.next("tokens", *[NOT_APPLIED] * 3)

    with pytest.raises(OutcomeUnknown, match="list the tokens, revoke it"):
        await tokens(store).add(by="ann", agent_id="agent-a")


@async_test
async def test_every_change_has_its_entry_in_the_audit_trail_without_hash_or_secret() -> None:
    store = ScriptedStore()
    added = await tokens(store).add(by="ann", agent_id="agent-a")
    await tokens(store).revoke(added.entry.token_id, by="bob")

    trail = sorted(await audit_trail(store), key=lambda each: each.action)

    assert [(each.by, each.action, each.subject) for each in trail] == [
        ("ann", "add_token", KEY),
        ("bob", "revoke_token", KEY),
    ]
    assert trail[0].before is None
    assert trail[0].after == trail[1].before
    assert (trail[0].after or {})["token_id"] == added.entry.token_id
    for entry in trail:
        assert added.entry.token_sha256.encode() not in entry.encode()
        assert added.token.encode() not in entry.encode()


@pytest.mark.parametrize("fault", [DOWN, NOT_APPLIED])
@async_test
async def test_nothing_is_added_or_revoked_without_its_audit_entry(fault: str) -> None:
    store = ScriptedStore()
    added = await tokens(store).add(by="ann", agent_id="agent-a")

    store.next("audit", *[fault] * 3)
    with pytest.raises(Unavailable):
        await tokens(store).add(by="ann", agent_id="agent-a")
    store.next("audit", *[fault] * 3)
    with pytest.raises(Unavailable):
        await tokens(store).revoke(added.entry.token_id, by="ann")

    assert await tokens(store).list() == (added.entry,)


@async_test
async def test_the_list_never_grows_beyond_what_can_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ScriptedStore()
    first = await tokens(store).add(by="ann", agent_id="agent-a")
    monkeypatch.setattr(TokenList, "MAX_BYTES", 400)

    with pytest.raises(InvalidRecord, match="at most 400"):
        await tokens(store).add(by="ann", agent_id="agent-b")

    assert await tokens(store).list() == (first.entry,)


@async_test
async def test_without_a_list_no_token_is_live() -> None:
    cache = await cache_of(ScriptedStore())
    assert cache.agent_of("lh_anything") is None


@async_test
async def test_before_the_first_reading_nobody_is_known_or_refused() -> None:
    with pytest.raises(Unavailable, match="not read yet"):
        TokenCache(ScriptedStore(), FixedClock()).agent_of("lh_x")


@pytest.mark.parametrize("is_damaged", [False, True], ids=["outage", "damaged"])
@async_test
async def test_a_list_that_cannot_be_read_keeps_the_old_copy_until_it_is_too_old(*, is_damaged: bool) -> None:
    store, clock = ScriptedStore(), FixedClock()
    token = (await tokens(store).add(by="ann", agent_id="agent-a")).token
    cache = await cache_of(store, clock)

    if is_damaged:
        await store.put(KEY, b"{")
    else:
        store.is_down_for_reads = True
    clock.seconds += 300
    with pytest.raises(Unreadable if is_damaged else Unavailable):
        await cache.refresh()
    assert cache.agent_of(token) == "agent-a"

    clock.seconds += 1
    with pytest.raises(Unavailable, match="301 s old"):
        cache.agent_of(token)
    with pytest.raises(Unavailable):
        cache.role_of("lh_unknown")


def test_a_running_gateway_takes_new_tokens_and_refuses_revoked_ones_within_30_seconds() -> None:
    world = World(1)

    async def scenario() -> None:
        store = MemoryStore(clock=world.clock)
        first = await tokens(store).add(by="ann", agent_id="agent-a")
        cache = TokenCache(store, world.clock)
        running = world.loop.create_task(cache.run())
        await world.clock.sleep(1)
        assert cache.agent_of(first.token) == "agent-a"

        await tokens(store).revoke(first.entry.token_id, by="ann")
        second = await tokens(store).add(by="ann", agent_id="agent-a")
        assert (cache.agent_of(first.token), cache.agent_of(second.token)) == ("agent-a", None)
        await world.clock.sleep(30)
        assert (cache.agent_of(first.token), cache.agent_of(second.token)) == (None, "agent-a")
        running.cancel()

    world.loop.simulate(scenario())
