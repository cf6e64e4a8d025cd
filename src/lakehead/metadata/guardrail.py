"""The precision guardrail: decimals that a table could not hold stop it before anything is read."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as kinds

from lakehead.errors import Misconfigured

MAX_DIGITS = 38


class PrecisionExceeded(Misconfigured):
    """A decimal column of the source has more digits than its table may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionGuardrail:
    """How many digits a decimal column may have."""

    max_precision: int = MAX_DIGITS
    max_scale: int = MAX_DIGITS

    def evaluate(self, table: str, source: pa.Schema, target: pa.Schema, declared: Mapping[str, str]) -> None:
        """Raise `PrecisionExceeded` if a decimal of the source is beyond the limits, or beyond the table's own column.

        `declared` has the types as the server writes them, for the message.
        """
        faults = [fault for column in source if (fault := self._fault(column, target, declared)) is not None]
        if faults:
            raise PrecisionExceeded(
                f"The table {table} was not read: {'; '.join(faults)}. Change the type in the source, read the column "
                "as text (as_text), or raise the limit in guardrails."
            )

    def _fault(self, column: pa.Field, target: pa.Schema, declared: Mapping[str, str]) -> str | None:
        comes = column.type
        if not kinds.is_decimal(comes):
            return None
        shown = f"column {column.name!r} is {declared.get(column.name, comes)} in the source, read as {_text(comes)}"
        if comes.precision > self.max_precision or comes.scale > self.max_scale:
            limits = f"a precision of {self.max_precision} and a scale of {self.max_scale}"
            return f"{shown}, and guardrails allow at most {limits}"
        holds = target.field(column.name).type if column.name in target.names else comes
        if kinds.is_decimal(holds) and (
            comes.scale > holds.scale or comes.precision - comes.scale > holds.precision - holds.scale
        ):
            return f"{shown}, and {_text(holds)} in the table"
        return None


def _text(kind: pa.DataType) -> str:
    return f"decimal({kind.precision},{kind.scale})"
