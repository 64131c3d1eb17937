"""Spark: ``spark.read.format("tidelog")``. Importing it is cheap; pyarrow and the client come with the first read.

The ways in are ``source.py`` (the class that Spark finds) with ``micro_batches.py`` (streams) and ``sink.py``, and
``pipeline.py``, which runs what a TOML file declares (``declaration.py``). These stay where they are: programs
import them by path. ``read/`` and ``write/`` have what is behind source and sink: what the driver plans, and what a
task does.
"""
