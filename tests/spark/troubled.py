"""A step of the pipeline of ``test_kills``: rows pass it, and trouble waits for some of their values.

``trouble``, beside the pipeline, has lines ``value attempt what``: the task attempt of that number that comes to that
value says so (``met-value-attempt``, with its process id) and stays there (``stay``), or fails (``fail``)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import functions as f


def passed(spark: Any) -> Any:
    """The table ``source``."""
    folder = Path(__file__).parent
    told = [line.split() for line in (folder / "trouble").read_text().splitlines()]
    troubles = {(value.encode(), int(attempt)): what for value, attempt, what in told}

    def passed(value: bytes) -> bytes:
        what = troubles.get((value, TaskContext.get().attemptNumber()))
        if what is not None:
            met = folder / f"met-{value.decode()}-{TaskContext.get().attemptNumber()}"
            (folder / "new").write_text(str(os.getpid()))
            (folder / "new").rename(met)
            if what == "fail":
                raise RuntimeError("trouble")
            time.sleep(600)
        return value

    value = f.udf(passed, "binary", useArrow=False)("value").alias("value")
    return spark.table("source").select("key", value, "partition")
