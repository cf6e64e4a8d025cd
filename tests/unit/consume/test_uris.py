"""Every spelling of one object becomes the same text, and no two objects or versions have the same id."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.consume.objects import ObjectRef
from lakehead.consume.uris import (
    Identity,
    IdentityMissing,
    inline_id,
    inline_message_id,
    is_folder,
    normalise,
    normalise_prefix,
    object_uri,
    parse_uri,
    split_uri,
    unit_id,
)
from lakehead.consume.web_urls import InvalidUri, shown

SPELLINGS = [
    ("s3://shop/in/a.json", "s3://shop/in/a.json"),
    ("s3a://shop/in/a.json", "s3://shop/in/a.json"),
    ("s3n://shop/in/a.json", "s3://shop/in/a.json"),
    ("S3://shop/in/a.json", "s3://shop/in/a.json"),
    ("https://shop.s3.amazonaws.com/in/a.json", "s3://shop/in/a.json"),
    ("http://shop.s3.amazonaws.com:80/in/a.json", "s3://shop/in/a.json"),
    ("https://SHOP.S3.eu-west-1.amazonaws.com/in/a.json", "s3://shop/in/a.json"),
    ("https://shop.s3-eu-west-1.amazonaws.com/in/a.json", "s3://shop/in/a.json"),
    ("https://shop.s3.dualstack.eu-west-1.amazonaws.com/in/a.json", "s3://shop/in/a.json"),
    ("https://shop.s3-accelerate.amazonaws.com/in/a.json", "s3://shop/in/a.json"),
    ("https://shop.s3.cn-north-1.amazonaws.com.cn/in/a.json", "s3://shop/in/a.json"),
    ("https://s3.amazonaws.com/shop/in/a.json", "s3://shop/in/a.json"),
    ("https://s3.us-gov-west-1.amazonaws.com/shop/in/a.json", "s3://shop/in/a.json"),
    ("https://s3-eu-west-1.amazonaws.com/shop/in/a.json", "s3://shop/in/a.json"),
    ("https://my.shop.s3.amazonaws.com/in/a.json", "s3://my.shop/in/a.json"),
    ("gs://shop/in/a.json", "gs://shop/in/a.json"),
    ("gcs://shop/in/a.json", "gs://shop/in/a.json"),
    ("https://storage.googleapis.com/shop/in/a.json", "gs://shop/in/a.json"),
    ("https://shop.storage.googleapis.com/in/a.json", "gs://shop/in/a.json"),
    ("https://storage.cloud.google.com/shop/in/a.json", "gs://shop/in/a.json"),
    ("https://storage.googleapis.com/storage/v1/b/shop/o/in%2Fa.json?alt=media", "gs://shop/in/a.json"),
    ("https://www.googleapis.com/download/storage/v1/b/shop/o/in%2Fa.json", "gs://shop/in/a.json"),
    ("az://shop/in/a.json", "az://shop/in/a.json"),
    ("abfs://shop@account.dfs.core.windows.net/in/a.json", "az://shop/in/a.json"),
    ("abfss://shop@account.dfs.core.windows.net/in/a.json", "az://shop/in/a.json"),
    ("wasbs://shop@account.blob.core.windows.net/in/a.json", "az://shop/in/a.json"),
    ("https://account.blob.core.windows.net/shop/in/a.json", "az://shop/in/a.json"),
    ("https://account.dfs.core.windows.net/shop/in/a.json", "az://shop/in/a.json"),
    ("/data/in/a.json", "file:///data/in/a.json"),
    ("file:///data/in/a.json", "file:///data/in/a.json"),
    ("file:/data/in/a.json", "file:///data/in/a.json"),
    ("FILE:///data/in/a.json", "file:///data/in/a.json"),
    ("memory://shop/in/a.json", "memory://shop/in/a.json"),
    ("memory:///in/a.json", "memory:///in/a.json"),
    # percent-encoding
    ("s3://shop/a%20b+c.json", "s3://shop/a%20b+c.json"),
    ("s3://shop/a b.json", "s3://shop/a b.json"),
    ("https://shop.s3.amazonaws.com/a%20b+c%2Bd%25.json", "s3://shop/a b+c+d%.json"),
    ("https://s3.amazonaws.com/shop/%C3%BC%2Fx", "s3://shop/ü/x"),
    ("/data/a b%20c?d#e", "file:///data/a%20b%2520c%3Fd%23e"),
    ("file:///data/a%20b", "file:///data/a%20b"),
    ("file:///data/a b", "file:///data/a%20b"),
    ("/data/ü", "file:///data/%C3%BC"),
    # what is part of a key, and what is not
    ("s3://shop/why?.json", "s3://shop/why?.json"),
    ("s3://shop/a#b.json", "s3://shop/a#b.json"),
    ("s3://shop/v1./..a/a..b/.hidden", "s3://shop/v1./..a/a..b/.hidden"),
    ("s3://shop/a\\b", "s3://shop/a\\b"),
    ("s3://shop/in/a.json?versionId=v1", "s3://shop/in/a.json"),
    ("https://shop.s3.amazonaws.com/a?X-Amz-Signature=abc&X-Amz-Expires=5", "s3://shop/a"),
    ("s3://shop/in/", "s3://shop/in/"),
]


@pytest.mark.parametrize(("spelling", "uri"), SPELLINGS)
def test_every_spelling_of_an_object_becomes_one_text_that_stays_as_it_is(spelling: str, uri: str) -> None:
    assert normalise(spelling) == uri
    assert normalise(uri) == uri


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.json",
        "in/a.json",
        "C:/a.json",
        "ftp://shop/a",
        "s3:/shop/a",
        "s3://",
        "s3:///a",
        "s3://shop",
        "s3://shop/",
        "s3://shop//a",
        "s3://shop/a//b",
        "s3://shop/a//",
        "s3://shop/./a",
        "s3://shop/a/../b",
        "s3://shop/..",
        "s3://shop/a/..",
        "s3://shop/../",
        "s3://key:secret@shop/a",
        "s3://shop:9000/a",
        "s3://arn:aws:s3:eu-west-1:1:accesspoint/a",
        "s3://shop/a\nb",
        "s3://shop/a\x00",
        "s3://shop/\ud800",
        "s3://shop/a?versionId=\ud800",
        "s3://shop/a#0-100",
        "s3://shop/a?versionId=v#0-100",
        "s3://shop/a?versionId=",
        "s3://shop/a?versionId=%ff",
        "s3://shop/a?versionId=1&x=2",
        "s3://shop/a?versionId=1?versionId=2",
        f"s3://shop/{'a' * 4097}",
        f"https://shop.s3.amazonaws.com/a?x={'a' * 40_000}",
        "https://shop.s3.amazonaws.com/",
        "https://shop.s3.amazonaws.com/a%2F..%2F..%2Fb",
        "https://shop.s3.amazonaws.com/%2e%2e/b",
        "https://shop.s3.amazonaws.com/a%00",
        "https://shop.s3.amazonaws.com/%ff",
        "https://shop.s3.amazonaws.com/a#b",
        "https://shop.s3.amazonaws.com/a%230-100",
        "https://shop.s3.amazonaws.com/a%3FversionId=1",
        "https://shop.s3.amazonaws.com/a?partNumber=1",
        "https://shop.s3.amazonaws.com/a?versionId=",
        "https://shop.s3.amazonaws.com:9000/a",
        "https://user:secret@shop.s3.amazonaws.com/a",
        "https://shop.s3.amazonaws.com.evil.example/a",
        "https://shop.s3-website-eu-west-1.amazonaws.com/a",
        "https://minio.example/shop/a",
        "https://[/a",
        "https://x:99999999/a",
        "https://account.blob.core.windows.net/shop/a?snapshot=2024",
        "file://host/a",
        "file:///",
        "file:a",
        "file:////a",
        "file:///a?b",
        "file:///a#b",
        "file:///a/%2e%2e/b",
        "file:///%ff",
        "/",
        "//a",
        "/a/../b",
        "/a//b",
    ],
)
def test_what_names_no_object_or_may_lead_out_of_a_prefix_is_refused(text: str) -> None:
    with pytest.raises(InvalidUri):
        parse_uri(text)


@pytest.mark.parametrize(
    ("text", "version", "etag"),
    [
        ("s3://shop/a?versionId=v.1_2", "v.1_2", None),
        ("gs://shop/a?generation=17", "17", None),
        ("s3://shop/a?etag=abc-2", None, "abc-2"),
        ("s3://shop/a?versionId=a%2Fb%3F", "a/b?", None),
        ("file:///a?etag=1-2", None, "1-2"),
        ("https://shop.s3.amazonaws.com/a?x=1&versionId=v1", "v1", None),
        ("https://storage.googleapis.com/shop/a?generation=17", "17", None),
        (
            "https://account.blob.core.windows.net/shop/a?versionid=2024-01-01T00%3A00%3A00Z",
            "2024-01-01T00:00:00Z",
            None,
        ),
        ("s3://shop/a", None, None),
        ("/a?versionId=v1", None, None),
    ],
)
def test_a_version_is_split_off(text: str, version: str | None, etag: str | None) -> None:
    ref = parse_uri(text)

    assert (ref.version, ref.etag) == (version, etag)


def test_folder_markers_are_recognised() -> None:
    assert is_folder(normalise("s3://shop/in/"))
    assert not is_folder(normalise("s3://shop/in"))


@pytest.mark.parametrize(
    "secret",
    [
        "s3://KEY:hunter2@b/c",
        "https://h/a?X-Amz-Signature=hunter2",
        "https://h/a?code=hunter2",
        "sig=hunter2 x",
        '{"Token": "hunter2 a"',
    ],
)
def test_what_is_shown_is_short_and_has_no_secrets(secret: str) -> None:
    assert "hunter2" not in shown(secret)
    assert len(shown(secret + "x" * 10_000)) < 150
    assert "\n" not in shown(f"{secret}\nnext")


def test_a_file_is_written_as_pathlib_does(tmp_path: Path) -> None:
    path = tmp_path / "a b%20ü?#[x].json"

    assert normalise(str(path)) == path.as_uri() == normalise(path.as_uri())
    assert split_uri(path.as_uri()).key == str(path)[1:]


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("s3a://shop", "s3://shop/"),
        ("s3://shop/", "s3://shop/"),
        ("s3://shop/in", "s3://shop/in"),
        ("s3://shop/in/", "s3://shop/in/"),
        ("abfss://shop@account.dfs.core.windows.net/", "az://shop/"),
        ("/data in/", "file:///data%20in/"),
        ("/", "file:///"),
    ],
)
def test_a_prefix_is_the_beginning_of_normalised_uris(text: str, prefix: str) -> None:
    assert normalise_prefix(text) == prefix


@pytest.mark.parametrize("text", ["", "shop", "s3://a@b/", "s3://shop/../", "s3://shop/a?versionId=1", "s3://shop//"])
def test_a_prefix_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidUri):
        normalise_prefix(text)


SCHEMES = st.sampled_from(["s3", "gs", "az", "file", "memory"])
HARD = st.text(alphabet="a/.%?#=&+ -0ü\\~", max_size=12)
ENDINGS = st.sampled_from(["", "?versionId=1", "?etag=a", "#0-1", "#1", "%20", "/", "?", "#", "%"])
KEYS = st.builds(str.__add__, st.one_of(HARD, st.text(max_size=12)), ENDINGS)
VALUES = st.one_of(st.none(), st.text(alphabet="ab?=&#%/", min_size=1, max_size=4))


def object_of(scheme: str, key: str) -> str | None:
    try:
        return object_uri(scheme, "" if scheme == "file" else "b", key)
    except InvalidUri:
        return None


@given(SCHEMES, KEYS)
def test_a_normalised_uri_of_any_key_stays_as_it_is_and_gives_the_key_back(scheme: str, key: str) -> None:
    uri = object_of(scheme, key)

    if uri is not None:
        assert normalise(uri) == uri
        assert split_uri(uri) == (scheme, "" if scheme == "file" else "b", key)


@given(st.one_of(st.text(), st.builds("{}{}".format, st.sampled_from([text for text, _ in SPELLINGS]), KEYS)))
def test_normalising_twice_changes_nothing(text: str) -> None:
    try:
        once = normalise(text)
    except InvalidUri:
        return
    assert normalise(once) == once


@given(SCHEMES, KEYS, VALUES, VALUES, st.sampled_from(Identity))
def test_an_id_can_be_read_back_so_no_two_units_share_one(
    scheme: str, key: str, version: str | None, etag: str | None, by: Identity
) -> None:
    uri = object_of(scheme, key)
    if uri is None:
        return
    ref = ObjectRef(uri=uri, version=version, etag=etag)
    try:
        identity = unit_id(ref, by=by)
    except IdentityMissing:
        assert (version if by is Identity.URI_AND_VERSION else etag) is None
        return

    assert parse_uri(identity) == ObjectRef(
        uri=uri,
        version=version if by is Identity.URI_AND_VERSION else None,
        etag=etag if by is Identity.URI_AND_ETAG else None,
    )
    with pytest.raises(InvalidUri):  # so that a part is never taken for an object
        parse_uri(f"{identity}#0-100")


def test_units_are_identified_by_uri_version_or_etag() -> None:
    ref = ObjectRef(uri="s3://b/k", version="v/1", etag="e-2")

    assert unit_id(ref, by=Identity.URI) == "s3://b/k"
    assert unit_id(ref, by=Identity.URI_AND_VERSION) == "s3://b/k?versionId=v%2F1"
    assert unit_id(ref, by=Identity.URI_AND_ETAG) == "s3://b/k?etag=e-2"


@pytest.mark.parametrize("uri", ["s3a://b/k", "s3://b/k?versionId=1", "s3://b/k#0-1", "/k"])
def test_a_uri_that_is_not_normalised_is_no_id(uri: str) -> None:
    with pytest.raises(InvalidUri):
        unit_id(ObjectRef(uri=uri), by=Identity.URI)


def test_inline_content_is_identified_by_itself_or_by_its_message() -> None:
    assert inline_id(b"a") == f"inline:{hashlib.sha256(b'a').hexdigest()}" != inline_id(b"b")
    assert inline_message_id("m/1 ") == "inline:message=m%2F1%20"
    with pytest.raises(IdentityMissing):
        inline_message_id("")
