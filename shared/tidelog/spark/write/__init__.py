"""Writing: what a task of a sink sends.

The entry point is ``task.py``. A task takes rows (``task_input.py`` checks that they are complete), encodes them
(``row_encoder.py``, with the partitions of keys from ``key_hashes.py``) and delivers the batches under sequences
that a second attempt repeats (``delivery.py``, which also finds what an earlier attempt has written already). A task
with a transaction renews it meanwhile (``renewal.py``). ``options.py`` has the options of a write, ``columns.py`` the
columns that it takes, ``task_data.py`` the small objects that the others pass around. The sink imports it.
"""
