"""The demo's Spark job, run as a program of its own: ``python -m tidelog.cli.demo.spark_job GATEWAY TOPIC``.
Prints one JSON object: rows, rows per partition, and the values or keys seen most."""

from __future__ import annotations

import json
import os
import sys


def main(gateway: str, topic: str) -> None:
    """Count the topic in Spark."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("tidelog-demo")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    rows = session.read.format("tidelog").option("gateway", gateway).option("subscribe", topic).load().cache()
    partitions = rows.groupBy("partition").agg(f.count("*").alias("rows"), f.max("offset").alias("last")).collect()
    group = f.coalesce(f.col("key").cast("string"), f.regexp_extract(f.col("value").cast("string"), r"(\w+)\[", 1))
    top = rows.groupBy(group.alias("group")).count().orderBy(f.desc("count"), "group").limit(5).collect()
    result = {
        "rows": sum(row["rows"] for row in partitions),
        "partitions": {str(row["partition"]): [row["rows"], row["last"]] for row in partitions},
        "top": [[row["group"] or "(other)", row["count"]] for row in top],
    }
    print(json.dumps(result))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
