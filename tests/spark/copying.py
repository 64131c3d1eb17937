"""The query of ``test_kills``, a program of its own, so that it can be killed: ``copying.py GATEWAY FOLDER``.

It copies the topic ``from`` to ``to``, a thousand records a batch. Where ``FOLDER/trouble`` says ``block``, the task
that comes to the record 1501 says so (``FOLDER/blocked``) and stays there; where it says ``fail``, its first attempt
fails."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

PLACE = b"1501"


def main(gateway: str, folder: Path) -> None:
    """Run it to the end of what there is."""

    def troubled(value: bytes) -> bytes:
        if value == PLACE:
            trouble = (folder / "trouble").read_text()
            if trouble == "block":
                (folder / "blocked").touch()
                time.sleep(600)
            if trouble == "fail" and TaskContext.get().attemptNumber() == 0:
                raise RuntimeError("trouble")
        return value

    spark = (
        SparkSession.builder.master("local[2,3]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "OFF")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    reading = spark.readStream.format("tidelog").options(
        gateway=gateway, subscribe="from", startingOffsets="earliest", maxOffsetsPerTrigger="1000"
    )
    rows = reading.load().select("key", f.udf(troubled, "binary")("value").alias("value"), "partition")
    writing = rows.writeStream.format("tidelog").options(gateway=gateway, topic="to")
    query = writing.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
