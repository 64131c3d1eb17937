"""Spark: ``spark.read.format("tidelog")``. Importing it is cheap; pyarrow and the client are loaded by the first
read.

``builder`` begins a session that finds Tidelog. The entry points are ``source.py`` (the class that Spark finds) with
``checkpoint_planner.py`` (streams: it plans the offsets of Spark's checkpoint) and ``sink.py``, and ``pipeline.py``,
which spark-submit runs. Programs import them by path, so they stay where they are. ``progress.py`` and ``errors.py``
read what Spark reports. ``read/`` and ``write/`` implement source and sink: what the driver plans, and what a task
does. ``pipelines/`` runs what a TOML file declares.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def builder(master: str = "") -> SparkSession.Builder:
    """Return PySpark's ``SparkSession.builder`` for a session whose processes find Tidelog, on ``master``, such as
    ``local[4]``, or "" if that is said later or elsewhere.

    Spark looks for data sources, plans and reads in Python processes of its own. It starts them as ``PYSPARK_PYTHON``
    says, or else as the ``python3`` of the PATH, which knows the packages of this program's environment only if that
    is activated. So this sets ``PYSPARK_PYTHON`` to this program's Python, unless it is set, or spark-submit has
    started the program and Java already. For a ``master`` on this machine it is a script, with which this Python
    starts faster (``worker_python``). Call it before the first session is made: Java keeps the environment that it
    was started with. Raises ``ImportError`` without PySpark."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        from tidelog.extras import install_hint

        raise ImportError(f"tidelog.spark.builder needs PySpark: {install_hint('spark')}") from error
    from tidelog.spark.worker_python import worker_python

    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", worker_python(master))
    return SparkSession.builder.master(master) if master else SparkSession.builder
