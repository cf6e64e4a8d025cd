"""Lifecycle rules of a bucket that would delete or move away what was accepted."""

from collections.abc import Iterator, Sequence

from lakehead.accept.bucket_roles import AUTHORITY, QUARANTINE, RAW_BLOBS, TOKENS
from lakehead.accept.bucket_settings import AuthorityPlace, Check, Document, Finding, Severity, reaches
from lakehead.wire import acceptance_keys as keys

ACCEPTANCE = (keys.ACCEPTED, RAW_BLOBS)
"""What was accepted. No rule may reach it, but one that aborts multipart uploads."""

RECORDS = (
    *(QUARANTINE, "quarantine-by-blob/v1", keys.QUARANTINED_IDENTITIES, keys.RESOLUTIONS, keys.REPAIRS, keys.RETIRED),
    *(keys.DISCARDED, keys.AUDIT, AUTHORITY, TOKENS),
)
"""What must not expire either, though no accepted batch is lost by it; and the queue."""

_HARMLESS = {"ID", "Status", "Prefix", "Filter", "AbortIncompleteMultipartUpload"}
_ADVICE = "Limit it to other prefixes: where batches are accepted, only AbortIncompleteMultipartUpload is harmless."


def lifecycle_findings(rules: Sequence[Document], place: AuthorityPlace) -> Iterator[Finding]:
    """Yield a finding for each rule that reaches what must stay."""
    for rule in rules:
        if rule.get("Status") == "Disabled":
            continue
        prefix, limits, by_tag = _applies_to(rule)
        reached = [folder for folder in ACCEPTANCE if reaches(prefix, place.keys_of(folder))]
        others = [folder for folder in (*RECORDS, place.queue) if reaches(prefix, place.keys_of(folder))]
        for effect, severity in _effects(rule):
            if not reached and (severity != Severity.DANGER or not others):
                continue  # records and the queue may lose old versions
            weaker = by_tag or not reached
            where = ", ".join(f"{place.keys_of(folder)}" for folder in reached or others)
            yield Finding(
                Check.LIFECYCLE,
                Severity.WARNING if weaker else severity,
                f"The lifecycle rule {_name(rule)!r} {effect} below {where}{limits}.",
                _ADVICE,
            )


def _name(rule: Document) -> str:
    return str(rule.get("ID") or "without an ID")


def _applies_to(rule: Document) -> tuple[str, str, bool]:
    """Return the prefix of a rule, its further limits in words, and whether tags are one of them."""
    outer: Document = rule.get("Filter") or {}
    both: Document = outer.get("And") or {}
    prefix = both.get("Prefix") or outer.get("Prefix") or rule.get("Prefix") or ""
    tags = [*(both.get("Tags") or ()), *([outer["Tag"]] if outer.get("Tag") else ())]
    limits = [
        f"{words} {given} bytes"
        for name, words in (("ObjectSizeGreaterThan", "above"), ("ObjectSizeLessThan", "below"))
        if (given := both.get(name, outer.get(name))) is not None
    ]
    if tags:
        named = ", ".join(f"{tag.get('Key')}={tag.get('Value')}" for tag in tags)
        limits.append(f"if they have the tags {named}, which Lakehead gives to none")
    return str(prefix), f" ({' and '.join(limits)})" if limits else "", bool(tags)


def _effects(rule: Document) -> Iterator[tuple[str, Severity]]:
    expiration: Document = rule.get("Expiration") or {}
    if "Days" in expiration or "Date" in expiration:
        when = f"after {expiration['Days']} days" if "Days" in expiration else f"on {expiration['Date']}"
        yield f"deletes objects {when}", Severity.DANGER
    if expiration.get("ExpiredObjectDeleteMarker"):
        yield "removes delete markers, the trace of what was deleted,", Severity.WARNING
    if "NoncurrentVersionExpiration" in rule:
        yield "deletes earlier versions for good, also of what a delete marker hides,", Severity.DANGER
    for transition in rule.get("Transitions") or ():
        yield f"moves objects to {transition.get('StorageClass')}, where they may not be readable,", Severity.WARNING
    if "NoncurrentVersionTransitions" in rule:
        yield "moves earlier versions away", Severity.WARNING
    known = {"Expiration", "NoncurrentVersionExpiration", "Transitions", "NoncurrentVersionTransitions"}
    for unknown in sorted(rule.keys() - known - _HARMLESS):
        yield f"does something that is not known here ({unknown})", Severity.WARNING
