"""Keys of a real bucket that read like something else: each is delivered as the object that it is, or refused."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import boto3
import pytest

from lakehead.clock import SystemClock
from lakehead.consume.messages import announced
from lakehead.consume.object_reader import ObjectReader
from lakehead.consume.objects import MessageFormat, NotUnderstood
from lakehead.consume.queues.file_list_queue import FileListQueue
from lakehead.errors import Misconfigured
from lakehead.storage.open_store import open_store
from tests.servers.seaweed import ACCESS_KEY, REGION, SECRET_KEY, Seaweed
from tests.support.async_tests import run_bounded

VERSION_LIKE = "in/a.json?versionId=abc"
KEYS = ("in/a.json", "in/a.json ", "in/50%2B+%.json", "in/größe#1", "in/b?x=y", VERSION_LIKE)


def bucket_of(seaweed: Seaweed, *keys: str) -> tuple[Any, str]:
    """A bucket in which each object holds its own key."""
    client, bucket = (
        boto3.client(
            "s3",
            endpoint_url=seaweed.endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        ),
        f"odd-{uuid4()}",
    )
    client.create_bucket(Bucket=bucket)
    for key in keys:
        client.put_object(Bucket=bucket, Key=key, Body=b"" if key.endswith("/") else key.encode())
    return client, bucket


def listed(seaweed: Seaweed, bucket: str) -> list[bytes]:
    """The bodies of the messages of a listing."""
    bodies: list[bytes] = []

    async def receive() -> None:
        url = f"s3://{bucket}/in"
        queue = FileListQueue.of_store(open_store(url, seaweed.settings()), url, SystemClock())
        found = await queue.receive(100, visibility=timedelta(minutes=1), wait=timedelta(0))
        bodies.extend(message.body for message in found)
        await queue.close()

    run_bounded(receive())
    return bodies


def test_each_listed_key_is_read_as_the_object_that_it_is_or_not_understood(seaweed: Seaweed) -> None:
    _, bucket = bucket_of(seaweed, *KEYS, "in/folder/", "in/folder/c.json")
    reader = ObjectReader({"s3": seaweed.settings()})

    read, refused = list[str](), list[bytes]()
    for body in listed(seaweed, bucket):
        try:
            [ref] = announced(body, MessageFormat.LISTED).objects
        except NotUnderstood:
            refused.append(body)
        else:
            read.append(reader.open(ref.uri).source.read().decode())

    assert sorted(read) == sorted([*KEYS[:-1], "in/folder/c.json"])
    assert refused == [f"s3://{bucket}/{VERSION_LIKE}".encode()]


def test_a_key_that_stops_a_listing_is_named(seaweed: Seaweed) -> None:
    _, bucket = bucket_of(seaweed, "in/a.json", "in/x\ny.json")

    with pytest.raises(Misconfigured, match=r"key cannot be read, 'in/x\\ny\.json'.*Rename or remove it"):
        listed(seaweed, bucket)
