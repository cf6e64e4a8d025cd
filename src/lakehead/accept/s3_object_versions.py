"""Versions and delete markers of objects in S3, by boto3: what the protocol of stores does not tell."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lakehead.errors import LakeheadError, Unavailable


class VersionsUnread(LakeheadError):
    """The versions of objects cannot be listed, and the message says why."""


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One version of an object, or the marker that it was deleted."""

    key: str
    """Relative to the prefix of the store."""

    version_id: str
    is_latest: bool
    is_delete_marker: bool
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class S3ObjectVersions:
    """The versions of the objects of a bucket."""

    client: Any
    """Of boto3."""

    bucket: str
    prefix: str = ""
    """The prefix of the store, without slashes around it."""

    async def list(self, folder: str) -> AsyncIterator[Sequence[ObjectVersion]]:
        """Yield pages of the versions in a folder and its subfolders, by key, the newest first.

        Raises `Unavailable` if S3 does not answer, and `VersionsUnread` if it refuses.
        """
        place = f"{self.prefix}/{folder}/" if self.prefix else f"{folder}/"
        markers: dict[str, str] = {}
        while True:
            answer = await asyncio.to_thread(self._page, place, markers)
            yield list(self._versions(answer))
            if not answer.get("IsTruncated"):
                return
            markers = {
                name: answer[f"Next{name}"] for name in ("KeyMarker", "VersionIdMarker") if answer.get(f"Next{name}")
            }

    def _page(self, place: str, markers: Mapping[str, str]) -> Mapping[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra, not always installed

        try:
            answer: Mapping[str, Any] = self.client.list_object_versions(Bucket=self.bucket, Prefix=place, **markers)
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if status >= 500 and status != 501:
                raise Unavailable(f"S3 does not list the versions of {place} ({error}). Try again later.") from error
            raise VersionsUnread(f"S3 refuses to list versions ({error}). Allow s3:ListBucketVersions.") from error
        except BotoCoreError as error:
            raise Unavailable(f"S3 does not list the versions of {place} ({error}). Try again later.") from error
        return answer

    def _versions(self, answer: Mapping[str, Any]) -> Iterator[ObjectVersion]:
        start = len(self.prefix) + 1 if self.prefix else 0
        for field in ("Versions", "DeleteMarkers"):
            for each in answer.get(field, ()):
                yield ObjectVersion(
                    key=each["Key"][start:],
                    version_id=str(each.get("VersionId", "")),
                    is_latest=bool(each.get("IsLatest")),
                    is_delete_marker=field == "DeleteMarkers",
                    modified_at=each["LastModified"],
                )
