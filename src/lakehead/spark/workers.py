"""The process from which Spark forks the Python workers of a local master: `python -m lakehead.spark.workers`.

Spark puts its archives on the path of every worker and makes Python read their directories again before each task,
which takes longer than a small task. They hold nothing that is not installed here too, so they are taken off the path.
What tasks need is loaded before the first fork, so that no worker has to load it.
"""

import gc
import sys
from zipimport import zipimporter

sys.path[:] = [path for path in sys.path if not path.endswith((".jar", ".zip"))]
for _path in [path for path, importer in sys.path_importer_cache.items() if isinstance(importer, zipimporter)]:
    del sys.path_importer_cache[_path]  # these are read again, whether they are on the path or not
sys.modules.pop("org", None)  # Python's own pickle looks for Jython's, and has found Spark's: it would look there again

# After the path is in order; each for the workers that are forked.
import pyarrow.parquet  # noqa: E402, F401 - see above
from pyspark.daemon import manager  # noqa: E402 - see above

if __name__ == "__main__":
    gc.freeze()  # a worker looks for garbage after each task; what was loaded here is none
    manager()  # type: ignore[no-untyped-call] # PySpark leaves it so
