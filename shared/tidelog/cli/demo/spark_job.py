"""The demo's Spark job, a program of its own: ``python -m tidelog.cli.demo.spark_job PIPELINE GATEWAY FOLDER``. It
runs the pipeline beside this file, and prints one JSON object: the number of rows, rows and last offset per
partition, and the most frequent values."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tidelog.spark.pipelines.run import Run, load
from tidelog.spark.pipelines.session import session


def main(pipeline: str, gateway: str, folder: str) -> None:
    """Run the pipeline declared in the file ``pipeline`` beside this one, against ``gateway``, with its outputs below
    ``folder``. Prints the counts of the rows that it wrote as one JSON object on stdout."""
    from pyspark.sql import functions as f

    declared = load(Path(__file__).with_name(pipeline))
    spark = session(declared, "local[2]")
    run = Run(declared, spark, Path(folder).resolve(), gateway)
    run.finish(run.start())
    rows = spark.read.parquet(f"{folder}/rows").cache()
    partitions = rows.groupBy("partition").agg(f.count("*").alias("rows"), f.max("offset").alias("last")).collect()
    top = rows.groupBy("what").count().orderBy(f.desc("count"), "what").limit(5).collect()
    result = {
        "rows": sum(row["rows"] for row in partitions),
        "partitions": {str(row["partition"]): [row["rows"], row["last"]] for row in partitions},
        "top": [[row["what"] or "(other)", row["count"]] for row in top],
    }
    print(json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
