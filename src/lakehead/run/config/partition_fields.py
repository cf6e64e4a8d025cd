"""Parses partition fields: `city`, `days(ordered_at)`, `bucket(16, id)`."""

import re
from difflib import get_close_matches
from typing import Annotated

from pydantic import BeforeValidator

from lakehead.extract.table_settings import PartitionField
from lakehead.run.config.base import invalid

TRANSFORMS = {"identity": "identity", "year": "year", "month": "month", "day": "day", "hour": "hour"}
TRANSFORMS |= {"years": "year", "months": "month", "days": "day", "hours": "hour"}
SIZED_TRANSFORMS = ("bucket", "truncate")

_CALL = re.compile(r"(?P<transform>[A-Za-z]+)\s*\((?P<inside>.*)\)", re.DOTALL)
_SIZED = re.compile(r"\s*(?P<size>[0-9]{1,9})\s*,\s*(?P<column>.+)", re.DOTALL)


def parse_partition_field(given: object) -> PartitionField:
    """Parse a partition field. A name without parentheses is a column."""
    if isinstance(given, PartitionField):
        return given
    if not isinstance(given, str) or not given.strip():
        raise invalid("must be a string: a column, or a transform of one, such as days(ordered_at) or bucket(16, id).")
    call = _CALL.fullmatch(given.strip())
    if call is None:
        return PartitionField(given.strip(), "identity")
    transform, inside = call["transform"].lower(), call["inside"].strip()
    if transform in TRANSFORMS and inside:
        return PartitionField(inside, TRANSFORMS[transform])
    if transform in SIZED_TRANSFORMS:
        sized = _SIZED.fullmatch(inside)
        if sized is not None and int(sized["size"]) > 0:
            return PartitionField(sized["column"].strip(), transform, int(sized["size"]))
        raise invalid(f"must have a positive integer and a column: {transform}(16, column).")
    if transform in TRANSFORMS:
        raise invalid(f"must name a column: {transform}(column).")
    known = (*TRANSFORMS, *SIZED_TRANSFORMS)
    meant = get_close_matches(transform, known, 1)
    hint = f"Did you mean {meant[0]}?" if meant else f"Known are {', '.join(known)}."
    raise invalid(f"is not a transform of Iceberg. {hint} For a column of this name write identity(…).")


PartitionFieldText = Annotated[PartitionField, BeforeValidator(parse_partition_field, json_schema_input_type=str)]
