"""The cheapest real landing: this process writes the rows, not Spark's tasks, and publishes them as always."""

from collections.abc import Sequence
from typing import Any

from lakehead.lake.landing import Fence, NewWatermark, UnitRemainder
from lakehead.lake.ports import Staged
from lakehead.lake.staged_rows import NewFiles
from lakehead.lake.stagers import ArrowStager, staged_files, target_of
from lakehead.lake.tasks import write_parts


class LocalStager(ArrowStager[Any]):
    """Stages as tasks do, in the calling thread: a landing takes some 30 ms, and needs no JVM."""

    async def stage(
        self, remainders: Sequence[UnitRemainder], *, token: str, new_watermark: NewWatermark, fence: Fence
    ) -> Staged[NewFiles]:
        iceberg = self.table.seen()
        parts = [(remainder.unit, 0, remainder) for remainder in remainders]
        wrote = [write_parts(target_of(iceberg), f"{token[:16]}-{self.ids.uuid()}", self.read, parts)]
        return staged_files(wrote, remainders, iceberg, self.change, token, new_watermark, fence, parts=len(parts))
