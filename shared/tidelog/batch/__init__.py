"""Batches of records: the format that goes over the wire and onto the disk unchanged.

Start at ``batch/format.py``: encoding, decoding, checks. ``body.py`` checks and compresses the body of a batch that
is written, and decompresses and decodes one that is read, with limits. ``sparse.py`` writes what compaction leaves,
``fingerprints.py`` compares batches that were compacted.
"""
