"""What is wrong with the settings of a bucket in which batches are accepted. Nothing is read or sent here."""

from collections.abc import Iterable, Iterator

from lakehead.accept.bucket_settings import (
    AuthorityPlace,
    BucketSettings,
    Check,
    Document,
    Finding,
    Severity,
    Unread,
    reaches,
)
from lakehead.accept.lifecycle_findings import lifecycle_findings
from lakehead.accept.policy_findings import policy_findings

_ORDER = tuple(Severity)
_UNCHECKED = " could not be checked: "


def bucket_findings(settings: BucketSettings, place: AuthorityPlace) -> tuple[Finding, ...]:
    """Return what an operator should know, the worst first. A setting that was not read is a finding too."""
    found = [each for check in Check for each in _findings(check, settings, place)]
    return tuple(sorted(found, key=lambda each: _ORDER.index(each.severity)))


def unread_findings(reason: str, advice: str) -> tuple[Finding, ...]:
    """Return that nothing could be checked, and why."""
    return tuple(_unknown(check, Unread(reason, advice)) for check in Check)


def lines_for(findings: Iterable[Finding]) -> dict[str, Severity]:
    """Return what to tell people, with its severity: settings that were not read for one reason are one line."""
    unread: dict[tuple[str, str], list[str]] = {}
    lines: dict[str, Severity] = {}
    for each in findings:
        what, _, reason = each.problem.partition(_UNCHECKED)
        if reason:
            unread.setdefault((reason, each.advice), []).append(what.lower())
        else:
            lines[str(each)] = each.severity
    for (reason, advice), names in unread.items():
        lines[f"{Severity.UNKNOWN}: {', '.join(names)}{_UNCHECKED}{reason} {advice}"] = Severity.UNKNOWN
    return lines


def _findings(check: Check, settings: BucketSettings, place: AuthorityPlace) -> Iterator[Finding]:
    setting = getattr(settings, check.value)
    if check is Check.ENCRYPTION and place.encryption is None:
        return
    if isinstance(setting, Unread):
        yield _unknown(check, setting)
        return
    versioning = "" if isinstance(settings.versioning, Unread) else settings.versioning
    match check:
        case Check.VERSIONING:
            yield from _versioning(setting)
        case Check.LIFECYCLE:
            yield from lifecycle_findings(setting, place)
        case Check.OBJECT_LOCK:
            yield from _object_lock(setting, versioning)
        case Check.POLICY:
            yield from policy_findings(setting, place, versioning)
        case Check.REPLICATION:
            yield from _replication(setting, place)
        case Check.ENCRYPTION:
            yield from _encryption(setting, place)


def _unknown(check: Check, unread: Unread) -> Finding:
    name = check.value.replace("_", " ").capitalize()
    return Finding(check, Severity.UNKNOWN, f"{name}{_UNCHECKED}{unread.reason}", unread.advice)


def _versioning(status: str) -> Iterator[Finding]:
    if status == "Suspended":
        yield Finding(
            Check.VERSIONING,
            Severity.WARNING,
            "Versioning is suspended: what is written now has no version of its own, and a delete loses it for good.",
            "Enable it.",
        )
    elif status != "Enabled":
        yield Finding(
            Check.VERSIONING,
            Severity.ADVICE,
            "Versioning is off: what is deleted or replaced by mistake is lost.",
            "Enable it, with a policy that refuses deletes: where a delete only leaves a marker, an identity is free.",
        )


def _object_lock(found: Document | None, versioning: str) -> Iterator[Finding]:
    retention: Document | None = ((found or {}).get("Rule") or {}).get("DefaultRetention")
    if retention:
        length = " ".join(f"{retention[unit]} {unit.lower()}" for unit in ("Days", "Years") if retention.get(unit))
        yield Finding(
            Check.OBJECT_LOCK,
            Severity.WARNING,
            f"By default every object is locked for {length} ({retention.get('Mode')}): also each version of what is "
            "replaced all the time (the queue, tokens, probes), and orphan blobs that GC shall delete. S3 takes "
            "uploads to such a bucket only with a checksum. A delete marker still frees an accepted identity.",
            "Lock only what is below accepted/v1/ and raw-blobs/v1/, object by object, or keep the period short.",
        )
    elif found is None and versioning == "Enabled":
        yield Finding(
            Check.OBJECT_LOCK,
            Severity.ADVICE,
            "There is no Object Lock: whoever may delete versions can delete accepted batches for good.",
            "Refuse s3:DeleteObjectVersion in the policy. A lock would keep versions too, but not prevent markers.",
        )


def _replication(found: Document | None, place: AuthorityPlace) -> Iterator[Finding]:
    root = f"{place.prefix}/" if place.prefix else ""
    for rule in (found or {}).get("Rules") or ():
        outer: Document = rule.get("Filter") or {}
        prefix = (outer.get("And") or {}).get("Prefix") or outer.get("Prefix") or rule.get("Prefix") or ""
        if rule.get("Status") != "Disabled" and reaches(str(prefix), root):
            target = str((rule.get("Destination") or {}).get("Bucket", "")).rpartition(":")[2] or "another bucket"
            yield Finding(
                Check.REPLICATION,
                Severity.WARNING,
                f"Objects are replicated to {target}. A replica is no authority: what is accepted there is accepted "
                "twice.",
                "Never let a gateway use it, nor an access point that leads to both.",
            )


def _encryption(found: Document | None, place: AuthorityPlace) -> Iterator[Finding]:
    rules = (found or {}).get("Rules") or ()
    algorithms = {str((rule.get("ApplyServerSideEncryptionByDefault") or {}).get("SSEAlgorithm")) for rule in rules}
    if algorithms != {place.encryption}:
        is_now = ", ".join(sorted(algorithms)) or "not set"
        yield Finding(
            Check.ENCRYPTION,
            Severity.WARNING,
            f"The default encryption is {is_now}, and should be {place.encryption}.",
            "Set it: gateways ask for none, so that everything gets the default.",
        )
