"""Rules between keys of a configuration.

They check the raw file, so that they also report problems if another key is invalid.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lakehead.extract.modes import MODES, ReadersTable
from lakehead.metadata.policy import NEEDS_SNAPSHOT
from lakehead.run.config.base import REFERENCE, TABLE_NAME
from lakehead.run.config.problems import ConfigProblem, path_of

Raw = Mapping[str, Any]

ROOTS = ("raw_root", "final_root", "intermediate")
CATALOGS = ("jdbc", "rest", "hive", "glue")

_NAME = re.compile(TABLE_NAME)
_SECRET_KEY = re.compile(r"(?i)secret|passw|pwd|token|credential|private.?key|account.?key")
_NOT_SECRET_KEY = re.compile(r"(?i)(enabled|provider|impl|class|type|path|location|ur[il]|ms)$")


def broken_rules(raw: Raw) -> Iterator[ConfigProblem]:
    """Yield a problem for every rule that the file breaks."""
    empty_values: Raw = {"sources": {}, "sinks": {}, "tables": []}
    yield from (
        ConfigProblem(key, "must not be empty.") for key, empty in empty_values.items() if raw.get(key) == empty
    )
    yield from _missing(raw)
    yield from _names(raw)
    yield from _references(raw)
    yield from _readers(raw)
    yield from _roots(raw)
    yield from _files(raw)
    yield from _catalogs(raw)
    yield from _open_secrets(raw)
    yield from _protected(raw)
    yield from _policies(raw)
    if "metadata" in raw and "metadata" in _child(raw, "runtime"):
        yield ConfigProblem("runtime.metadata", "is given twice: here and at the top level. Remove this one.")


def _missing(raw: Raw) -> Iterator[ConfigProblem]:
    """What tables need. A file without pipelines, gateway and agent is for tables."""
    if any(raw.get(key) for key in ("pipelines", "gateway", "agent")) and "tables" not in raw:
        return
    yield from (ConfigProblem(key, "is missing.") for key in ("sources", "tables", "runtime") if key not in raw)
    if "runtime" in raw and "raw_root" not in _child(raw, "runtime"):
        yield ConfigProblem("runtime.raw_root", "is missing. Where raw rows land.")


def _names(raw: Raw) -> Iterator[ConfigProblem]:
    seen: dict[str, int] = {}
    for index, table in _tables(raw):
        name = _full_name(table)
        if not name:
            continue
        if table.get("name") is None and not _NAME.fullmatch(name):
            yield ConfigProblem(
                path_of(("tables", index)),
                f"cannot be named {name!r} in the lakehouse. Set name: words of letters, "
                "digits, _ and -, with dots between them.",
            )
        # Catalogs and file systems differ in whether case matters.
        first = seen.setdefault(name.lower(), index)
        if first != index:
            yield ConfigProblem(
                path_of(("tables", index)),
                f"is named {name}, the same as tables[{first}]. Set another name for one of them.",
            )


def _references(raw: Raw) -> Iterator[ConfigProblem]:
    for key, several in (("source", "sources"), ("sink", "sinks")):
        known = list(_child(raw, several))
        if not known and key == "sink":
            known = ["lake"]
        for index, table in _tables(raw):
            named = table.get(key)
            if isinstance(named, str) and named not in known:
                there = f"There are {', '.join(known)}." if known else f"{several} holds none."
                yield ConfigProblem(path_of(("tables", index, key)), f"is not one of {several}. {there}")
            if named is None and len(known) > 1:
                yield ConfigProblem(
                    path_of(("tables", index, key)), f"is missing: there are several, {', '.join(known)}. Choose one."
                )


def _readers(raw: Raw) -> Iterator[ConfigProblem]:
    sources = _child(raw, "sources")
    for index, table in _tables(raw):
        source = _child(sources, str(table.get("source", next(iter(sources), None))))
        if table.get("reader") == "arrow" and _child(source, "tls").get("certificate"):
            yield ConfigProblem(
                path_of(("tables", index, "reader")),
                "must be jdbc or auto: a source with a client certificate can only be read by JDBC.",
            )


def _roots(raw: Raw) -> Iterator[ConfigProblem]:
    runtime = _child(raw, "runtime")
    modes = [mode for _, table in _tables(raw) if (mode := MODES.get(str(table.get("mode"))))]
    written = {mode.readers_table: mode.name for mode in modes}
    if (name := written.get(ReadersTable.MIRROR)) and "intermediate" not in runtime:
        yield ConfigProblem("runtime.intermediate", f"is missing: tables of mode {name} are merged there.")
    finalizes = runtime.get("finalize_full_refresh", True)
    if (name := written.get(ReadersTable.FINAL)) and finalizes and "final_root" not in runtime:
        yield ConfigProblem(
            "runtime.final_root",
            f"is missing: mode {name} writes its final tables there. Set it, or set finalize_full_refresh to false.",
        )
    given = {root: _namespace(str(runtime[root])) for root in ROOTS if root in runtime}
    taken: dict[str, str] = {}
    for root, namespace in given.items():
        # Catalogs differ in whether case matters.
        other = taken.setdefault(namespace.lower(), root)
        if other != root:
            yield ConfigProblem(
                f"runtime.{root}",
                f"is the namespace {namespace!r}, the same as {other}. Choose roots whose last parts "
                "differ, or their tables would collide.",
            )
    if len(taken) == len(given):
        yield from _colliding_tables(raw, given)


def _namespace(root: str) -> str:
    """Return the namespace of a root: for a location, its last part."""
    place = root.strip().rstrip("/")
    return place.rpartition("/")[2] if "://" in place else place


def _colliding_tables(raw: Raw, namespaces: Mapping[str, str]) -> Iterator[ConfigProblem]:
    """Names may contain dots: the table b.c below the root a is the table c below the root a.b."""
    taken: dict[tuple[object, str], tuple[int, str]] = {}
    for index, table in _tables(raw):
        for root, namespace in namespaces.items():
            name = f"{namespace}.{_full_name(table)}"
            first, below = taken.setdefault((table.get("sink"), name.lower()), (index, root))
            if first != index and below != root:  # equal names below one root are reported by _names
                yield ConfigProblem(
                    path_of(("tables", index)),
                    f"would be {name} below {root}, the same as tables[{first}] below {below}. Rename one of them.",
                )


def _full_name(table: Raw) -> str:
    """Return the name of a table, as far as it is given."""
    parts = [table.get("schema"), table.get("table")]
    return str(table.get("name") or ".".join(part for part in parts if isinstance(part, str)))


def _files(raw: Raw) -> Iterator[ConfigProblem]:
    """Options that file sinks do not support."""
    sinks, runtime = _child(raw, "sinks"), _child(raw, "runtime")
    of_files = {name for name in sinks if _child(sinks, name).get("type") == "files"}
    only = next(iter(sinks), None)
    instead = "Remove it, or use a sink of type iceberg."
    tables = [(index, table) for index, table in _tables(raw) if table.get("sink", only) in of_files]
    for index, table in tables:
        if table.get("mode") == "full" and table.get("finalize") == "view":
            yield ConfigProblem(
                path_of(("tables", index, "finalize")), f"must be table: a file sink has no views. {instead}"
            )
        for key in ("partition_by", "merge_filters", "max_staleness"):
            if table.get(key):
                yield ConfigProblem(path_of(("tables", index, key)), f"is not supported by a file sink. {instead}")
    for root in ROOTS if tables else ():
        if "://" in str(runtime.get(root, "")):
            yield ConfigProblem(f"runtime.{root}", "must be a folder name: a file sink puts it below its own root.")


def _catalogs(raw: Raw) -> Iterator[ConfigProblem]:
    taken: dict[str, str] = {}
    embedded = "sinks" not in raw
    for name, sink in _children(raw, "sinks"):
        if sink.get("type") != "iceberg":
            continue
        catalog = str(sink.get("catalog", "lake"))
        first = taken.setdefault(catalog, name)
        if first != name:
            yield ConfigProblem(
                path_of(("sinks", name, "catalog")), f"is {catalog}, the same as in the sink {first}. Use another name."
            )
        properties = _child(sink, "properties")
        if not properties:
            embedded = True
        elif properties.get("type") not in CATALOGS:
            yield ConfigProblem(
                path_of(("sinks", name, "properties", "type")), f"must be one of {', '.join(CATALOGS)}."
            )
    if taken and not embedded and not _child(_child(raw, "runtime"), "ledger").get("url"):
        yield ConfigProblem(
            "runtime.ledger.url",
            "is missing: without an embedded catalog, set where landings are recorded.",
        )


def _protected(raw: Raw) -> Iterator[ConfigProblem]:
    """Columns that are left out, masked or hashed, and whose own values are needed."""
    for index, table in _tables(raw):
        recon = _child(table, "reconciliation")
        needed = {
            "incremental_column": [table.get("incremental_column")],
            "tiebreak_columns": table.get("tiebreak_columns"),
            "reconciliation.checksums": recon.get("checksums"),
            "reconciliation.sums": recon.get("sums"),
        }
        keys = _folded(table.get("primary_keys"))
        seen: set[str] = set()
        for name, rule in _children(table, "columns"):
            place = path_of(("tables", index, "columns", name))
            for key, columns in needed.items():
                if name.lower() in _folded(columns):
                    yield ConfigProblem(place, f"must be left as it is: {key} needs its values.")
            if name.lower() in keys and "hash" not in rule:
                yield ConfigProblem(place, "is one of primary_keys, which can only be hashed: it must identify a row.")
            if name.lower() in seen:
                yield ConfigProblem(place, "is given twice, in other letter case. Remove one of them.")
            seen.add(name.lower())


def _folded(names: object) -> set[str]:
    return {name.lower() for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _policies(raw: Raw) -> Iterator[ConfigProblem]:
    """Policies about what can only be told by snapshots, while none are taken."""
    key: tuple[str, ...] = ("metadata",)
    metadata = _child(raw, "metadata")
    if not metadata:
        key, metadata = ("runtime", "metadata"), _child(_child(raw, "runtime"), "metadata")
    if metadata.get("enabled") is True:
        return
    places: list[tuple[tuple[str | int, ...], Raw]] = [(key, metadata)]
    places += [(("tables", index), table) for index, table in _tables(raw)]
    for place, owner in places:
        policy = _child(owner, "schema_policy")
        for name in (*NEEDS_SNAPSHOT, *(["require_snapshot"] if policy.get("require_snapshot") is True else [])):
            if policy.get(name) is not None:
                yield ConfigProblem(
                    path_of((*place, "schema_policy", str(name))),
                    "needs metadata.enabled: it is told by snapshots, and none are taken. Set it to true.",
                )


def _open_secrets(raw: Raw) -> Iterator[ConfigProblem]:
    places: list[tuple[str, ...]] = [("spark", "conf")]
    places += [(several, name, "properties") for several in ("sources", "sinks") for name in _child(raw, several)]
    for place in places:
        settings: Raw = raw
        for part in place:
            settings = _child(settings, part)
        for key, value in settings.items():
            if isinstance(value, str) and _SECRET_KEY.search(key) and not _NOT_SECRET_KEY.search(key):
                yield ConfigProblem(path_of((*place, key)), f"must not be in the file. Refer to it: {REFERENCE}.")


def _tables(raw: Raw) -> Iterator[tuple[int, Raw]]:
    tables = raw.get("tables")
    for index, table in enumerate(tables if isinstance(tables, list) else ()):
        if isinstance(table, Mapping):
            yield index, table


def _children(raw: Raw, key: str) -> Iterator[tuple[str, Raw]]:
    for name in _child(raw, key):
        yield name, _child(_child(raw, key), name)


def _child(raw: Raw, key: str) -> Raw:
    found = raw.get(key)
    return found if isinstance(found, Mapping) else {}
