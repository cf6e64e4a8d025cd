"""Encodes and decodes the labels and pointers of a file sink. Checks everything it reads."""

import json
from dataclasses import dataclass
from typing import Any

from lakehead.errors import LakeheadError
from lakehead.lake.filesink.file_names import spelled_in
from lakehead.lake.landing import Unit

VERSION = 1


class BrokenRecord(LakeheadError):
    """A file that the sink relies on has unexpected content. Repair the data."""


@dataclass(frozen=True, slots=True)
class Label:
    """The content of a directory's label."""

    unit: Unit
    watermark: str | None = None


def encode_label(label: Label) -> bytes:
    """The body of a `_UNIT` file."""
    unit = label.unit
    return _encode({"id": unit.id, "generation": unit.generation, "watermark": label.watermark})


def decode_label(body: bytes, *, file: str) -> Label:
    """What a `_UNIT` file says. Raises `BrokenRecord` where it is not one."""
    match _decode(body, file):
        case {"id": str(id_), "generation": int(generation), "watermark": str() | None as watermark}:
            return Label(Unit(id_, generation), watermark)
        case _:
            raise _broken(file)


def encode_pointer(directory: str) -> bytes:
    """The body of a pointer to `<unit>/<attempt>` in staging."""
    return _encode({"directory": directory})


def decode_pointer(body: bytes, *, file: str) -> str:
    """The `<unit>/<attempt>` that a pointer names. Raises `BrokenRecord` where it names no such directory."""
    match _decode(body, file):
        case {"directory": str(directory)}:
            unit, _, attempt = directory.partition("/")
            if spelled_in(unit) and attempt and "/" not in attempt and not attempt.startswith((".", "_")):
                return directory
        case _:
            pass
    raise _broken(file)


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps({"version": VERSION, **fields}).encode()


def _decode(body: bytes, file: str) -> object:
    try:
        found = json.loads(body)
    except ValueError:
        raise _broken(file) from None
    if not isinstance(found, dict) or found.get("version") != VERSION:
        raise _broken(file)
    return found


def _broken(file: str) -> BrokenRecord:
    return BrokenRecord(
        f"The file {file} was not written by a file sink of this version. "
        "Restore it, or read it with the version that wrote it; nothing was changed."
    )
