"""A streaming query as a user would write it: it appends a topic to a table of Parquet files, and shows its position
in a consumer group. It ends with its standard input.

    python spark_query.py GATEWAY TOPIC GROUP FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import tidelog.spark

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from chaos.workload.spark_job import SETTINGS


def main(gateway: str, topic: str, group: str, folder: str) -> None:
    """Run the query until standard input is closed."""
    builder = tidelog.spark.builder("local[1]").appName("incident")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    rows = session.readStream.format("tidelog").option("gateway", gateway).option("subscribe", topic)
    rows = rows.option("startingOffsets", "latest").option("groupId", group)
    table = rows.load().select("offset", "value").writeStream.format("parquet")
    table = table.option("path", f"{folder}/table").option("checkpointLocation", f"{folder}/checkpoint")
    query = table.trigger(processingTime="1 second").start()
    sys.stdin.read()
    query.stop()
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
