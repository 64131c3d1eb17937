"""The Spark program of a run, as a user would write it: every record of the topics that it is told, to another topic,
exactly once. Each partition is copied to one of its own, and the key of a copy says what it is a copy of. When the
file ``finish`` appears in its folder, it comes to the end of what there is, and ends.

    python spark_job.py '{"gateway": …, "folder": …, "target": …, "places": [["records", 0], …], "retained": true}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
MASTER = "local[2,4]"
"""Two tasks at a time; one that fails is tried three times more."""
PAUSE = "1 second"
BATCH = 5000
"""Records of a micro-batch at most: after an overload they come one after the other."""
LOOK_S = 0.5


def main(gateway: str, folder: str, target: str, places: list[tuple[str, int]], retained: bool) -> None:
    """Until it is to finish, or a query fails."""
    builder = SparkSession.builder.master(MASTER).appName("chaos")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    rows = (
        session.readStream.format("tidelog")
        .option("gateway", gateway)
        .option("subscribe", ",".join(sorted({topic for topic, _ in places})))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH)
        .option("failOnDataLoss", str(retained).lower())
        .load()
    )
    query = (
        rows.select(
            f.concat_ws("/", "topic", "partition", "offset").cast("binary").alias("key"),
            "value",
            _target_partition(places).alias("partition"),
        )
        .writeStream.format("tidelog")
        .option("gateway", gateway)
        .option("topic", target)
        .option("delivery", "exactly-once")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(processingTime=PAUSE)
        .start()
    )
    while not Path(folder, "finish").exists():
        query.awaitTermination(LOOK_S)
    query.processAllAvailable()
    query.stop()
    session.stop()


def _target_partition(places: list[tuple[str, int]]) -> Column:
    """The index of where a row is from."""
    found: Any = f
    for index, (topic, partition) in enumerate(places):
        found = found.when((f.col("topic") == topic) & (f.col("partition") == partition), index)
    assert isinstance(found, Column)
    return found


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
