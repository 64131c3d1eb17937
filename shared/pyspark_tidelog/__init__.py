"""Found by Spark through its name: makes ``spark.read.format("tidelog")`` work without registration."""

from tidelog.spark.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
