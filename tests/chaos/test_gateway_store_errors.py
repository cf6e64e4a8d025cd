"""What a gateway answers, and what is accepted, when S3 fails in each of its ways at each step of an upload.

A real gateway, a real S3 server, and a proxy between them that fails requests by their method and key. Each case has an
identity of its own, so that they run side by side. After each, the client sends the same bytes again.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count, product, repeat

import httpx
import pytest

from lakehead.accept.acceptance import Acceptor, Submission
from lakehead.clock import SystemClock
from lakehead.ids import RandomIds, system_random
from lakehead.storage.port import Store
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from lakehead.wire.frame import decode_frame
from lakehead.wire.key_parts import identity_part
from tests.faults.proxy import Fault, Proxy, served
from tests.servers.seaweed import Seaweed
from tests.support.async_tests import run_bounded
from tests.support.effort import effort
from tests.support.gateways import GatewayAuthority, GatewayProcess, accepted_manifest, sample_frame
from tests.unit.accept.support import void_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

STORE_SECONDS, ACCEPT_SECONDS = 3.0, 7.0
"""How long the gateway waits for one answer of the store, and for all of an upload. SeaweedFS takes a second and more
when several write the same key at once, as the probe at the start of a gateway does."""

AT_ONCE = 15
"""Below `agent_requests`."""

APPLIED = (
    Fault.PRECONDITION_APPLIED,
    Fault.UNAVAILABLE_APPLIED,
    Fault.TIMEOUT_APPLIED,
    Fault.RESET_APPLIED,
)
REFUSED = (Fault.CONFLICT, Fault.PRECONDITION)
"""What says that nothing was written, which is true, whatever else it says."""

UNKNOWN = (Fault.UNAVAILABLE, Fault.TIMEOUT, Fault.RESET)
"""What leaves the gateway in doubt, although nothing was written."""

WRITE_FAULTS = (*APPLIED, *REFUSED, *UNKNOWN)
TIMES = [(fault, lasting) for fault in WRITE_FAULTS for lasting in (False, True)]
BRIEF_TIMES = [each for each in TIMES if each != (Fault.TIMEOUT, True)]
"""Without what takes `ACCEPT_SECONDS`, and is the same wherever it happens."""

AT_KEY = ("absent", "same", "other", "void")
"""What stands at the key of the identity before the upload: nothing, another gateway's manifest with the same hash or
with another one, or a void. Our own is what a fault leaves that was applied."""

BY_KEY = {
    "absent": (200, "", False),
    "same": (200, "", True),
    "other": (409, "identity_conflict", None),
    "void": (410, "identity_void", None),
}
"""What is answered about it: status, code and `duplicate`."""

Answer = tuple[int, str, bool | None]
NUMBERS = count()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One upload, and what happens to which of its requests to the store."""

    step: str
    """Which requests: method and folder. READ is GET and HEAD; LOST is PUT, and HEAD is never answered besides, so that
    the store's client cannot tell what became of a write."""

    fault: Fault | None
    lasting: bool = False
    """Whether every request of the step fails, and not only the first."""

    at_key: str = "absent"
    expected: Answer
    identity: BatchIdentity = field(default_factory=lambda: BatchIdentity("agent", f"boot-{next(NUMBERS)}", 0, 2))

    @property
    def frame(self) -> bytes:
        return sample_frame(self.identity)

    @property
    def submission(self) -> Submission:
        return Submission.of(self.frame, decode_frame(self.frame))

    def __str__(self) -> str:
        what = "no fault" if self.fault is None else f"{self.fault.name}{', always' if self.lasting else ''}"
        return f"{self.step}: {what}, key {self.at_key}"


@dataclass
class Table:
    """A gateway whose requests to the store go through a proxy."""

    authority: GatewayAuthority
    proxy: Proxy
    gateway: GatewayProcess

    async def check(self, cases: Iterable[Case]) -> None:
        """Run cases side by side, and fail with all that went wrong."""
        store, places = self.authority.store(), asyncio.Semaphore(AT_ONCE)

        async def one(case: Case, http: httpx.AsyncClient) -> str | None:
            async with places:
                try:
                    await self._check(case, store, http)
                except AssertionError as error:
                    return f"{case}: {error}"
                return None

        async with httpx.AsyncClient(timeout=60) as http:
            found = await asyncio.gather(*(one(case, http) for case in cases))
        problems = [each for each in found if each is not None]
        assert not problems, "\n".join(problems)

    async def upload(self, case: Case, http: httpx.AsyncClient) -> Answer:
        response = await self.authority.send(http, self.gateway, case.frame)
        body = response.json()
        code = body.get("error", {}).get("code", "")
        if response.status_code == 200:
            assert body["frame_sha256"] == sha256(case.frame).hexdigest()
        if response.status_code == 503:
            assert int(response.headers["Retry-After"]) > 0
        return response.status_code, code, body.get("duplicate")

    def fail(self, case: Case) -> None:
        method, place = case.step.split(" ")
        # A conflict's quarantine manifest and a manifest are at the identity, blobs and their entries at the hash.
        digest, identity = sha256(case.frame).hexdigest(), identity_part(case.identity)
        of = {
            "raw-blobs": f"/{digest}.lmbatch",
            "raw-blobs-by-time": f"/sha256={digest}.json",
            "accepted": f"/accepted/v1/{identity}.json",
            "quarantine": f"/quarantine/v1/identity-conflict/{identity}/{digest}.json",
            "quarantine-by-blob": f"/quarantine-by-blob/v1/sha256/{digest[:2]}/{digest[2:4]}/{digest}/{identity}.json",
        }[place]
        if method == "LOST":
            self.proxy.script("HEAD", repeat(Fault.UNAVAILABLE), of=of)
        if case.fault is not None:
            for each in {"READ": ("GET", "HEAD"), "LOST": ("PUT",)}.get(method, (method,)):
                self.proxy.script(each, repeat(case.fault) if case.lasting else [case.fault], of=of)

    def mend(self, case: Case) -> None:
        for method, of in list(self.proxy._scripts):
            if identity_part(case.identity) in of or sha256(case.frame).hexdigest() in of:
                self.proxy.script(method, (), of=of)

    async def prepare(self, case: Case, store: Store) -> None:
        """Put at the key what is there before."""
        if case.at_key == "void":
            void = void_of(case.submission)
            await store.create(void.key, void.encode())
        elif case.at_key != "absent":
            frame = case.frame if case.at_key == "same" else sample_frame(case.identity, 99.0)
            other = Acceptor(
                store=store, clock=SystemClock(), ids=RandomIds(), random=system_random(), collector_id="another"
            )
            await other.accept(Submission.of(frame, decode_frame(frame)))

    async def _check(self, case: Case, store: Store, http: httpx.AsyncClient) -> None:
        await self.prepare(case, store)
        before = await store.get(keys.accepted(case.identity))
        self.fail(case)
        began = time.monotonic()
        first = await self.upload(case, http)
        is_late = time.monotonic() - began >= ACCEPT_SECONDS
        self.mend(case)
        after_first = await store.get(keys.accepted(case.identity))
        again = await self.upload(case, http)
        last = await store.get(keys.accepted(case.identity))

        if not is_late or first[0] != 503:  # what took all of the time, as on a busy machine, may end in doubt
            assert first == case.expected, f"answered {first}, expected {case.expected}"
        assert last is not None
        if before is not None:
            assert last.body == before.body, "what was at the key was replaced"
        if after_first is not None:
            assert last.body == after_first.body, "what was accepted was replaced by the retry"
        if case.at_key == "absent":
            assert again == (200, "", after_first is not None), f"the retry is answered {again}"
            assert (first[0] == 200) <= (after_first is not None), "answered, and not accepted"
            manifest = await accepted_manifest(store, case.identity)
            assert manifest is not None
            assert manifest.frame_sha256 == sha256(case.frame).hexdigest()
        else:
            assert again == BY_KEY[case.at_key], f"the retry is answered {again}"
        if case.at_key == "other":
            digest = sha256(case.frame).hexdigest()
            for key in (keys.identity_conflict(case.identity, digest), keys.quarantine_by_blob(digest, case.identity)):
                assert await store.head(key) is not None, f"{key} is not there"
            assert await store.head(keys.raw_blob(digest)) is not None, "the frame in quarantine is not there"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, seaweed: Seaweed) -> Iterator[Table]:
    proxy = Proxy(seaweed.endpoint, None)
    with served(proxy.handle) as endpoint:
        authority = GatewayAuthority(
            tmp_path_factory.mktemp("gateway"),
            seaweed,
            ingest={"requests_per_second": None, "accept_seconds": ACCEPT_SECONDS},
            store_seconds=STORE_SECONDS,
        )
        gateway = authority.gateway("gateway", endpoint=endpoint).start()
        yield Table(authority, proxy, gateway)
        gateway.kill()


def expected_of_a_blob(fault: Fault, at_key: str, *, lasting: bool) -> Answer:
    """A blob or its entry that cannot be written keeps everything from being accepted, and from being refused.

    With the same frame accepted, both are there: it does not matter then what becomes of a further write.
    """
    if at_key == "same":
        return BY_KEY[at_key]
    if lasting and fault in REFUSED:
        return 503, "store_unavailable", None
    if lasting and fault in UNKNOWN:
        return 503, "outcome_unknown", None
    return BY_KEY[at_key]


def test_a_blob_that_is_not_stored_is_tried_again_and_else_nothing_is_accepted(table: Table) -> None:
    run_bounded(
        table.check(
            Case(
                step=step,
                fault=fault,
                lasting=lasting,
                at_key=at_key,
                expected=expected_of_a_blob(fault, at_key, lasting=lasting),
            )
            for at_key in effort(AT_KEY[:2], soak=AT_KEY)
            for step in ("PUT raw-blobs", "PUT raw-blobs-by-time")
            for fault, lasting in TIMES
        )
    )


def test_what_is_at_the_identitys_key_decides_however_its_creation_fails(table: Table) -> None:
    cases = [
        Case(
            step="PUT accepted",
            fault=fault,
            lasting=lasting,
            at_key=at_key,
            expected=expected_of_a_blob(fault, at_key, lasting=lasting) if at_key == "absent" else BY_KEY[at_key],
        )
        for at_key in AT_KEY
        for fault, lasting in (TIMES if at_key == "absent" else effort(BRIEF_TIMES, soak=TIMES))
    ]
    run_bounded(table.check(cases))


def test_without_a_fault_it_decides_too(table: Table) -> None:
    run_bounded(
        table.check(Case(step="PUT accepted", fault=None, at_key=each, expected=BY_KEY[each]) for each in AT_KEY)
    )


def test_the_gateways_own_manifest_behind_a_lost_answer_is_a_first_acceptance(table: Table) -> None:
    run_bounded(
        table.check(
            Case(step="LOST accepted", fault=fault, lasting=True, at_key=at_key, expected=BY_KEY[at_key])
            for fault, at_key in product(APPLIED, effort(("absent", "other"), soak=AT_KEY))
            if fault is not Fault.TIMEOUT_APPLIED  # which takes all of the time, and ends in doubt
        )
    )


def test_only_what_was_read_from_the_key_makes_a_duplicate_or_a_conflict(table: Table) -> None:
    """The gateway looks at a key by HEAD, to know its own write, and then reads it: without that it tells nothing."""
    run_bounded(
        table.check(
            Case(
                step=step,
                fault=fault,
                lasting=lasting,
                at_key=at_key,
                expected=(503, "store_unavailable", None) if lasting and step != "HEAD accepted" else BY_KEY[at_key],
            )
            for step, at_key in product(("HEAD accepted", "GET accepted", "READ accepted"), AT_KEY[1:])
            for fault, lasting in effort(BRIEF_TIMES, soak=TIMES)
            if fault in UNKNOWN
        )
    )


def test_a_conflict_is_answered_also_if_it_cannot_be_recorded_and_the_retry_records_it(table: Table) -> None:
    run_bounded(
        table.check(
            Case(step=step, fault=fault, lasting=lasting, at_key="other", expected=BY_KEY["other"])
            for step in ("PUT quarantine", "PUT quarantine-by-blob")
            for fault, lasting in effort(BRIEF_TIMES, soak=TIMES)
        )
    )


def test_a_manifest_that_is_created_long_after_its_time_out_counts_once(table: Table) -> None:
    """Created before the retry, it makes the retry a duplicate; created after it, it changes nothing."""

    async def test() -> None:
        store = table.authority.store()
        created_first, retried_first = cases = [
            Case(step="PUT accepted", fault=Fault.TIMEOUT_APPLIED_LATER, lasting=True, expected=(0, "", None))
            for _ in range(2)
        ]
        async with httpx.AsyncClient(timeout=60) as http:
            for case in cases:
                table.fail(case)
            for answer in await asyncio.gather(*(table.upload(case, http) for case in cases)):
                assert answer == (503, "outcome_unknown", None)
            for case in cases:
                assert await store.get(keys.accepted(case.identity)) is None
                table.mend(case)
            assert await table.upload(retried_first, http) == (200, "", False)
            manifest = await accepted_manifest(store, retried_first.identity)
            assert (await table.proxy.release()).count(200) == 1
            assert await accepted_manifest(store, retried_first.identity) == manifest
            assert await accepted_manifest(store, created_first.identity) is not None
            assert await table.upload(created_first, http) == (200, "", True)

    run_bounded(test())
