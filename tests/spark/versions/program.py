"""What a version of PySpark can do with Tidelog.

``program.py GATEWAY TOPIC MASTER`` reads the topic, which has 100 records with the timestamps 1000 to 1099, and
writes to ``TOPIC-copies``. It prints, as JSON, what each read and write gave: a number, or the code of its error. A
master that begins with ``sc:`` is one of Spark Connect, whose server is started with the program."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import tidelog.spark
from tidelog.spark.errors import error_in
from tidelog.spark.progress import lag

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.python.filterPushdown.enabled": "true",
}


class Uses:
    """The reads and writes that are tried, each with the number that it gives."""

    def __init__(self, spark: Any, gateway: str, topic: str) -> None:
        self._spark = spark
        self._source = {"gateway": gateway, "subscribe": topic}
        self._sink = {"gateway": gateway, "topic": f"{topic}-copies"}

    def _read(self, **options: str) -> Any:
        return self._spark.read.format("tidelog").options(**self._source, **options).load()

    def batch_read(self) -> int:
        """The records that are read in several tasks."""
        return int(self._read(minPartitions="3").count())

    def filtered_read(self) -> int:
        """The records that are left by filters on time and offset."""
        late = self._read(filterPushdown="true").where("timestamp >= timestamp_millis(1050) and offset < 60")
        return int(late.count())

    def unknown_option(self) -> int:
        """None: it is an error."""
        return int(self._read(subscribes="x").count())

    def batch_write(self) -> int:
        """The records that are there after they were written."""
        rows = self._read().select("key", "value")
        rows.write.format("tidelog").options(**self._sink).mode("append").save()
        return self._copies()

    def _copies(self) -> int:
        """Count the records that were written."""
        copies = self._source | {"subscribe": self._sink["topic"]}
        return int(self._spark.read.format("tidelog").options(**copies).load().count())

    def stream_read(self) -> int:
        """The records of a stream."""
        stream = self._spark.readStream.format("tidelog").options(**self._source, startingOffsets="earliest")
        return self._run(stream.load().writeStream.format("noop"), {self._source["subscribe"]: {0: 0}})

    def stream_write(self) -> int:
        """The records that are there after a stream has written ten more."""
        folder = tempfile.mkdtemp()
        self._spark.range(10).selectExpr("CAST(id AS STRING) AS value").write.mode("overwrite").parquet(folder)
        stream = self._spark.readStream.schema("value STRING").parquet(folder)
        assert self._run(stream.writeStream.format("tidelog").options(**self._sink), {}) == 10
        return self._copies()

    def _run(self, stream: Any, left: dict[str, dict[int, int]]) -> int:
        """Run a stream to its end, where its lag is ``left``, and return the number of rows that it has read."""
        checkpoint = tempfile.mkdtemp()
        query = stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        assert lag(query) == left
        return sum(source["numInputRows"] for progress in query.recentProgress for source in progress["sources"])


def given(use: Callable[[], int]) -> int | str:
    """Return the number that a use gives, or the code of its error; an error that has none is raised."""
    try:
        return use()
    except Exception as error:
        found = error_in(error)
        if found is None:
            raise
        return found.code


def main(gateway: str, topic: str, master: str) -> None:
    builder = tidelog.spark.builder()
    builder = builder.remote(master.removeprefix("sc:")) if master.startswith("sc:") else builder.master(master)
    for name, value in QUIET.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    uses = Uses(spark, gateway, topic)
    tried = (
        uses.batch_read,
        uses.filtered_read,
        uses.unknown_option,
        uses.batch_write,
        uses.stream_read,
        uses.stream_write,
    )
    print(json.dumps({use.__name__: given(use) for use in tried}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
