"""Copies of topics outside of their cluster: backups in files, mirrors in other clusters, and imports from Kafka.

All of it rests on one idea: *a batch is copied to the offset that it has*. A log has no gap between batches, so a
copy that has reached an offset has everything below it, and the end of the copy is the position at which to continue.

    save.py      log -> files   batches unchanged, with their hash chain: they can be checked without a cluster
    restore.py   files -> log   each batch by conditional append, at its own offset or not at all
    mirror.py    log -> log     like a restoration, without an end
    kafka/       Kafka -> log   records instead of batches, at the offsets that they have in Kafka

A copy in a log cannot keep what the source's servers wrote for themselves (``batches.py``).
"""
