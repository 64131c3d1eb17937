"""The Spark session of a pipeline."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

from tidelog.errors import ConfigError
from tidelog.extras import install_hint
from tidelog.spark.pipelines.declaration import Pipeline
from tidelog.spark.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UTC = {"spark.sql.session.timeZone": "UTC"}
"""Settings by which a pipeline means the same on every machine. The pipeline's own settings override them."""
QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
"""Settings of a session that was not started by spark-submit. The pipeline's own settings override them."""


CHEAP = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "spark.log.level": "OFF"}
"""Settings of a session that lives for seconds. They halve the CPU of its start."""


@contextmanager
def short_session(pipeline: Pipeline, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Within, there is a Spark session on one core of this machine, with ``settings``. What Java and Spark write to
    stderr is not shown, unless the session cannot be made. Raises ``ConfigError`` as ``session`` does, and if Java
    cannot start Spark."""
    with TemporaryFile() as log:
        with _stderr_to(log):
            try:
                spark = session(
                    replace(pipeline, name=pipeline.name or "check", spark={**CHEAP, **settings}), "local[1]"
                )
            except (RuntimeError, OSError) as error:
                log.seek(0)
                said = log.read()[-2000:].decode(errors="replace").strip()
                raise ConfigError(f"Java cannot start Spark: {error}\n{said}") from None
        try:
            yield spark
        finally:
            with _stderr_to(log):
                spark.stop()


def settings_of_sql(pipeline: Pipeline) -> dict[str, str]:
    """Return those settings of a pipeline's session that concern its SQL, but for those that name classes, whose JARs
    may not be there."""
    classes = ("spark.sql.catalog", "spark.sql.extensions", "spark.sql.streaming.streamingQueryListener")
    return {
        name: value
        for name, value in pipeline.spark.items()
        if name.startswith("spark.sql.") and not name.startswith(classes)
    }


@contextmanager
def _stderr_to(log: IO[bytes]) -> Iterator[None]:
    """Send what this process and those that it starts write to stderr to a file. Processes keep to it."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def session(pipeline: Pipeline, master: str) -> SparkSession:
    """Return the running Spark session, or a new one on ``master`` ("": this machine, all cores) with the pipeline's
    settings and, outside of spark-submit, little logging. Under spark-submit the master is that of spark-submit. Sets
    ``PYSPARK_PYTHON`` and, for a local master, ``SPARK_LOCAL_IP`` in the environment if they are not set. Raises
    ``ConfigError`` if Spark or Java is not installed, or if ``master`` is given under spark-submit."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"Spark is not installed: {install_hint('spark')}")
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise ConfigError("Spark needs Java 17, which is not installed: apt-get install openjdk-17-jre-headless")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(pipeline.name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted and master:
        raise ConfigError(f"spark-submit sets the master: spark-submit --master {master} …")
    if not submitted:
        master = master or "local[*]"
        builder = builder.master(master)
    os.environ.setdefault("PYSPARK_PYTHON", worker_python(master))
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in {**UTC, **({} if submitted else QUIET), **pipeline.spark}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
