"""What a bucket's own policy lacks of the denials that `lakehead policy print` has for everybody.

A denial counts if it surely holds: for everybody, for the whole folder, and under no further conditions. What is said
in another way than that is reported as missing: an operator can compare, and a wrong "ok" would be believed.
"""

import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import translate
from typing import Any

from lakehead.accept.bucket_policy import BucketPolicySettings, denials_for_everybody, placeholder
from lakehead.accept.bucket_roles import BucketRole
from lakehead.accept.bucket_settings import AuthorityPlace, Check, Finding, Severity
from lakehead.errors import Misconfigured
from lakehead.wire import acceptance_keys as keys

_MEANS: Mapping[tuple[str, str], tuple[Severity, str]] = {
    ("AppendOnlyIsCreated", "s3:PutObject"): (Severity.DANGER, "writes without If-None-Match, which replace objects,"),
    ("AppendOnlyIsNotCopied", "s3:PutObject"): (Severity.WARNING, "copies"),
    ("AppendOnlyIsNotDeleted", "s3:DeleteObject"): (Severity.DANGER, "deletes"),
    ("AppendOnlyIsNotDeleted", "s3:DeleteObjectVersion"): (Severity.DANGER, "deletes of versions"),
    ("BlobsAreDeletedByGcAlone", "s3:DeleteObject"): (Severity.DANGER, "deletes by others than GC"),
    ("BlobsAreDeletedByGcAlone", "s3:DeleteObjectVersion"): (Severity.DANGER, "deletes of versions by others than GC"),
}
"""What everybody may do without a denial. Those that are not here are advice."""

_EXCEPT = {"arnnotequals", "arnnotlike", "stringnotequals", "stringnotlike"}


def policy_findings(policy: str | None, place: AuthorityPlace, versioning: str) -> Iterator[Finding]:
    """Yield what is missing in a policy; `versioning` is that of the bucket, `Enabled`, `Suspended` or empty."""
    prefix = f" --prefix {place.prefix}" if place.prefix else ""
    command = f"lakehead policy print --role gateway --role gc --bucket {place.bucket}{prefix}"
    advice = f"Compare with `{command}`: docs/bucket-policy.md."
    if policy is None:
        problem = "The bucket has no policy: whoever may write can replace and delete what was accepted."
        yield Finding(Check.POLICY, Severity.DANGER, f"{problem} {_then(versioning)}", advice)
        return
    denials = _denials(policy)
    if denials is None:
        yield Finding(Check.POLICY, Severity.UNKNOWN, "The bucket's policy is no policy that is understood.", advice)
        return
    try:
        missing = _missing(denials, place)
    except Misconfigured as error:
        yield Finding(Check.POLICY, Severity.UNKNOWN, f"The policy cannot be compared: {error}", "Check it by hand.")
        return
    for (severity, words), folders in missing.items():
        then = f" {_then(versioning)}" if severity == Severity.DANGER and "deletes" in words else ""
        problem = f"The bucket's policy does not surely refuse {words} below {', '.join(folders)} to everybody.{then}"
        yield Finding(Check.POLICY, severity, problem, advice)
    if not place.is_aws and not any(severity is Severity.DANGER for severity, _ in missing):
        problem = "The policy refuses what it should, but the server is not that of AWS, and may not obey all of it."
        advice = "Try a write without If-None-Match, DeleteObject and DeleteObjects (of many) there."
        yield Finding(Check.POLICY, Severity.UNKNOWN, problem, advice)


def _missing(denials: list[dict[str, Any]], place: AuthorityPlace) -> dict[tuple[Severity, str], list[str]]:
    """What is not refused, and below which folders. Raises `Misconfigured` for a prefix that no policy can have."""
    gc = BucketRole.GC
    wanted = denials_for_everybody(
        BucketPolicySettings(
            bucket=place.bucket, prefix=place.prefix, queue=place.queue, principals={gc: placeholder(gc)}
        )
    )
    missing: dict[tuple[Severity, str], list[str]] = {}
    for denial in wanted:
        for action in _each(denial["Action"]):
            severity, words = _MEANS.get((str(denial["Sid"]), action), (Severity.ADVICE, action))
            for objects in _each(denial["Resource"]):
                if not any(_covers(each, action, objects, denial.get("Condition"), place) for each in denials):
                    folder = objects.partition(f":::{place.bucket}/")[2].removesuffix("*")
                    is_lesser = folder == place.keys_of(keys.AUDIT) and severity is Severity.DANGER
                    missing.setdefault((Severity.WARNING if is_lesser else severity, words), []).append(folder)
    return missing


def _then(versioning: str) -> str:
    """What a delete does."""
    if versioning == "Enabled":
        return "A delete leaves a marker, and another batch can be accepted under the same identity."
    if versioning == "Suspended":
        return "A delete removes what was written since versioning was suspended, and its identity is free again."
    return "A delete cannot be undone, and another batch can be accepted under the same identity."


def _denials(policy: str) -> list[dict[str, Any]] | None:
    try:
        statements = json.loads(policy)["Statement"]
    except (ValueError, TypeError, KeyError):
        return None
    statements = [statements] if isinstance(statements, dict) else statements
    if not isinstance(statements, list) or not all(isinstance(each, dict) for each in statements):
        return None
    return [each for each in statements if each.get("Effect") == "Deny"]


def _covers(denial: Mapping[str, Any], action: str, objects: str, wanted: object, place: AuthorityPlace) -> bool:
    """Whether a denial refuses an action on all of these objects, at least under the wanted conditions."""
    principal = denial.get("Principal")
    if principal != "*" and not (isinstance(principal, dict) and "*" in _each(principal.get("AWS"))):
        return False
    if not any(_matches(each.lower(), action.lower()) for each in _each(denial.get("Action"))):
        return False
    # What ends with * and matches the folder itself matches everything in it.
    in_folder = _of_any_partition(objects).removesuffix("*")
    if not any(
        each.endswith("*") and _matches(_of_any_partition(each), in_folder) for each in _each(denial.get("Resource"))
    ):
        return False
    found = denial.get("Condition") or {}
    return isinstance(found, dict) and _tests(found, place) <= _tests(wanted, place)


def _tests(condition: object, place: AuthorityPlace) -> set[tuple[str, str, str]]:
    """The single tests of a condition: the fewer, the more is refused. Operators that mean the same are one."""
    tests = set()
    for operator, given in condition.items() if isinstance(condition, dict) else ():
        name = str(operator).lower()
        if place.is_aws or "not" in name:  # else the key may be absent, and the denial hold for nobody without IfExists
            name = name.removesuffix("ifexists")
        for key, value in given.items() if isinstance(given, dict) else ((str(given), ""),):
            values = _each(value) or [str(value)]
            is_one = len(values) == 1 and not re.search(r"[*?$]", values[0])
            if str(key).lower() == "aws:principalarn" and name in _EXCEPT and is_one:
                tests.add(("except one", "aws:principalarn", ""))  # GC, by whatever name
            else:
                tests.add((name, str(key).lower(), ",".join(values).lower()))
    return tests


def _each(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [str(each) for each in value] if isinstance(value, list) else []


def _matches(pattern: str, text: str) -> bool:
    return re.match(translate(pattern.replace("[", "[[]")), text) is not None


def _of_any_partition(arn: str) -> str:
    return re.sub(r"^arn:aws[a-z-]*:", "arn:aws:", arn)
