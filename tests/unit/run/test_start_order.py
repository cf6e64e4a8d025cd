"""What is loaded before the JVM starts: little, because a run waits for it."""

import subprocess
import sys

import pytest

LOADED = """
import sys
from lakehead.run import main, run_command
from lakehead.run.config import config_file
from lakehead.run import resolved_config, spark_startup
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"pyspark", "py4j", "pyiceberg", "pyarrow", "numpy"}))
"""


@pytest.mark.slow
def test_a_run_starts_its_jvm_before_it_loads_spark_or_iceberg() -> None:
    loaded = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, timeout=60)

    assert loaded.stdout.split() == []
