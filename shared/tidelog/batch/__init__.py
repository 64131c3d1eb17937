"""Batches of records: the format that goes over the wire and onto the disk unchanged.

Start at ``batch/format.py``: encoding, decoding, checks. ``body.py`` decodes the body of a batch with limits,
``sparse.py`` writes what compaction leaves, ``fingerprints.py`` compares batches that were compacted.
"""
