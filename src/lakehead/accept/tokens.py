"""Bearer tokens: those of agents for uploads, and those with a role for the private listener.

The store has one list of all live tokens, which knows them by their hash alone.
"""

from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from lakehead.accept.audit import AuditTrail
from lakehead.accept.cached_copy import CachedCopy
from lakehead.accept.record_file import RecordFile, read_record
from lakehead.clock import Clock
from lakehead.errors import Misconfigured, OutcomeUnknown
from lakehead.ids import Ids, Random
from lakehead.retry import Backoff
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.authority_records import Role, TokenEntry, TokenList, token_sha256

MOST_PER_AGENT = 2
"""Live tokens of one agent: the one in use, and the one that replaces it."""

TOKEN_BYTES = 32
PREFIX = "lh_"
MAX_TOKEN_LENGTH = 256
"""No token is longer; what is longer is not even hashed."""

RandomBytes = Callable[[int], bytes]
"""Returns so many random bytes that nobody can guess: `lakehead.ids.system_bytes`."""


class TooManyTokens(Misconfigured):
    """Revoke one of the agent's tokens first."""


class NoSuchToken(Misconfigured):
    """Correct the token id: no live token has it."""


def new_token(random_bytes: RandomBytes) -> str:
    """Return a new secret token."""
    secret = random_bytes(TOKEN_BYTES)
    if len(secret) != TOKEN_BYTES:
        raise ValueError(f"{TOKEN_BYTES} random bytes were needed, and {len(secret)} came")
    return PREFIX + urlsafe_b64encode(secret).rstrip(b"=").decode()


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was added. It is nowhere else in plain text: show it once."""

    token: str = field(repr=False)
    entry: TokenEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Adds, lists and revokes the tokens of one authority."""

    store: Store
    clock: Clock
    ids: Ids
    random: Random
    random_bytes: RandomBytes
    backoff: Backoff = field(default_factory=lambda: Backoff(attempts=10, first_seconds=0.1, cap_seconds=2.0))

    async def add(self, *, by: str, agent_id: str | None = None, role: Role | None = None) -> NewToken:
        """Add a token for an agent, or one with a role. Gateways take it when they read the list again.

        Raises `TooManyTokens`; `Misconfigured` unless there is either an agent or a role; `Unavailable` if nothing was
        added, and `OutcomeUnknown` if that is not known.
        """
        if (agent_id is None) == (role is None):
            raise Misconfigured("A token is either for an agent or for a role. Name one of the two.")
        token = new_token(self.random_bytes)
        entry = TokenEntry(
            token_id=self.ids.uuid(),
            token_sha256=token_sha256(token),
            agent_id=agent_id,
            role=role,
            created_at_unix_ns=self.clock.now_ns(),
            created_by=by,
        )

        def append(found: TokenList | None) -> TokenList:
            there = found.tokens if found else ()
            if found is not None and any(each.token_id == entry.token_id for each in there):
                return found
            live = [each.token_id for each in there if agent_id is not None and each.agent_id == agent_id]
            if len(live) >= MOST_PER_AGENT:
                raise TooManyTokens(
                    f"The agent {agent_id!r} has {len(live)} live tokens ({', '.join(live)}), and may have "
                    f"{MOST_PER_AGENT}. Revoke one: `lakehead gateway token revoke CONFIG ID`."
                )
            tokens = (*there, entry)
            return msgspec.structs.replace(found, tokens=tokens) if found else TokenList(tokens=tokens, version=1)

        append(await self._file.read()).encode_checked()  # refused before there is a trace of it
        await self._audit.append("add_token", by=by, subject=keys.TOKENS, after=entry)
        try:
            await self._file.update(append)
        except OutcomeUnknown as error:
            raise OutcomeUnknown(
                f"The token {entry.token_id} may have been added ({error}). Nobody has seen its secret: list the "
                "tokens, revoke it if it is there, and add another."
            ) from error
        return NewToken(token, entry)

    async def list(self) -> tuple[TokenEntry, ...]:
        """Return all live tokens, without their secrets, in the order in which they were added."""
        found = await self._file.read()
        return found.tokens if found else ()

    async def revoke(self, token_id: str, *, by: str) -> TokenEntry:
        """Remove a token. Gateways refuse it when they have read the list again. Raises `NoSuchToken`."""
        entry = next((each for each in await self.list() if each.token_id == token_id), None)
        if entry is None:
            raise NoSuchToken(
                f"No live token has the id {token_id[:80]!r}. List them: `lakehead gateway token list CONFIG`."
            )

        def remove(found: TokenList | None) -> TokenList:
            if found is None:  # somebody has deleted the list, and every token with it
                return TokenList(tokens=(), version=1)
            left = tuple(each for each in found.tokens if each.token_id != token_id)
            return found if len(left) == len(found.tokens) else msgspec.structs.replace(found, tokens=left)

        await self._audit.append("revoke_token", by=by, subject=keys.TOKENS, before=entry)
        await self._file.update(remove)
        return entry

    @property
    def _file(self) -> RecordFile[TokenList]:
        return RecordFile(
            kind=TokenList,
            key=keys.TOKENS,
            store=self.store,
            clock=self.clock,
            ids=self.ids,
            random=self.random,
            backoff=self.backoff,
        )

    @property
    def _audit(self) -> AuditTrail:
        return AuditTrail(store=self.store, clock=self.clock, ids=self.ids, random=self.random, backoff=self.backoff)


class TokenCache:
    """A gateway's copy of the live tokens. A revoked one is refused 30 s later, and at the latest after 5 minutes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._copy = CachedCopy(load=self._load, clock=clock, name="the list of tokens")

    def agent_of(self, token: str) -> str | None:
        """Return whose token it is; None if it is no agent's. Raises `Unavailable` if the copy is too old."""
        entry = self._entry(token)
        return entry.agent_id if entry else None

    def role_of(self, token: str) -> Role | None:
        """Return the role of a token; None if it has none. Raises `Unavailable` if the copy is too old."""
        entry = self._entry(token)
        return entry.role if entry else None

    def check(self) -> None:
        """Raise `Unavailable` if the copy is too old."""
        self._copy.value()

    async def refresh(self) -> None:
        """Read the list now. Raises `Unavailable` and `Unreadable`, and keeps the old copy then."""
        await self._copy.refresh()

    async def run(self) -> None:
        """Read the list now and every 30 s, until the task is cancelled. What fails is logged and tried again."""
        await self._copy.run()

    def _entry(self, token: str) -> TokenEntry | None:
        tokens = self._copy.value()
        # Found by its hash: how long that takes says nothing about the tokens themselves.
        return tokens.get(token_sha256(token)) if len(token) <= MAX_TOKEN_LENGTH else None

    async def _load(self) -> Mapping[str, TokenEntry]:
        found = await read_record(TokenList, keys.TOKENS, self._store)
        return {each.token_sha256: each for each in found.tokens} if found else {}
