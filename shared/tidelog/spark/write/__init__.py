"""Writing: what a task of a sink sends.

The way in is ``task.py``: a task takes rows (``task_input.py`` says whether they are all there), encodes them
(``row_encoder.py``) and sends them under numbers that a second attempt repeats. ``log_copies.py`` finds what an
earlier attempt has written already. ``options.py`` has the options of a write. The sink imports it.
"""
