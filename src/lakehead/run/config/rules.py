"""Rules between the parts of a configuration.

They look at the file as it was written, so that they also speak where another key is wrong.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lakehead.run.config.faults import Fault, path_of
from lakehead.run.config.parts import NAME, REFERENCE

Raw = Mapping[str, Any]

ROOTS = ("raw_root", "final_root", "intermediate")
CATALOGS = ("jdbc", "rest", "hive", "glue")

_NAME = re.compile(NAME)
_SECRETIVE = re.compile(r"(?i)secret|passw|pwd|token|credential|private.?key|account.?key")
_INNOCENT = re.compile(r"(?i)(enabled|provider|impl|class|type|path|location|ur[il]|ms)$")


def broken_rules(raw: Raw) -> Iterator[Fault]:
    """Every rule that the file breaks."""
    nothing: Raw = {"sources": {}, "sinks": {}, "tables": []}
    yield from (Fault(key, "must not be empty.") for key, empty in nothing.items() if raw.get(key) == empty)
    yield from _names(raw)
    yield from _references(raw)
    yield from _readers(raw)
    yield from _roots(raw)
    yield from _files(raw)
    yield from _catalogs(raw)
    yield from _open_secrets(raw)
    if "metadata" in raw and "metadata" in _child(raw, "runtime"):
        yield Fault("runtime.metadata", "is given twice: here and at the top. Keep the one at the top.")


def _names(raw: Raw) -> Iterator[Fault]:
    seen: dict[str, int] = {}
    for index, table in _tables(raw):
        name = _called(table)
        if not name:
            continue
        if table.get("name") is None and not _NAME.fullmatch(name):
            yield Fault(
                path_of(("tables", index)),
                f"cannot be called {name!r} in the lakehouse. Give it another by its key name: words of letters, "
                "digits, _ and -, with dots between them.",
            )
        # Catalogs and file systems differ in whether case matters.
        first = seen.setdefault(name.lower(), index)
        if first != index:
            yield Fault(
                path_of(("tables", index)),
                f"is called {name}, as tables[{first}] is. Give one of them another name: its key name.",
            )


def _references(raw: Raw) -> Iterator[Fault]:
    for key, several in (("source", "sources"), ("sink", "sinks")):
        known = list(_child(raw, several))
        if not known and key == "sink":
            known = ["lake"]
        for index, table in _tables(raw):
            named = table.get(key)
            if isinstance(named, str) and named not in known:
                there = f"There are {', '.join(known)}." if known else f"{several} holds none."
                yield Fault(path_of(("tables", index, key)), f"names none of {several}. {there}")
            if named is None and len(known) > 1:
                yield Fault(
                    path_of(("tables", index, key)), f"is missing: there are several, {', '.join(known)}. Name one."
                )


def _readers(raw: Raw) -> Iterator[Fault]:
    sources = _child(raw, "sources")
    for index, table in _tables(raw):
        source = _child(sources, str(table.get("source", next(iter(sources), None))))
        if table.get("reader") == "arrow" and _child(source, "tls").get("certificate"):
            yield Fault(
                path_of(("tables", index, "reader")),
                "must be jdbc or auto: a source with a certificate of our own is only read by JDBC.",
            )


def _roots(raw: Raw) -> Iterator[Fault]:
    runtime = _child(raw, "runtime")
    modes = {table.get("mode") for _, table in _tables(raw) if isinstance(table.get("mode"), str)}
    if "scd1" in modes and "intermediate" not in runtime:
        yield Fault("runtime.intermediate", "is missing: tables of mode scd1 are merged there.")
    if "full" in modes and runtime.get("finalize_full_refresh", True) and "final_root" not in runtime:
        yield Fault(
            "runtime.final_root",
            "is missing: full refreshes become tables there. Without it, set finalize_full_refresh to false.",
        )
    given = {root: _namespace(str(runtime[root])) for root in ROOTS if root in runtime}
    taken: dict[str, str] = {}
    for root, namespace in given.items():
        # Catalogs differ in whether case matters.
        other = taken.setdefault(namespace.lower(), root)
        if other != root:
            yield Fault(
                f"runtime.{root}",
                f"is the namespace {namespace!r}, as {other} is. Tables of one name would be one table: let the last "
                "parts of the roots differ.",
            )
    if len(taken) == len(given):
        yield from _one_table_for_two(raw, given)


def _namespace(root: str) -> str:
    """What tables below a root are called by: of a location, its last part."""
    place = root.strip().rstrip("/")
    return place.rpartition("/")[2] if "://" in place else place


def _one_table_for_two(raw: Raw, namespaces: Mapping[str, str]) -> Iterator[Fault]:
    """Names have dots too: the table b.c below the root a is the table c below the root a.b."""
    taken: dict[tuple[object, str], tuple[int, str]] = {}
    for index, table in _tables(raw):
        for root, namespace in namespaces.items():
            name = f"{namespace}.{_called(table)}"
            first, below = taken.setdefault((table.get("sink"), name.lower()), (index, root))
            if first != index and below != root:  # below one root, their names are alike, which is told
                yield Fault(
                    path_of(("tables", index)),
                    f"would be {name} below {root}, as tables[{first}] is below {below}. Give one another name.",
                )


def _called(table: Raw) -> str:
    """What a table is called, as far as it is said."""
    words = [table.get("schema"), table.get("table")]
    return str(table.get("name") or ".".join(word for word in words if isinstance(word, str)))


def _files(raw: Raw) -> Iterator[Fault]:
    """What a sink of files has not."""
    sinks, runtime = _child(raw, "sinks"), _child(raw, "runtime")
    of_files = {name for name in sinks if _child(sinks, name).get("type") == "files"}
    only = next(iter(sinks), None)
    instead = "Take it out, or name a sink of the type iceberg."
    tables = [(index, table) for index, table in _tables(raw) if table.get("sink", only) in of_files]
    for index, table in tables:
        if table.get("mode") == "full" and table.get("finalize") == "view":
            yield Fault(
                path_of(("tables", index, "finalize")), f"must be table: a sink of files has no views. {instead}"
            )
        for key in ("partition_by", "merge_filters"):
            if table.get(key):
                yield Fault(path_of(("tables", index, key)), f"is not known to a sink of files. {instead}")
    for root in ROOTS if tables else ():
        if "://" in str(runtime.get(root, "")):
            yield Fault(f"runtime.{root}", "must be a folder's name: a sink of files puts it below its own root.")


def _catalogs(raw: Raw) -> Iterator[Fault]:
    taken: dict[str, str] = {}
    embedded = "sinks" not in raw
    for name, sink in _children(raw, "sinks"):
        if sink.get("type") != "iceberg":
            continue
        catalog = str(sink.get("catalog", "lake"))
        first = taken.setdefault(catalog, name)
        if first != name:
            yield Fault(
                path_of(("sinks", name, "catalog")), f"is {catalog}, as that of the sink {first}. Name it otherwise."
            )
        properties = _child(sink, "properties")
        if not properties:
            embedded = True
        elif properties.get("type") not in CATALOGS:
            yield Fault(path_of(("sinks", name, "properties", "type")), f"must be one of {', '.join(CATALOGS)}.")
    if taken and not embedded and not _child(_child(raw, "runtime"), "ledger").get("url"):
        yield Fault(
            "runtime.ledger.url",
            "is missing: without an embedded catalog it says where landings are recorded.",
        )


def _open_secrets(raw: Raw) -> Iterator[Fault]:
    places: list[tuple[str, ...]] = [("spark", "conf")]
    places += [(several, name, "properties") for several in ("sources", "sinks") for name in _child(raw, several)]
    for place in places:
        settings: Raw = raw
        for part in place:
            settings = _child(settings, part)
        for key, value in settings.items():
            if isinstance(value, str) and _SECRETIVE.search(key) and not _INNOCENT.search(key):
                yield Fault(path_of((*place, key)), f"must not stand in the file. Refer to it: {REFERENCE}.")


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
