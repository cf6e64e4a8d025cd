"""What is told of tasks that failed: their cause, whoever wrote it down and whatever stands around it."""

import pytest

from lakehead.lake.stagers import task_reason

IN_JAVA = """An error occurred while calling o269.parquet.
: org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/lake/out
\tat org.apache.hadoop.fs.RawLocalFileSystem.mkdirs(RawLocalFileSystem.java:873)
\tat java.base/java.lang.Thread.run(Thread.java:840)
\tSuppressed: org.apache.spark.util.Utils$OriginalTryStackTraceException: Full stacktrace of original caller
\t\tat org.apache.spark.util.Utils$.doTryWithCallerStacktrace(Utils.scala:1430)
\t\t... 13 more
"""

CAUSED = """An error occurred while calling o269.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/lake/out.
\tat org.apache.spark.sql.Errors.taskFailed(Errors.scala:1)
\tSuppressed: java.lang.RuntimeException: closing failed too
\t\tat a.b.C.close(C.java:1)
\tCaused by: java.io.IOException: of what was suppressed
\t\t... 3 more
Caused by: java.io.FileNotFoundException: /lake/out/part-0 (Permission denied)
\tat java.base/java.io.FileOutputStream.open0(Native Method)
\t... 22 more
"""

IN_PYTHON = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/tasks.py", line 43, in write_parts
    files.write(batch)
lakehead.errors.Unavailable: The source is gone.

\tat org.apache.spark.api.python.BasePythonRunner.run(PythonRunner.scala:1)
Caused by: java.io.EOFException
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (IN_JAVA, "org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/lake/out"),
        (CAUSED, "java.io.FileNotFoundException: /lake/out/part-0 (Permission denied)"),
        (IN_PYTHON, "The source is gone"),
        ("", "RuntimeError"),
    ],
    ids=["in Java", "with a cause", "in Python", "without a word"],
)
def test_the_cause_of_failed_tasks_is_told(said: str, reason: str) -> None:
    assert task_reason(RuntimeError(said)) == reason
