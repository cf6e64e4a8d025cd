"""What a merge of many changes holds in memory, as the process's peak: bounded, however many changes there are."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.effort import effort

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHANGES, CHUNK = effort((4_000_000, 250_000), soak=(20_000_000, 2_000_000))

COMMON = """
import sys
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem
from lakehead.lake import merge_changes, merge_tasks
from lakehead.lake.datafiles import Target
from lakehead.lake.file_rows import FileReader, StoredFile
from lakehead.lake.merge_tasks import FILE, POSITION, MergeJob, MergeTask

folder, count, chunk = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
files = LocalFileSystem()

def numbered(schema):
    return pa.schema([field.with_metadata({"PARQUET:field_id": str(n)}) for n, field in enumerate(schema, 1)])

SCHEMA = numbered(pa.schema([("k", pa.int64()), ("at", pa.int64()), ("_slice", pa.int64())]))
KINDS = {name: pa.int64() for name in ("k", "at", "_slice")}

def peak():
    [line] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024
"""

DRIVER = (
    COMMON
    + """
path = f"{folder}/raw.parquet"
with pq.ParquetWriter(path, SCHEMA) as writer:
    for start in range(0, count, 1 << 17):
        numbers = np.arange(start, min(start + (1 << 17), count), dtype=np.int64)
        # A prime factor visits every key once, in no order.
        keys = (numbers * 7919) % count if count % 7919 else numbers
        columns = [pa.array(keys), pa.array(numbers), pa.repeat(pa.scalar(1, pa.int64()), len(keys))]
        writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), row_group_size=1 << 17)
before = peak()
reader = FileReader(files, SCHEMA)
batches = merge_changes.keys_of_files(reader, [StoredFile(path, path, count)], [], KINDS)
chunks = merge_changes.newest_changes(batches, ["k"], ["at", "_slice"], chunk_rows=chunk)
kinds = pa.schema([*KINDS.items(), (FILE, pa.int32()), (POSITION, pa.int64())])
stored = merge_changes.store_changes(chunks, ["k"], kinds, files, f"{folder}/changes.arrow")
assert stored.rows == count, stored.rows
print(peak() - before)
"""
)

TASK = (
    COMMON
    + """
path = f"{folder}/mirror.parquet"
with pq.ParquetWriter(path, SCHEMA) as writer:
    for start in range(0, count, 1 << 17):
        numbers = pa.array(np.arange(start, min(start + (1 << 17), count), dtype=np.int64))
        old = pa.repeat(pa.scalar(-1, pa.int64()), len(numbers))
        writer.write_table(pa.Table.from_arrays([numbers, old, old], schema=SCHEMA), row_group_size=1 << 17)
before = peak()
target = Target(filesystem=files, folder=f"{folder}/data", uri="file:///data", schema=SCHEMA)
reader = FileReader(files, SCHEMA)
job = MergeJob(
    target=target, mirror=reader, raw=reader, keys=("k",), order=("at", "_slice"), changes=f"{folder}/changes.arrow"
)
raw = StoredFile(f"{folder}/raw.parquet", f"{folder}/raw.parquet", count)
result = merge_tasks.run_task(job, MergeTask(0, (StoredFile(path, path, count),), ((0, raw),)), "a")
assert result.written == count and len(result.matched[0].seen) == count
print(peak() - before)
"""
)


def peak_mib(code: str, folder: Path) -> int:
    """How far the process's peak is above what it had loaded."""
    run = [sys.executable, "-c", code, str(folder), str(CHANGES), str(CHUNK)]
    return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


def test_the_memory_of_a_merge_is_bounded(tmp_path: Path) -> None:
    driver = peak_mib(DRIVER, tmp_path)
    task = peak_mib(TASK, tmp_path)

    print(f"driver {driver} MiB, task {task} MiB")
    # About 100 to 150 MiB, and nearly 600 if the driver held all changes.
    assert driver < effort(250, soak=700)
    # All changes are in one file here, and the pages of the changes that are mapped into memory count too.
    assert task < effort(600, soak=2_800)
