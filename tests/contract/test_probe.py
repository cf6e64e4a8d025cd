"""The start-up probe against servers that honour preconditions, ignore one, or have never heard of them."""

import re
from collections.abc import Iterator
from itertools import count

import pytest

from lakehead.errors import Misconfigured
from lakehead.ids import RandomIds
from lakehead.storage.connect import StoreSettings
from lakehead.storage.opening import open_store
from lakehead.storage.probe import RACERS, probe
from tests.contract.scene import run
from tests.faults.proxy import Request, answer, failure, loopback
from tests.servers.seaweed import BUCKET


class TinyS3:
    """As much of S3 as the probe needs, honouring preconditions or not."""

    def __init__(self, *, ignored: str | None) -> None:
        self.objects: dict[str, tuple[str, str, bytes]] = {}
        self._ignored = ignored
        self._versions: Iterator[int] = count(1)

    async def handle(self, request: Request) -> bytes:
        match request.method:
            case "PUT":
                return self._put(request)
            case "POST":
                keys = re.findall(r"<Key>([^<]+)</Key>", request.body.decode())
                for key in keys:
                    self.objects.pop(f"/{BUCKET}/{key}", None)
                deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                return answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode(), Content_Type="application/xml")
            case _:
                return self._get(request)

    def _put(self, request: Request) -> bytes:
        there = self.objects.get(request.target)
        for name, holds in (
            ("if-none-match", there is None),
            ("if-match", there is not None and there[0] == request.header("if-match")),
        ):
            if name != self._ignored and request.header(name) and not holds:
                return failure(request, 412, "PreconditionFailed")
        e_tag = f'"{next(self._versions)}"'
        self.objects[request.target] = (e_tag, request.header("x-amz-meta-nonce") or "", request.body)
        return answer(200, ETag=e_tag)

    def _get(self, request: Request) -> bytes:
        if request.target not in self.objects:
            return failure(request, 404, "NoSuchKey")
        e_tag, nonce, body = self.objects[request.target]
        return answer(
            200,
            b"" if request.method == "HEAD" else body,
            Content_Length=str(len(body)),
            ETag=e_tag,
            Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT",
            x_amz_meta_nonce=nonce,
        )


async def probe_tiny(server: TinyS3) -> None:
    async with loopback(server.handle) as endpoint:
        credentials = {"access_key_id": "any", "secret_access_key": "any"}
        settings = StoreSettings(endpoint=endpoint, region="us-east-1", credentials=credentials)
        await probe(open_store(f"s3://{BUCKET}", settings), ids=RandomIds())


def test_the_probe_accepts_a_server_that_honours_both_preconditions() -> None:
    server = TinyS3(ignored=None)
    run(probe_tiny(server))
    assert server.objects == {}


@pytest.mark.parametrize(
    ("ignored", "deed"), [("if-none-match", "create one object"), ("if-match", "replace one version")]
)
def test_the_probe_refuses_a_server_that_ignores_a_precondition(ignored: str, deed: str) -> None:
    server = TinyS3(ignored=ignored)
    with pytest.raises(Misconfigured, match=f"{RACERS} of {RACERS} writers at once {deed}"):
        run(probe_tiny(server))
    assert server.objects == {}


def test_the_probe_refuses_a_server_that_does_not_know_preconditions() -> None:
    class Old(TinyS3):
        def _put(self, request: Request) -> bytes:
            if request.header("if-none-match") or request.header("if-match"):
                return failure(request, 501, "NotImplemented")
            return super()._put(request)

    with pytest.raises(Misconfigured, match="does not know"):
        run(probe_tiny(Old(ignored=None)))
