"""Partition fields as a file writes them: `city`, `days(ordered_at)`, `bucket(16, id)`."""

import re
from difflib import get_close_matches
from typing import Annotated

from pydantic import BeforeValidator

from lakehead.extract.table import PartitionField
from lakehead.run.config.parts import wrong

PLAIN = {"identity": "identity", "year": "year", "month": "month", "day": "day", "hour": "hour"}
PLAIN |= {"years": "year", "months": "month", "days": "day", "hours": "hour"}
SIZED = ("bucket", "truncate")

_CALL = re.compile(r"(?P<word>[A-Za-z]+)\s*\((?P<inside>.*)\)", re.DOTALL)
_SIZED = re.compile(r"\s*(?P<size>[0-9]{1,9})\s*,\s*(?P<column>.+)", re.DOTALL)


def read_partition_field(given: object) -> PartitionField:
    """The field that the text names. A name without brackets is a column."""
    if isinstance(given, PartitionField):
        return given
    if not isinstance(given, str) or not given.strip():
        raise wrong("must be text: a column, or a transform of one, such as days(ordered_at) or bucket(16, id).")
    call = _CALL.fullmatch(given.strip())
    if call is None:
        return PartitionField(given.strip(), "identity")
    word, inside = call["word"].lower(), call["inside"].strip()
    if word in PLAIN and inside:
        return PartitionField(inside, PLAIN[word])
    if word in SIZED:
        sized = _SIZED.fullmatch(inside)
        if sized is not None and int(sized["size"]) > 0:
            return PartitionField(sized["column"].strip(), word, int(sized["size"]))
        raise wrong(f"must have a whole number above 0 and a column: {word}(16, column).")
    if word in PLAIN:
        raise wrong(f"must name a column: {word}(column).")
    known = (*PLAIN, *SIZED)
    meant = get_close_matches(word, known, 1)
    hint = f"Did you mean {meant[0]}?" if meant else f"Known are {', '.join(known)}."
    raise wrong(f"names a transform that Iceberg does not have. {hint} A column of this name is written identity(…).")


PartitionBy = Annotated[PartitionField, BeforeValidator(read_partition_field, json_schema_input_type=str)]
