"""Encodes and decodes a table's watermark in the label of a published directory. Checks everything it reads."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date

from lakehead.errors import Misconfigured
from lakehead.lake.filesink.records import BrokenRecord
from lakehead.state.model import ReadBy, Value
from lakehead.state.values import from_text, to_text

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMark:
    """The table's watermark after a directory was published."""

    value: Value
    slice: int
    generation: int
    """Raw's generation. The units of a mirror's directories use the slice number as their generation."""

    load_date: date
    table: str | None = None
    """The id of the table that the directory belongs to. None in labels of versions that wrote none."""
    read_by: ReadBy | None = None


def encode_mark(mark: FileMark) -> str:
    """The mark as the text of a label."""
    kind, value = to_text(mark.value)
    fields = {"kind": kind, "value": value, "slice": mark.slice, "generation": mark.generation}
    of_table = {} if mark.table is None else {"table": mark.table}
    by = {} if mark.read_by is None else {"read_by": asdict(mark.read_by)}
    return json.dumps({"version": VERSION, **fields, "load_date": mark.load_date.isoformat(), **of_table, **by})


def decode_mark(text: str | None, *, directory: str) -> FileMark:
    """The mark in a label. Raises `BrokenRecord` if the text is not one."""
    try:
        match json.loads(text or ""):
            case {
                "version": 1,
                "kind": str(kind),
                "value": str(value),
                "slice": int(number),
                "generation": int(generation),
                "load_date": str(day),
                **more,
            }:
                reached, loaded = from_text(kind, value), date.fromisoformat(day)
                table = more.get("table")
                if to_text(reached) == (kind, value) and (table is None or isinstance(table, str)):
                    return FileMark(
                        value=reached,
                        slice=number,
                        generation=generation,
                        load_date=loaded,
                        table=table,
                        read_by=_read_by(more),
                    )
            case _:
                pass
    except (ArithmeticError, ValueError, RecursionError, Misconfigured):
        pass
    raise BrokenRecord(
        f"The label of directory {directory} has no watermark that this version can read. Restore the label, or use "
        "the version that wrote it; nothing was changed."
    )


def _read_by(more: Mapping[object, object]) -> ReadBy | None:
    match more:
        case {"read_by": {"column": str(column), "filter": str() | None as condition}}:
            return ReadBy(column, condition)
        case {"read_by": _}:
            raise ValueError
        case _:
            return None
