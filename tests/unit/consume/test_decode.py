"""What tasks load to decode objects."""

import subprocess
import sys

import pytest

from lakehead.consume.decode.decode import DECODERS
from lakehead.consume.decode.rows import FormatName


def test_every_format_has_a_decoder() -> None:
    assert set(DECODERS) == set(FormatName)


@pytest.mark.slow
@pytest.mark.timeout(60)  # a process of its own, on a machine that may be busy
def test_tasks_load_neither_spark_nor_a_catalog_nor_pandas() -> None:
    """Rows that are read one by one, as those of small objects, let PyArrow load pandas: once for each worker."""
    program = (
        "import sys, pyarrow as pa\n"
        "from lakehead.consume.decode.decode import read_object\n"
        "from lakehead.consume.decode.rows import FormatName, ObjectFormat, ReadReport\n"
        "form = ObjectFormat(name=FormatName.NDJSON)\n"
        "rows = pa.BufferReader(b'{\"a\":1}\\n' * 1000)\n"
        "list(read_object(rows, form, pa.schema([('a', pa.int64())]), ReadReport()))\n"
        "print(sorted({'pyspark', 'pyiceberg', 'pandas'} & set(sys.modules)))\n"
    )

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ran.stdout == "[]\n"
