"""Whether Arrow from anybody is valid, down to the last offset and UTF-8 byte.

Arrow's own full validation looks at texts one by one. Those of labels and attributes are most of a frame, and can
mostly be seen to be valid as a whole: every byte is ASCII. So Arrow validates them as bytes, which is all but UTF-8,
and as texts only where that cannot be seen: this refuses exactly what Arrow refuses.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

_KEY_DATA, _ITEM_DATA = 5, 8
"""Where the data is among the buffers of maps. Positions and bitmaps are the others."""


def with_maps_of_bytes(schema: pa.Schema) -> pa.Schema:
    """Return the schema with maps of bytes for maps of texts. What is stored in one can be read with the other."""
    fields = [
        field.with_type(pa.map_(pa.binary(), field.type.item_field.with_type(pa.binary())))
        if pa.types.is_map(field.type)
        else field
        for field in schema
    ]
    return pa.schema(fields)


def check_valid(records: pa.RecordBatch, with_bytes: pa.RecordBatch, maps: Sequence[int]) -> None:
    """Raise `pa.ArrowInvalid` unless the records are valid, as `validate(full=True)` does.

    `with_bytes` are the same records, read with maps of bytes for maps of texts, which are at these places.
    """
    with_bytes.validate(full=True)
    for place in maps:
        if not _is_ascii(with_bytes.column(place)):
            records.column(place).validate(full=True)


def positions(column: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """Where each text or map of a column starts among what it holds, and where the last one ends."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)


def _is_ascii(maps: pa.MapArray) -> bool:
    """Whether all bytes of maps are ASCII, also those that no key or item has."""
    buffers = maps.buffers()
    return all(
        data is None or not data.size or np.minimum.reduce(np.frombuffer(data, np.int8)) >= 0
        for data in (buffers[_KEY_DATA], buffers[_ITEM_DATA])
    )
