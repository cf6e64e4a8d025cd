"""Tags of objects in S3, by boto3: obstore has no requests for them. Every call blocks. Needs boto3."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lakehead.consume.uris import normalise_prefix
from lakehead.consume.web_urls import InvalidUri
from lakehead.errors import LakeheadError, Misconfigured, Unavailable
from lakehead.storage.connect import StoreSettings
from lakehead.storage.s3_client import open_s3_client

MOST_TAGS = 10
"""The most tags that an object of S3 can have."""

_TEXT = re.compile(r"[\w +\-=.:/@]*")  # letters and digits of any language, spaces, and these
_LONGEST_NAME, _LONGEST_VALUE = 128, 256
_PERMISSIONS = "s3:GetObjectTagging and s3:PutObjectTagging, and those for versions"


def tags_problem(tags: Mapping[str, str]) -> str | None:
    """Return what S3 would refuse in these tags; None if they can be set."""
    if len(tags) > MOST_TAGS:
        return f"there are {len(tags)} tags, and an object of S3 has at most {MOST_TAGS}"
    for name, value in tags.items():
        if not 0 < len(name) <= _LONGEST_NAME or len(value) > _LONGEST_VALUE:
            return f"the name of {name!r} may have 1 to {_LONGEST_NAME} characters, its value {_LONGEST_VALUE} at most"
        if not _TEXT.fullmatch(name) or not _TEXT.fullmatch(value):
            return f"{name!r} and its value may have letters, digits, spaces and + - = . _ : / @ only"
        if name.lower().startswith("aws:"):
            return f"{name!r} begins with aws:, which S3 keeps for itself"
    return None


def check_all_in_s3(places: Iterable[str]) -> None:
    """Raise `Misconfigured` if one of the prefixes, folders or objects of a pipeline is not in S3."""
    for place in places:
        try:
            is_in_s3 = normalise_prefix(place).startswith("s3://")
        except InvalidUri:
            continue  # who uses it says so
        if not is_in_s3:
            raise Misconfigured(f"Only objects of S3 have tags, and {place} is not there. Set after_landing to keep.")


@dataclass(frozen=True, slots=True)
class S3Tags:
    """Adds tags to objects. Any thread may use it."""

    tags: Mapping[str, str]
    _client: Any

    @classmethod
    def open(cls, tags: Mapping[str, str], settings: StoreSettings) -> "S3Tags":
        """Make a client. Nothing is sent yet. Raises `Misconfigured` if boto3 is missing, or the settings are wrong."""
        client = open_s3_client(settings, purpose="Tags of objects", attempts=settings.backoff.attempts)
        return cls(tags, client)

    def add(self, bucket: str, key: str, version: str | None) -> bool:
        """Add the tags to those that an object, or a version of it, has. False if it has them, or does not exist.

        Others that change its tags between the two requests are not noticed: their change is lost.
        Raises `Unavailable` or `Misconfigured`.
        """
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra, as above

        which = {"Bucket": bucket, "Key": key, **({"VersionId": version} if version else {})}
        try:
            found = self._client.get_object_tagging(**which).get("TagSet")
            if found is None:  # it may ignore that the request is about tags, and would store them as the object
                raise Misconfigured(
                    f"The server does not tell the tags of {bucket}/{key}, so it may not have any. "
                    "Set after_landing to keep."
                )
            before = {each["Key"]: each.get("Value", "") for each in found}
            after = {**before, **self.tags}
            if after == before:
                return False
            tag_set = [{"Key": name, "Value": value} for name, value in after.items()]
            self._client.put_object_tagging(**which, Tagging={"TagSet": tag_set})
        except ClientError as error:
            if str(error.response.get("Error", {}).get("Code")) in ("NoSuchKey", "NoSuchVersion", "404"):
                return False
            raise _explained(error.response) from error
        except BotoCoreError as error:
            raise Unavailable(f"S3 does not respond ({error}).") from error
        return True


def _explained(answer: Mapping[str, Any]) -> LakeheadError:
    code, said = (str(answer.get("Error", {}).get(name, "")) for name in ("Code", "Message"))
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= 500 or status == 429 or code in ("SlowDown", "RequestTimeout"):
        return Unavailable(f"S3 does not serve now ({code}: {said}).")
    hint = f" Allow {_PERMISSIONS}." if status == 403 else ""
    return Misconfigured(f"S3 refused its tags ({code}: {said}).{hint}")
