"""The log of one partition on one disk: segments, their indexes, recovery. Synchronous, over the ``Disk`` seam.

Start at ``storage/log.py``: ``Log`` appends, flushes (``flush.py``) and truncates; it has a ``SegmentList``
(``segment_list.py``), which reads. ``segment.py`` is one file with its indexes (``index.py``); ``segment_reader.py``
reads it, ``tail_cache.py`` keeps the log's end in memory. ``producer_snapshots.py`` stores the state of producers
beside it, ``checkpoints.py`` the offsets that outlive a crash. ``retention.py`` and ``compaction.py`` each have a
pure rule, which says what may go, and the job that does it in a thread. ``open_files.py`` bounds the open files.
``recovery`` and ``encryption`` are rooms of their own. Keeps R7, R8 and R10 of ``docs/invariants.md``.
"""
