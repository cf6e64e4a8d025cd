"""The process from which Spark forks the Python workers of a local master: `python -m lakehead.spark.workers`.

Spark puts its archives on the path of every worker and makes Python read their directories again before each task,
which takes longer than a small task. Everything in them is also installed here, so they are removed from the path. What
tasks need is imported before the first fork, so that no worker has to import it.
"""

import gc
import socket
import sys
from zipimport import zipimporter

sys.path[:] = [path for path in sys.path if not path.endswith((".jar", ".zip"))]
for _path in [path for path, importer in sys.path_importer_cache.items() if isinstance(importer, zipimporter)]:
    del sys.path_importer_cache[_path]  # these are read again, whether they are on the path or not
sys.modules.pop("org", None)  # Python's own pickle looks for Jython's, and has found Spark's: it would look there again

# After the path is changed; these imports are for the forked workers.
import pyarrow.parquet  # noqa: E402, F401 - see above
from pyspark import daemon  # noqa: E402 - see above

_work = daemon.worker


def work(connection: socket.socket, authenticated: bool) -> int:  # noqa: FBT001 - as PySpark calls it
    """Do the next task, or end silently if there will be none: PySpark's own function prints a traceback then."""
    try:
        ended = not connection.recv(1, socket.MSG_PEEK)
    except ConnectionError:
        ended = True
    return 1 if ended else _work(connection, authenticated)  # type: ignore[no-untyped-call] # PySpark leaves it so


if __name__ == "__main__":
    daemon.worker = work
    gc.freeze()  # workers collect garbage after each task; this excludes what was imported here
    daemon.manager()  # type: ignore[no-untyped-call] # as above
