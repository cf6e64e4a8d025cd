"""One table by dlt and ConnectorX into Iceberg: `python dlt_load.py URL TABLE FOLDER`, in an environment that has dlt.

The last line that it prints tells the seconds of dlt's own steps.
"""

import json
import sys

import dlt  # type: ignore[import-not-found]  # only its own environment has it
from dlt.destinations import filesystem  # type: ignore[import-not-found]  # as above
from dlt.sources.sql_database import sql_table  # type: ignore[import-not-found]  # as above


def main() -> None:
    url, table, folder = sys.argv[1:]
    rows = sql_table(
        credentials=url.replace("postgresql://", "postgresql+psycopg2://", 1),
        table=table,
        schema="public",
        backend="connectorx",
        reflection_level="full_with_precision",
    )
    pipeline = dlt.pipeline(
        "bench",
        pipelines_dir=f"{folder}/pipelines",
        destination=filesystem(f"file://{folder}/lake"),
        dataset_name="shop",
    )
    pipeline.run(rows, write_disposition="replace", table_format="iceberg", loader_file_format="parquet")
    steps = [step for step in pipeline.last_trace.steps if step.step == "run"]
    print(json.dumps({"seconds": sum((step.finished_at - step.started_at).total_seconds() for step in steps)}))


if __name__ == "__main__":
    main()
