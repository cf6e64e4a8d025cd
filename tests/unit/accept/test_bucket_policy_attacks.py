"""Ways around the bucket policy, tried by roles and people whose own policies allow them everything."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import product
from typing import Any

import httpx
import pytest

from lakehead.accept.bucket_roles import BucketRole
from lakehead.clock import SystemClock
from lakehead.gateway.server import GatewayServer
from lakehead.ids import RandomIds
from lakehead.run.config.gateway_config import GatewayConfig, ListenerConfig
from lakehead.run.gateway_wiring import GatewayWiring
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.port import Created, Exists, ListedObject, Object, ObjectMeta, Replaced, Stale, Version
from lakehead.storage.probed_store import ProbedStore
from lakehead.wire import acceptance_keys as keys
from lakehead.wire.batch_identity import BatchIdentity
from tests.support.async_tests import async_test
from tests.support.gateways import sample_frame
from tests.unit.accept.policy_evaluator import SSE, S3Request, is_allowed
from tests.unit.accept.test_bucket_policy import ADMIN, ARNS, BUCKET, CREATE, FOLDERS, HEADERS, KEY, arn_of, policy_for

BUCKET_ARN = f"arn:aws:s3:::{BUCKET}"
WRITES = ("PutObject", "CopyObject", "CompleteMultipartUpload", "DeleteObject", "DeleteObjectVersion")


@pytest.mark.parametrize("headers", ["plain", "replace"])
@pytest.mark.parametrize("folder", ["accepted/v1", "audit/v1"])
def test_a_server_that_does_not_know_parts_refuses_too_much_rather_than_too_little(folder: str, headers: str) -> None:
    request = S3Request(ADMIN, "PutObject", arn_of(folder), HEADERS[headers], server_knows_parts=False)

    assert not is_allowed(policy_for(), request, by_identity=True)


@pytest.mark.parametrize("role", BucketRole)
def test_a_role_that_was_deleted_and_made_again_is_bound_as_before(role: BucketRole) -> None:
    policy, freed = policy_for(), []

    for folder, operation, headers in product(FOLDERS, (*WRITES, "GetObject", "GetObjectVersion"), HEADERS):
        known = S3Request(ARNS[role], operation, arn_of(folder), HEADERS[headers])
        remade = S3Request(ARNS[role], operation, arn_of(folder), HEADERS[headers], is_remade=True)
        if is_allowed(policy, remade, by_identity=True) and not is_allowed(policy, known, by_identity=True):
            freed.append((folder, operation, headers))

    assert freed == []


SETTINGS = (
    *("PutBucketPolicy", "DeleteBucketPolicy", "DeleteBucket", "PutBucketVersioning", "PutBucketAcl"),
    *("PutBucketEncryption", "PutObjectLockConfiguration", "PutBucketReplication", "PutBucketLifecycleConfiguration"),
)
PROTECTION = (
    *("PutObjectAcl", "PutObjectVersionAcl", "PutObjectTagging", "PutObjectVersionTagging", "DeleteObjectTagging"),
    *("PutObjectRetention", "PutObjectLegalHold", "BypassGovernanceRetention"),
)


@pytest.mark.parametrize("role", BucketRole)
def test_a_role_cannot_change_what_protects_the_bucket_and_its_objects(role: BucketRole) -> None:
    tried = [*product(SETTINGS, [BUCKET_ARN]), *product(PROTECTION, map(arn_of, ("accepted/v1", "tokens/v1")))]

    done = [
        (operation, resource)
        for operation, resource in tried
        if is_allowed(policy_for(), S3Request(ARNS[role], operation, resource), by_identity=True)
    ]
    assert done == []


@pytest.mark.parametrize("folder", ["accepted/v1", "audit/v1"])
def test_nobody_gets_around_the_object_lock_of_what_is_append_only(folder: str) -> None:
    request = S3Request(ADMIN, "BypassGovernanceRetention", arn_of(folder))

    assert not is_allowed(policy_for(), request, by_identity=True)


@pytest.mark.parametrize("role", BucketRole)
def test_every_role_may_read_the_settings_that_are_judged(role: BucketRole) -> None:
    for operation in (
        *("GetBucketVersioning", "GetBucketLifecycleConfiguration", "GetObjectLockConfiguration"),
        *("GetBucketPolicy", "GetBucketReplication", "GetBucketEncryption"),
    ):
        assert is_allowed(policy_for(), S3Request(ARNS[role], operation, BUCKET_ARN)), operation


def test_a_write_that_asks_for_kms_without_naming_the_key_would_get_that_of_aws_and_is_refused() -> None:
    policy = policy_for(encryption="aws:kms", kms_key=KEY)

    def taken(**headers: str) -> bool:
        request = S3Request(ADMIN, "PutObject", arn_of("raw-blobs/v1"), CREATE | headers)
        return is_allowed(policy, request, by_identity=True)

    assert taken(), "the bucket's default encryption has the key"
    assert taken(**{SSE: "aws:kms", f"{SSE}-aws-kms-key-id": KEY})
    assert not taken(**{SSE: "aws:kms"})
    assert not taken(**{f"{SSE}-aws-kms-key-id": KEY.replace("1111", "9999")})


def test_policies_of_two_authorities_in_one_bucket_can_be_one() -> None:
    """Tools that merge policies let a statement replace another with the same Sid."""
    others = {role: arn.replace("lakehead", "other") for role, arn in ARNS.items()}
    one, other = policy_for(prefix="a/b")["Statement"], policy_for(prefix="a-b", principals=others)["Statement"]
    both: dict[str, Any] = {"Version": "2012-10-17", "Statement": [*one, *other]}
    sids = [statement["Sid"] for statement in both["Statement"]]

    assert len(set(sids)) == len(sids)
    assert all(sid.isalnum() for sid in sids)
    for arns, prefix in ((ARNS, "a/b"), (others, "a-b")):
        create = S3Request(arns[BucketRole.GATEWAY], "PutObject", arn_of("accepted/v1", prefix), CREATE)
        assert is_allowed(both, create)
        delete = S3Request(arns[BucketRole.GC], "DeleteObject", arn_of("raw-blobs/v1", prefix))
        assert is_allowed(both, delete)
    crossed = S3Request(ARNS[BucketRole.GC], "DeleteObject", arn_of("raw-blobs/v1", "a-b"))
    assert not is_allowed(both, crossed, by_identity=True)


class RecordingStore(MemoryStore):
    """Notes each call as the request that a store in S3 would send."""

    def __init__(self) -> None:
        super().__init__(clock=SystemClock())
        self.requests: set[tuple[str, str, str]] = set()
        """Operation, key and condition."""

    async def create(self, key: str, body: bytes) -> Created | Exists:
        self.requests.add(("PutObject", key, "create"))
        return await super().create(key, body)

    async def replace(self, key: str, body: bytes, version: Version) -> Replaced | Stale:
        self.requests.add(("PutObject", key, "replace"))
        return await super().replace(key, body, version)

    async def put(self, key: str, body: bytes) -> Version:
        self.requests.add(("PutObject", key, "plain"))
        return await super().put(key, body)

    async def delete(self, key: str) -> None:
        self.requests.add(("DeleteObject", key, "plain"))
        await super().delete(key)

    async def get(self, key: str, *, start: int = 0, end: int | None = None) -> Object | None:
        self.requests.add(("GetObject", key, "plain"))
        return await super().get(key, start=start, end=end)

    async def head(self, key: str) -> ObjectMeta | None:
        self.requests.add(("GetObject", key, "plain"))
        return await super().head(key)

    def list(self, folder: str = "", *, start_after: str = "") -> AsyncIterator[Sequence[ListedObject]]:
        self.requests.add(("ListObjectsV2", "", "plain"))
        return super().list(folder, start_after=start_after)


@pytest.mark.slow
@async_test
async def test_a_gateway_sends_no_request_that_its_role_is_refused_and_uses_all_that_it_is_given() -> None:
    """A whole life: accepted, duplicate, conflict, corrupt blob, every decision of an operator, readiness, stop."""
    listener = ListenerConfig(port=0)
    config = GatewayConfig(
        store="memory://policy", ingest_listener=listener, private_listener=listener, reconciler="required"
    )
    wiring, store = GatewayWiring(config, {}), RecordingStore()
    wiring.__dict__["store"] = ProbedStore(store, RandomIds(), store)  # as the cached property would keep it
    await wiring.authority.init("s3_manifest")
    agent = (await wiring.tokens.add(by="admin", agent_id="agent-a")).token
    admin = (await wiring.tokens.add(by="admin", role="admin")).token
    store.requests.clear()  # those were an administrator's
    stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(wiring.serve(stop, started.set_result))
    await asyncio.wait((serving, started), return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()  # raises why it did not start

    await _live(started.result(), agent, admin, store)
    stop.set()
    await serving

    policy, role = policy_for(), ARNS[BucketRole.GATEWAY]
    refused = [
        (operation, key, condition)
        for operation, key, condition in sorted(store.requests)
        if not is_allowed(
            policy, S3Request(role, operation, f"{BUCKET_ARN}/{key}" if key else BUCKET_ARN, HEADERS[condition])
        )
    ]
    assert refused == []
    written = {"/".join(key.split("/")[:2]) for operation, key, _ in store.requests if operation == "PutObject"}
    assert {each for each in written if not each.startswith(("_probe", "landing-queue"))} == {
        *("raw-blobs/v1", "raw-blobs-by-time/v1", "accepted/v1", "accepted-by-time/v1", "accepted-by-blob/v1"),
        *("quarantine/v1", "quarantine-by-blob/v1", "quarantined-identities/v1", "resolutions/v1", "audit/v1"),
    }
    assert any(each.startswith("landing-queue") for each in written)


async def _live(server: GatewayServer, agent: str, admin: str, store: RecordingStore) -> None:
    identity = BatchIdentity("agent-a", "boot-1", 1, 3)
    frame, other = sample_frame(identity), sample_frame(identity, 7.0)
    async with httpx.AsyncClient(timeout=30) as client:

        async def upload(body: bytes) -> int:
            url = f"http://127.0.0.1:{server.ingest_port}/ingest/v1/batch"
            answer = await client.post(url, content=body, headers={"Authorization": f"Bearer {agent}"})
            return answer.status_code

        async def private(method: str, path: str) -> Any:
            url = f"http://127.0.0.1:{server.private_port}{path}"
            answer = await client.request(method, url, headers={"Authorization": f"Bearer {admin}"})
            assert answer.status_code < 300, answer.text
            return answer.json()

        assert [await upload(each) for each in (frame, frame, other)] == [200, 200, 409]
        blob = next(key for _, key, _ in store.requests if key.startswith(keys.RAW_BLOBS))
        await MemoryStore.put(store, blob, b"corrupt")
        assert await upload(frame) == 200
        [conflict] = (await private("GET", "/v1/conflicts"))["conflicts"]
        for decision in ("accept-existing", "quarantine", "release"):
            await private("POST", f"/v1/conflicts/{conflict['id']}/{decision}")
        await client.get(f"http://127.0.0.1:{server.private_port}/readyz")
