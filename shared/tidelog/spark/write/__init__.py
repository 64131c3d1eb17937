"""Writing: what a task of a sink sends.

The entry point is ``task.py``. A task takes rows (``task_input.py`` checks that they are complete), encodes them
(``row_encoder.py``) and delivers the batches under sequences that a second attempt repeats (``delivery.py``, which
also finds what an earlier attempt has written already). ``options.py`` has the options of a write. The sink imports
it.
"""
