"""Tables of Parquet files that a batch job appends to exactly once: Iceberg, Delta, and Parquet with a manifest.

The way in is ``tables.py``: ``open_table`` returns the table that options describe. ``commit_protocol.py`` is the
core: the rules by which numbered batches are committed. It is pure, and ``committer.py`` carries it out. Each of
``iceberg.py``, ``delta.py`` and ``manifest.py`` is a table of one format: it keeps the marker of an application, and
replaces it in one step together with the list of the table's files. ``file_writer.py`` is what a task does: it writes
rows to Parquet files that no reader knows yet. ``upsert.py`` is for rows that replace others. ``columns.py`` has the
rule for changes of the schema, and the partition fields; ``compaction.py`` chooses small files to join;
``storage.py`` reaches folders on disks and in object stores.

Invariants, which ``tests/model/test_table_commits.py`` checks with drivers that stop, come back and lose answers:

- T1: the files of one attempt at each batch are in the table, once, and of no other attempt.
- T2: the batches of an application become visible in the order of their numbers.
- T3: a file that is in the table exists.

Nothing here knows Spark. The sink of Spark, pipelines and the command ``tidelog table`` import this room.
"""
