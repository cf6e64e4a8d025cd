"""Whether Arrow from anybody is valid, down to the last offset and UTF-8 byte.

Arrow's own full validation looks at texts one by one. Those of labels and attributes are most of a frame, and can
mostly be seen to be valid as a whole: where nothing is null, positions never go back and every byte is ASCII. Whatever
is not of that form is left to Arrow, so this refuses exactly what Arrow refuses.
"""

import numpy as np
import pyarrow as pa


def check_valid(records: pa.RecordBatch) -> None:
    """Raise `pa.ArrowInvalid` unless the records are valid, as `validate(full=True)` does."""
    records.validate()  # sizes of buffers and children, and the first and last position of each column
    plain = [
        index
        for index, each in enumerate(records.schema.types)
        if each.id == pa.lib.Type_MAP and _is_plain_map(records.column(index))
    ]
    for index in reversed(plain):
        records = records.remove_column(index)
    records.validate(full=True)


def positions(column: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """Where each text or map of a column starts among what it holds, and where the last one ends."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)


def _is_plain_map(maps: pa.MapArray) -> bool:
    """Whether maps of texts are valid; False if this cannot tell.

    What has no nulls was read without a bitmap, so that nothing can contradict its number of nulls.
    """
    return (
        not maps.null_count and not maps.values.null_count and _never_go_back(maps) and _is_ascii(maps.keys, maps.items)
    )


def _is_ascii(*columns: pa.StringArray) -> bool:
    return all(
        not texts.null_count
        and _never_go_back(texts)
        and ((data := texts.buffers()[2]) is None or np.frombuffer(data, np.int8).min(initial=0) >= 0)
        for texts in columns
    )


def _never_go_back(column: pa.Array) -> bool:
    if not len(column):
        return False  # it may have no positions at all
    found = positions(column)
    return bool((found[1:] >= found[:-1]).all())
