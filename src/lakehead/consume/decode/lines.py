"""Cuts the content of an object into blocks of whole lines."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from lakehead.consume.decode.compression import is_compressed, plain_chunks
from lakehead.consume.decode.rows import BATCH_BYTES, ObjectPart, ObjectRefused

_READ = 2**20
_NEWLINE = 10
_WHITESPACE = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Some whole lines, each with its newline; the last line of an object may lack it."""

    text: bytes
    first_line: int
    """The number of the first of them, from 1; in a part of an object: counted from the part's begin."""

    part_start: int = 0
    """The start of the part that they belong to."""

    def where(self, line: int) -> str:
        """Return how to call the line with a number in the block, from 0, in a message."""
        after = f" after byte {self.part_start}" if self.part_start else ""
        return f"Line {self.first_line + line}{after}"

    def lines(self) -> list[bytes]:
        """Return the lines without their newlines."""
        found = self.text.split(b"\n")
        return found[:-1] if not found[-1] else found


def line_blocks(
    source: pa.NativeFile, part: ObjectPart | None, *, max_row_bytes: int, most_lines: int
) -> Iterator[LineBlock]:
    """Return the lines of an object, or of a part of it, in blocks of some MiB and at most so many lines.

    Raises `ObjectRefused` for a line of more than `max_row_bytes`. A byte order mark is left out.
    """
    start = part.start if part is not None else 0
    if part is None or is_compressed(source):
        # What is compressed is one part, however it was split.
        chunks = plain_chunks(source) if start == 0 else iter(())
    else:
        chunks = _part_chunks(source, part)
    line = 1
    for number, text in enumerate(_whole_lines(chunks, max_row_bytes)):
        block = text.removeprefix(_BOM) if number == 0 and start == 0 else text
        for cut, lines in _cut(block, most_lines):
            made = LineBlock(cut, line, start)
            _check_lengths(made, max_row_bytes)
            yield made
            line += lines


def is_blank(line: bytes) -> bool:
    """Return whether a line has nothing but whitespace. Such lines are no records."""
    return not line.strip(_WHITESPACE)


def count_records(block: LineBlock) -> int:
    """Return how many lines of a block are not blank."""
    characters = np.frombuffer(block.text, np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(characters == _NEWLINE) + 1))
    starts = starts[starts < len(characters)]
    # Only lines that begin with whitespace need a look at all of them.
    doubtful = starts[np.isin(characters[starts], np.frombuffer(_WHITESPACE, np.uint8))]
    blank = 0
    for start in doubtful.tolist():
        end = block.text.find(b"\n", start)
        blank += is_blank(block.text[start : end if end >= 0 else len(block.text)])
    return len(starts) - blank


def _whole_lines(chunks: Iterable[bytes], max_row_bytes: int) -> Iterator[bytes]:
    """Join chunks to texts of about `BATCH_BYTES` that end with a newline, except the last."""
    waiting: list[bytes] = []
    size, unfinished = 0, 0
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        unfinished = len(chunk) - cut if cut else unfinished + len(chunk)
        if unfinished > max_row_bytes + 1:
            raise ObjectRefused(f"A line is longer than max_row_bytes, {max_row_bytes:,} bytes.")
        size += len(chunk)
        if cut and size >= BATCH_BYTES:
            yield b"".join([*waiting, chunk[:cut]])
            waiting, size = [chunk[cut:]], len(chunk) - cut
        else:
            waiting.append(chunk)
    if size:
        yield b"".join(waiting)


def _cut(text: bytes, most_lines: int) -> Iterator[tuple[bytes, int]]:
    """Cut a text after every so many lines. Returns each piece with the number of its newlines."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE) + 1
    if len(ends) <= most_lines:
        yield text, len(ends)
        return
    cuts = [0, *ends[most_lines - 1 :: most_lines].tolist()]
    for start, end in pairwise(cuts):
        yield text[start:end], most_lines
    if cuts[-1] < len(text):
        yield text[cuts[-1] :], len(ends) % most_lines


def _check_lengths(block: LineBlock, max_row_bytes: int) -> None:
    if len(block.text) <= max_row_bytes:
        return
    for number, line in enumerate(block.lines()):
        if len(line) > max_row_bytes:
            raise ObjectRefused(
                f"{block.where(number)} has {len(line):,} bytes; max_row_bytes allows {max_row_bytes:,}."
            )


def _part_chunks(source: pa.NativeFile, part: ObjectPart) -> Iterator[bytes]:
    """Return the bytes of a part, as `ObjectPart` defines it."""
    source.seek(part.start)
    position, begun = part.start, part.start == 0
    while chunk := source.read(_READ):
        start = 0
        if not begun:
            newline = chunk.find(b"\n")
            if newline < 0:
                position += len(chunk)
                continue
            if position + newline >= part.end:
                return
            begun, start = True, newline + 1
        last = chunk.find(b"\n", max(start, part.end - position)) if position + len(chunk) > part.end else -1
        if last >= 0:
            yield chunk[start : last + 1]
            return
        if start < len(chunk):
            yield chunk[start:]
        position += len(chunk)
