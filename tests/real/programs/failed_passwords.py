"""The Spark job of ``test_main_job``: failed SSH passwords in a topic. Prints JSON."""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ["PYSPARK_PYTHON"] = sys.executable

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

ADDRESS = "183.62.140.253"


def main(gateway: str, topic: str) -> None:
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    rows = session.read.format("tidelog").option("gateway", gateway).option("subscribe", topic).load()
    rows = rows.withColumn("line", f.col("value").cast("string")).cache()
    failed = rows.where(f.col("line").contains("Failed password"))
    found = {
        "rows": rows.count(),
        "failed": failed.count(),
        "from": {ADDRESS: failed.where(f.col("line").contains(f"from {ADDRESS} ")).count()},
    }
    print(json.dumps(found))
    session.stop()


main(*sys.argv[1:])
