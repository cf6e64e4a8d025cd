"""`lakehead` as a process of its own, without the second that Python takes to import it.

The process is forked from one that has imported everything; what it reads, prints and ends with is its own. Each
command has at least one test that starts it as people do.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

# What commands load when they need it.
import lakehead.lake.iceberg_table
import lakehead.maintain.rebuild
import lakehead.maintain.sweep
import lakehead.run.ingestion  # noqa: F401 - see above
from lakehead.run.main import command
from tests.support.costs import Mechanism, spent_on
from tests.support.forks import FORKS

SECONDS = 200


def lakehead_command(
    *arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run `lakehead` with these arguments and variables to its end."""
    words = [str(argument) for argument in arguments]
    with TemporaryDirectory() as folder, spent_on(Mechanism.COMMAND):
        out, err = Path(folder) / "out", Path(folder) / "err"
        process = FORKS.Process(target=_run, args=(words, cwd, dict(env or {}), out, err), daemon=True)
        process.start()
        try:
            process.join(SECONDS)
            assert process.exitcode is not None, f"lakehead {words} does not end"
            code = process.exitcode
        finally:
            process.kill()
            process.join()
            process.close()
        return subprocess.CompletedProcess(["lakehead", *words], code, out.read_text(), err.read_text())


def _run(words: list[str], cwd: Path | None, env: Mapping[str, str], out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if cwd is not None:
        os.chdir(cwd)
    os.environ.update(env)
    sys.argv = ["lakehead", *words]
    command()
