"""Spark: ``spark.read.format("tidelog")``. Importing it is cheap; pyarrow and the client come with the first read."""
