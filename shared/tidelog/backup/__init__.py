"""Copies of topics outside of their cluster: backups in files, and mirrors in other clusters.

All of it rests on one idea: *a batch is copied to the offset that it has*. A log has no gap between batches, so a
copy that has reached an offset has everything below it, and where it goes on is written in the copy alone.

    saving      log -> files   batches as they are, with their hash chain: they can be checked without a cluster
    restoring   files -> log   each batch by conditional append, at its own offset or not at all
    mirroring   log -> log     the same, without an end

What a copy in a log cannot keep is what the source's servers wrote for themselves (``batches.py``).
"""
