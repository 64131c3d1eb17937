"""Streams (``docs/streams.md``): many short ordered logs in the partitions of ``__streams``."""
