"""Spark: ``spark.read.format("tidelog")``. Importing it is cheap; pyarrow and the client are loaded by the first
read.

The entry points are ``source.py`` (the class that Spark finds) with ``checkpoint_planner.py`` (streams: it plans the
offsets of Spark's checkpoint) and ``sink.py``, and ``pipeline.py``, which runs what a TOML file declares
(``declaration.py``). Programs import them by path, so they stay where they are. ``read/`` and ``write/`` implement
source and sink: what the driver plans, and what a task does.
"""
