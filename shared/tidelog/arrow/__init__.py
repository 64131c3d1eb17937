"""Arrow: batches of the log as record batches of pyarrow, for readers that compute with columns.

Needs pyarrow, so nothing imports this room at the top of a module. ``rows.py`` collects log batches and makes record
batches of them.
"""
