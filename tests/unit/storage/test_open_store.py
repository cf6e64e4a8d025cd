"""URLs of stores: what they open, and what is said about those that open nothing."""

from dataclasses import replace
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError

from lakehead.errors import Misconfigured
from lakehead.storage.connect import Bucket, StoreSettings, connect
from lakehead.storage.local_store import LocalStore
from lakehead.storage.memory_store import MemoryStore
from lakehead.storage.open_store import open_store
from lakehead.storage.remote_store import RemoteStore
from tests.servers.ports import free_ports

S3 = StoreSettings(region="us-east-1", credentials={"access_key_id": "key", "secret_access_key": "canary-4711"})
AZURE = StoreSettings(credentials={"account_name": "name", "account_key": "Y2FuYXJ5LTQ3MTE="})
GCS = StoreSettings(credentials={"skip_signature": "true"})


@pytest.mark.parametrize("url", ["memory://", "memory://name"])
def test_a_memory_url_opens_a_store_in_memory(url: str) -> None:
    assert isinstance(open_store(url), MemoryStore)


@pytest.mark.parametrize("name", ["lake", "with space", "ünï", "100%"])
def test_a_file_url_opens_a_folder_and_makes_nothing_yet(tmp_path: Path, name: str) -> None:
    store = open_store((tmp_path / name).as_uri())

    assert isinstance(store, LocalStore)
    assert store._root == tmp_path / name
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "settings"),
    [
        ("s3://bucket", S3),
        ("s3://bucket/", S3),
        ("s3://bucket/some/prefix/", S3),
        ("s3://bucket/prefix?endpoint=http://127.0.0.1:8333&region=eu-west-1", S3),
        ("az://container/prefix", AZURE),
        ("gs://bucket/prefix?endpoint=http://127.0.0.1:4443", GCS),
    ],
)
def test_a_cloud_url_opens_without_sending_anything(url: str, settings: StoreSettings) -> None:
    assert isinstance(open_store(url, settings), RemoteStore)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "unknown scheme"),
        ("lake", "unknown scheme"),
        ("/tmp/lake", "unknown scheme"),
        ("ftp://host/path", "unknown scheme"),
        ("S3//bucket", "unknown scheme"),
        ("s3://", "has no bucket"),
        ("s3:///key", "has no bucket"),
        ("s3:/bucket", "has no bucket"),
        ("s3://[bucket", "is invalid"),
        ("s3://bucket/a//b", "empty segment"),
        ("s3://bucket/../b", "ends in a dot"),
        ("s3://bucket/.lakehead", "is reserved for the store itself"),
        (f"s3://bucket/{'p' * 128}", "128 bytes"),
        ("s3://bucket/prefix?endpont=http://x", "'endpont'"),
        ("s3://bucket/prefix?endpoint=localhost:8333", "not a valid address"),
        ("s3://bucket#fragment", "'#'"),
        ("file://", "has no folder"),
        ("file:///", "has no folder"),
        ("file://host/folder", "file:///host/folder"),
        ("file:///folder?mode=1", "no settings"),
        ("memory:///path", "takes no path"),
        ("memory://name/path", "takes no path"),
        ("memory://name?mode=1", "no settings"),
    ],
)
def test_a_bad_url_is_one_sentence_that_names_what_is_wrong(url: str, said: str) -> None:
    with pytest.raises(Misconfigured, match=said.replace("?", r"\?")) as raised:
        open_store(url, S3)

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("url", ["s3://key:canary-4711@bucket/prefix", "s3://canary-4711@bucket"])
def test_a_url_with_credentials_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(Misconfigured, match="contains credentials") as raised:
        open_store(url)

    assert "canary-4711" not in str(raised.value)


def test_an_unknown_credential_is_named() -> None:
    with pytest.raises(Misconfigured, match="acces_key"):
        open_store("s3://bucket", StoreSettings(region="r", credentials={"acces_key": "canary-4711"}))


def test_settings_do_not_show_credentials() -> None:
    assert "canary-4711" not in repr(S3)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_no_variable_of_the_environment_leads_to_another_endpoint_than_the_settings(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    monkeypatch.setenv(variable, elsewhere)
    client = connect(Bucket("s3", "b", ""), replace(S3, endpoint=here), retries=0)

    with pytest.raises(BaseError, match=f"{here}/"):
        obstore.get(client, "key")
