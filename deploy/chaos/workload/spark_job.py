"""The Spark program of a run, as a user would write it: it copies every record of the given topics to another topic,
exactly once. Each partition is copied to one of its own, and the key of a copy names its source. When the file
``finish`` appears in its folder, it copies what is left, and ends.

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
"""Spark's master: two tasks at a time; a task that fails is tried three times more."""
PAUSE = "1 second"
BATCH = 5000
"""Most records of a micro-batch, so that after an overload it takes several."""
LOOK_S = 0.5
"""Pause in seconds between two checks for the file ``finish``."""


def main(gateway: str, folder: str, target: str, places: list[tuple[str, int]], retained: bool) -> None:
    """Run the query until the file ``finish`` appears, then copy what is left and return. Raises the query's error if
    it fails. ``retained``: the sources keep all records, so that missing ones are an error."""
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
    """Return the column with the partition to which a row is copied: the index of its source among ``places``."""
    found: Any = f
    for index, (topic, partition) in enumerate(places):
        found = found.when((f.col("topic") == topic) & (f.col("partition") == partition), index)
    assert isinstance(found, Column)
    return found


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
